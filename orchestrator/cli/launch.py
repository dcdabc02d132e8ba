"""`llmserve launch`: plan, start, prove; then leave it to the daemon, or supervise here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import plan_options as options
from orchestrator.cli.output import Json

if TYPE_CHECKING:
    import asyncio

    from orchestrator.machine import Machine
    from orchestrator.plan import Plan
    from orchestrator.supervisor.supervisor import Supervisor


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve launch --goal edge")(launch)


def launch(
    goal: options.Goal = None,
    profile: options.Profile = None,
    model: options.Model = None,
    engine: options.Engine = None,
    set_: options.Set = [],  # noqa: B006
    name: options.Name = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once, do not wait for ready.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Supervise in this process until SIGTERM or Ctrl-C.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop it, exit 4, where a planned lever is not in effect.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Plan for a goal, start the engine, prove that it runs as planned, and keep it so."""
    import sys

    from orchestrator.errors import refused, usage

    if detach and foreground:
        raise usage("not_both", "--detach and --foreground do not go together", "leave one out")
    if not sys.platform.startswith("linux"):
        raise refused("not_linux", f"servers run on Linux, this is {sys.platform}", "llmserve plan works")
    asked = {
        "goal": goal,
        "profile": profile,
        "model": model,
        "engine": engine,
        "sets": set_,
        "name": name,
        "host": host,
        "port": port,
    }
    if foreground:
        _in_foreground(asked, strict, json_output)
    else:
        _by_daemon(asked, detach, strict, json_output)


def _by_daemon(asked: Mapping[str, Any], detach: bool, strict: bool, as_json: bool) -> None:
    import os

    from orchestrator.cli.follow import show_ready, started, until_ready
    from orchestrator.cli.output import console, emit, notes
    from orchestrator.cli.plan_view import show_short
    from orchestrator.errors import LlmserveError
    from orchestrator.machine import measure
    from orchestrator.machine.files import from_json
    from orchestrator.supervisor import client
    from orchestrator.supervisor.lifecycle import ENDED

    # the machine as the daemon may use it; one not started yet will be given what this command is given
    running = client.running()
    machine = from_json(running.machine()) if running else measure()
    name, plan = _planned(asked, machine)
    if not as_json:
        show_short(console(), plan)
    daemon = running or client.start()
    began = time.monotonic()
    others = {d["name"] for d in daemon.ps() if d["state"] not in ENDED}
    try:
        status = daemon.launch(name, plan, os.environ)
        if not detach:
            status = until_ready(daemon, status, _weights_bytes(plan))
    except KeyboardInterrupt:
        if name not in others:
            notes().print(f"interrupted: stopping {name}")
            with contextlib.suppress(LlmserveError):
                daemon.stop(name)
        raise
    if detach:
        if as_json:
            emit(status)
        else:
            console().print(f"{name} is starting; llmserve status {name}, llmserve logs -f {name}")
        return
    if strict and status["state"] == "degraded":
        daemon.stop(name)
    started(status, strict)
    if as_json:
        emit(status)
    else:
        show_ready(status, time.monotonic() - began)


def _in_foreground(asked: Mapping[str, Any], strict: bool, as_json: bool) -> None:
    import asyncio
    import signal

    from orchestrator.cli.output import console, terminal
    from orchestrator.cli.plan_view import show_short
    from orchestrator.errors import refused
    from orchestrator.machine import measure
    from orchestrator.supervisor import client
    from orchestrator.supervisor.daemon import lock, serve

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a lost terminal ends nothing
    daemon = client.running()
    if daemon is not None:
        busy = daemon.daemon()
        if busy["deployments"]:
            raise refused(
                "daemon_running",
                f"a daemon (pid {busy['pid']}) keeps {busy['deployments']} deployment(s) here already",
                "launch without --foreground, or set LLMSERVE_HOME to a folder of its own",
            )
        daemon.shutdown(False)
        client.wait_gone(daemon)
    handle = lock()
    name, plan = _planned(asked, measure())
    if not as_json:
        with terminal():
            show_short(console(), plan)
    mine = _Foreground(name, plan, strict, as_json)
    asyncio.run(serve(mine.keep, handle, on_end=mine.end, only=name))
    if mine.interrupted:
        raise KeyboardInterrupt
    if mine.error is not None:
        raise mine.error


class _Foreground:
    """One deployment supervised by this process: launched, kept until it ends or a signal comes, stopped."""

    def __init__(self, name: str, plan: Plan, strict: bool, as_json: bool) -> None:
        self.name, self.plan, self.strict, self.as_json = name, plan, strict, as_json
        self.mine = False
        self.error: Exception | None = None
        self.ready = self.interrupted = False

    async def keep(self, supervisor: Supervisor, over: asyncio.Event) -> None:
        """Launch, say when it is ready, and return when it has ended; `error` is how."""
        try:
            await self._keep(supervisor, over)
        except Exception as e:
            self.error = e
        over.set()

    async def _keep(self, supervisor: Supervisor, over: asyncio.Event) -> None:
        import os

        from orchestrator.cli.follow import OVER, show_ready, started
        from orchestrator.cli.output import emit, terminal
        from orchestrator.supervisor.lifecycle import ENDED

        began = time.monotonic()
        await supervisor.settle(self.name)
        there = supervisor.deployments.get(self.name)
        self.mine = there is None or there.life.state in ENDED  # else launch refuses the name
        deployment = await supervisor.launch(self.name, self.plan, os.environ)
        phase = None
        while deployment.life.state not in OVER:
            if deployment.life.phase not in (None, phase):
                phase = deployment.life.phase
                with terminal() as out:
                    out.print(f"{time.monotonic() - began:5.1f} s  {phase}")
            await deployment.wait_change(deployment.revision, 30)
        status = deployment.status()
        if over.is_set() and status["state"] == "stopped":
            return
        started(status, self.strict)
        self.ready = True
        with terminal():
            if self.as_json:
                emit(status)
            else:
                show_ready(status, time.monotonic() - began)
        while deployment.life.state not in ENDED:
            await deployment.wait_change(deployment.revision, 30)
        if deployment.life.state == "failed":
            started(deployment.status())

    async def end(self, supervisor: Supervisor, hurry: asyncio.Event) -> None:
        """Stop what this process launched, nothing else; at once when `hurry` is set."""
        import asyncio
        import signal

        from orchestrator.cli.output import terminal
        from orchestrator.cli.stop import told

        self.interrupted = not self.ready and supervisor.ended_by == signal.SIGINT
        deployment = supervisor.deployments.get(self.name) if self.mine else None
        if deployment is None:
            return
        stopping = asyncio.ensure_future(deployment.stop())
        hurrying = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({stopping, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done() and deployment.run is not None:
            await deployment.run.kill()
        hurrying.cancel()
        report = await stopping
        with terminal() as out:
            out.print(f"{self.name} stopped in {report['seconds']} s: {told(report)}", soft_wrap=True)


def _planned(asked: Mapping[str, Any], machine: Machine) -> tuple[str, Plan]:
    """The deployment's name and its plan; refused here where it has violations."""
    from orchestrator.cli.fetching import fetching
    from orchestrator.cli.plan_view import refusal
    from orchestrator.planning.inputs import gather
    from orchestrator.planning.planner import make_plan

    with fetching() as progress:
        inputs = gather(**asked, machine=machine, progress=progress, launching=True)
    plan = make_plan(inputs)
    if plan.violations:
        raise refusal(plan)
    return inputs.name, plan


def _weights_bytes(plan: Plan) -> int | None:
    weights = plan.predictions.get("weights_bytes")
    return int(weights.value) if weights and weights.value else None
