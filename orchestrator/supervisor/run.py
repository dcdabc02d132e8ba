"""One generation of a process: from its start under a shim to the proof that nothing of it is left."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.plan import ProcessPlan, bind
from orchestrator.supervisor import process, shim_client
from orchestrator.supervisor.process import Identity
from orchestrator.supervisor.shim import PROTOCOL
from orchestrator.supervisor.store import DeploymentFolder

_LOG_MAX_BYTES = 64 * 1024 * 1024
_LOG_END_BYTES = 32 * 1024
_LOG_READ_BYTES = 16 * 1024 * 1024
_TERM_GRACE_S = 10
_SHIM_CLEARS_S = 12
_SHIM_ENDS_S = 2
_RECORD_S = 2


def steady_now() -> float:
    """Seconds since boot, sleep included: unmoved by clock changes, the same for every daemon of one boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: exit of the leader (both None where nobody saw it), what had to be killed, what would
    not die ("name (pid N)")."""

    code: int | None
    signal: int | None
    exec_error: str | None
    leftovers: tuple[Any, ...]
    survivors: tuple[str, ...]


@dataclass(slots=True)
class Run:
    """`leader` is the engine's first process, `shim` its parent; both None until known.

    Made by `prepare` (then `start`) or, by a daemon that adopts, by `found`.
    """

    folder: DeploymentFolder
    role: str
    generation: int
    marker: str
    tmpdir: str
    log_start: int
    boot_id: str
    started_at: float | None = None
    leader: Identity | None = field(default=None)
    shim: Identity | None = field(default=None)

    @classmethod
    def prepare(cls, folder: DeploymentFolder, role: str, generation: int) -> Run:
        """A marker and a temporary folder, to be written down before anything starts."""
        folder.process_dir(role).mkdir(parents=True, exist_ok=True, mode=0o700)
        log = folder.log(role)
        return cls(
            folder=folder,
            role=role,
            generation=generation,
            marker=f"llmserve-{folder.name}-{uuid.uuid4().hex}",
            tmpdir=_temporary_folder(),
            log_start=log.stat().st_size if log.exists() else 0,
            boot_id=process.boot_id(),
        )

    @classmethod
    def found(cls, folder: DeploymentFolder, data: Mapping[str, Any]) -> Run:
        """What `to_json` wrote. Raises KeyError, TypeError on damage."""
        people = {k: Identity(*data[k]) if data.get(k) else None for k in ("leader", "shim")}
        return cls(folder=folder, **{**data, **people})

    @classmethod
    def rebuilt(cls, folder: DeploymentFolder, role: str) -> Run | None:
        """From the shim's own files, where the state was lost; None where they say nothing."""
        spec = shim_client.read_record(folder.process_dir(role), "spec.json")
        if spec is None or not isinstance(spec.get("marker"), str):
            return None
        run = cls(
            folder=folder,
            role=role,
            generation=int(spec.get("generation", 0)),
            marker=spec["marker"],
            tmpdir=str(spec.get("tmpdir", "")),
            log_start=0,
            boot_id=process.boot_id(),
        )
        run.follow_record()
        return run

    def to_json(self) -> dict[str, Any]:
        keys = ("role", "generation", "marker", "tmpdir", "log_start", "boot_id", "started_at")
        people = {"leader": self.leader, "shim": self.shim}
        return {k: getattr(self, k) for k in keys} | {
            k: [i.pid, i.start_time, i.boot_id] if i else None for k, i in people.items()
        }

    async def start(self, plan: ProcessPlan, ports: Mapping[str, int], env: Mapping[str, str]) -> None:
        """Start shim and engine. Raises LlmserveError or OSError where no shim came up."""
        try:
            await self._start(plan, ports, env)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, self.tmpdir, ignore_errors=True)
            raise

    async def _start(self, plan: ProcessPlan, ports: Mapping[str, int], env: Mapping[str, str]) -> None:
        process_dir = self.folder.process_dir(self.role)
        spec = bind(plan, ports, self.tmpdir, str(self.folder.log(self.role)), {**env, "TMPDIR": self.tmpdir})
        await shim_client.start(
            process_dir,
            {
                "protocol": PROTOCOL,
                "deployment": self.folder.name,
                "process": self.role,
                "generation": self.generation,
                "argv": list(spec.argv),
                "env": spec.env,
                "cwd": str(process_dir),
                "log": spec.log,
                "log_max_bytes": _LOG_MAX_BYTES,
                "tmpdir": spec.tmpdir,
                "marker": self.marker,
                "term_grace_s": _TERM_GRACE_S,
                "ports": dict(ports),
            },
        )
        self.follow_record()

    async def await_record(self) -> None:
        """A shim started in a daemon's last moment may not have written its record yet: wait 2 s for it."""
        deadline = steady_now() + _RECORD_S
        while steady_now() < deadline:
            if self._record("shim.json") or self._record("exit.json"):
                break
            await asyncio.sleep(0.05)
        self.follow_record()

    def follow_record(self) -> None:
        """Take leader and shim from the shim's record of this generation, if there is one."""
        record = self._record("shim.json")
        if record is None:
            return
        boot = str(record["boot_id"])
        self.leader = Identity(int(record["engine_pid"]), int(record["engine_start_time"]), boot)
        self.shim = Identity(int(record["shim_pid"]), int(record["shim_start_time"]), boot)
        self.started_at = float(record["started_at"])

    def _record(self, name: str) -> dict[str, Any] | None:
        record = shim_client.read_record(self.folder.process_dir(self.role), name)
        return record if record is not None and record.get("generation") == self.generation else None

    def members(self) -> list[Identity]:
        """Every living process of the run."""
        return process.members(self.marker, self._session(), self.leader)

    def _session(self) -> int | None:
        return self.leader.pid if self.leader else None  # the shim makes the leader its session's head

    async def _sweep(self) -> list[Identity]:
        return await asyncio.to_thread(process.sweep, self.marker, self._session(), self.leader)

    def log_text(self) -> str:
        """This run's log, with what was rotated away in it: whole up to 16 MiB, beyond that its first and
        last 8 MiB."""
        log = self.folder.log(self.role)
        old = log.with_name(log.name + ".1")
        parts = [(log, self.log_start)]
        if _size(log) < self.log_start or (self.started_at and _changed_at(old) > self.started_at):
            parts = [(old, self.log_start), (log, 0)]
        pieces = [(file, start, _size(file) - start) for file, start in parts if _size(file) > start]
        if sum(size for _, _, size in pieces) <= _LOG_READ_BYTES:
            data = b"".join(_read(*piece) for piece in pieces)
        else:
            half = _LOG_READ_BYTES // 2
            (first, start, _), (last, _, _) = pieces[0], pieces[-1]
            data = _read(first, start, half) + b"\n...\n" + _read(last, max(0, _size(last) - half), half)
        return data.decode("utf-8", "replace")

    def log_end(self) -> str:
        """The last 32 KiB of this run's log."""
        try:
            with self.folder.log(self.role).open("rb") as f:
                size = f.seek(0, 2)
                start = self.log_start if self.log_start <= size else 0
                f.seek(max(start, size - _LOG_END_BYTES))
                return f.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def resident_bytes(self) -> int | None:
        """Memory of the leader, mapped weights included; None where it is gone."""
        return process.rss_bytes(self.leader.pid) if self.leader else None

    async def signal(self, signum: int) -> None:
        """To the leader, by the shim, or directly where the shim is gone."""
        try:
            await self._ask_shim({"op": "signal", "signal": signum}, 5)
        except (OSError, TimeoutError):
            if self.leader is not None:
                self.leader.signal(signum)

    async def kill(self) -> None:
        """SIGKILL to the whole tree."""
        try:
            await self._ask_shim({"op": "kill"}, 15)
        except (OSError, TimeoutError):
            await self._sweep()

    async def _ask_shim(self, op: dict[str, Any], timeout_s: float) -> None:
        await shim_client.request(self.folder.process_dir(self.role), op, timeout_s=timeout_s)

    async def leader_dead(self) -> None:
        """Returns when the leader is dead, at once where there is none."""
        if self.leader is not None:
            await shim_client.wait_dead(self.leader)

    async def _while_clearing(self, shim_dead: asyncio.Future[None]) -> None:
        """Give the shim its time while it has a tree to empty, and a moment more to write that down."""
        deadline = steady_now() + _SHIM_CLEARS_S
        while not shim_dead.done() and steady_now() < deadline:
            busy = bool(await asyncio.to_thread(self.members))
            await asyncio.wait({shim_dead}, timeout=0.2 if busy else _SHIM_ENDS_S)
            if not busy:
                return

    async def end(self, on_shim_lost: Callable[[], None], on_leader_dead: Callable[[], None]) -> Ending:
        """Wait for the end of the run and see that nothing is left. Says what happens on the way."""
        if self.leader is not None and self.shim is not None:
            leader_dead = asyncio.ensure_future(shim_client.wait_dead(self.leader))
            shim_dead = asyncio.ensure_future(shim_client.wait_dead(self.shim))
            try:
                await asyncio.wait({leader_dead, shim_dead}, return_when=asyncio.FIRST_COMPLETED)
                if not leader_dead.done() and self.leader.alive():
                    on_shim_lost()
                await leader_dead
                on_leader_dead()
                await self._while_clearing(shim_dead)
                for signum in (signal.SIGTERM, signal.SIGKILL):
                    # frozen, or waiting for room on a full disk: its work is taken over below
                    if not shim_dead.done() and self.shim.signal(signum):
                        await asyncio.wait({shim_dead}, timeout=_SHIM_ENDS_S)
            finally:
                leader_dead.cancel()
                shim_dead.cancel()
        # the shim has emptied the tree; where it could not, this does
        survivors = await self._sweep()
        if self.shim is not None and self.shim.alive():
            survivors.append(self.shim)
        (self.folder.process_dir(self.role) / "shim.sock").unlink(missing_ok=True)
        if self.tmpdir:
            await asyncio.to_thread(shutil.rmtree, self.tmpdir, ignore_errors=True)
        record = self._record("exit.json") or {}
        return Ending(
            code=record.get("code"),
            signal=record.get("signal"),
            exec_error=record.get("exec_error"),
            leftovers=tuple(record.get("leftovers") or ()),
            survivors=tuple(f"{process.name(s.pid)} (pid {s.pid})" for s in survivors),
        )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read(file: Path, start: int, size: int) -> bytes:
    try:
        with file.open("rb") as f:
            f.seek(start)
            return f.read(size)
    except OSError:
        return b""


def _temporary_folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="llmserve-")
    except FileNotFoundError:
        tempfile.tempdir = None  # the folder that was found first is gone: look again
        return tempfile.mkdtemp(prefix="llmserve-")
