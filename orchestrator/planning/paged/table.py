"""The figures that a goal takes by table on engines with a paged KV pool: `goals.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def _goals() -> dict[str, dict[str, Any]]:
    import yaml

    text = (Path(__file__).parent / "goals.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded


def row(goal: str) -> dict[str, Any]:
    """The goal's figures by name."""
    return _goals()[goal]
