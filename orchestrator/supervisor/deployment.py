"""One deployment: a task that owns its state; everyone else sends it an event.

Deciding is `lifecycle`'s; this module carries its actions out and reports back what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import partial
from typing import Any

import httpx

from orchestrator.engines.base import Engine, Exit, FactCheck, Failure
from orchestrator.engines.registry import engine as engine_of
from orchestrator.plan import Plan
from orchestrator.supervisor import failures, ports, process, readiness, shared_memory, status, stopping
from orchestrator.supervisor import lifecycle as lc
from orchestrator.supervisor.asking import asker
from orchestrator.supervisor.health import Judge, LivenessSettings
from orchestrator.supervisor.restart import RestartSettings
from orchestrator.supervisor.run import Ending, Run, steady_now
from orchestrator.supervisor.store import DeploymentFolder

_PORT_CLOSES_S = 2.0
_SHORTEST_LOOK_S = 0.05


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
        self.life = lc.Lifecycle.from_json(
            state.get("lifecycle", {}),
            RestartSettings.of(supervision.get("restart")),
            frozenset(plan.steps_down),
        )
        self.liveness = LivenessSettings.of(supervision.get("liveness"))
        self.drain_s = float(supervision.get("drain_s", 30))
        self.start_cap_s = float(supervision.get("start_cap_s", 3600))
        self.ports: dict[str, int] = state.get("ports", {})
        self.run = Run.found(folder, state["run"]) if state.get("run") else None
        self.checks: list[dict[str, Any]] = state.get("plan_vs_actual", [])
        self.corrections: list[dict[str, Any]] = state.get("corrections", [])
        self.last_stop: dict[str, Any] | None = state.get("last_stop")
        self.failed_at: float | None = state.get("failed_at")
        self.revision = 0
        self._ending: Ending | None = None
        self._drain = stopping.Drain(**state.get("drain") or {"began": steady_now()})
        self._auto_ports = bool(state.get("auto_ports"))
        self._was_ready = bool(state.get("was_ready"))
        self.new_ports: Callable[[], dict[str, int]] | None = None
        self._unsaved = False
        self._inbox: asyncio.Queue[lc.Event] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Task[None]] = set()
        self._lookers: set[asyncio.Task[None]] = set()
        self._client = partial(asker, plan.engine.kind, {**env, **self.process_plan.env})
        self._http = self._client(5)

    # for others

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def endpoint(self) -> str | None:
        """The base address, without /v1; None before a port is chosen."""
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
        # not asyncio.wait_for, which in Python 3.11 can lose a cancellation
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.revision > after)

    async def stop(self) -> dict[str, Any]:
        """Stop and wait until it is proved; the contract's `finished, lost, seconds, survivors`, and
        `was`, the state it was in."""
        was = self.life.state
        nothing = {"finished": 0, "lost": 0, "seconds": 0.0, "survivors": []}
        if was in lc.ENDED:
            return nothing | {"was": was}
        generation = self.life.generation
        self.post(lc.StopRequested())
        async with self._changed:
            # a restart that overtakes this stop ends it too: its generation is gone
            await self._changed.wait_for(
                lambda: self.life.state in lc.ENDED or self.life.generation != generation
            )
        return (self.last_stop or nothing) | {"was": was}

    def status(self, show_env: bool = False) -> dict[str, Any]:
        """The contract's status object. `revision` counts changes, for waiting on the next one."""
        return status.of(self, show_env)

    def record(self, kind: str, **data: Any) -> None:
        """An event of the deployment as a whole."""
        self.folder.append_event(kind, None, **data)

    # the owner

    def begin(self) -> None:
        """Start owning: a new deployment, after its files are written."""
        self._go(self._own(), self._tasks)

    async def adopt(self) -> None:
        """Take over what another daemon left: running, half-started, dead, or of an earlier boot."""
        self.begin()
        life, run = self.life, self.run
        if life.state == "backoff":
            self._go(self._wake(life.retry_at or 0), self._tasks)
        if life.state == "backoff" or life.state in lc.ENDED:
            return
        if run is None or run.boot_id != process.boot_id():
            self.post(lc.TreeEmpty(failures.REBOOTED if run else failures.NEVER_STARTED))
            return
        await run.await_record()
        self._note("adopted", pid=run.leader.pid if run.leader else None)
        self._watch(run)
        if life.state == "stopping":
            self._go(self._stop_process(run, drain=not self._drain.over), self._tasks)
        elif life.condemned is not None:
            self._go(run.kill(), self._tasks)

    async def close(self) -> None:
        """Let go without touching the engine: another daemon will adopt it."""
        tasks = [*self._tasks, *self._watchers, *self._lookers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    def _go(self, work: Coroutine[Any, Any, None], group: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)

    async def _own(self) -> None:
        while True:
            event = await self._inbox.get()
            before = self.life.state
            actions = self.life.on(event, steady_now(), random.random())
            self._remember(event, before)
            self._save()
            for action in actions:
                try:
                    await self._act(action)
                except Exception as e:  # the owner must survive whatever an action meets
                    self._note("action_failed", action=repr(action), error=repr(e))
                    if isinstance(action, lc.Spawn):
                        self.post(lc.TreeEmpty(failures.spawn_failed(e)))
            async with self._changed:
                self.revision += 1
                self._changed.notify_all()

    async def _act(self, action: lc.Action) -> None:
        match action:
            case lc.Spawn(step_down=cause):
                if cause:
                    self._step_down(cause)
                await self._spawn()
            case lc.Stop(drain=drain):
                if self.run:
                    self._go(self._stop_process(self.run, drain), self._tasks)
            case lc.Kill():
                if self.run:
                    self._note("kill")
                    self._go(self.run.kill(), self._tasks)
            case lc.Wake(at=at):
                self._go(self._wake(at), self._tasks)

    def _remember(self, event: lc.Event, before: str) -> None:
        """Events for people, and the report of a stop."""
        life = self.life
        match event:
            case lc.StopRequested() | lc.RestartRequested() if before != "stopping":
                self._drain, self.last_stop = stopping.Drain(steady_now()), None
            case lc.BecameReady():
                self._was_ready = True
            case lc.PhaseSeen(phase=phase):
                self._note("phase", phase=phase)
            case lc.TreeEmpty() if before == "stopping":
                self.last_stop = {
                    "finished": self._drain.finished,
                    "lost": self._drain.lost,
                    "seconds": round(steady_now() - self._drain.began, 2),
                    "survivors": list(self._ending.survivors) if self._ending else [],
                }
                self._note("stop_proved", **self.last_stop)
            case lc.TreeEmpty():
                self.failed_at = time.time()
        if life.state != before:
            failed = life.last_failure if life.state in ("failed", "backoff", "starting") else None
            self.record(
                "state",
                state=life.state,
                was=before,
                reason=life.reason,
                generation=life.generation,
                failure=failures.shown(failed),
            )

    def _note(self, kind: str, **data: Any) -> None:
        self.folder.append_event(kind, self.process_plan.role, **data)

    def _save(self) -> None:
        state = {
            "schema_version": 1,
            "name": self.name,
            "state": self.life.state,
            "endpoint": self.endpoint,
            "ports": self.ports,
            "lifecycle": self.life.to_json(),
            "run": self.run.to_json() if self.run else None,
            "plan_vs_actual": self.checks,
            "corrections": self.corrections,
            "last_stop": self.last_stop,
            "failed_at": self.failed_at,
            "drain": asdict(self._drain),
            "auto_ports": self._auto_ports,
            "was_ready": self._was_ready,
            "status": self.status(),
        }
        try:
            self.folder.write_state(state)
            self._unsaved = False
        except OSError as e:
            # a full disk: go on in memory, and try until there is room
            if not self._unsaved:
                self.record("state_not_saved", error=str(e))
                self._unsaved = True
                self._go(self._save_later(), self._tasks)

    async def _save_later(self) -> None:
        while self._unsaved:
            await asyncio.sleep(1)
            self._save()

    def rewrite(self) -> None:
        """Everything again, after its folder was deleted under it. Raises OSError."""
        self.folder.process_dir(self.process_plan.role).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.write_plan(self.plan)
        self.folder.write_env(self.env)
        self._save()
        self.record("rewritten")

    async def _wake(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - steady_now()))
        self.post(lc.TimerDue())

    def _step_down(self, cause: str) -> None:
        lower = Plan.from_json(self.plan.steps_down[cause])
        was = {name: d.value for name, d in self.plan.levers.items()}
        changed = {
            name: {"was": was.get(name), "now": d.value}
            for name, d in lower.levers.items()
            if was.get(name) != d.value
        }
        self.corrections.append({"cause": cause, "levers": changed})
        self.folder.write_corrected(lower)
        self.record("corrected", cause=cause, levers=changed)
        self.plan, self.process_plan = lower, lower.processes[0]
        self.life.steps_down = frozenset(lower.steps_down)

    async def _spawn(self) -> None:
        if self._auto_ports and not self._was_ready and self.new_ports and not self._ports_free():
            # nobody asked for this port and nobody was told of it yet
            self.ports = self.new_ports()
            self.record("other_ports", ports=self.ports)
        for port in self.ports.values():
            if not ports.is_free(self.process_plan.bound, port):
                self.post(lc.TreeEmpty(failures.port_taken(port, ports.holder(port))))
                return
        run = Run.prepare(self.folder, self.process_plan.role, self.life.generation)
        self.run, self.checks = run, []
        self._save()  # before the start: whoever adopts must know the marker
        await run.start(self.process_plan, self.ports, self.env)
        self._note("started", pid=run.leader.pid if run.leader else None, generation=run.generation)
        self._save()
        self._watch(run)

    # watching the present run

    def _watch(self, run: Run) -> None:
        self._look_away()
        for task in self._watchers:
            task.cancel()
        self._go(self._watch_end(run), self._watchers)
        if run.leader is None or self.life.state not in lc.RUNNING or self.life.condemned is not None:
            return
        if self.life.ready_since is None:
            self._go(self._watch_start(run), self._lookers)
        else:
            self._go(self._watch_health(), self._lookers)

    def _look_away(self) -> None:
        for task in self._lookers:
            task.cancel()

    async def _watch_end(self, run: Run) -> None:
        def shim_lost() -> None:
            self._note("shim_lost")
            self.post(lc.ShimLost())

        def leader_dead() -> None:
            self._look_away()
            self.post(lc.LeaderDied())

        ending = await run.end(shim_lost, leader_dead)
        self._ending = ending
        if ending.leftovers:
            self._note("leftovers_killed", leftovers=list(ending.leftovers))
        if not ending.survivors:
            swept = await asyncio.to_thread(shared_memory.sweep, self.engine.shared_memory, run.started_at)
            if swept:
                self._note("shared_memory_removed", names=list(swept))
        await self._port_closed()
        self.post(lc.TreeEmpty(await asyncio.to_thread(self._classify, run, ending)))

    def _classify(self, run: Run, ending: Ending) -> Failure:
        if ending.exec_error:
            return failures.program_missing(ending.exec_error)
        return self.engine.classify(run.log_text(), Exit(ending.code, ending.signal))

    def _ports_free(self) -> bool:
        return all(ports.is_free(self.process_plan.bound, port) for port in self.ports.values())

    async def _port_closed(self) -> None:
        """Until nobody listens on our ports; bounded, as a foreign listener may have taken one."""
        deadline = steady_now() + _PORT_CLOSES_S
        for port in self.ports.values():
            while steady_now() < deadline and not ports.is_free(self.process_plan.bound, port):
                await asyncio.sleep(0.02)

    async def _watch_start(self, run: Run) -> None:
        url, port = self.endpoint or "", self.ports.get("http", 0)
        refusal: str | None = None

        def refused(error: str) -> None:
            nonlocal refusal
            refusal = error
            self._note("prove_failed", error=error)

        elapsed = time.time() - run.started_at if run.started_at else 0.0
        try:
            async with asyncio.timeout(max(0.0, self.start_cap_s - elapsed)):
                await readiness.until_ready(
                    self.engine,
                    run,
                    self._http,
                    url,
                    port,
                    self.served_model,
                    on_phase=lambda phase: self.post(lc.PhaseSeen(phase)),
                    on_refused_proof=refused,
                )
        except TimeoutError:
            self.post(lc.Condemned(failures.start_timeout(self.start_cap_s, refusal)))
            return
        except readiness.NeverReady as e:
            self._note("never_ready", line=str(e))
            self.post(lc.Condemned(await asyncio.to_thread(self.engine.classify, run.log_text(), Exit())))
            return
        checks = await self._compare(run)
        self.checks = [asdict(c) for c in checks]
        self.post(lc.BecameReady(tuple(c.what for c in checks if not c.ok)))
        await self._watch_health()

    async def _compare(self, run: Run) -> list[FactCheck]:
        try:
            said = await asyncio.to_thread(lambda: self.engine.log_facts(run.log_text()))
            live = await self.engine.facts(self._http, self.endpoint or "")
            known = {name: value for name, value in live.items() if value is not None}
            return self.engine.compare(self.plan, {**said, **known})
        except (httpx.HTTPError, ValueError) as e:
            self._note("facts_unreadable", error=str(e) or type(e).__name__)
            return []

    async def _watch_health(self) -> None:
        judge = Judge(self.liveness, steady_now())
        looked = steady_now()
        while True:
            due = min(looked + self.liveness.interval_s, judge.due())
            await asyncio.sleep(max(_SHORTEST_LOOK_S, due - steady_now()))
            looked = steady_now()
            try:
                # a frozen engine must not stretch the interval
                async with asyncio.timeout(self.liveness.interval_s):
                    progress = await self.engine.progress(self._http, self.endpoint or "")
            except (httpx.HTTPError, ValueError, TimeoutError):
                progress = None
            match judge.look(steady_now(), progress):
                case "alive":
                    if self.life.state == "unhealthy":
                        self.post(lc.Recovered())
                case "probe":
                    self._go(self._probe(judge), self._lookers)
                case "strike":
                    self._note("strike", strikes=judge.strikes)
                    self.post(lc.Struck())
                case "hung":
                    self.post(lc.Condemned(failures.HUNG))
                    return

    async def _probe(self, judge: Judge) -> None:
        patience_s = self.liveness.deadline_loaded_s * self.liveness.strikes
        try:
            async with self._client(patience_s) as client:
                await self.engine.prove(client, self.endpoint or "", self.served_model)
            judge.probe_returned(steady_now(), True)
        except (httpx.HTTPError, ValueError) as e:
            self._note("probe_failed", error=str(e) or type(e).__name__)
            judge.probe_returned(steady_now(), False)

    async def _stop_process(self, run: Run, drain: bool) -> None:
        self._look_away()  # a probe of ours would be counted as a request
        if drain and self.engine.stop_recipe().wait_idle:
            await stopping.drain(self.engine, self._http, self.endpoint or "", self.drain_s, self._drain)
        self._drain.over = True
        self._save()
        await stopping.end(self.engine, run, lambda signum: self._note("signal", signal=signum))
