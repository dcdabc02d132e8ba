"""Following a growing file, as `logs -f` and `events -f` do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOK_S = 0.2
_BLOCK = 64 * 1024


def last_lines(file: Path, count: int) -> tuple[bytes, int]:
    """The last `count` lines of a file, and where it ended. Reads from the end, a block at a time."""
    with file.open("rb") as f:
        end = position = f.seek(0, 2)
        data = b""
        while position > 0 and data.count(b"\n") <= count:
            step = min(_BLOCK, position)
            position -= step
            f.seek(position)
            data = f.read(step) + data
    lines = data.splitlines(keepends=True)
    return b"".join(lines[-count:] if count else []), end


def last_lines_of(file: Path, count: int) -> tuple[bytes, int]:
    """As `last_lines`, reaching back into FILE.1 where it was just rotated; b"" where there is no file."""
    text, end = last_lines(file, count) if file.exists() else (b"", 0)
    old = file.with_name(file.name + ".1")
    missing = count - text.count(b"\n")
    if missing > 0 and old.exists():
        text = last_lines(old, missing)[0] + text
    return text, end


def growth(file: Path, position: int, over: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """What is written after `position`, as it comes, until `over`. A rotated file is read anew."""
    inode = None
    last = False
    while not last:
        last = over()
        try:
            with file.open("rb") as f:
                stat = file.stat()
                if stat.st_size < position or (inode is not None and stat.st_ino != inode):
                    position = 0
                inode = stat.st_ino
                f.seek(position)
                while block := f.read(_BLOCK):
                    position += len(block)
                    yield block
        except FileNotFoundError:
            position = 0
        if not last:
            time.sleep(_LOOK_S)
