"""Each goal's command line on the real engine: it starts, and its KV is the planned one to the byte."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from planning_inputs import ENGINE, GOALS

from orchestrator import model_store, plan
from orchestrator.plan import Plan
from orchestrator.planning.inputs import gather
from orchestrator.planning.planner import make_plan

_TALKATIVE = "engine_args.llamacpp=['--verbosity', '4']"


def _model() -> str:
    given = os.environ.get("LLMSERVE_TEST_MODEL")
    found = given or model_store.resolve("smollm2-135m").path
    assert found is not None
    return found


async def _proof(url: str, served_model: str) -> str:
    async with httpx.AsyncClient(timeout=30) as client:
        return await ENGINE.prove(client, url, served_model)


async def _facts(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=30) as client:
        return await ENGINE.facts(client, url)


@contextmanager
def running(made: Plan, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The plan's server until the block ends: its address, and its log so far (to the end afterwards)."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    spec = plan.bind(made.processes[0], {"http": port}, str(folder), "", os.environ)
    log: list[str] = []
    with subprocess.Popen(
        spec.argv, env=spec.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            assert server.stdout is not None
            # the engine's own word is the clock; its death ends the stream
            for line in server.stdout:
                log.append(line.decode("utf-8", "replace"))
                if "listening on http" in log[-1]:
                    break
            yield f"http://127.0.0.1:{port}", log
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=30)


@pytest.mark.real_engine
@pytest.mark.parametrize(
    ("goal", "sets"),
    [
        ("edge", ["max_model_len=2"]),
        ("edge", ["max_num_batched_tokens=2", "ubatch_tokens=1"]),
        ("edge", ["max_num_batched_tokens=2147483647", "ubatch_tokens=16"]),
        ("agent", ["max_model_len=10"]),
        ("agent", ["max_model_len=256"]),
        ("agent", ["kv_cache_tokens=256"]),
    ],
    ids=str,
)
def test_the_least_and_most_that_pass_start_and_answer(goal: str, sets: list[str], tmp_path: Path) -> None:
    made = make_plan(gather(goal=goal, model=_model(), engine="embedded", sets=sets))
    assert not made.violations
    with running(made, tmp_path) as (url, _):
        text = asyncio.run(_proof(url, made.model["served_model"]))
    assert isinstance(text, str)


@pytest.mark.real_engine
@pytest.mark.parametrize("goal", GOALS)
def test_a_goal_starts_as_planned(goal: str, tmp_path: Path) -> None:
    made = make_plan(gather(goal=goal, model=_model(), engine="embedded", sets=[_TALKATIVE]))
    assert not made.violations
    with running(made, tmp_path) as (url, lines):
        facts = asyncio.run(_facts(url))
    log = "".join(lines)
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
