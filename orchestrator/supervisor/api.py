"""The daemon's address: JSON over a socket that only its user can open. One handler per command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from orchestrator import __version__
from orchestrator.errors import LlmserveError, refused, system_error, usage
from orchestrator.plan import Plan
from orchestrator.supervisor import lifecycle as lc
from orchestrator.supervisor.supervisor import Supervisor

PROTOCOL = 1
"""Of the handshake between command and daemon; raised when a request or an answer changes its meaning."""

_LONGEST_WAIT_S = 30.0

Handler = Callable[[Request], Awaitable[dict[str, Any]]]


def application(supervisor: Supervisor, socket: str, pid: int, shut_down: Callable[[], None]) -> Starlette:
    """The routes over one supervisor. `shut_down` ends the daemon after the answer is sent."""
    started = time.monotonic()

    async def daemon(request: Request) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "protocol": PROTOCOL,
            "pid": pid,
            "version": __version__,
            "socket": socket,
            "uptime_s": round(time.monotonic() - started, 1),
            "deployments": len([d for d in supervisor.deployments.values() if d.life.state not in lc.ENDED]),
        }

    async def shutdown(request: Request) -> dict[str, Any]:
        body = await request.json()
        if supervisor.only is not None and not body.get("all"):
            raise refused(
                "foreground",
                f"this is `launch --foreground` of {supervisor.only}: ending it ends that server",
                f"llmserve stop {supervisor.only}, or llmserve daemon stop --all",
            )
        stopped = await supervisor.stop_all() if body.get("all") else {}
        shut_down()
        return {"schema_version": 1, "stopped": stopped}

    async def machine(request: Request) -> dict[str, Any]:
        from orchestrator.machine import measure

        return {"schema_version": 1, "machine": asdict(await asyncio.to_thread(measure))}

    async def launch(request: Request) -> dict[str, Any]:
        body = await request.json()
        try:
            plan = Plan.from_json(body["plan"])
        except (KeyError, TypeError, ValueError) as e:
            raise usage("bad_plan", f"the plan cannot be read: {e}") from None
        return (await supervisor.launch(body["name"], plan, body["env"])).status()

    async def ps(request: Request) -> dict[str, Any]:
        return {"schema_version": 1, "deployments": await supervisor.ps()}

    async def status(request: Request) -> dict[str, Any]:
        deployment = await supervisor.get(request.path_params["name"])
        query = request.query_params
        if "after" in query:
            wait_s = min(float(query.get("wait_s", _LONGEST_WAIT_S)), _LONGEST_WAIT_S)
            await deployment.wait_change(int(query["after"]), wait_s)
        return deployment.status(show_env="env" in query)

    async def stop(request: Request) -> dict[str, Any]:
        report = await supervisor.stop(request.path_params["name"])
        return {"schema_version": 1, **report}

    async def remove(request: Request) -> dict[str, Any]:
        await supervisor.remove(request.path_params["name"])
        return {"schema_version": 1}

    async def restart(request: Request) -> dict[str, Any]:
        return (await supervisor.restart(request.path_params["name"])).status()

    def route(path: str, handler: Handler, method: str = "GET") -> Route:
        async def endpoint(request: Request) -> JSONResponse:
            try:
                return JSONResponse(await handler(request))
            except LlmserveError as e:
                error = e
            except OSError as e:
                error = system_error(e)
            except Exception as e:
                error = LlmserveError("daemon_defect", f"{type(e).__name__}: {e}", "a defect of llmserve")
            return JSONResponse(error.to_json() | {"exit_code": int(error.exit_code)}, status_code=409)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            route("/v1/daemon", daemon),
            route("/v1/daemon/stop", shutdown, "POST"),
            route("/v1/machine", machine),
            route("/v1/deployments", ps),
            route("/v1/deployments", launch, "POST"),
            route("/v1/deployments/{name}", status),
            route("/v1/deployments/{name}", remove, "DELETE"),
            route("/v1/deployments/{name}/stop", stop, "POST"),
            route("/v1/deployments/{name}/restart", restart, "POST"),
        ]
    )
