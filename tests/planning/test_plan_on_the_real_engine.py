"""Each goal's command line on the real engine: it starts, and its KV is the planned one to the byte."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from planning_inputs import ENGINE, GOALS

from orchestrator import model_store, plan
from orchestrator.planning.inputs import gather
from orchestrator.planning.planner import make_plan

_TALKATIVE = "engine_args.llamacpp=['--verbosity', '4']"


def _model() -> str:
    given = os.environ.get("LLMSERVE_TEST_MODEL")
    found = given or model_store.resolve("smollm2-135m").path
    assert found is not None
    return found


async def _facts(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=30) as client:
        return await ENGINE.facts(client, url)


@pytest.mark.real_engine
@pytest.mark.parametrize("goal", GOALS)
def test_a_goal_starts_as_planned(goal: str, tmp_path: Path) -> None:
    made = make_plan(gather(goal=goal, model=_model(), engine="embedded", sets=[_TALKATIVE]))
    assert not made.violations
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    spec = plan.bind(made.processes[0], {"http": port}, str(tmp_path), "", os.environ)
    log = ""
    with subprocess.Popen(
        spec.argv, env=spec.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            assert server.stdout is not None
            # the engine's own word is the clock; its death ends the stream
            for line in server.stdout:
                log += line.decode("utf-8", "replace")
                if "listening on http" in log:
                    break
            facts = asyncio.run(_facts(f"http://127.0.0.1:{port}"))
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=30)
    checks = ENGINE.compare(made, facts)
    assert {c.what for c in checks} >= {"max_num_seqs", "max_model_len", "speculative", "context_length"}
    assert [c for c in checks if not c.ok] == []
    assert facts["slot_context"] == made.levers["max_model_len"].value
    logged = sum(float(m) for m in re.findall(r"KV buffer size = +([\d.]+) MiB", log))
    planned = made.predictions["kv_bytes"].value
    assert planned is not None
    assert logged == pytest.approx(planned / 2**20, abs=0.01)
    compute = sum(float(m) for m in re.findall(r"compute buffer size = +([\d.]+) MiB", log))
    estimated = made.predictions["compute_bytes"].value
    assert estimated is not None
    assert 0 < compute <= estimated / 2**20
