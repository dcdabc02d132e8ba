"""All deployments of one state folder: launched, adopted, found by name."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import Exit, LlmserveError, refused
from orchestrator.plan import Plan
from orchestrator.supervisor import lifecycle as lc
from orchestrator.supervisor import ports
from orchestrator.supervisor.deployment import Deployment
from orchestrator.supervisor.environment import allowed
from orchestrator.supervisor.store import (
    DeploymentFolder,
    check_name,
    deployment_names,
    no_such_deployment,
)

FIRST_PORT = 8000
_BEGUN_S = 15.0


class Supervisor:
    """Lives in one event loop. Its methods raise LlmserveError for what a user can mend."""

    def __init__(self) -> None:
        self.deployments: dict[str, Deployment] = {}
        self._launching = asyncio.Lock()

    async def adopt_all(self) -> None:
        """Take over every deployment that the state folder knows."""
        for name in deployment_names():
            folder = DeploymentFolder(name)
            state = folder.state()
            if state is None:
                continue
            try:
                deployment = Deployment(folder, folder.plan(), folder.env(), state)
            except (LlmserveError, TypeError, KeyError, ValueError) as e:
                folder.append_event("not_adopted", None, error=str(e))
                continue
            self.deployments[name] = deployment
            await deployment.adopt()

    def get(self, name: str) -> Deployment:
        """Raises LlmserveError: exit 5, or what is damaged where its files cannot be read."""
        if name not in self.deployments:
            if name in deployment_names():
                folder = DeploymentFolder(name)
                folder.plan()
                raise LlmserveError(
                    "state_unreadable",
                    f"{folder.path / 'state.json'} is damaged",
                    f"move {folder.path} aside; llmserve events {name} still tells what happened",
                )
            raise no_such_deployment(name, sorted(self.deployments))
        return self.deployments[name]

    async def launch(self, name: str, plan: Plan, env: Mapping[str, str]) -> Deployment:
        """Write a new deployment down and start it. A name whose deployment ended is used again; its log and
        events are kept. Raises LlmserveError (exit 3): plan refused, name or port taken."""
        check_name(name)
        if plan.violations:
            raise LlmserveError(
                "plan_refused",
                f"the plan has {len(plan.violations)} violation(s)",
                exit_code=Exit.REFUSED,
                violations=[
                    {"code": v.code, "message": v.message, "remedy": v.remedy} for v in plan.violations
                ],
            )
        if len(plan.processes) != 1:
            raise refused("not_available", "plans of more than one process are not available yet")
        async with self._launching:
            existing = self.deployments.get(name)
            if existing is not None and existing.life.state not in lc.ENDED:
                raise refused(
                    "name_taken",
                    f"a deployment called {name!r} is {existing.life.state}",
                    f"llmserve stop {name}, or launch with --name OTHER",
                )
            chosen = self._choose_ports(plan)
            if existing is not None:
                await existing.close()
            folder = DeploymentFolder(name)
            folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.write_plan(plan)
            folder.write_env(allowed(env))
            deployment = Deployment(folder, plan, allowed(env), self._carried(existing) | {"ports": chosen})
            deployment.record("launched", goal=plan.goal, engine=plan.engine.name, ports=chosen)
            self.deployments[name] = deployment
            deployment.begin()
            deployment.post(lc.Launched())
            await deployment.wait_change(0, _BEGUN_S)
        return deployment

    @staticmethod
    def _carried(existing: Deployment | None) -> dict[str, Any]:
        # generations go on counting, so that no record of an earlier life is taken for one of this
        return {"lifecycle": {"generation": existing.life.generation}} if existing else {}

    async def remove(self, name: str) -> None:
        """Delete the files of one that has ended. Raises LlmserveError: exit 5, or 3 while it runs."""
        deployment = self.deployments.get(name)
        if deployment is None and name not in deployment_names():
            raise no_such_deployment(name, sorted(self.deployments))
        if deployment is not None:
            if deployment.life.state not in lc.ENDED:
                raise refused(
                    "still_running",
                    f"{name} is {deployment.life.state}",
                    f"llmserve stop {name}, then remove it",
                )
            await deployment.close()
            del self.deployments[name]
        await asyncio.to_thread(shutil.rmtree, DeploymentFolder(name).path)

    def _choose_ports(self, plan: Plan) -> dict[str, int]:
        held = {
            port: d.name
            for d in self.deployments.values()
            if d.life.state not in lc.ENDED
            for port in d.ports.values()
        }
        process = plan.processes[0]
        chosen: dict[str, int] = {}
        for name, port in process.ports.items():
            taken = frozenset(held) | frozenset(chosen.values())
            if port is None:
                chosen[name] = ports.first_free(process.bound, FIRST_PORT, taken)
                continue
            if port in held:
                raise _port_taken(port, f"deployment {held[port]!r}")
            if not ports.is_free(process.bound, port):
                raise _port_taken(port, ports.holder(port) or "unknown")
            chosen[name] = port
        return chosen

    async def close(self) -> None:
        """Let go of all; every engine runs on under its shim."""
        await asyncio.gather(*(d.close() for d in self.deployments.values()))

    async def stop_all(self) -> dict[str, Any]:
        """Stop every deployment at once; reports by name."""
        names = [n for n, d in self.deployments.items() if d.life.state not in lc.ENDED]
        reports = await asyncio.gather(*(self.deployments[n].stop() for n in names))
        return dict(zip(names, reports, strict=True))


def _port_taken(port: int, holder: str) -> LlmserveError:
    return refused(
        "port_taken", f"port {port} is held by {holder}", "leave --port out for the first free one from 8000"
    )
