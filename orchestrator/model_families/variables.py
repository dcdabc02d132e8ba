"""Environment variables of recipes: which a plan sets, and why it does not set the others."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

Kept = tuple[dict[str, str], dict[str, str]]
"""Variables that are set, and for each other one why it is not."""

ENGINE_S_OWN = "VLLM_"
"""How names begin that vLLM itself reads: it warns of those it does not know, or refuses to start
(`--fail-on-environ-validation`; vLLM 0.32.0 vllm/platforms/interface.py:1451). Others are other packages'."""


def fitting(env: Mapping[str, str], precision: str | None) -> Kept:
    """Without those that are for weights of another precision (None: unknown), that nobody reads, or that a
    lever decides."""
    why = {}
    for name in env:
        told = _table().get(name, {})
        if "unread" in told:
            why[name] = str(told["unread"])
        elif "lever" in told:
            why[name] = f"{told['lever']} decides it"
        elif precision is not None and precision not in told.get("weights", (precision,)):
            why[name] = f"it is for {' or '.join(told['weights'])} weights, and these are {precision}"
    return {n: v for n, v in env.items() if n not in why}, why


def known(
    env: Mapping[str, str], version: str, names: Collection[str] | None, unsure: Collection[str] = ()
) -> Kept:
    """Without those that a vLLM does not have. `names` are all that it has, None where that is unknown;
    `unsure` those that it may have."""
    why = {}
    for name in env:
        if not name.startswith(ENGINE_S_OWN) or (names is not None and name in names):
            continue
        if names is None or name in unsure:
            why[name] = f"whether vllm {version} has it is unknown"
        else:
            instead = _table().get(name, {}).get("instead")
            why[name] = f"vllm {version} has no such variable" + (f": {instead}" if instead else "")
    return {n: v for n, v in env.items() if n not in why}, why


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    text = (Path(__file__).parent / "variables.json").read_text("utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)["variables"]
    return table
