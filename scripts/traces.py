"""What a run leaves behind: processes, listening ports, sockets, temporary files, shared memory.

    traces.py before FILE               note what is there now
    traces.py after FILE FOLDER MARKER  print what is new and ours, and end what runs; exit 1 for anything

FOLDER is where the run kept its state and temporary files, MARKER a `NAME=VALUE` of its environment.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Process:
    pid: int
    start_time: int
    command: str


def our_processes(folder: Path, marker: str) -> list[Process]:
    """Living processes of this user that carry the marker, or run or hold something below the folder.

    A server that was started through the daemon has lost the marker, its log and its temporary folder tell.
    This process and those above it are left out.
    """
    above = _ancestors(os.getpid())
    found = []
    for pid in (int(p.name) for p in PROC.iterdir() if p.name.isdigit()):
        started = start_time(pid)
        if pid in above or started is None or not _belongs(pid, str(folder), marker):
            continue
        found.append(Process(pid, started, _words(pid, "cmdline")[:160] or "?"))
    return found


def ending(folder: Path, marker: str, wait_s: float = 5) -> list[Process]:
    """`our_processes` that outlast `wait_s`: what was told to end may still be on its way out."""
    deadline = time.monotonic() + wait_s
    while running := our_processes(folder, marker):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return running


def start_time(pid: int) -> int | None:
    """In clock ticks since boot; None for what is gone or a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _belongs(pid: int, folder: str, marker: str) -> bool:
    if marker and marker in _words(pid, "environ").split(" "):
        return True
    if folder in _words(pid, "cmdline"):
        return True
    try:
        links = [PROC / str(pid) / "cwd", *(PROC / str(pid) / "fd").iterdir()]
        return any(_link(link).startswith(f"{folder}/") for link in links)
    except OSError:
        return False


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _words(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int((PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            break
    return found


def end(process: Process) -> None:
    """Kill exactly this process."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if start_time(process.pid) == process.start_time:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass  # it ended by itself
    finally:
        os.close(fd)


def listening(pid: int) -> list[int]:
    """TCP ports that a process listens on."""
    inodes = set()
    try:
        for fd in (PROC / str(pid) / "fd").iterdir():
            link = _link(fd)
            if link.startswith("socket:["):
                inodes.add(link[len("socket:[") : -1])
    except OSError:
        return []
    return sorted({port for port, inode in _listeners() if inode in inodes})


def _listeners() -> Iterator[tuple[int, str]]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[3] == "0A":
                yield int(fields[1].rpartition(":")[2], 16), fields[9]


def listened(ports: set[int]) -> set[int]:
    """Those of `ports` that anybody listens on."""
    return {port for port, _ in _listeners() if port in ports}


def shared_memory() -> set[str]:
    """This user's entries of /dev/shm."""
    found = set()
    for path in SHM.iterdir() if SHM.is_dir() else ():
        try:
            if path.lstat().st_uid == os.getuid():
                found.add(path.name)
        except OSError:
            continue
    return found


def held_by_others(names: set[str]) -> set[str]:
    """Those entries of /dev/shm that a living process has mapped or open: some other program's."""
    held = set()
    for pid in (p for p in PROC.iterdir() if p.name.isdigit()):
        try:
            maps = (pid / "maps").read_text(errors="replace")
            opened = {_link(fd) for fd in (pid / "fd").iterdir()}
        except OSError:
            continue
        held |= {n for n in names if f"{SHM}/{n}\n" in maps or f"{SHM}/{n}" in opened}
    return held


def files_below(folder: Path) -> set[str]:
    """Every file, link and folder below, relative."""
    found = set()
    for base, folders, files in os.walk(folder):
        found |= {os.path.relpath(os.path.join(base, n), folder) for n in folders + files}
    return found


def sockets_below(folder: Path) -> set[str]:
    """Unix sockets below, relative."""
    found = set()
    for name in files_below(folder):
        try:
            if stat.S_ISSOCK((folder / name).lstat().st_mode):
                found.add(name)
        except OSError:
            continue
    return found


def _before(file: Path) -> int:
    file.write_text(json.dumps({"shm": sorted(shared_memory())}))
    return 0


def _after(file: Path, folder: Path, marker: str) -> int:
    running = ending(folder, marker)
    for process in running:
        print(f"left running: {process.pid} {process.command} ports {listening(process.pid)}")
        end(process)
    new = shared_memory() - set(json.loads(file.read_text())["shm"])
    new -= held_by_others(new)
    for name in sorted(new):
        print(f"left in shared memory: {SHM / name}")
    temporary = sorted(os.listdir(folder / "tmp")) if (folder / "tmp").is_dir() else []
    for name in temporary:
        print(f"left in the temporary folder: {name}")
    return 1 if running or new or temporary else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["before"] and len(sys.argv) == 3:
        sys.exit(_before(Path(sys.argv[2])))
    if sys.argv[1:2] == ["after"] and len(sys.argv) == 5:
        sys.exit(_after(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
    sys.exit(__doc__)
