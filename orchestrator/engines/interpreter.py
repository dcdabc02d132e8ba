"""Engines that are Python packages in an environment: found by path, asked by their own interpreter.

An answer is remembered by path, files and modification times; a remembered question starts no process.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator import folders
from orchestrator.errors import LlmserveError, refused

TIME_LIMIT_S = 180.0
"""Importing an engine and its torch takes 15 to 30 s on two busy cores."""

_OUTPUT_LIMIT_BYTES = 8 << 20
_POLL_S = 0.05
_LOCATE_LIMIT_S = 20.0
_NO_ANSWER = "no answer"
_FAILURE_KEPT_S = 300.0
_PYTHONS = ("bin/python", "bin/python3", "python", "python3")


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter, and the engine's command beside it where there is one."""

    python: Path
    program: Path | None = None


def find(path: Any, asked_by: str, program: str) -> Environment:
    """What `path` means: an environment's folder, its `bin/PROGRAM`, or its Python.

    Symbolic links are kept: an environment's Python is a link, and what it links to has other packages.
    Raises LlmserveError where there is no interpreter.
    """
    if not isinstance(path, str) or not path:
        raise refused(
            "engine_path",
            f"{asked_by} has no `path`",
            f"set `path` to an environment's folder, its bin/{program} or its Python",
        )
    given = Path(os.path.normpath(Path(path).expanduser().absolute()))
    if given.is_dir():
        python = next((given / p for p in _PYTHONS if (given / p).is_file()), None)
        if python is None:
            raise broken(asked_by, given, "no Python lies in that folder")
        return _checked(python, asked_by, program)
    if not given.is_file():
        raise broken(asked_by, given, "there is no such file")
    if given.name.startswith("python"):
        return _checked(given, asked_by, program)
    if not os.access(given, os.X_OK):
        raise broken(asked_by, given, "the file is not executable")
    python = _interpreter_of(given)
    if python is None:
        raise broken(asked_by, given, "it does not say which Python runs it")
    found = _checked(python, asked_by, program)
    return Environment(found.python, given)


def _checked(python: Path, asked_by: str, program: str) -> Environment:
    if not os.access(python, os.X_OK):
        raise broken(asked_by, python, "the file is not executable")
    beside = python.parent / program
    return Environment(python, beside if os.access(beside, os.X_OK) and beside.is_file() else None)


def _interpreter_of(program: Path) -> Path | None:
    """The Python that a console script names in its first lines, else the one beside it."""
    try:
        with open(program, "rb") as f:
            lines = f.read(2048).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    words: list[str] = []
    if lines and lines[0].startswith("#!"):
        words = lines[0][2:].split()
        if len(lines) > 1 and lines[1].startswith("'''exec'"):
            # the way round the kernel's limit on the length of a first line
            with contextlib.suppress(ValueError):
                words = shlex.split(lines[1].removeprefix("'''exec'"))[:1]
    if words and Path(words[0]).name.startswith("python") and Path(words[0]).is_file():
        return Path(words[0])
    beside = program.resolve().parent
    return next((beside / p for p in ("python", "python3") if (beside / p).is_file()), None)


def broken(asked_by: str, path: Path | str, what: str) -> LlmserveError:
    """The refusal of what is there and cannot be used."""
    return refused(
        "engine_broken",
        f"{asked_by} points to {path}, which cannot be used: {what}",
        "`llmserve engines list` shows what is found",
    )


def no_answer(what: str) -> dict[str, Any]:
    """What is remembered, for a while, of an interpreter that did not tell what was asked."""
    return {"error": what, "kind": _NO_ANSWER}


def require_answer(told: Mapping[str, Any], asked_by: str, python: Path, script: Path) -> None:
    """Raises LlmserveError where there was none, with the line that shows what was said instead."""
    if told.get("kind") == _NO_ANSWER:
        error = broken(asked_by, python, str(told["error"]))
        shown = shlex.join([str(python), "-E", str(script)])
        error.remedy = (
            f"mend that environment: `{shown}` shows what it prints; or name another in engines.yaml"
        )
        raise error


def lacking(told: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """What is wrong with an answer that is not whole."""
    missing = [key for key in wanted if key not in told]
    return f"its answer lacks {', '.join(missing)}" if missing else "its answer holds what cannot be read"


def fingerprint(python: Path, package: str, distributions: Sequence[str], script: Path) -> list[Any]:
    """What changes when another version of the engine, or a package beside it, is installed.

    `distributions` are glob patterns of its dist-info folders. Where the package does not lie below the
    interpreter's own prefix, Python is asked where it is (some 50 ms).
    """
    prefix = python.parent.parent
    sites = sorted(glob.glob(f"{glob.escape(str(prefix))}/lib*/python3*/*-packages"))
    inits = [p for s in sites if os.path.isfile(p := f"{s}/{package}/__init__.py")]
    if not inits:
        inits = _located(python, package)
        sites = [os.path.dirname(os.path.dirname(p)) for p in inits]
    infos = [p for s in sites for d in distributions for p in glob.glob(f"{glob.escape(s)}/{d}")]
    files = [str(python), *inits, *(f"{p}/METADATA" for p in sorted(infos)), *sites, str(script)]
    return [[p, *_stamp(p)] for p in dict.fromkeys(files)]


def _stamp(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return (-1, -1)
    return (stat.st_size, stat.st_mtime_ns)


def _located(python: Path, package: str) -> list[str]:
    code = f"import importlib.util as u; s = u.find_spec({package!r}); print(s and s.origin or '')"
    with contextlib.suppress(Unanswered):
        status, out, _ = _run([str(python), "-E", "-c", code], os.environ, _LOCATE_LIMIT_S)
        return [p for p in out.splitlines() if p.endswith("__init__.py")] if status == 0 else []
    return []


class Unanswered(Exception):
    """The interpreter gave no answer; the message says what happened instead."""


def ask(
    python: Path, script: Path, env: Mapping[str, str], *, limit_s: float | None = None
) -> dict[str, Any]:
    """Run a script that prints one JSON object in a line, bounded in time and size; its whole group is ended
    after it. What else the interpreter prints, as some are set up to greet, is passed over.

    The script sees no PYTHON variable, as the engine that is started later will not. Raises Unanswered.
    """
    limit_s = TIME_LIMIT_S if limit_s is None else limit_s
    clean = {k: v for k, v in env.items() if not k.startswith("PYTHON")}
    code, out, err = _run([str(python), "-E", str(script)], clean, limit_s)
    if code != 0:
        last = (err.strip() or out.strip()).splitlines()[-1:] or ["it said nothing"]
        raise Unanswered(f"its Python ended with {code}: {last[0][:300]}")
    told = _last_object(out)
    if told is None:
        first = out.strip().partition("\n")[0]
        said = f"it begins with {first[:100]!r}" if first else "it is empty"
        raise Unanswered(f"its answer cannot be read: {said}")
    return told


def _run(argv: Sequence[str], env: Mapping[str, str], limit_s: float) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command whose whole group is ended after it. Raises Unanswered."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except OSError as e:
            raise Unanswered(e.strerror or str(e)) from None
        try:
            code = _ended(child, (out.fileno(), err.fileno()), limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return code, _text(out), _text(err)


def _text(stream: BinaryIO) -> str:
    stream.seek(0)
    return stream.read(_OUTPUT_LIMIT_BYTES).decode("utf-8", "replace")


def _ended(child: subprocess.Popen[bytes], outputs: Sequence[int], limit_s: float) -> int:
    """The exit status of a child. Raises Unanswered where it takes too long, or prints without an end."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if any(os.fstat(fd).st_size > _OUTPUT_LIMIT_BYTES for fd in outputs):
                limit = f"more than {_OUTPUT_LIMIT_BYTES >> 20} MiB"
                raise Unanswered(f"it printed {limit} instead of its flags") from None
            if time.monotonic() > deadline:
                raise Unanswered(f"it did not tell its flags within {limit_s:g} s") from None


def _last_object(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                return told
    return None


def _file(kind: str, key: Any) -> Path:
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    return folders.cache_dir() / "probes" / f"{kind}-{digest}.json"


def remembered(kind: str, key: Any) -> dict[str, Any] | None:
    """What was remembered under a key; anything unreadable counts as nothing, and so does an old failure
    (an answer with the key `error`)."""
    file = _file(kind, key)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        # why something failed may have changed without a file of its having changed
        if "error" in told and time.time() - file.stat().st_mtime > _FAILURE_KEPT_S:
            return None
    except (OSError, ValueError, TypeError):
        return None
    return told if isinstance(told, dict) else None


def remember(kind: str, key: Any, told: Mapping[str, Any]) -> None:
    """Keep an answer; one that cannot be kept is asked for again."""
    with contextlib.suppress(OSError):
        folders.write_whole(_file(kind, key), json.dumps(told))
