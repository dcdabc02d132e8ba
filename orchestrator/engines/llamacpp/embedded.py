"""The embedded llama.cpp server: `python -P -m orchestrator.engines.llamacpp.embedded`.

It takes llama-server's command line (`embedded_flags.yaml` says which flags) and serves with the same C++
server, out of the xllamacpp package, in a process of its own. What is different from llama-server:

- The first SIGTERM or SIGINT closes the listening socket and lets running requests finish, then exits 0.
  llama-server cuts them and hangs. A second signal exits 1 at once.
- While the model loads, the first signal is noted and obeyed as soon as the model is loaded, with 0; a
  second of its kind ends the process at once. So no signal after the first 200 of /health is lost or fatal.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.engines.llamacpp.embedded_args import (
    EMBEDDED_MARK,
    EmbeddedFlag,
    EnumName,
    Refused,
    Table,
    listing,
    load_table,
    parse,
)

if TYPE_CHECKING:
    from types import ModuleType

_POLL_S = 0.05
_CLEANUP_LIMIT_S = 10
_WINDOW_S = 0.5
_IDLE_SHARE = 0.01
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# include/net/tcp_states.h
_ESTABLISHED, _CLOSE_WAIT = 1, 8


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit code is llama-server's. A refused command line exits 1."""
    args = list(sys.argv[1:] if argv is None else argv)
    _fill_standard_streams()
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        import xllamacpp.xllamacpp as library
    except ImportError as e:
        print(f"error: xllamacpp cannot be imported: {e}", file=sys.stderr)
        return 1
    table = load_table().narrowed(lambda flag: _honoured(flag, library))
    if "--list-flags" in args:
        print(json.dumps({"flags": listing((*table.flags, *table.removed))}))
        return 0
    if {"-h", "--help", "--usage"} & set(args):
        _print_help(table)
        return 0
    if "--version" in args:
        print(f"version: {_version()} (embedded over xllamacpp)", file=sys.stderr)
        return 0
    try:
        settings = parse(args, os.environ, table)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1
    if not settings.get("model.path"):
        print("error: --model is required: the embedded server has no router mode", file=sys.stderr)
        return 1
    return _serve(library, settings)


def _serve(library: ModuleType, settings: dict[str, Any]) -> int:
    print(f"{EMBEDDED_MARK} {_version()}", file=sys.stderr, flush=True)
    params = library.CommonParams()
    # llama-server's own default; the library's is any free port
    apply(params, {"port": 8080} | settings, library)
    wake, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    _note_signals(once=True)
    try:
        server = [library.Server(params)]
    except (RuntimeError, OSError) as e:
        # the library has logged the cause; leaving by the door lets its log thread write it out
        print(f"error: {e}", file=sys.stderr)
        return 1
    _note_signals(once=False)
    _await_main_loop(server[0])
    _await_signal(wake, None)
    tail = server[0].listening_address.rpartition(":")[2]
    port = int(tail) if tail.isdigit() else -1
    _close_listener(port)
    load = _LoadMeter()
    while _connections(port) and load.working():
        if _await_signal(wake, _POLL_S):
            print("second interrupt, terminating immediately", file=sys.stderr, flush=True)
            os._exit(1)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # the destructor joins the library's threads while it holds the interpreter's lock
    faulthandler.dump_traceback_later(_CLEANUP_LIMIT_S, exit=True, file=2)
    server.clear()
    return 0


def _await_main_loop(server: Any) -> None:
    """Until the server's loop runs: one that is told to end before it began would never end."""
    if "not_supported_error" in server.handle_metrics():
        # without --metrics nothing that goes through the loop can be asked from here
        time.sleep(_WINDOW_S)


def _note_signals(*, once: bool) -> None:
    """The stop signals are written to the wake-up pipe; with `once`, a second of a kind ends the process.

    Loading holds the interpreter's lock and the server answers before it gives the lock back, so what a
    signal does until then must be settled before, without Python: the interpreter's own handler in C writes
    to the pipe, and System V's rule for handlers takes it away after its first signal.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
        if not once:
            continue
        libc = ctypes.CDLL(None)
        one_shot = getattr(libc, "sysv_signal", None)
        if one_shot is not None:
            for call in (libc.signal, one_shot):
                call.argtypes, call.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
            one_shot(number, libc.signal(number, None))


class _LoadMeter:
    """Tells a running request from a connection that a client merely keeps: the server's threads compute."""

    def __init__(self) -> None:
        self._since, self._used_s = time.monotonic(), self._cpu_s()

    @staticmethod
    def _cpu_s() -> float:
        return time.process_time() - time.thread_time()

    def working(self) -> bool:
        """False once a whole window has passed in which the other threads used next to no time."""
        passed_s = time.monotonic() - self._since
        if passed_s < _WINDOW_S:
            return True
        used_s = self._cpu_s()
        share = (used_s - self._used_s) / passed_s
        self._since, self._used_s = time.monotonic(), used_s
        return share > _IDLE_SHARE


def _fill_standard_streams() -> None:
    """A closed stream's number must not go to a socket: the library logs to 2 whatever it is."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _await_signal(wake: int, timeout_s: float | None) -> bool:
    ready, _, _ = select.select([wake], [], [], timeout_s)
    return bool(ready and os.read(wake, 1))


def apply(params: Any, settings: dict[str, Any], library: ModuleType) -> None:
    """Write parsed settings onto a CommonParams. Raises AttributeError for a path it does not have."""
    for path, value in settings.items():
        if path == "sampler_bits":
            enum = library.common_params_sampling_config
            params.sampling.user_sampling_config |= sum({int(enum[name]) for name in value})
            continue
        *owners, name = path.split(".")
        owner = params
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, name, _native(value, getattr(owner, name), library))


def _native(value: Any, old: Any, library: ModuleType) -> Any:
    if isinstance(value, EnumName):
        return getattr(library, value.enum)[value.member]
    if isinstance(old, set):
        return set(value)
    if isinstance(value, list):
        values = [_native(v, None, library) for v in value]
        if old and isinstance(old, list) and isinstance(values[0], (int, float)):
            # fixed-length lists, one place a device: a single size is every device's, shares end in zeros
            fill = values[0] if len(values) == 1 and isinstance(values[0], int) else type(values[0])(0)
            return (values + [fill] * len(old))[: len(old)]
        return values
    return type(old)(value) if isinstance(old, (bool, float)) else value


def _honoured(flag: EmbeddedFlag, library: ModuleType) -> bool:
    """Whether the installed library has the attributes and enum members that a flag needs."""
    for path in flag.attr:
        owner: Any = library.CommonParams()
        for part in path.lstrip("!").split("."):
            owner = getattr(owner, part, None)
            if owner is None:
                return False
    if flag.enum and flag.choices:
        members = getattr(library, flag.enum, None)
        return members is not None and all(m in members.__members__ for m in flag.choices.values())
    return True


def _own_sockets(port: int) -> Iterator[tuple[int, socket.socket]]:
    """This process's TCP sockets on a local port: the descriptor, and a copy that lives for one turn."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with copy, contextlib.suppress(OSError):
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                yield int(name), copy


def _close_listener(port: int) -> None:
    """New connections are refused from here on; those that are open stay.

    The server cuts its streams once its accept loop ends, so the loop is kept: a socket that nobody knows
    takes the listener's place, and one connection wakes the loop out of the old one, which then closes.
    """
    addresses = []
    for number, listener in _own_sockets(port):
        if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            addresses.append((listener.family, listener.getsockname()))
            with socket.socket() as unknown:
                unknown.bind(("127.0.0.1", 0))
                unknown.listen(1)
                os.dup2(unknown.fileno(), number, inheritable=False)
    for family, address in addresses:
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
        with socket.socket(family) as waker, contextlib.suppress(OSError):
            waker.settimeout(1)
            waker.connect((reachable, *address[1:]))


def _connections(port: int) -> bool:
    """Whether a client is connected, be it one that has said all it will say."""
    states = [s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] for _, s in _own_sockets(port)]
    return any(state in (_ESTABLISHED, _CLOSE_WAIT) for state in states)


def _version() -> str:
    from importlib.metadata import version

    return version("xllamacpp")


def _print_help(table: Table) -> None:
    print("----- embedded server: flags of llama-server that xllamacpp can honour -----\n")
    for text in ("-h, --help, --usage", "--version", "--list-flags"):
        print(text)
    for flag in (*table.flags, *table.removed):
        print(flag.usage(), end="")


if __name__ == "__main__":
    sys.exit(main())
