"""Where the daemon of this state folder listens."""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path

from orchestrator.errors import Exit, LlmserveError
from orchestrator.folders import runtime_dir, state_dir

_LONGEST = 100


def lock_file() -> Path:
    return state_dir() / "daemon.lock"


def holder() -> int | None:
    """The pid of the daemon that holds the lock, None where it is free; -1 where the holder is not known."""
    try:
        with lock_file().open("r+", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return None
            except OSError:
                return int(json.loads(handle.read())["pid"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1


def socket_file() -> Path:
    """In the runtime folder, else in state. Daemons of several state folders do not share one."""
    folder = runtime_dir()
    if folder == state_dir():
        return folder / "daemon.sock"
    digest = hashlib.sha256(str(state_dir()).encode()).hexdigest()[:8]
    return folder / f"daemon-{digest}.sock"


def check_socket(path: Path) -> Path:
    """The system cuts socket paths at 107 bytes. Raises LlmserveError."""
    size = len(str(path).encode())
    if size >= _LONGEST:
        raise LlmserveError(
            "socket_path_too_long",
            f"the daemon's socket path has {size} bytes, {_LONGEST - 1} is the most: {path}",
            "set LLMSERVE_HOME to a shorter folder",
            exit_code=Exit.REFUSED,
        )
    return path
