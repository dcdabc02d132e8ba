"""Bytes of a checkpoint at an offset, from a place that may be hostile; and the two ways to refuse them."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from orchestrator.errors import LlmserveError, refused

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_JSON_PARTS = 4_000_000


class Damaged(ValueError):
    """A header that cannot be right; the message says what is wrong with it, without the file's name."""


class NotKnown(Damaged):
    """A configuration without a key that every known architecture has: of an architecture that is not known
    here, more likely than damaged."""


class Bytes(Protocol):
    """A file that can be read anywhere. `size` in bytes; `read_at` returns fewer bytes only at the end."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes: ...


class LocalFile:
    """A regular file, opened so that a FIFO or a device never blocks. Raises LlmserveError."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            kind = os.stat(path).st_mode
            if stat.S_ISDIR(kind):
                raise unreadable(
                    self.name, "is a folder, not a file", "give the file inside it, or the folder's model"
                )
            if not stat.S_ISREG(kind):
                raise unreadable(self.name, "is not a regular file", "give a model file or folder")
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise missing(self.name) from None
        except OSError as e:
            raise unreadable(
                self.name, f"cannot be opened: {e.strerror}", "make it readable for this user"
            ) from None
        self.size = os.fstat(self._fd).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError as e:
            raise Damaged(f"cannot be read: {e.strerror}") from None

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._fd)


def reject_placeholder(source: Bytes) -> None:
    """Raise Damaged where the file is empty or a git-lfs pointer instead of what it points to."""
    if source.size == 0:
        raise Damaged("is empty")
    head = source.read_at(0, 200)
    if head.startswith(_LFS_POINTER):
        wanted = re.search(rb"\nsize (\d{1,20})\n", head)
        of = f" of {int(wanted[1]):,} bytes" if wanted else ""
        raise Damaged(f"is a git-lfs pointer, not the file{of} it stands for (`git lfs pull` fetches it)")


def read_small(path: Path, limit_bytes: int) -> bytes:
    """The whole of a text file that has no reason to be large.

    Raises LlmserveError where it is missing, no regular file, a placeholder, or above the limit.
    """
    with LocalFile(path) as f:
        try:
            reject_placeholder(f)
            if f.size > limit_bytes:
                raise Damaged(f"has {f.size:,} bytes, more than the {limit_bytes:,} such a file can need")
            return f.read_at(0, f.size)
        except Damaged as e:
            raise unreadable(str(path), str(e)) from None


def parse_json(text: bytes) -> dict[str, Any]:
    """A JSON object whose memory is bounded: its parts are counted before it is read. Raises Damaged."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MAX_JSON_PARTS:
        raise Damaged(f"has more than {_MAX_JSON_PARTS:,} entries")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("is not JSON") from None
    if not isinstance(data, dict):
        raise Damaged("is JSON, and no object")
    return data


def read_json(path: Path, limit_bytes: int) -> dict[str, Any]:
    """A small JSON object. Raises LlmserveError with the file's name."""
    try:
        return parse_json(read_small(path, limit_bytes))
    except Damaged as e:
        raise unreadable(str(path), str(e)) from None


def unreadable(name: str, what: str, remedy: str = "") -> LlmserveError:
    """The file is there and is no usable model (exit 3)."""
    return refused(
        "model_unreadable", f"{name} {what}", remedy or "fetch the file again, or give another model"
    )


def missing(name: str) -> LlmserveError:
    """There is no such file or model (exit 3)."""
    return refused(
        "model_not_found",
        f"there is no model {name}",
        "give a GGUF file, a Hugging Face folder, a hub id ORG/NAME, or a name from `llmserve models list`",
    )
