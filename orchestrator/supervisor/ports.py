"""Ports of this machine: who listens, and what is free as a server would find it.

A pre-flight test without SO_REUSEADDR says "in use" of a port nobody listens on (TIME_WAIT); servers set it,
so the test does.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.errors import refused, usage
from orchestrator.supervisor import process

LAST_PORT = 65535
UNSEEN = "a process that cannot be seen from here"
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket and one process that holds it; `pid` None where none can be seen."""

    address: str
    port: int
    pid: int | None
    inode: int


def listeners(pids: Iterable[int] | None = None) -> list[Listener]:
    """Listening TCP sockets of this network namespace, one entry for each process that holds one.

    With `pids` only those of these processes; without, all, and those of unseen processes with `pid` None.
    """
    sockets = {inode: (address, port) for address, port, inode in _listening()}
    if not sockets:
        return []
    wanted = _numbers("/proc") if pids is None else pids
    held = [(inode, pid) for pid in wanted for inode in _socket_inodes(pid) if inode in sockets]
    found = [Listener(*sockets[inode], pid, inode) for inode, pid in held]
    if pids is None:
        seen = {inode for inode, _ in held}
        found += [Listener(*sockets[inode], None, inode) for inode in sockets if inode not in seen]
    return sorted(found, key=lambda n: (n.port, n.address, n.pid or 0))


def owned(port: int, pids: Iterable[int]) -> bool:
    """Whether a listening socket on the port belongs to one of these processes."""
    return any(n.port == port for n in listeners(pids))


def is_free(host: str, port: int) -> bool:
    """Whether a server could bind the port on every address of `host` now; a wildcard listener takes it, too.

    Raises LlmserveError: a port out of range or an address that is not this machine's (usage), a port that
    this user may not bind (refused).
    """
    if not 1 <= port <= LAST_PORT:
        raise usage("bad_port", f"port {port} is not one", f"take a port from 1 to {LAST_PORT}")
    return all(_binds(family, address, host, port) for family, address in _addresses(host))


def first_free(
    host: str, start: int = 8000, taken: Collection[int] = frozenset(), above: Collection[int] = ()
) -> int:
    """The first port from `start` that is free and not in `taken`, as are those that lie `above` it by these
    numbers. Raises LlmserveError where there is none."""
    steps = (0, *sorted(above))
    for port in range(start, LAST_PORT + 1 - steps[-1]):
        if all(port + n not in taken and is_free(host, port + n) for n in steps):
            return port
    raise refused(
        "no_free_port",
        f"no free port from {start} to {LAST_PORT} on {host}",
        "stop what holds them, or set a lower port with --port",
    )


def choose(
    host: str, wanted: Mapping[str, int | None], start: int = 8000, taken: Collection[int] = frozenset()
) -> dict[str, int]:
    """A port for each name, as `ProcessPlan.ports` means them: fixed ones as they are (not looked at), and
    the first free ones from `start` that are not in `taken`, those of one base in their places above it.

    Raises LlmserveError where there is none.
    """
    chosen = {name: port for name, port in wanted.items() if port is not None}
    for name in wanted:
        base, plus, _ = name.partition("+")
        if plus or name in chosen:
            continue
        above = {n: int(n[len(base) + 1 :]) for n in wanted if n.startswith(f"{base}+")}
        chosen[base] = first_free(host, start, {*taken, *chosen.values()}, above.values())
        chosen |= {n: chosen[base] + step for n, step in above.items()}
    return {name: chosen[name] for name in wanted}


def holder(port: int) -> str | None:
    """Who listens on the port: "name (pid N)", UNSEEN where it cannot be seen, None where nobody does."""
    found = [n for n in listeners() if n.port == port]
    if not found:
        return None
    pid = next((n.pid for n in found if n.pid is not None), None)
    return UNSEEN if pid is None else f"{process.name(pid)} (pid {pid})"


def _addresses(host: str) -> set[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as e:
        raise usage("bad_host", f"cannot resolve {host}: {e}", "give an address of this machine") from e
    return {(family, str(address[0])) for family, _, _, _, address in found}


def _binds(family: int, address: str, host: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((address, port))
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            return False
        if e.errno in (errno.EACCES, errno.EPERM):
            raise refused(
                "port_forbidden", f"this user may not bind port {port}", "take a port from 1024 on"
            ) from e
        # a machine without IPv6 still resolves localhost to ::1, and a server skips that address
        without_ipv6 = family == socket.AF_INET6 and e.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
        if without_ipv6 and host != address:
            return True
        raise usage("bad_host", f"cannot bind {host}: {e.strerror}", "give an address of this machine") from e
    return True


def _listening() -> Iterator[tuple[str, int, int]]:
    """(address, port, inode) of every listening socket in /proc/net/tcp and tcp6."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="ascii") as f:
                next(f, None)
                for line in f:
                    fields = line.split()
                    if fields[3] == _LISTEN:
                        address, port = fields[1].split(":")
                        yield _address(address), int(port, 16), int(fields[9])
        except OSError:
            continue  # a kernel without IPv6 has no tcp6


def _address(text: str) -> str:
    """The kernel prints an address as hexadecimal words of 32 bits in host order."""
    raw = b"".join(int(text[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(text), 8))
    return str(ipaddress.ip_address(raw))


def _numbers(folder: str) -> list[int]:
    return [int(entry) for entry in os.listdir(folder) if entry.isdigit()]


def _socket_inodes(pid: int) -> set[int]:
    """Inodes of the sockets a process holds; none where it is gone or not ours to see."""
    folder = f"/proc/{pid}/fd"
    found = set()
    try:
        for fd in _numbers(folder):
            try:
                target = os.readlink(f"{folder}/{fd}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    except OSError:
        return set()
    return found
