"""All deployments of one state folder: launched, adopted, found by name."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.errors import Exit, LlmserveError, refused
from orchestrator.plan import Plan
from orchestrator.supervisor import lifecycle as lc
from orchestrator.supervisor import ports, status
from orchestrator.supervisor.deployment import Deployment
from orchestrator.supervisor.environment import allowed
from orchestrator.supervisor.run import Run, steady_now
from orchestrator.supervisor.shim_client import read_record
from orchestrator.supervisor.store import (
    DeploymentFolder,
    check_name,
    deployment_names,
    no_such_deployment,
)

FIRST_PORT = 8000
_BEGUN_S = 15.0


class Supervisor:
    """Lives in one event loop. Its methods raise LlmserveError for what a user can mend.

    `only` is the one name it may launch, where it belongs to `launch --foreground`; `ended_by` the signal
    that ends its process.
    """

    def __init__(self, only: str | None = None) -> None:
        self.only = only
        self.ended_by: int | None = None
        self.deployments: dict[str, Deployment] = {}
        self.unreadable: dict[str, str] = {}
        self._launching = asyncio.Lock()

    async def adopt_all(self) -> None:
        """Take over every deployment that the state folder knows and this supervisor does not."""
        for name in deployment_names():
            if name not in self.deployments and self.only in (None, name):
                await self._adopt(DeploymentFolder(name))

    async def _adopt(self, folder: DeploymentFolder) -> None:
        try:
            plan = folder.plan()
            deployment = Deployment(folder, plan, folder.env(), folder.state() or _rebuilt(folder, plan))
            json.dumps(deployment.status())
        except Exception as e:  # whatever its files hold, it is this deployment's trouble alone
            if folder.name not in self.unreadable:
                folder.append_event("not_adopted", None, error=str(e))
            self.unreadable[folder.name] = f"{type(e).__name__}: {e}"[:300]
            return
        self.unreadable.pop(folder.name, None)
        self._keep(deployment)
        await deployment.adopt()

    def _keep(self, deployment: Deployment) -> None:
        self.deployments[deployment.name] = deployment
        deployment.new_ports = lambda: self._choose_ports(deployment.plan)

    async def ps(self) -> list[dict[str, Any]]:
        """Every deployment's status by name, those that cannot be read among them."""
        await self.adopt_all()
        known = [d.status() for d in self.deployments.values()]
        damaged = [status.unreadable(name, why) for name, why in self.unreadable.items()]
        return sorted(known + damaged, key=lambda d: str(d["name"]))

    async def get(self, name: str) -> Deployment:
        """Raises LlmserveError: exit 5, or what is damaged where its files cannot be read."""
        if name not in self.deployments:
            await self.adopt_all()
        if name in self.unreadable:
            raise LlmserveError(
                "unreadable",
                f"the files of {name} are damaged: {self.unreadable[name]}",
                f"llmserve stop {name} ends what runs of it, llmserve rm {name} removes it",
            )
        if name not in self.deployments:
            raise no_such_deployment(name, sorted(self.deployments))
        return self.deployments[name]

    async def stop(self, name: str) -> dict[str, Any]:
        """Stop and prove; also what runs of a deployment whose files cannot be read."""
        if name in self.deployments or name not in self.unreadable:
            return await (await self.get(name)).stop()
        began = steady_now()
        folder = DeploymentFolder(name)
        survivors: list[str] = []
        for role in folder.roles():
            run = Run.rebuilt(folder, role)
            if run is not None:
                await run.kill()
                survivors += (await run.end(lambda: None, lambda: None)).survivors
        seconds = round(steady_now() - began, 2)
        report = {"finished": 0, "lost": 0, "seconds": seconds, "survivors": survivors}
        folder.append_event("stop_proved", None, **report)
        return report | {"was": "unreadable"}

    async def settle(self, name: str) -> None:
        """Wait until an adopted deployment of which nothing lives any more has been taken note of, and is not
        started again: `launch --foreground` begins it anew."""
        deployment = self.deployments.get(name)
        if deployment is None or deployment.life.state in lc.ENDED:
            return
        if deployment.life.state == "backoff" or deployment.run is None or not deployment.run.members():
            await deployment.stop()

    async def launch(self, name: str, plan: Plan, env: Mapping[str, str]) -> Deployment:
        """Write a new deployment down and start it. A name whose deployment ended is used again; its log and
        events are kept. Raises LlmserveError (exit 3): plan refused, name or port taken."""
        check_name(name)
        if self.only not in (None, name):
            raise refused(
                "foreground",
                f"`launch --foreground` of {self.only} (pid {os.getpid()}) supervises here, and only that",
                "end it first, or set LLMSERVE_HOME to another folder",
            )
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
            await self.adopt_all()
            if name in self.unreadable:
                await self.stop(name)
                del self.unreadable[name]
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
            auto = all(port is None for port in plan.processes[0].ports.values())
            state = self._carried(existing) | {"ports": chosen, "auto_ports": auto}
            deployment = Deployment(folder, plan, allowed(env), state)
            deployment.record("launched", goal=plan.goal, engine=plan.engine.name, ports=chosen)
            self._keep(deployment)
            deployment.begin()
            deployment.post(lc.Launched())
            await deployment.wait_change(0, _BEGUN_S)
        return deployment

    @staticmethod
    def _carried(existing: Deployment | None) -> dict[str, Any]:
        # generations go on counting, so that no record of an earlier life is taken for one of this
        return {"lifecycle": {"generation": existing.life.generation}} if existing else {}

    async def restart(self, name: str) -> Deployment:
        """Ask for a restart; returns once it has begun. Raises LlmserveError: exit 5, or 3 where the port of
        one that has ended is held by somebody else."""
        deployment = await self.get(name)
        if deployment.life.state in lc.ENDED:
            self._refuse_taken(deployment.process_plan.bound, deployment.ports.values(), name)
        revision = deployment.revision
        deployment.post(lc.RestartRequested())
        await deployment.wait_change(revision, _BEGUN_S)
        return deployment

    def _refuse_taken(self, bound: str, wanted: Iterable[int], name: str) -> None:
        held = {
            port: d.name
            for d in self.deployments.values()
            if d.name != name and d.life.state not in lc.ENDED
            for port in d.ports.values()
        }
        for port in wanted:
            if port in held:
                raise _port_taken(port, f"deployment {held[port]!r}")
            if not ports.is_free(bound, port):
                raise _port_taken(port, ports.holder(port) or ports.UNSEEN)

    async def remove(self, name: str) -> None:
        """Delete the files of one that has ended. Raises LlmserveError: exit 5, or 3 while it runs."""
        await self.adopt_all()
        deployment = self.deployments.get(name)
        if deployment is None and name not in self.unreadable:
            raise no_such_deployment(name, sorted(self.deployments))
        if deployment is None:
            await self.stop(name)
        else:
            if deployment.life.state not in lc.ENDED:
                raise refused(
                    "still_running",
                    f"{name} is {deployment.life.state}",
                    f"llmserve stop {name}, then remove it",
                )
            await deployment.close()
        await asyncio.to_thread(shutil.rmtree, DeploymentFolder(name).path, ignore_errors=True)
        self.deployments.pop(name, None)
        self.unreadable.pop(name, None)

    def _choose_ports(self, plan: Plan) -> dict[str, int]:
        held = {
            port
            for d in self.deployments.values()
            if d.life.state not in lc.ENDED
            for port in d.ports.values()
        }
        process = plan.processes[0]
        self._refuse_taken(process.bound, [p for p in process.ports.values() if p is not None], "")
        return ports.choose(process.bound, process.ports, FIRST_PORT, held)

    async def close(self) -> None:
        """Let go of all; every engine runs on under its shim."""
        await asyncio.gather(*(d.close() for d in self.deployments.values()))

    async def stop_all(self) -> dict[str, Any]:
        """Stop every deployment at once; reports by name."""
        await self.adopt_all()
        names = [n for n, d in self.deployments.items() if d.life.state not in lc.ENDED]
        names += list(self.unreadable)
        reports = await asyncio.gather(*(self.stop(n) for n in names))
        return dict(zip(names, reports, strict=True))


def _rebuilt(folder: DeploymentFolder, plan: Plan) -> dict[str, Any]:
    """A state for a deployment whose own was lost, from what its shim wrote: it is proved anew."""
    role = plan.processes[0].role
    run = Run.rebuilt(folder, role)
    if run is None:
        return {"lifecycle": {"state": "stopped"}}
    spec = read_record(folder.process_dir(role), "spec.json") or {}
    folder.append_event("state_rebuilt", None)
    return {
        "lifecycle": {"state": "starting", "phase": "load", "generation": run.generation},
        "run": run.to_json(),
        "ports": spec.get("ports", {}),
    }


def _port_taken(port: int, holder: str) -> LlmserveError:
    remedy = "free it, or launch without --port for the first free one from 8000"
    return refused("port_taken", f"port {port} is held by {holder}", remedy)
