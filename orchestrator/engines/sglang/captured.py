"""SGLang's flags by version, as the project's data: for plans without an installation, and for what is gone.

`flags/VERSION.json` is what that release's own parser listed (`dump_flags.py` run with its wheel), valid up
to the next one; `renamed.json` says what to use instead of a flag that is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Flag, Installation
from orchestrator.errors import not_found

KIND = "sglang"
ARGV = ("python", "-m", "sglang.launch_server")
CPU_ENV = {"SGLANG_USE_CPU_ENGINE": "1"}
"""Without it SGLang takes any machine for one with CUDA (sglang/srt/utils/common.py, is_cpu)."""

_FOLDER = Path(__file__).parent
_FIRST, _END = (0, 5), (0, 6)


def versions() -> tuple[str, ...]:
    """The captured versions, oldest first."""
    return tuple(sorted((p.stem for p in (_FOLDER / "flags").glob("*.json")), key=release))


def release(version: str) -> tuple[int, ...]:
    """A version as numbers that sort (0.5.6.post2 is (0, 5, 6, 2)); () where it has none."""
    numbers = []
    for part in version.split("+")[0].replace(".post", ".").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


@lru_cache(maxsize=64)
def captured(version: str | None = None, device: str = "cuda") -> Installation:
    """An installation of the newest captured version not above `version` (None: the newest of all) on "cuda",
    "rocm" or "cpu"; `Installation.version` is the captured one.

    Raises LlmserveError (exit 5) for a version outside [0.5, 0.6) or older than all captured ones.
    """
    known = versions()
    if version is None:
        chosen = known[-1]
    else:
        asked = release(version)
        below = [v for v in known if release(v) <= asked]
        if not below or not _FIRST <= asked[:2] < _END:
            raise not_found(
                "unknown_version",
                f"SGLang {version} is not among the versions whose flags are known",
                f"known are {known[0]} to {known[-1]}; an installed one is asked itself",
            )
        chosen = below[-1]
    told = table(chosen)
    return Installation(
        name=KIND,
        kind=KIND,
        version=chosen,
        argv=ARGV,
        flags=told["flags"],
        env=dict(CPU_ENV) if device == "cpu" else {},
        extras=extras(told | {"device": device, "distribution": KIND, "dependencies": {}}, chosen),
        captured=True,
    )


@lru_cache(maxsize=64)
def table(version: str) -> dict[str, Any]:
    """A captured version's file, its rows as `Flag`s. Raises FileNotFoundError where there is none."""
    told: dict[str, Any] = json.loads((_FOLDER / "flags" / f"{version}.json").read_text(encoding="utf-8"))
    told["deprecated"] = deprecated(told["flags"])
    told["flags"] = flags(told["flags"])
    return told


def flags(rows: Iterable[Mapping[str, Any]]) -> tuple[Flag, ...]:
    """`dump_flags.py`'s rows. Raises KeyError or TypeError on what are none."""
    return tuple(
        Flag(
            spellings=tuple(r["spellings"]),
            takes_value=r["type"] != "bool",
            choices=tuple(r.get("choices", ())),
            default=r.get("default"),
            type=r["type"],
            nargs=r.get("nargs", ""),
        )
        for r in rows
    )


def deprecated(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Spelling to SGLang's own words, of the flags that it still takes and wants to lose."""
    return {s: r["deprecated"] for r in rows if r.get("deprecated") for s in r["spellings"]}


def extras(told: Mapping[str, Any], version: str) -> dict[str, Any]:
    """`Installation.extras` of what a parser told (`flags` as Flags, `deprecated`, the dump's others)."""
    by_name = {s: f for f in told["flags"] for s in f.spellings}

    def choices(name: str) -> list[str]:
        return list(by_name[name].choices) if name in by_name else []

    return {
        "device": told["device"],
        "distribution": told["distribution"],
        "spec_methods": list(told["spec_methods"]),
        "kv_connectors": choices("--disaggregation-transfer-backend"),
        "kv_cache_dtypes": choices("--kv-cache-dtype"),
        "schedule_policies": choices("--schedule-policy"),
        "dependencies": dict(told["dependencies"]),
        "deprecated": dict(told["deprecated"]),
        "removed": removed(by_name, version),
    }


def removed(listed: Iterable[str], version: str) -> dict[str, str]:
    """Flags that an older version had and this one does not list, with what to do about each."""
    known, here = set(listed), release(version)
    return {
        spelling: row["instead"] or "take it out: nothing stands in its place"
        for spelling, row in _renamed().items()
        if spelling not in known and release(row["last"]) < here
    }


def first_version(spelling: str) -> str | None:
    """The oldest captured version that lists a flag, or None."""
    listing = (v for v in versions() if any(spelling in f.spellings for f in table(v)["flags"]))
    return next(listing, None)


@lru_cache(maxsize=1)
def _renamed() -> dict[str, dict[str, str]]:
    """By flag: `last`, the newest captured version that lists it, and `instead`."""
    text = (_FOLDER / "renamed.json").read_text(encoding="utf-8")
    told: dict[str, dict[str, str]] = json.loads(text)["flags"]
    return told
