"""The daemon: one per state folder, made single by a lock; it can die at any time and lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import IO, Any

import uvicorn
from starlette.applications import Starlette

from orchestrator import __version__
from orchestrator.errors import Exit, LlmserveError
from orchestrator.folders import state_dir
from orchestrator.supervisor.address import check_socket, holder, lock_file, socket_file
from orchestrator.supervisor.api import application
from orchestrator.supervisor.supervisor import Supervisor

_LOOK_S = 0.5


class AlreadyRunning(LlmserveError):
    """Another daemon holds the lock of this state folder."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(
            "daemon_running",
            f"a daemon{f' (pid {pid})' if pid else ''} supervises {state_dir()} already",
            "llmserve daemon status; llmserve daemon stop",
            exit_code=Exit.REFUSED,
        )
        self.pid = pid


def lock() -> IO[str]:
    """Take the lock that makes the daemon single; held until the file is closed. Raises AlreadyRunning."""
    file = lock_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise AlreadyRunning(holder()) from None
    handle.truncate()
    handle.write(json.dumps({"pid": os.getpid(), "version": __version__, "socket": str(socket_file())}))
    handle.flush()
    return handle


async def serve(
    started: Callable[[Supervisor, asyncio.Event], Coroutine[Any, Any, None]] | None = None,
    handle: IO[str] | None = None,
    on_end: Callable[[Supervisor, asyncio.Event], Coroutine[Any, Any, None]] | None = None,
    only: str | None = None,
) -> None:
    """Supervise until SIGTERM, SIGINT or `daemon stop`; engines are left running.

    `started` is run beside it, once deployments are adopted; setting its event ends the daemon. `on_end` is
    run to its end before the daemon lets go of its deployments; its event is set by a second signal. `only`
    is the one deployment that may be adopted and launched. Raises AlreadyRunning.
    """
    handle = handle or lock()
    path = check_socket(socket_file())
    supervisor = Supervisor(only)
    over, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(signum: int) -> None:
        supervisor.ended_by = supervisor.ended_by or signum
        (hurry if over.is_set() else over).set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, told, signum)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # a lost terminal ends nothing

    def shut_down() -> None:
        loop.call_later(0.05, over.set)  # after the answer has left

    app = application(supervisor, str(path), os.getpid(), shut_down)
    await supervisor.adopt_all()
    tasks = [
        asyncio.create_task(_keep_socket(app, path)),
        asyncio.create_task(_keep_folder(supervisor, handle, over)),
    ]
    if started:
        tasks.append(asyncio.create_task(started(supervisor, over)))
    ended = asyncio.create_task(over.wait())
    try:
        done, _ = await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await over.wait()
    finally:
        try:
            if on_end:
                await on_end(supervisor, hurry)
        finally:
            for task in (ended, *tasks):
                task.cancel()
            await asyncio.gather(ended, *tasks, return_exceptions=True)
            await supervisor.close()
            with contextlib.suppress(OSError):
                path.unlink()
            handle.close()


async def _keep_folder(supervisor: Supervisor, handle: IO[str], over: asyncio.Event) -> None:
    """When the state folder is deleted under the daemon: write it anew. Where another daemon was quicker,
    leave the deployments to it."""
    inode = os.fstat(handle.fileno()).st_ino
    while _inode(lock_file()) == inode:
        await asyncio.sleep(_LOOK_S)
    try:
        again = lock()
    except AlreadyRunning:
        again = None
    for deployment in supervisor.deployments.values():
        with contextlib.suppress(OSError):
            deployment.rewrite()
    if again is None:
        over.set()
        return
    await _keep_folder(supervisor, again, over)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the daemon has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _keep_socket(app: Starlette, path: Path) -> None:
    """Serve on the socket, and make it anew when it has vanished (tmp cleaners, the end of a login)."""
    while True:
        sock = _listen(path)
        inode = _inode(path)
        server = _Server(
            uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            while not serving.done() and _inode(path) == inode:
                await asyncio.sleep(_LOOK_S)
        finally:
            server.should_exit = True
            await asyncio.wait({serving}, timeout=3)
            sock.close()


def _listen(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    sock = socket.socket(socket.AF_UNIX)
    old = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(old)
    return sock


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def main() -> None:
    """`python -m orchestrator.supervisor.daemon`: what the command line starts in the background."""
    os.chdir("/")
    try:
        asyncio.run(serve())
    except LlmserveError as e:
        print(f"llmserve daemon: {e.message}", file=sys.stderr)  # noqa: T201
        sys.exit(int(e.exit_code))


if __name__ == "__main__":
    main()
