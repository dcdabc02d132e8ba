"""The contract's status object."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.supervisor import failures
from orchestrator.supervisor.environment import redacted
from orchestrator.supervisor.lifecycle import ENDED
from orchestrator.supervisor.run import steady_now

if TYPE_CHECKING:
    from orchestrator.supervisor.deployment import Deployment


def of(deployment: Deployment, show_env: bool = False) -> dict[str, Any]:
    """Of a deployment; `env` with secrets as *** where asked."""
    life = deployment.life
    run = None if life.state in ENDED or life.state == "backoff" else deployment.run
    leader, shim = (run.leader, run.shim) if run else (None, None)
    started = run.started_at if run else None
    out: dict[str, Any] = {
        "schema_version": 1,
        "name": deployment.name,
        "state": life.state,
        "phase": life.phase,
        "reason": life.reason,
        "endpoint": deployment.endpoint,
        "served_model": deployment.served_model,
        "goal": deployment.plan.goal,
        "engine": asdict(deployment.plan.engine),
        "processes": [
            {
                "role": deployment.process_plan.role,
                "pid": leader.pid if leader else None,
                "shim_pid": shim.pid if shim else None,
                "state": life.state,
                "restarts": life.restarts,
                "uptime_s": round(time.time() - started, 1) if started else None,
                "resident_bytes": run.resident_bytes() if run else None,
            }
        ],
        "plan_vs_actual": deployment.checks,
        "corrections": deployment.corrections,
        "last_failure": failures.shown(life.last_failure, deployment.failed_at),
        "log": str(deployment.folder.log(deployment.process_plan.role)),
        "retry_in_s": max(0.0, round(life.retry_at - steady_now(), 1)) if life.retry_at else None,
        "revision": deployment.revision,
    }
    if show_env:
        out["env"] = redacted({**deployment.env, **deployment.process_plan.env})
    return out


def unreadable(name: str, why: str) -> dict[str, Any]:
    """Of a deployment whose files cannot be read: the same keys."""
    return {
        "schema_version": 1,
        "name": name,
        "state": "failed",
        "phase": None,
        "reason": "unreadable",
        "endpoint": None,
        "served_model": None,
        "goal": None,
        "engine": {"name": None, "kind": None, "version": None, "captured": False},
        "processes": [
            {
                "role": "server",
                "pid": None,
                "shim_pid": None,
                "state": "failed",
                "restarts": 0,
                "uptime_s": None,
                "resident_bytes": None,
            }
        ],
        "plan_vs_actual": [],
        "corrections": [],
        "last_failure": {
            "class": "unreadable",
            "message": "its files are damaged",
            "evidence": why,
            "remedy": f"llmserve stop {name}, then llmserve rm {name}",
            "at": None,
        },
        "log": None,
        "retry_in_s": None,
        "revision": 0,
    }
