"""From started to ready: the listening socket is ours, health is good, one real token came back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx

from orchestrator.engines.base import Engine
from orchestrator.supervisor import ports
from orchestrator.supervisor.run import Run

_LOOK_S = 0.1
_PROVE_AGAIN_S = 1.0


class NeverReady(Exception):
    """The engine's log says that this start cannot become ready, while its process lives on."""


async def until_ready(
    engine: Engine,
    run: Run,
    client: httpx.AsyncClient,
    url: str,
    port: int,
    served_model: str,
    on_phase: Callable[[str], None],
    on_refused_proof: Callable[[str], None],
) -> None:
    """Returns when the server is ready. `on_phase` hears each new phase of the start.

    Raises NeverReady with the engine's own line; otherwise it never gives up.
    """
    seen = None

    def show(phase: str) -> None:
        nonlocal seen
        if phase != seen:
            seen = phase
            on_phase(phase)

    while True:
        health = await engine.health(client, url)
        # somebody else's server may answer on the port while ours still loads
        if health.state == "ok" and ports.owned(port, [m.pid for m in run.members()]):
            show("warm-up")
            try:
                await engine.prove(client, url, served_model)
                return
            except (httpx.HTTPError, ValueError) as e:
                on_refused_proof(str(e) or type(e).__name__)
                await asyncio.sleep(_PROVE_AGAIN_S)
        else:
            end = run.log_end()
            fatal = engine.fatal_line(end)
            if fatal is not None:
                raise NeverReady(fatal)
            show(engine.phase(end))
        await asyncio.sleep(_LOOK_S)
