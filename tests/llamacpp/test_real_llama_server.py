import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from embedded_running import Start, starting

from orchestrator.engines.base import Installation, RenderRequest
from orchestrator.engines.llamacpp.engine import LlamaCpp
from orchestrator.plan import Decision, EngineRef, Plan, bind

ENGINE = LlamaCpp()


@pytest.fixture
def llama_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    program = os.environ.get("LLMSERVE_TEST_LLAMA_SERVER")
    assert program, "set LLMSERVE_TEST_LLAMA_SERVER to what scripts/llama-server prints"
    monkeypatch.setenv("LLAMA_SERVER", program)
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "home"))
    return next(i for i in ENGINE.installations({}, os.environ) if not i.extras["embedded"])


@pytest.fixture
def begin(tmp_path: Path, model: str) -> Iterator[Start]:
    with starting(tmp_path, model) as begin:
        yield begin


@pytest.mark.full
@pytest.mark.real_engine
async def test_a_rendered_line_serves_on_the_real_binary_as_planned(
    llama_server: Installation, begin: Start, model: str, tmp_path: Path
) -> None:
    levers = {
        "max_num_seqs": 3, "max_model_len": 1000, "threads": 1, "kv_cache_dtype": "q8_0",
        "flash_attention": "auto", "speculative": {"method": "ngram", "num_tokens": 8, "size_n": 3},
        "kv_offload_bytes": 16 << 20, "prefix_caching": True, "gpu_layers": 0, "device_ids": [],
    }  # fmt: skip
    decided = {k: Decision(v, "because", "rule") for k, v in levers.items()}
    # AMX is listed by some virtual CPUs that cannot run it
    extra = ("--no-repack",) if llama_server.flag("--no-repack") else ()
    made = ENGINE.render(RenderRequest(decided, llama_server, model, "small", engine_args=extra))
    assert made.violations == ()
    engine = EngineRef(llama_server.name, "llamacpp", llama_server.version)
    plan = Plan(
        "edge", "edge", {"name": "small", "context_length": 8192}, {}, engine, decided, {}, made.processes
    )
    assert ENGINE.check(plan, llama_server) == []
    running = begin(program=("true",))
    running.process.wait()
    spec = bind(made.processes[0], {"http": running.port}, str(tmp_path), "", {})
    served = begin("--port", str(running.port), program=spec.argv, **spec.env)
    served.port = running.port
    served.wait_ready()
    async with httpx.AsyncClient(timeout=60) as client:
        assert await ENGINE.prove(client, served.url, "small") is not None
        checks = ENGINE.compare(plan, await ENGINE.facts(client, served.url))
    assert {c.what for c in checks} >= {"max_num_seqs", "max_model_len", "served_model", "speculative"}
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(10) == 0
