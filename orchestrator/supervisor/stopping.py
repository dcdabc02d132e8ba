"""How a running process is ended: the engine's own recipe, then SIGKILL to the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from orchestrator.engines.base import Engine
from orchestrator.supervisor.run import Run, steady_now


@dataclass(slots=True)
class Drain:
    """Requests that ended and that were cut, by the engine's own gauges: best effort, as nothing in front of
    it turns new ones away. `first` is how many there were when it began at `began` (steady s); `over` once
    the engine was told to end."""

    began: float
    first: int | None = None
    finished: int = 0
    lost: int = 0
    over: bool = False


async def drain(engine: Engine, client: httpx.AsyncClient, url: str, limit_s: float, counted: Drain) -> None:
    """Until the engine reports no work, does not answer, or `limit_s` since it began is over."""
    while True:
        try:
            progress = await engine.progress(client, url)
        except (httpx.HTTPError, ValueError):
            return
        if progress is None:
            return
        running = (progress.running or 0) + (progress.waiting or 0)
        counted.first = running if counted.first is None else counted.first
        counted.finished, counted.lost = max(0, counted.first - running), running
        if running == 0 or steady_now() >= counted.began + limit_s:
            return
        await asyncio.sleep(0.1)


async def end(engine: Engine, run: Run, note: Callable[[int], None]) -> None:
    """Signal the leader step by step, each told to `note`; kill the tree when no step was enough."""
    for step in engine.stop_recipe().steps:
        if run.leader is None or not run.leader.alive():
            return
        note(step.signal)
        await run.signal(step.signal)
        try:
            async with asyncio.timeout(step.wait_s):
                await run.leader_dead()
            return
        except TimeoutError:
            continue
    note(9)
    await run.kill()
