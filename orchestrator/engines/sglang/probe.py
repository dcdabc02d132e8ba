"""Finds SGLang here: the configured environments of engines.yaml, then one that runs beside llmserve.

An installation's own parser is asked once, in its own interpreter (`dump_flags.py`), and remembered until the
interpreter, what is installed beside it, or what devices the machine shows change.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import folders
from orchestrator.engines.base import Installation
from orchestrator.engines.sglang.captured import CPU_ENV, KIND, deprecated, extras, flags
from orchestrator.errors import LlmserveError, refused

MODULE = ("-m", "sglang.launch_server")
"""`sglang serve`, which 0.5.23 recommends, runs the same server with the same parser after guessing the kind
of model (sglang/cli/serve.py), and 0.5.4 has no such command: the module serves in every version."""

_FORMAT = 1
_ASK = Path(__file__).with_name("dump_flags.py")
# nearly all of it is importing torch, which a cold disk makes long
_TIME_LIMIT_S = 180.0
_OUTPUT_LIMIT_BYTES = 4 << 20
_PYTHONS = ("bin/python", "bin/python3")
_PACKAGES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/dist-packages")
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
            python = _python(entry, asked_by)
            seen.add(str(python))
            found.append(probe(name, python, env, asked_by, entry.get("env") or {}))
        except LlmserveError as e:
            shown = str(entry.get("python") or entry.get("path"))
            found.append(_unusable(name, shown, e.message, e.remedy or remedy))
    beside = importlib.util.find_spec("sglang")
    if beside is not None and beside.origin is not None and sys.executable not in seen:
        name = _free(KIND, {i.name for i in found})
        try:
            found.append(probe(name, Path(sys.executable), env, _OWN, {}))
        except LlmserveError as e:
            found.append(_unusable(name, sys.executable, e.message, e.remedy or _REINSTALL))
    return [_with_another(i, found) for i in found]


_REINSTALL = "reinstall it: pip install --force-reinstall sglang; or remove it: pip uninstall sglang"


def probe(
    name: str, python: Path, env: Mapping[str, str], asked_by: str, own_env: Mapping[str, str]
) -> Installation:
    """Ask the SGLang of one interpreter; `own_env` is its entry's in engines.yaml.

    Raises LlmserveError where there is none or it cannot be imported; its remedy is "" where only the path
    can be wrong.
    """
    told = _cached(_key(python, own_env))
    if told is None:
        told = _ask(python, env, own_env, asked_by)
        # what the imports wrote (bytecode) is part of the key
        _remember(_key(python, own_env), told)
    device = told["device"]
    shown = extras(
        told | {"flags": flags(told["flags"]), "deprecated": deprecated(told["flags"])}, told["version"]
    )
    return Installation(
        name=name,
        kind=KIND,
        version=told["version"],
        argv=(str(python), *MODULE),
        flags=flags(told["flags"]),
        env={**(CPU_ENV if device == "cpu" else {}), **own_env},
        extras={**shown, "python": str(python), "path": str(python.parent.parent)},
    )


def _python(entry: Mapping[str, Any], asked_by: str) -> Path:
    """The interpreter that an entry's `python`, or its `path` (an environment's folder), means.

    Not resolved: an environment's interpreter is a link, and only by its own name finds what is beside it.
    """
    given = entry.get("python") or entry.get("path")
    if not isinstance(given, str) or not given:
        raise refused(
            "engine_path",
            f"{asked_by} has no `path`",
            "set `path` to the folder of the Python environment that holds SGLang",
        )
    path = Path(given).expanduser().absolute()
    candidates = [path / part for part in _PYTHONS] if path.is_dir() else [path]
    python = next((p for p in candidates if p.is_file()), None)
    if python is None:
        what = "no bin/python lies in that folder" if path.is_dir() else "there is no such file or folder"
        raise _broken(asked_by, path, what)
    if not os.access(python, os.X_OK):
        raise _broken(asked_by, python, "the file is not executable")
    return python


def _ask(python: Path, env: Mapping[str, str], own_env: Mapping[str, str], asked_by: str) -> dict[str, Any]:
    """`dump_flags.py`'s object, asked in a child whose output and time are bounded."""
    # neither llmserve's own modules nor a variable of the moment may decide what is remembered
    clean = {k: v for k, v in env.items() if not k.startswith(("PYTHON", "SGLANG_", "CUDA_VISIBLE"))}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                [str(python), str(_ASK)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=clean | dict(own_env),
                start_new_session=True,
            )
        except OSError as e:
            raise _broken(asked_by, python, e.strerror or str(e)) from None
        try:
            code = child.wait(_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            what = f"it did not say its flags within {_TIME_LIMIT_S:g} s"
            raise _broken(asked_by, python, what) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read(_OUTPUT_LIMIT_BYTES).decode("utf-8", "replace"))
    if code != 0:
        last = (texts[1].strip() or texts[0].strip()).splitlines()[-1:] or ["it said nothing"]
        raise _broken(asked_by, python, f"asking for its flags ended with {code}: {last[0][:300]}")
    try:
        told = json.loads(texts[0])
        if "error" in told:
            raise _failed(python, asked_by, str(told["kind"]), str(told["error"]))
        return _checked(told)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _broken(asked_by, python, "its list of flags cannot be read") from None


def _failed(python: Path, asked_by: str, kind: str, error: str) -> LlmserveError:
    """What the import of SGLang said, in a line, and what to do about it."""
    first = error.strip().splitlines()[0][:300]
    pip = f"{python} -m pip install"
    if kind == "ModuleNotFoundError" and first in ("No module named 'sglang'", "No module named 'torch'"):
        return _broken(
            asked_by, python, "no SGLang is installed there", f"install it: {pip} 'sglang>=0.5,<0.6'"
        )
    remedy = f"mend that environment; `{python} -c 'import sglang.srt.server_args'` shows the whole failure"
    return _broken(asked_by, python, f"SGLang cannot be imported: {kind}: {first}", remedy)


def _checked(told: Any) -> dict[str, Any]:
    """The object with its types made sure of. Raises ValueError, KeyError, TypeError or AttributeError."""
    listed = flags(told["flags"])
    if not any("--model-path" in f.spellings for f in listed):
        raise ValueError("no --model-path")
    return {
        "version": str(told["version"]),
        "distribution": str(told["distribution"]),
        "device": str(told["device"]),
        "dependencies": dict(told["dependencies"]),
        "spec_methods": list(told["spec_methods"]),
        "flags": list(told["flags"]),
    }


def _broken(asked_by: str, path: Path, what: str, remedy: str = "") -> LlmserveError:
    return refused("engine_broken", f"{asked_by} points to {path}, which cannot be used: {what}", remedy)


def _unusable(name: str, path: str, why: str, remedy: str) -> Installation:
    return Installation(
        name, KIND, "", (path, *MODULE), (), extras={"broken": why, "remedy": remedy, "path": path}
    )


def _with_another(i: Installation, found: Sequence[Installation]) -> Installation:
    """A broken one's remedy also names a working one that can be asked for instead."""
    working = next((other.name for other in found if not other.extras.get("broken")), None)
    if not i.extras.get("broken") or working is None:
        return i
    return replace(i, extras=i.extras | {"remedy": f"{i.extras['remedy']}; or choose --engine {working}"})


def _free(name: str, taken: set[str]) -> str:
    return name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}-{i}") not in taken)


def _key(python: Path, own_env: Mapping[str, str]) -> list[Any]:
    """What an answer depends on: the interpreter, its packages' folders (pip writes there), the entry's
    variables, the question, and the device files that the machine shows."""
    prefix = python.parent.parent
    packages = sorted({p for pattern in _PACKAGES for p in prefix.glob(pattern)})
    looked_at = [python, _ASK, *packages, *(p / "sglang" for p in packages)]
    stats = []
    for path in looked_at:
        with contextlib.suppress(OSError):
            s = path.stat()
            stats.append([str(path), s.st_size, s.st_mtime_ns])
    return [str(python), stats, dict(own_env), [os.path.exists(p) for p in _DEVICE_FILES]]


def _cache_file(key: Sequence[Any]) -> Path:
    digest = hashlib.sha256(json.dumps([_FORMAT, *key]).encode()).hexdigest()[:24]
    return folders.cache_dir() / "probes" / f"{KIND}-{digest}.json"


def _cached(key: Sequence[Any]) -> dict[str, Any] | None:
    """What was remembered; anything unreadable counts as nothing."""
    try:
        return _checked(json.loads(_cache_file(key).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(key: Sequence[Any], told: Mapping[str, Any]) -> None:
    # a probe that cannot be kept is made again
    with contextlib.suppress(OSError):
        folders.write_whole(_cache_file(key), json.dumps(told))
