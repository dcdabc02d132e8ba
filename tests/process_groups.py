"""Whether a process group is gone: what was killed takes a moment to die, and zombies wait for a parent."""

import os
import time

import psutil


def members(group: int) -> set[int]:
    """Processes of a group that still run."""
    found = set()
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except ProcessLookupError:
            continue
    return found


def is_gone(group: int, within_s: float = 5.0) -> bool:
    """Whether nothing of a group runs any more, at the latest after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
