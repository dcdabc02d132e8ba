"""Engine versions, compared."""

from __future__ import annotations

import re
from functools import lru_cache

Version = tuple[int, ...]


@lru_cache(maxsize=1024)
def parsed(text: str) -> Version | None:
    """The leading numbers of a version ("0.20.2rc1+cu129" is 0.20.2), None where it begins with none."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(n) for n in found[1].split(".")) if found else None


def at_least(version: str, lowest: str) -> bool:
    """Whether `version` is `lowest` or newer. One that cannot be read counts as newer: it is somebody's build
    from source. A `lowest` that is no number ("nightly") is newer than every release."""
    wanted, there = parsed(lowest), parsed(version)
    if there is None:
        return True
    if wanted is None:
        return False
    size = max(len(wanted), len(there))
    return there + (0,) * (size - len(there)) >= wanted + (0,) * (size - len(wanted))


def highest(versions: list[str]) -> str | None:
    """The newest of some, "nightly" above all; None of none."""
    return max(versions, key=lambda v: parsed(v) or (1 << 30,), default=None)
