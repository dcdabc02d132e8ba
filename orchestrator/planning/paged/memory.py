"""What the engines with a paged KV pool (vLLM, SGLang) hold in memory: the shared facts and their data.

`weights` says what a checkpoint takes on one device, `kv_cache` what a token and a request take, `budget`
what is left for them. Sources are in `memory.yaml`, measured errors in docs/plans/accuracy.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

MIB = 2**20
GIB = 2**30

Kind = Literal["vllm", "sglang"]
Version = tuple[int, int, int]
NEWEST: Version = (999, 0, 0)
_BY_VERSION: dict[tuple[int, str | None], tuple[Mapping[str, float], float]] = {}
_KEPT = 256


@cache
def rules() -> dict[str, Any]:
    """`memory.yaml`."""
    import yaml

    text = (Path(__file__).parent / "memory.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data


@lru_cache(maxsize=256)
def version_of(text: str | None) -> Version:
    """Major, minor, patch of an engine's version ("0.15.2rc1.dev93"); the newest where none is given."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else NEWEST


def since(version: str | None, first: str) -> bool:
    """Whether a version is `first` or later; an unknown one counts as the newest."""
    return version_of(version) >= version_of(first)


def by_version(table: Mapping[str, float], version: str | None) -> float:
    """The entry of the latest `from` that is not above the version; the first where all are."""
    # asked for each layout: a table that is kept has one answer a version
    kept = _BY_VERSION.get((id(table), version))
    if kept is None or kept[0] is not table:
        known = sorted(table, key=version_of)
        value = table[next((k for k in reversed(known) if since(version, k)), known[0])]
        if len(_BY_VERSION) >= _KEPT:
            _BY_VERSION.clear()
        kept = _BY_VERSION[id(table), version] = (table, value)
    return kept[1]


def element_bytes(dtype: str | None) -> int:
    """Bytes of an element that is loaded in a --dtype; "auto" and None are 16 bits, also for checkpoints of
    32 (vLLM vllm/config/model.py _resolve_auto_dtype, SGLang srt/configs/model_config.py)."""
    return 4 if dtype in ("float32", "float") else 2


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each pipeline stage holds.

    What does not divide goes one each to the stages before the last, last first (vLLM
    vllm/distributed/utils.py get_pp_indices, SGLang's copy of it).
    """
    each, rest = divmod(layers, stages)
    out = [each] * stages
    for i in range(2, rest + 2):
        out[-i] += 1
    return tuple(out)
