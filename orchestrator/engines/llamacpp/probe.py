"""Finds llama.cpp here: configured ones, `LLAMA_SERVER`, `llama-server` on PATH, then the embedded server.

An installation is asked once for its version and flags and remembered by path, size and modification time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator import folders
from orchestrator.engines.base import Flag, Installation
from orchestrator.engines.llamacpp.embedded_args import TABLE
from orchestrator.engines.llamacpp.help_text import HelpText, parse_help
from orchestrator.errors import LlmserveError, refused

KIND = "llamacpp"
BINARY = "llama-server"
EMBEDDED = "embedded"
EMBEDDED_ARGV = (sys.executable, "-P", "-m", "orchestrator.engines.llamacpp.embedded")

_FORMAT = 3
_TIME_LIMIT_S = 20.0
_OUTPUT_LIMIT_BYTES = 1 << 20
_BESIDE = ("", "bin", "build/bin")


def installations(configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> list[Installation]:
    """Every llama.cpp that can be asked for, best first.

    What `LLAMA_SERVER` names, and an installed xllamacpp, is among them where it cannot be used too: with
    `broken` and `remedy` in its `extras`, so that a plan for it is refused with the reason. A broken one that
    merely lies on PATH is passed over. Raises LlmserveError where a configured entry is broken.
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
            program = _program(path, asked_by)
            seen.add(str(program.resolve()))
            found.append(probe_binary(name, program, env, asked_by, own_env))
        except LlmserveError as e:
            found.append(_unusable(name, str(path), e.message, remedy))

    for name, entry in configured.items():
        remedy = f"correct `path` of {name} in {folders.config_dir() / 'engines.yaml'}, or remove the entry"
        look(name, entry.get("path"), f"engine {name!r} in engines.yaml", remedy, entry.get("env") or {})
    given = env.get("LLAMA_SERVER")
    if given and not _is_seen(given, seen):
        look(_free(BINARY, _names(found)), given, "the variable LLAMA_SERVER", _UNSET_VARIABLE, {})
    on_path = shutil.which(BINARY, path=env.get("PATH"))
    if on_path is not None and not _is_seen(on_path, seen):
        look(_free(BINARY, _names(found)), str(Path(on_path).absolute()), "PATH", "remove it, or mend it", {})
        # nobody asked for this one by name, and another may serve
        if found[-1].extras.get("broken") and not on_path_too:
            found.pop()
    if all(i.argv != EMBEDDED_ARGV for i in found):
        embedded = _embedded(_free(EMBEDDED, _names(found)))
        found += [embedded] if embedded is not None else []
    return [_with_another(i, found) for i in found]


_UNSET_VARIABLE = "correct LLAMA_SERVER, or unset it"


def _names(found: Sequence[Installation]) -> set[str]:
    return {i.name for i in found}


def _is_seen(path: str, seen: set[str]) -> bool:
    try:
        return str(_program(path, "").resolve()) in seen
    except LlmserveError:
        return False


def _embedded(name: str) -> Installation | None:
    try:
        return probe_embedded(name)
    except LlmserveError as e:
        remedy = "reinstall it: pip install --force-reinstall --no-deps xllamacpp"
        return replace(_unusable(name, "xllamacpp", e.message, remedy), argv=EMBEDDED_ARGV)


def _unusable(name: str, path: str, why: str, remedy: str) -> Installation:
    embedded = path == "xllamacpp"
    extras = {"broken": why, "remedy": remedy, "path": path, "embedded": embedded}
    return Installation(name, KIND, "", (path,), (), extras=extras)


def _with_another(i: Installation, found: Sequence[Installation]) -> Installation:
    """A broken one's remedy also names a working one that can be asked for instead."""
    working = next((other.name for other in found if not other.extras.get("broken")), None)
    if not i.extras.get("broken") or working is None:
        return i
    return replace(i, extras=i.extras | {"remedy": f"{i.extras['remedy']}; or choose --engine {working}"})


def probe_binary(
    name: str, program: Path, env: Mapping[str, str], asked_by: str, own_env: Mapping[str, str]
) -> Installation:
    """Ask one llama-server for `--version` and `--help`; `own_env` is its entry's in engines.yaml.

    Raises LlmserveError where it is none.
    """
    added = {**own_env, **_library_path(program, {**env, **own_env})}
    stat = program.stat()
    key = [str(program), stat.st_size, stat.st_mtime_ns, added]
    cached = _cached(key)
    if cached is None:
        version = "\n".join(_ask([str(program), "--version"], env, added, asked_by, program))
        told = parse_help("\n".join(_ask([str(program), "--help"], env, added, asked_by, program)))
        if not any("--ctx-size" in f.spellings for f in told.flags):
            raise _broken(asked_by, program, "its --help lists no --ctx-size, so it is no llama-server")
        cached = _remember(key, _version(version), told)
    version, told = cached
    return Installation(
        name=name,
        kind=KIND,
        version=version,
        argv=(str(program),),
        flags=told.flags,
        env=added,
        extras={"variables": told.env, "removed": told.removed, "path": str(program), "embedded": False},
    )


def probe_embedded(name: str) -> Installation | None:
    """The embedded server where xllamacpp is installed beside us, asked in a child of its own; else None.

    Raises LlmserveError where xllamacpp is there and cannot be used.
    """
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        return None
    from importlib.metadata import version as metadata_version

    stats = [os.stat(p) for p in (spec.origin, TABLE)]
    key = [*EMBEDDED_ARGV, spec.origin, *(n for s in stats for n in (s.st_size, s.st_mtime_ns))]
    cached = _cached(key)
    if cached is None:
        asked_by, where = "the embedded llama.cpp", Path(spec.origin).parent
        out, _ = _ask([*EMBEDDED_ARGV, "--list-flags"], os.environ, {}, asked_by, where)
        try:
            told = _listed(json.loads(out))
        except (ValueError, KeyError, TypeError):
            raise _broken(asked_by, where, "its list of flags cannot be read") from None
        cached = _remember(key, metadata_version("xllamacpp"), told)
    version, told = cached
    return Installation(
        name=name,
        kind=KIND,
        version=version,
        argv=EMBEDDED_ARGV,
        flags=told.flags,
        extras={
            "variables": told.env,
            "removed": told.removed,
            "path": str(Path(spec.origin).parent),
            "embedded": True,
        },
    )


def _listed(data: Mapping[str, Any]) -> HelpText:
    rows = data["flags"]
    live = [r for r in rows if not r["removed"]]
    return HelpText(
        tuple(
            Flag(tuple(r["spellings"]), r["takes_value"], tuple(r["choices"]), r["default"], r["help"])
            for r in live
        ),
        {r["env"]: r["spellings"][0] for r in live if r["env"]},
        {s: r["removed"] for r in rows if r["removed"] for s in r["spellings"]},
    )


def _program(path: Any, asked_by: str) -> Path:
    """The executable that `path` (a file, or a folder that holds it) means."""
    if not isinstance(path, str) or not path:
        raise refused(
            "engine_path",
            f"{asked_by} has no `path`",
            "set `path` to llama-server or the folder that holds it",
        )
    given = Path(path).expanduser().absolute()
    candidates = [given / part / BINARY for part in _BESIDE] if given.is_dir() else [given]
    program = next((p for p in candidates if p.is_file()), None)
    if program is None:
        what = f"no {BINARY} lies in that folder" if given.is_dir() else "there is no such file"
        raise _broken(asked_by, given, what)
    if not os.access(program, os.X_OK):
        raise _broken(asked_by, program, "the file is not executable")
    return program


def _library_path(program: Path, env: Mapping[str, str]) -> dict[str, str]:
    """LD_LIBRARY_PATH with the program's folder first, where its shared libraries lie beside it."""
    folder = program.parent
    if not any(folder.glob("lib*.so*")):
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), env.get("LD_LIBRARY_PATH", "")]))}


def _ask(
    argv: Sequence[str], env: Mapping[str, str], added: Mapping[str, str], asked_by: str, program: Path
) -> tuple[str, str]:
    """stdout and stderr of a short command, both bounded in size and the whole in time."""
    # a LLAMA_ARG_ variable with a bad value would make the question itself fail
    clean = {k: v for k, v in env.items() if not k.startswith("LLAMA_ARG_")} | dict(added)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=clean, start_new_session=True
            )
        except OSError as e:
            raise _broken(asked_by, program, e.strerror or str(e)) from None
        try:
            code = child.wait(_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            what = f"{argv[-1]} did not answer within {_TIME_LIMIT_S:g} s"
            raise _broken(asked_by, program, what) from None
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
        raise _broken(asked_by, program, f"{argv[-1]} ended with {code}: {last[0][:300]}")
    return texts[0], texts[1]


def _version(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").split("(")[0].strip() or "unknown"
    return "unknown"


def _broken(asked_by: str, path: Path, what: str) -> LlmserveError:
    return refused(
        "engine_broken",
        f"{asked_by} points to {path}, which cannot be used: {what}",
        "`llmserve engines list` shows what is found",
    )


def _free(name: str, taken: set[str]) -> str:
    return name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}-{i}") not in taken)


def _cache_file(key: Sequence[Any]) -> Path:
    digest = hashlib.sha256(json.dumps([_FORMAT, *key]).encode()).hexdigest()[:24]
    return folders.cache_dir() / "probes" / f"{KIND}-{digest}.json"


def _cached(key: Sequence[Any]) -> tuple[str, HelpText] | None:
    """What was remembered; anything unreadable counts as nothing."""
    try:
        data = json.loads(_cache_file(key).read_text(encoding="utf-8"))
        flags = tuple(
            Flag(tuple(f["spellings"]), f["takes_value"], tuple(f["choices"]), f["default"], f["help"])
            for f in data["flags"]
        )
        return str(data["version"]), HelpText(flags, dict(data["env"]), dict(data["removed"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(key: Sequence[Any], version: str, told: HelpText) -> tuple[str, HelpText]:
    data = {"version": version, **asdict(told)}
    # a probe that cannot be kept is made again
    with contextlib.suppress(OSError):
        folders.write_whole(_cache_file(key), json.dumps(data))
    return version, told
