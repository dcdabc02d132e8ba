"""Finds SGLang here: the configured environments of engines.yaml, then one that runs beside llmserve.

An installation's own parser is asked once, in its own interpreter (`dump_flags.py`), and remembered until the
interpreter, what is installed beside it, or what devices the machine shows change.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import folders
from orchestrator.engines import interpreter
from orchestrator.engines.base import Installation
from orchestrator.engines.sglang.captured import CPU_ENV, KIND, deprecated, extras, flags
from orchestrator.errors import LlmserveError, refused

PROGRAM = "sglang"
SCRIPT = Path(__file__).with_name("dump_flags.py")
MODULE = ("-m", "sglang.launch_server")
"""`sglang serve`, which 0.5.23 recommends, runs the same server with the same parser after guessing the kind
of model (sglang/cli/serve.py), and 0.5.4 has no such command: the module serves in every version."""

_FORMAT = 2
_DISTRIBUTIONS = ("sglang-*.dist-info", "sgl_kernel-*.dist-info", "sglang_kernel-*.dist-info")
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri")
_OWN = "the SGLang beside llmserve"


def installations(configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> list[Installation]:
    """Every SGLang that can be asked for, best first.

    One that is installed beside llmserve is among them where it cannot be used too: with `broken` and
    `remedy` in its `extras`, so that a plan for it is refused with the reason. Raises LlmserveError where a
    configured entry is broken.
    """
    found = survey(configured, env)
    for i in found:
        if i.extras.get("broken") and i.name in configured:
            raise refused("engine_broken", i.extras["broken"], i.extras["remedy"])
    return found


def survey(configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> list[Installation]:
    """As `installations`, with everything that is broken among them. Raises nothing."""
    found: list[Installation] = []
    seen: set[str] = set()
    for name, entry in configured.items():
        asked_by = f"engine {name!r} in engines.yaml"
        remedy = f"correct `path` of {name} in {folders.config_dir() / 'engines.yaml'}, or remove the entry"
        try:
            python = interpreter.find(_path(entry), asked_by, PROGRAM).python
            seen.add(str(python))
            found.append(probe(name, python, env, asked_by, entry.get("env") or {}))
        except LlmserveError as e:
            found.append(_unusable(name, str(_path(entry)), e, remedy))
    beside = importlib.util.find_spec("sglang")
    if beside is not None and beside.origin is not None and sys.executable not in seen:
        name = _free(KIND, {i.name for i in found})
        try:
            found.append(probe(name, Path(sys.executable), env, _OWN, {}))
        except LlmserveError as e:
            found.append(_unusable(name, sys.executable, e, _REINSTALL))
    return [_with_another(i, found) for i in found]


_REINSTALL = "reinstall it: pip install --force-reinstall sglang; or remove it: pip uninstall sglang"


def probe(
    name: str,
    python: Path,
    env: Mapping[str, str],
    asked_by: str,
    own_env: Mapping[str, str],
    *,
    fresh: bool = False,
) -> Installation:
    """Ask the SGLang of one interpreter; `own_env` is its entry's in engines.yaml.

    `fresh` asks again where the answer is remembered. Raises LlmserveError where there is none or it cannot
    be imported.
    """
    added = {str(k): str(v) for k, v in own_env.items()}
    told = None if fresh else interpreter.remembered(KIND, _key(python, added))
    if told is None or not _is_whole(told):
        # a variable of the moment may not decide what is remembered
        kept = {k: v for k, v in env.items() if not k.startswith(("SGLANG_", "CUDA_VISIBLE"))}
        try:
            told = interpreter.ask(python, SCRIPT, {**kept, **QUIET, **added})
        except interpreter.Unanswered as e:
            told = interpreter.no_answer(str(e))
        if not _is_whole(told):
            told = interpreter.no_answer(interpreter.lacking(told, _ANSWERED))
        # what the imports wrote (bytecode) is part of the key
        interpreter.remember(KIND, _key(python, added), told)
    interpreter.require_answer(told, asked_by, python, SCRIPT)
    if "error" in told:
        raise _failed(python, asked_by, str(told.get("kind")), str(told["error"]))
    listed = flags(told["flags"])
    if not any("--model-path" in f.spellings for f in listed):
        raise interpreter.broken(asked_by, python, "its parser lists no --model-path, so it is no SGLang")
    version = str(told["version"])
    shown = extras(told | {"flags": listed, "deprecated": deprecated(told["flags"])}, version)
    return Installation(
        name=name,
        kind=KIND,
        version=version,
        argv=(str(python), *MODULE),
        flags=listed,
        env={**(CPU_ENV if told["device"] == "cpu" else {}), **added},
        extras={**shown, "python": str(python), "path": str(python.parent.parent)},
    )


def _path(entry: Mapping[str, Any]) -> Any:
    return entry.get("python") or entry.get("path")


def _key(python: Path, own_env: Mapping[str, str]) -> list[Any]:
    files = interpreter.fingerprint(python, "sglang", _DISTRIBUTIONS, SCRIPT)
    return [_FORMAT, files, own_env, [os.path.exists(p) for p in _DEVICE_FILES]]


_ANSWERED = ("version", "device", "distribution", "dependencies", "spec_methods", "flags")


def _is_whole(told: Mapping[str, Any]) -> bool:
    """Whether it is an answer: a reason, or a table with all that is read of it."""
    if "error" in told:
        return True
    try:
        flags(told["flags"])
        dict(told["dependencies"])
        list(told["spec_methods"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return all(isinstance(told.get(k), str) for k in ("version", "device", "distribution"))


def _failed(python: Path, asked_by: str, kind: str, said: str) -> LlmserveError:
    """What the import of SGLang said, in a line, and what to do about it."""
    line = " ".join(said.split())[:300]
    if kind == "ModuleNotFoundError" and line in ("No module named 'sglang'", "No module named 'torch'"):
        error = interpreter.broken(asked_by, python, "no SGLang is installed there")
        error.remedy = (
            "llmserve engines install sglang, which needs an NVIDIA GPU; without one: "
            "llmserve engines install vllm"
        )
        return error
    error = interpreter.broken(asked_by, python, f"SGLang cannot be imported: {kind}: {line}")
    check = f"{python} -c 'import sglang.srt.server_args'"
    error.remedy = f"mend that environment; `{check}` shows the whole failure"
    return error


_COMMON_REMEDY = interpreter.broken("", "", "").remedy


def _unusable(name: str, path: str, error: LlmserveError, remedy: str) -> Installation:
    """A broken one with its error's own remedy, where that says more than where to look."""
    own = error.remedy if error.remedy not in ("", _COMMON_REMEDY) else remedy
    extras = {"broken": error.message, "remedy": own, "path": path}
    return Installation(name, KIND, "", (path, *MODULE), (), extras=extras)


def _with_another(i: Installation, found: Sequence[Installation]) -> Installation:
    """A broken one's remedy also names a working one that can be asked for instead."""
    working = next((other.name for other in found if not other.extras.get("broken")), None)
    if not i.extras.get("broken") or working is None:
        return i
    return replace(i, extras=i.extras | {"remedy": f"{i.extras['remedy']}; or choose --engine {working}"})


def _free(name: str, taken: set[str]) -> str:
    return name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}-{i}") not in taken)
