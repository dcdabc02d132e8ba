"""What every fetch into the store needs: one at a time, a place apart, progress, a final rename."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import folders
from orchestrator.errors import refused

Progress = Callable[[int, int | None], None]
"""Hears (bytes so far, bytes in all or None); called from another thread, several times a second."""

_POLL_S = 0.2


def root() -> Path:
    """The store."""
    return folders.data_dir() / "models"


def folder_name(name: str) -> str:
    """A stored model's folder: `ORG/NAME` as `ORG--NAME`, which no hub id can contain."""
    return name.replace("/", "--")


def partial(name: str) -> Path:
    """Where a fetch works; nothing in it is believed."""
    return root() / ".partial" / folder_name(name)


@contextmanager
def alone(name: str, progress: Progress | None) -> Iterator[None]:
    """Holds the lock of a name; a second fetch waits here, and its progress goes on being called."""
    path = root() / ".locks" / f"{folder_name(name)}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise refused(
            "store_unwritable",
            f"the model store {root()} cannot be written: {e.strerror}",
            "make it writable, or set LLMSERVE_HOME to another folder",
        ) from None
    try:
        waiting = threading.Event()
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if progress is not None:
                    progress(_largest(partial(name)), None)
                waiting.wait(_POLL_S)
        yield
    finally:
        os.close(fd)


@contextmanager
def watched(measure: Callable[[], int], total: int | None, progress: Progress | None) -> Iterator[None]:
    """Calls `progress` with what `measure` sees until the block ends."""
    if progress is None:
        yield
        return
    done = threading.Event()

    def look() -> None:
        while not done.wait(_POLL_S):
            seen = measure()
            progress(seen if total is None else min(seen, total), total)

    thread = threading.Thread(target=look, name="fetch-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def require_room(need_bytes: int, what: str) -> None:
    """Raises LlmserveError (`disk_full`) where the store's disk has less room than a fetch needs."""
    root().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root()).free
    if need_bytes > free:
        raise refused(
            "disk_full",
            f"{what} needs {need_bytes / 1e9:.1f} GB, and {root()} has {free / 1e9:.1f} GB free",
            "free space, or set LLMSERVE_HOME to a folder on a larger disk",
        )


def put_in_place(made: Path, name: str) -> Path:
    """Make `made` the stored model `name` by rename; an older one goes away. Returns its folder."""
    target = root() / folder_name(name)
    old = made.with_name(made.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(made, target)
    shutil.rmtree(old, ignore_errors=True)
    return target


def sum_of_files(folder: Path) -> int:
    """Bytes of all files below a folder that others are writing."""
    return sum(_sizes(folder))


def _largest(folder: Path) -> int:
    return max(_sizes(folder), default=0)


def largest_file(folder: Path) -> int:
    """Bytes of the largest file below a folder that others are writing: a download that a tool copies about
    is counted once."""
    return _largest(folder)


def _sizes(folder: Path) -> Iterator[int]:
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(base, name)).st_size
            except OSError:
                continue
