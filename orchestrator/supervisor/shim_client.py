"""The daemon's side of the shim: start one, ask it, read what it wrote, wait for a death."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import Exit, LlmserveError
from orchestrator.folders import write_whole
from orchestrator.supervisor.process import Identity
from orchestrator.supervisor.shim import PROTOCOL

SHIM = Path(__file__).with_name("shim.py").resolve()
START_CAP_S = 10.0
FOLDER_CAP_S = 5.0
RECORD_BYTES = REPLY_BYTES = 4 * 1024 * 1024
_LOOK_S = 0.01
_LOG_END_BYTES = 2000
_children: set[subprocess.Popen[bytes]] = set()
_PER_GENERATION = ("shim.json", "exit.json", "shim.sock")


async def start(process_dir: Path, spec: Mapping[str, Any]) -> None:
    """Write spec.json and start a shim that outlives this process, in a session of its own.

    Returns when shim.json (the engine runs) or exit.json (it does not, or no more) of the spec's generation
    is there. Records of an older generation are removed. Cancelled or failed, it asks the shim to end.
    Raises LlmserveError: another shim holds the folder, or none came up within 10 s (with shim.log's end).
    """
    await _free_folder(process_dir)
    for name in _PER_GENERATION:
        (process_dir / name).unlink(missing_ok=True)
    await asyncio.to_thread(write_whole, process_dir / "spec.json", json.dumps(dict(spec)))
    child = _spawn(process_dir)
    _reap_at_death(child)
    try:
        await _first_record(process_dir, spec["generation"], child)
    except BaseException:
        child.terminate()
        raise


async def request(process_dir: Path, op: Mapping[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
    """One request, one reply; `protocol` is added. A kill needs 12 s, as the shim may take 10.

    Raises ConnectionError where no shim answers in time or what answers is not one.
    """
    line = json.dumps({"protocol": PROTOCOL, **op}).encode() + b"\n"
    try:
        async with asyncio.timeout(timeout_s):
            raw = await _exchange(process_dir, line)
        reply = json.loads(raw)
    except (OSError, TimeoutError, ValueError, RecursionError) as e:
        raise ConnectionError(f"no shim answers in {process_dir}: {e or type(e).__name__}") from e
    if not isinstance(reply, dict):
        raise ConnectionError(f"what answers in {process_dir} is no shim")
    return reply


def read_record(process_dir: Path, name: str) -> dict[str, Any] | None:
    """`shim.json` or `exit.json`; None where it is absent or not a JSON object."""
    try:
        with open(process_dir / name, "rb") as f:
            record = json.loads(f.read(RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


async def wait_dead(identity: Identity) -> None:
    """Return when the process is dead, at once where it is already. No polling; a pidfd in the event loop."""
    fd = identity.pidfd()
    if fd is None:
        return
    loop = asyncio.get_running_loop()
    dead = asyncio.Event()
    loop.add_reader(fd, dead.set)
    try:
        await dead.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _spawn(process_dir: Path) -> subprocess.Popen[bytes]:
    log = os.open(process_dir / "shim.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(SHIM), str(process_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # the marker of a deployment this daemon was started from would make the shim its member
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
    finally:
        os.close(log)


def _reap_at_death(child: subprocess.Popen[bytes]) -> None:
    """Leave no zombie: reaped by this event loop, or at the next start where the loop is gone by then."""
    loop = asyncio.get_running_loop()
    fd = os.pidfd_open(child.pid)
    _children.difference_update([c for c in _children if c.poll() is not None])
    _children.add(child)

    def reap() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        child.wait()
        _children.discard(child)

    loop.add_reader(fd, reap)


async def _first_record(process_dir: Path, generation: Any, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_CAP_S
    while True:
        ended = child.poll() is not None
        for name in ("shim.json", "exit.json"):
            record = read_record(process_dir, name)
            if record is not None and record.get("generation") == generation:
                return
        if ended or time.monotonic() > end:
            break
        await asyncio.sleep(_LOOK_S)
    refusal = (read_record(process_dir, "exit.json") or {}).get("exec_error")
    so = f"ended with {child.returncode}" if ended else f"has not come up in {START_CAP_S:.0f} s"
    raise LlmserveError(
        "shim_failed",
        f"the shim in {process_dir} {so}: {refusal or _log_end(process_dir) or 'it says nothing'}",
        f"see {process_dir / 'shim.log'}, then start again",
        exit_code=Exit.ENGINE,
    )


def _log_end(process_dir: Path) -> str:
    try:
        with open(process_dir / "shim.log", "rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - _LOG_END_BYTES))
            return f.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


async def _free_folder(process_dir: Path) -> None:
    """Wait for a shim on its way out. One that only waits for its record to be written is told not to."""
    process_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    end = time.monotonic() + FOLDER_CAP_S
    while _held(process_dir):
        if time.monotonic() > end:
            raise LlmserveError(
                "shim_running",
                f"a shim still runs in {process_dir}",
                "stop the deployment first",
                exit_code=Exit.REFUSED,
            )
        try:
            status = await request(process_dir, {"op": "status"}, timeout_s=1.0)
            if (status.get("exit") or {}).get("emptied"):
                await request(process_dir, {"op": "kill"}, timeout_s=1.0)
        except ConnectionError:
            pass
        await asyncio.sleep(_LOOK_S)


def _held(process_dir: Path) -> bool:
    fd = os.open(process_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(fd)
    return False


async def _exchange(process_dir: Path, line: bytes) -> bytes:
    # through a descriptor, because a socket's path may have 107 bytes and a folder's has more
    folder = os.open(process_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        reader, writer = await asyncio.open_unix_connection(
            f"/proc/self/fd/{folder}/shim.sock", limit=REPLY_BYTES
        )
    finally:
        os.close(folder)
    try:
        writer.write(line)
        await writer.drain()
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as e:
        raise ConnectionError("the reply was cut") from e
    finally:
        writer.transport.abort()  # nothing is left to say, and a frozen shim would keep a close waiting
        with contextlib.suppress(OSError):
            await writer.wait_closed()
