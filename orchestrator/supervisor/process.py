"""Processes by identity: a number alone can be anybody's, number and start time are one process in one boot.

For the daemon's side. The shim has the proof that its tree is empty; `sweep` is for when the shim is dead.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from orchestrator.supervisor import shim

SWEEP_CAP_S = 10.0


@cache
def boot_id() -> str:
    """The kernel's name for this boot."""
    return shim.boot_id()


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the process's start (field 22 of /proc/PID/stat); None where there is none.

    A zombie still has one.
    """
    stat = shim.read_stat(pid)
    return stat.start_time if stat else None


def name(pid: int) -> str:
    """The process's own name, at most 15 bytes; "unknown" where it cannot be seen."""
    stat = shim.read_stat(pid)
    return stat.name if stat else "unknown"


def rss_bytes(pid: int) -> int | None:
    """Resident memory of the process; None where it cannot be seen."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, whatever its number is later used for. `start_time` in clock ticks since boot."""

    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has this number now; None where there is none."""
        started = start_time(pid)
        return None if started is None else cls(pid, started, boot_id())

    def alive(self) -> bool:
        """Whether it runs. A zombie is dead; a process of another boot is, too."""
        if self.boot_id != boot_id():
            return False
        stat = shim.read_stat(self.pid)
        return stat is not None and stat.start_time == self.start_time and stat.alive

    def pidfd(self) -> int | None:
        """A descriptor that turns readable at its death; the caller closes it. None where it is dead.

        The start time is read again after the opening: the descriptor never means a successor.
        """
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return None
        if self.alive():
            return fd
        os.close(fd)
        return None

    def signal(self, number: int) -> bool:
        """Send a signal to exactly this process; False where it is dead or may not be signalled."""
        fd = self.pidfd()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def members(marker: str, session: int | None = None, root: Identity | None = None) -> list[Identity]:
    """All living processes that carry the marker, are in the session, or descend from `root`.

    Never the caller, and `root` only where it is a member by itself. The session counts only while its number
    is surely the tree's own: its leader is a member for another reason, or is dead while no process older
    than `root` is taken.
    """
    here = boot_id()
    table = {p.pid: p for p in shim.processes() if p.pid != os.getpid()}
    if root is not None and root.boot_id != here:
        root, session = None, None

    def is_root(p: shim.Stat | None) -> bool:
        return p is not None and root is not None and p.key == (root.pid, root.start_time)

    def surely(p: shim.Stat) -> bool:
        return is_root(table.get(p.ppid)) or shim.carries(p, marker)

    def in_session(p: shim.Stat) -> bool:
        if session is None or p.session != session or (root is not None and p.start_time < root.start_time):
            return False
        leader = table.get(session)
        return leader is None or is_root(leader) or surely(leader)

    living = shim.closure(table, lambda p: in_session(p) or surely(p))
    return [Identity(p.pid, p.start_time, here) for p in living]


def sweep(
    marker: str,
    session: int | None = None,
    root: Identity | None = None,
    *,
    spare: Iterable[Identity] = (),
    cap_s: float = SWEEP_CAP_S,
) -> list[Identity]:
    """SIGKILL all members until none is left; blocks up to `cap_s`. Returns the survivors.

    `spare` are left alone. Two looks in a row must find nothing, for a process can be born behind a look.
    """
    spared = frozenset(spare)
    end = time.monotonic() + cap_s
    empty_looks = 0
    found: list[Identity] = []
    while empty_looks < 2:
        found = [m for m in members(marker, session, root) if m not in spared]
        if found and time.monotonic() > end:
            return found
        empty_looks = 0 if found else empty_looks + 1
        _kill(found, min(1.0, max(0.0, end - time.monotonic())))
    return []


def _kill(victims: Iterable[Identity], wait_s: float) -> None:
    """Signal all, then wait for their deaths, up to `wait_s` together."""
    fds = [fd for fd in (v.pidfd() for v in victims) if fd is not None]
    poll = select.poll()
    try:
        for fd in fds:
            poll.register(fd, select.POLLIN)
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            except OSError:
                continue  # dead by now, or not ours to signal: the next look tells
        waiting, end = len(fds), time.monotonic() + wait_s
        while waiting and (left := end - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                poll.unregister(fd)
                waiting -= 1
    finally:
        for fd in fds:
            os.close(fd)
