"""Shared memory that dead engines leave below /dev/shm: what may go, and the going.

A segment goes only where an engine names its kind, it is ours, it is no older than the run that ended, and no
living process maps it or has it open. Unlinking takes nothing from whoever maps a segment; a segment that
somebody made, let go of and means to open again by its name would be lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from orchestrator.supervisor import shim

FOLDER = "/dev/shm"
_CLOCK_S = 0.1
"""The kernel stamps files by a clock that moves in steps of up to 10 ms."""

_MORE_LOOKS = 5
_BETWEEN_S = 0.1

Key = tuple[int, int]
"""Device and inode: a semaphore is mapped under another name than it is found by."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A file below /dev/shm. `changed_at` is its last change (seconds since 1970), at its making or after."""

    name: str
    uid: int
    changed_at: float
    key: Key


def removable(
    segments: Iterable[Segment], patterns: Collection[str], uid: int, since: float, held: Collection[Key]
) -> tuple[Segment, ...]:
    """Those that match a pattern, belong to `uid`, changed after `since`, and are not among the `held`."""
    return tuple(
        s
        for s in segments
        if s.uid == uid
        and s.key not in held
        and s.changed_at >= since - _CLOCK_S
        and any(fnmatchcase(s.name, p) for p in patterns)
    )


def sweep(patterns: Collection[str], since: float | None, folder: str = FOLDER) -> tuple[str, ...]:
    """Remove what `removable` names, after a run that began at `since`; the removed names. Raises nothing.

    Where a process of ours is stuck in a driver and cannot be asked what it holds, or `since` is not known,
    nothing goes.
    """
    if not patterns or since is None:
        return ()
    uid = os.getuid()
    there = tuple(_segments(folder))
    if not removable(there, patterns, uid, since, ()):
        return ()
    held = _held(folder)
    for _ in range(_MORE_LOOKS):
        if held is not None:
            break
        time.sleep(_BETWEEN_S)
        held = _held(folder)
    if held is None:
        return ()
    gone = []
    for segment in removable(there, patterns, uid, since, held):
        try:
            os.unlink(os.path.join(folder, segment.name))
        except OSError:
            continue  # somebody was faster, or the folder is not ours to change
        gone.append(segment.name)
    return tuple(sorted(gone))


def _segments(folder: str) -> Iterator[Segment]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_file(follow_symlinks=False):
                        stat = entry.stat(follow_symlinks=False)
                        key = (stat.st_dev, stat.st_ino)
                        yield Segment(entry.name, stat.st_uid, stat.st_ctime, key)
                except OSError:
                    continue  # gone by now
    except OSError:
        return


def _held(folder: str) -> frozenset[Key] | None:
    """What living processes map or have open in the folder; None where one of our own cannot be asked."""
    held: set[Key] = set()
    for process in shim.processes():
        if process.state == "D" and _is_ours(process.pid):
            return None  # reading the maps of one stuck in a driver can hang for ever
        try:
            held |= _mapped(process.pid, folder)
            held |= _opened(process.pid, folder)
        except OSError:
            # it ended, or it has other rights than we: an engine of ours can always be asked
            continue
    return frozenset(held)


def _mapped(pid: int, folder: str) -> set[Key]:
    """From lines such as `7f00-7f10 rw-s 00000000 00:1b 130    /dev/shm/psm_8856367b`."""
    found = set()
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(f"{folder}/"):
                major, minor = fields[3].split(":")
                found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    return found


def _opened(pid: int, folder: str) -> set[Key]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if os.readlink(path).startswith(f"{folder}/"):
                stat = os.stat(path)
                found.add((stat.st_dev, stat.st_ino))
        except FileNotFoundError:
            continue  # closed by now
    return found


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False
