"""Figures in words, and levers as they are typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.levers import LEVERS


def size(n: float) -> str:
    """Bytes for a person: `92.1 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def count(n: int, what: str) -> str:
    """`1 slot`, `2 slots`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def written(value: Any, lever: str = "") -> str:
    """A lever's value as a person writes it: bytes exactly, in MiB where they are whole ones."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if lever in LEVERS and LEVERS[lever].kind == "bytes" and isinstance(value, int):
        return f"{value >> 20}MiB" if value and value % 2**20 == 0 else str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {written(x)}" for k, x in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(written(x) for x in value) + "]"
    return str(value)


def sets(changes: Mapping[str, Any]) -> str:
    """Changes as options for a shell: `--set max_num_seqs=4 --set kv_unified=auto`."""
    return " ".join(f"--set {shlex.quote(f'{k}={written(v, k)}')}" for k, v in changes.items())
