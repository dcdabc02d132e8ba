"""One deployment: a task that owns its state; everyone else sends it an event.

Deciding is `lifecycle`'s; this module carries its actions out on real processes and reports what happened.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

import httpx

from orchestrator.engines.base import Engine, Exit, FactCheck, Failure
from orchestrator.engines.registry import engine as engine_of
from orchestrator.errors import LlmserveError
from orchestrator.plan import Plan, bind
from orchestrator.supervisor import lifecycle as lc
from orchestrator.supervisor import ports, process, shim_client
from orchestrator.supervisor.environment import redacted
from orchestrator.supervisor.health import Judge, LivenessSettings
from orchestrator.supervisor.process import Identity
from orchestrator.supervisor.restart import RestartSettings
from orchestrator.supervisor.store import DeploymentFolder

_LOG_MAX_BYTES = 64 * 1024 * 1024
_LOG_READ_BYTES = 4 * 1024 * 1024
_READY_INTERVAL_S = 0.1


def steady_now() -> float:
    """Seconds since boot, sleep included: unmoved by clock changes, the same for every daemon of one boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Deployment:
    """See the module docstring. `begin` or `adopt` once; `post` and the readers are safe in every state."""

    def __init__(
        self, folder: DeploymentFolder, plan: Plan, env: dict[str, str], state: dict[str, Any] | None = None
    ) -> None:
        state = state or {}
        supervision = plan.supervision
        self.folder = folder
        self.plan = plan
        self.env = env
        self.engine: Engine = engine_of(plan.engine.kind)
        self.process_plan = plan.processes[0]
        self.role = self.process_plan.role
        self.life = lc.Lifecycle.from_json(
            state.get("lifecycle", {}),
            RestartSettings.of(supervision.get("restart")),
            frozenset(plan.steps_down),
        )
        self.liveness = LivenessSettings.of(supervision.get("liveness"))
        self.drain_s = float(supervision.get("drain_s", 30))
        self.start_cap_s = float(supervision.get("start_cap_s", 3600))
        self.ports: dict[str, int] = state.get("ports", {})
        self.marker: str = state.get("marker", "")
        self.tmpdir: str = state.get("tmpdir", "")
        self.log_start: int = state.get("log_start", 0)
        self.started_at: float | None = state.get("started_at")
        self.boot_id: str = state.get("boot_id", "")
        self.checks: list[dict[str, Any]] = state.get("plan_vs_actual", [])
        self.corrections: list[dict[str, Any]] = state.get("corrections", [])
        self.last_stop: dict[str, Any] | None = state.get("last_stop")
        self.leader: Identity | None = None
        self.shim: Identity | None = None
        self.revision = 0
        self._survivors: list[str] = []
        self._stop_started = 0.0
        self._finished = self._lost = 0
        self._inbox: asyncio.Queue[lc.Event] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Task[None]] = set()
        # proxies of the daemon's environment have no business between it and a server on this host
        self._http = httpx.AsyncClient(timeout=5, trust_env=False)

    # for others

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def endpoint(self) -> str | None:
        port = self.ports.get("http")
        host = self.process_plan.bound
        return f"http://{f'[{host}]' if ':' in host else host}:{port}" if port else None

    @property
    def served_model(self) -> str:
        return str(self.plan.model.get("served_model") or self.plan.model.get("name"))

    def post(self, event: lc.Event) -> None:
        """Tell the owner. Returns at once."""
        self._inbox.put_nowait(event)

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Until `revision` is above `after`, `timeout_s` at most."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: self.revision > after), timeout_s)
            except TimeoutError:
                return

    async def stop(self) -> dict[str, Any]:
        """Stop and wait until it is proved; the contract's `finished, lost, seconds, survivors`."""
        if self.life.state not in lc.ENDED:
            generation = self.life.generation
            self.post(lc.StopRequested())
            async with self._changed:
                # a restart that overtakes this stop ends it too: its generation is gone
                await self._changed.wait_for(
                    lambda: self.life.state in lc.ENDED or self.life.generation != generation
                )
        return self.last_stop or {"finished": 0, "lost": 0, "seconds": 0.0, "survivors": []}

    def status(self, show_env: bool = False) -> dict[str, Any]:
        """The contract's status object. `revision` counts changes, for waiting on the next one."""
        life = self.life
        alive = life.state in lc.RUNNING or life.state == "stopping"
        leader = self.leader if alive else None
        processes = [
            {
                "role": self.role,
                "pid": leader.pid if leader else None,
                "shim_pid": self.shim.pid if alive and self.shim else None,
                "state": life.state,
                "restarts": life.restarts,
                "uptime_s": round(time.time() - self.started_at, 1) if leader and self.started_at else None,
                "rss_bytes": process.rss_bytes(leader.pid) if leader else None,
            }
        ]
        failure = life.last_failure
        out = {
            "schema_version": 1,
            "name": self.name,
            "state": life.state,
            "phase": life.phase,
            "reason": life.reason,
            "endpoint": self.endpoint,
            "served_model": self.served_model,
            "goal": self.plan.goal,
            "engine": asdict(self.plan.engine),
            "processes": processes,
            "plan_vs_actual": self.checks,
            "corrections": self.corrections,
            "last_failure": failure
            and {
                "class": failure.failure_class,
                "message": failure.message,
                "evidence": failure.evidence,
                "remedy": failure.remedy,
            },
            "log": str(self.folder.log(self.role)),
            "retry_in_s": max(0.0, round(life.retry_at - steady_now(), 1)) if life.retry_at else None,
            "revision": self.revision,
        }
        if show_env:
            out["env"] = redacted({**self.env, **self.process_plan.env})
        return out

    def record(self, kind: str, **data: Any) -> None:
        """An event of the deployment as a whole."""
        self.folder.append_event(kind, None, **data)

    # the owner

    def begin(self) -> None:
        """Start owning: a new deployment, after its files are written."""
        self._run(self._own(), self._tasks)

    async def close(self) -> None:
        """Let go without touching the engine: another daemon will adopt it."""
        for task in [*self._tasks, *self._watchers]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._watchers, return_exceptions=True)
        await self._http.aclose()

    def _run(self, work: Coroutine[Any, Any, None], group: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)

    async def _own(self) -> None:
        while True:
            event = await self._inbox.get()
            before = self.life.state
            actions = self.life.on(event, steady_now(), random.random())
            self._note(event, before)
            self._save()
            for action in actions:
                try:
                    await self._act(action)
                except Exception as e:  # the owner must survive whatever an action meets
                    self.folder.append_event("internal_error", self.role, action=repr(action), error=repr(e))
                    if isinstance(action, lc.Spawn):
                        self.post(lc.TreeEmpty(_spawn_failure(e)))
            await self._announce()

    async def _act(self, action: lc.Action) -> None:
        match action:
            case lc.Spawn(step_down=cause):
                if cause:
                    self._step_down(cause)
                await self._spawn()
            case lc.Stop(drain=drain):
                self._run(self._stop_process(drain), self._tasks)
            case lc.Kill():
                self._run(self._kill_process(), self._tasks)
            case lc.Wake(at=at):
                self._run(self._wake(at), self._tasks)

    def _note(self, event: lc.Event, before: str) -> None:
        life = self.life
        if isinstance(event, lc.TreeEmpty) and before == "stopping":
            self.last_stop = {
                "finished": self._finished,
                "lost": self._lost,
                "seconds": round(steady_now() - self._stop_started, 2),
                "survivors": self._survivors,
            }
            self.folder.append_event("stop_proved", self.role, **self.last_stop)
        if isinstance(event, (lc.StopRequested, lc.RestartRequested)):
            self._stop_started, self._finished, self._lost = steady_now(), 0, 0
            if before in ("backoff", *lc.ENDED):
                self.last_stop = None
        if isinstance(event, lc.PhaseSeen):
            self.folder.append_event("phase", self.role, phase=event.phase)
        if life.state != before:
            failure = life.last_failure if life.state in ("failed", "backoff") else None
            extra: dict[str, Any] = {"failure": asdict(failure)} if failure else {}
            self.folder.append_event(
                "state",
                None,
                state=life.state,
                was=before,
                reason=life.reason,
                generation=life.generation,
                **extra,
            )

    def _save(self) -> None:
        try:
            self.folder.write_state(
                {
                    "schema_version": 1,
                    "name": self.name,
                    "state": self.life.state,
                    "lifecycle": self.life.to_json(),
                    "endpoint": self.endpoint,
                    "ports": self.ports,
                    "marker": self.marker,
                    "tmpdir": self.tmpdir,
                    "log_start": self.log_start,
                    "started_at": self.started_at,
                    "boot_id": self.boot_id,
                    "plan_vs_actual": self.checks,
                    "corrections": self.corrections,
                    "last_stop": self.last_stop,
                }
            )
        except OSError as e:
            # a full disk: go on in memory, the next change tries again
            self.folder.append_event("state_not_saved", None, error=str(e))

    async def _announce(self) -> None:
        async with self._changed:
            self.revision += 1
            self._changed.notify_all()

    async def _wake(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - steady_now()))
        self.post(lc.TimerDue())

    # starting

    def _step_down(self, cause: str) -> None:
        lower = Plan.from_json(self.plan.steps_down[cause])
        changed = {
            name: {"was": self.plan.levers[name].value if name in self.plan.levers else None, "now": d.value}
            for name, d in lower.levers.items()
            if name not in self.plan.levers or self.plan.levers[name].value != d.value
        }
        self.corrections.append({"cause": cause, "levers": changed})
        self.folder.write_corrected(lower)
        self.folder.append_event("corrected", None, cause=cause, levers=changed)
        self.plan = lower
        self.process_plan = lower.processes[0]
        self.life.steps_down = frozenset(lower.steps_down)

    async def _spawn(self) -> None:
        folder, life = self.folder, self.life
        process_dir = folder.process_dir(self.role)
        process_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = folder.log(self.role)
        self.marker = f"llmserve-{self.name}-{uuid.uuid4().hex}"
        self.tmpdir = tempfile.mkdtemp(prefix="llmserve-")
        self.log_start = log.stat().st_size if log.exists() else 0
        self.boot_id = process.boot_id()
        self.started_at, self.checks, self._survivors = None, [], []
        env = {**self.env, "TMPDIR": self.tmpdir}
        spec = bind(self.process_plan, self.ports, self.tmpdir, str(log), env)
        self._save()
        await shim_client.start(
            process_dir,
            {
                "protocol": shim_client.PROTOCOL,
                "deployment": self.name,
                "process": self.role,
                "generation": life.generation,
                "argv": list(spec.argv),
                "env": spec.env,
                "cwd": str(process_dir),
                "log": spec.log,
                "log_max_bytes": _LOG_MAX_BYTES,
                "tmpdir": spec.tmpdir,
                "marker": self.marker,
                "term_grace_s": 10,
            },
        )
        self._follow_shim_record()
        folder.append_event("started", self.role, pid=self.leader.pid if self.leader else None)
        self._save()
        self._watch()

    def _follow_shim_record(self) -> None:
        record = shim_client.read_record(self.folder.process_dir(self.role), "shim.json")
        if record is None or record.get("generation") != self.life.generation:
            self.leader = self.shim = None
            return
        boot = str(record["boot_id"])
        self.leader = Identity(int(record["engine_pid"]), int(record["engine_start_time"]), boot)
        self.shim = Identity(int(record["shim_pid"]), int(record["shim_start_time"]), boot)
        self.started_at = float(record["started_at"])

    def _watch(self) -> None:
        """Follow the present generation: its end, and its way to readiness or its health."""
        for task in self._watchers:
            task.cancel()
        self._run(self._watch_end(), self._watchers)
        if self.leader is None or self.life.state in ("stopping", *lc.ENDED):
            return
        if self.life.ready_since is None:
            self._run(self._watch_start(), self._watchers)
        else:
            self._run(self._watch_health(), self._watchers)

    async def adopt(self) -> None:
        """Take over what another daemon left: running, half-started, dead, or of an earlier boot."""
        self._run(self._own(), self._tasks)
        life = self.life
        if life.state == "backoff":
            self._run(self._wake(life.retry_at or 0), self._tasks)
            return
        if life.state in lc.ENDED:
            return
        if self.boot_id and self.boot_id != process.boot_id():
            self.post(lc.TreeEmpty(_REBOOTED))
            return
        await self._await_record()
        self._follow_shim_record()
        self.folder.append_event("adopted", self.role, pid=self.leader.pid if self.leader else None)
        self._watch()
        if life.state == "stopping":
            self._stop_started = steady_now()
            self._run(self._stop_process(drain=False), self._tasks)
        elif life.condemned is not None:
            self._run(self._kill_process(), self._tasks)

    async def _await_record(self) -> None:
        """A shim that was started in the daemon's last moment may not have written its record yet."""
        process_dir = self.folder.process_dir(self.role)
        deadline = steady_now() + 2
        while steady_now() < deadline:
            for file in ("shim.json", "exit.json"):
                record = shim_client.read_record(process_dir, file)
                if record is not None and record.get("generation") == self.life.generation:
                    return
            await asyncio.sleep(0.05)

    # watching

    def _members(self) -> list[Identity]:
        return process.members(
            self.marker, self.leader.pid if self.leader else None, self.shim or self.leader
        )

    def _log_text(self) -> str:
        """This generation's log: whole up to 4 MiB, beyond that its first and last 2 MiB."""
        try:
            with self.folder.log(self.role).open("rb") as f:
                size = f.seek(0, 2)
                start = self.log_start if self.log_start <= size else 0
                f.seek(start)
                if size - start <= _LOG_READ_BYTES:
                    return f.read().decode("utf-8", "replace")
                head = f.read(_LOG_READ_BYTES // 2)
                f.seek(size - _LOG_READ_BYTES // 2)
                return (head + b"\n...\n" + f.read()).decode("utf-8", "replace")
        except OSError:
            return ""

    async def _watch_end(self) -> None:
        leader, shim = self.leader, self.shim
        if leader is not None and shim is not None:
            leader_dead = asyncio.ensure_future(shim_client.wait_dead(leader))
            shim_dead = asyncio.ensure_future(shim_client.wait_dead(shim))
            try:
                await asyncio.wait({leader_dead, shim_dead}, return_when=asyncio.FIRST_COMPLETED)
                if not leader_dead.done() and leader.alive():
                    self.folder.append_event("shim_lost", self.role, shim_pid=shim.pid)
                    self.post(lc.ShimLost())
                await leader_dead
                self.post(lc.LeaderDied())
                await asyncio.wait({shim_dead}, timeout=20)
            finally:
                leader_dead.cancel()
                shim_dead.cancel()
        # the shim has cleared the tree; where it could not, this does
        survivors = await asyncio.to_thread(process.sweep, self.marker)
        self._survivors = [f"{process.name(s.pid)} (pid {s.pid})" for s in survivors]
        if self.tmpdir:
            await asyncio.to_thread(shutil.rmtree, self.tmpdir, ignore_errors=True)
        record = shim_client.read_record(self.folder.process_dir(self.role), "exit.json") or {}
        if record.get("generation") != self.life.generation:
            record = {}
        if record.get("leftovers"):
            self.folder.append_event("leftovers_killed", self.role, leftovers=record["leftovers"])
        await self._port_closed()
        self.post(lc.TreeEmpty(self._classify(record)))

    def _classify(self, record: dict[str, Any]) -> Failure:
        if record.get("exec_error"):
            return Failure(
                "program_missing",
                "the engine's program could not be started",
                str(record["exec_error"]),
                "llmserve engines list",
                "never",
            )
        return self.engine.classify(self._log_text(), Exit(record.get("code"), record.get("signal")))

    async def _port_closed(self) -> None:
        """A port is closed when nobody listens; bounded, as a foreign listener may have taken it."""
        deadline = steady_now() + 2
        for port in self.ports.values():
            while steady_now() < deadline and not ports.is_free(self.process_plan.bound, port):
                await asyncio.sleep(0.02)

    async def _watch_start(self) -> None:
        """Ready is: the listening socket is ours, health is good, one real token came back."""
        url, port = self.endpoint or "", self.ports.get("http", 0)
        deadline = steady_now() + self.start_cap_s - (time.time() - (self.started_at or time.time()))
        while True:
            if steady_now() > deadline:
                self.post(lc.Condemned(_start_cap(self.start_cap_s)))
                return
            phase = self.engine.phase(self._log_text())
            if phase != self.life.phase and self.life.state == "starting":
                self.post(lc.PhaseSeen(phase))
            health = await self.engine.health(self._http, url)
            if health.state == "ok" and ports.owned(port, [m.pid for m in self._members()]):
                if self.life.phase != "warm-up":
                    self.post(lc.PhaseSeen("warm-up"))
                try:
                    await self.engine.prove(self._http, url, self.served_model)
                    break
                except (httpx.HTTPError, ValueError) as e:
                    self.folder.append_event("prove_failed", self.role, error=str(e) or type(e).__name__)
                    await asyncio.sleep(1)
            await asyncio.sleep(_READY_INTERVAL_S)
        checks = await self._compare()
        self.checks = [asdict(c) for c in checks]
        self.post(lc.BecameReady(tuple(c.what for c in checks if not c.ok)))
        await self._watch_health()

    async def _compare(self) -> list[FactCheck]:
        try:
            return self.engine.compare(self.plan, await self.engine.facts(self._http, self.endpoint or ""))
        except (httpx.HTTPError, ValueError) as e:
            self.folder.append_event("facts_unreadable", self.role, error=str(e))
            return []

    async def _watch_health(self) -> None:
        judge = Judge(self.liveness, steady_now())
        url = self.endpoint or ""
        while True:
            await asyncio.sleep(self.liveness.interval_s)
            try:
                progress = await self.engine.progress(self._http, url)
            except (httpx.HTTPError, ValueError):
                progress = None
            match judge.look(steady_now(), progress):
                case "alive":
                    if self.life.state == "unhealthy":
                        self.post(lc.Recovered())
                case "probe":
                    self._run(self._probe(judge), self._watchers)
                case "strike":
                    self.folder.append_event("strike", self.role, strikes=judge.strikes)
                    self.post(lc.Struck())
                case "hung":
                    self.post(lc.Condemned(_HUNG))
                    return

    async def _probe(self, judge: Judge) -> None:
        patience = httpx.Timeout(self.liveness.deadline_loaded_s * self.liveness.strikes)
        try:
            async with httpx.AsyncClient(timeout=patience, trust_env=False) as client:
                await self.engine.prove(client, self.endpoint or "", self.served_model)
            judge.probe_returned(steady_now(), True)
        except (httpx.HTTPError, ValueError) as e:
            self.folder.append_event("probe_failed", self.role, error=str(e) or type(e).__name__)
            judge.probe_returned(steady_now(), False)

    # stopping

    async def _signal_leader(self, signum: int) -> None:
        try:
            await shim_client.request(
                self.folder.process_dir(self.role),
                {"protocol": shim_client.PROTOCOL, "op": "signal", "signal": signum},
            )
        except (OSError, TimeoutError):
            if self.leader is not None:
                self.leader.signal(signum)

    async def _stop_process(self, drain: bool) -> None:
        recipe = self.engine.stop_recipe()
        if drain and recipe.wait_idle:
            await self._drain()
        for step in recipe.steps:
            if self.leader is None or not self.leader.alive():
                return
            self.folder.append_event("signal", self.role, signal=step.signal)
            await self._signal_leader(step.signal)
            try:
                await asyncio.wait_for(shim_client.wait_dead(self.leader), step.wait_s)
                return
            except TimeoutError:
                continue
        await self._kill_process()

    async def _drain(self) -> None:
        """Best effort: nothing in front turns new requests away. Counts by the engine's own gauges."""
        deadline = steady_now() + self.drain_s
        first: int | None = None
        while True:
            try:
                progress = await self.engine.progress(self._http, self.endpoint or "")
            except (httpx.HTTPError, ValueError):
                progress = None
            if progress is None:
                return
            running = (progress.running or 0) + (progress.waiting or 0)
            first = running if first is None else first
            self._finished, self._lost = max(0, first - running), running
            if running == 0 or steady_now() >= deadline:
                return
            await asyncio.sleep(0.1)

    async def _kill_process(self) -> None:
        self.folder.append_event("kill", self.role)
        try:
            await shim_client.request(
                self.folder.process_dir(self.role),
                {"protocol": shim_client.PROTOCOL, "op": "kill"},
                timeout_s=15,
            )
        except (OSError, TimeoutError):
            await asyncio.to_thread(process.sweep, self.marker)


_REBOOTED = Failure(
    "rebooted", "the machine was restarted while it ran", "boot id changed", "llmserve restart NAME", "never"
)
_HUNG = Failure(
    "hang", "no token moved within the deadline", "liveness probe", "llmserve logs NAME", "backoff"
)


def _start_cap(cap_s: float) -> Failure:
    return Failure(
        "start_timeout",
        f"not ready {cap_s:.0f} s after it was started",
        "start cap",
        "raise it with --set supervision.start_cap_s=SECONDS",
        "never",
    )


def _spawn_failure(error: Exception) -> Failure:
    message = error.message if isinstance(error, LlmserveError) else f"{type(error).__name__}: {error}"
    return Failure(
        "spawn_failed", "the process could not be started", message, "llmserve logs NAME", "backoff"
    )
