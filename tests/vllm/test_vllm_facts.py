import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.engines.vllm.compare import compare
from orchestrator.engines.vllm.facts import facts, read_facts
from orchestrator.engines.vllm.metrics import read_metrics
from orchestrator.engines.vllm.start_log import log_facts
from orchestrator.plan import Decision, EngineRef, Plan, Prediction

HERE = Path(__file__).parent
METRICS = (HERE / "metrics-0.32.0.txt").read_text(encoding="utf-8")
LOG = (HERE / "logs" / "ready.log").read_text(encoding="utf-8")
MODELS = {"data": [{"id": "smol", "max_model_len": 2048}]}


def serve(request: httpx.Request) -> httpx.Response:
    match request.url.path:
        case "/metrics":
            return httpx.Response(200, text=METRICS)
        case "/v1/models":
            return httpx.Response(200, json=MODELS)
        case "/version":
            return httpx.Response(200, json={"version": "0.32.0"})
    return httpx.Response(404)


def plan(levers: Mapping[str, Any], **predicted: float) -> Plan:
    """What the real server of the fixtures was started as, with `levers` over it."""
    return Plan(
        goal="latency",
        profile="p",
        model={"name": "smol"},
        machine={},
        engine=EngineRef("vllm", "vllm", "0.32.0"),
        levers={n: Decision(v, "r", "user") for n, v in levers.items()},
        predictions={n: Prediction(v, "tokens", "computed") for n, v in predicted.items()},
        processes=(),
    )


REAL = {
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 1024,
    "chunked_prefill": True,
    "prefix_caching": True,
    "block_size": 128,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "async_scheduling": False,
    "dtype": "bfloat16",
    "kv_cache_bytes": 536870912,
    "cuda_graph": "off",
    "speculative": {"method": "ngram", "num_tokens": 3},
    "shutdown_timeout_s": 20,
}


async def known() -> dict[str, Any]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
        return {**log_facts(LOG), **await facts(client, "http://127.0.0.1:1")}


async def test_a_real_server_reports_its_pool_and_settings() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
        found = await facts(client, "http://127.0.0.1:1")
    assert found["version"] == "0.32.0"
    assert found["served_models"] == ["smol"]
    assert found["max_model_len"] == 2048
    assert (found["num_gpu_blocks"], found["block_size"], found["kv_cache_tokens"]) == (182, 128, 23296)
    # 512 MiB of 23,040 bytes a token, in whole blocks of 128
    assert found["kv_cache_tokens"] == 536870912 // 23040 // 128 * 128
    assert found["kv_cache_bytes"] == 536870912
    assert (found["kv_cache_dtype"], found["prefix_caching"], found["engines"]) == ("auto", True, 1)
    assert found["speculating"] is True
    assert found["speculation"]["draft_tokens"] > 0


async def test_a_silent_server_reports_nothing() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda r: httpx.Response(500))) as client:
        assert await facts(client, "http://127.0.0.1:1") == {}


def test_an_older_server_without_a_token_count_has_blocks_times_size() -> None:
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="False"} 1.0\n'
    found = read_facts(read_metrics(text))
    assert (found["kv_cache_tokens"], found["prefix_caching"], found["speculating"]) == (16000, False, False)


def test_of_several_engines_the_smallest_pool_counts() -> None:
    row = 'vllm:cache_config_info{{engine="{0}",kv_cache_size_tokens="{1}"}} 1.0\n'
    found = read_facts(read_metrics(row.format(0, 900) + row.format(1, 800)))
    assert (found["engines"], found["kv_cache_tokens"]) == (2, 800)


def test_a_real_log_tells_what_the_metrics_do_not() -> None:
    found = log_facts(LOG)
    assert found["args"]["speculative_config"]["method"] == "ngram"
    assert (found["max_num_seqs"], found["max_num_batched_tokens"]) == (8, 1024)
    assert (found["kv_cache_tokens"], found["max_concurrency"]) == (23296, 11.38)
    assert (found["dtype"], found["enforce_eager"], found["cudagraph_mode"]) == ("bfloat16", True, "NONE")
    assert found["speculative"] == {"method": "ngram", "num_tokens": 3}
    assert (found["async_scheduling"], found["model_runner"], found["device"]) == (False, "V1", "cpu")


GPU_LOG = """\
(A) INFO [utils.py:233] non-default args: {'model': 'Q', 'max_num_seqs': 64, 'x': <Kind.A: 1>}
(W0) INFO [gpu_model_runner.py:5089] Model loading took 13.47 GiB memory and 12.123456 seconds
(W1) INFO [gpu_model_runner.py:5089] Model loading took 13.40 GiB memory and 12.3 seconds
(W0) INFO [cuda.py:507] Using FLASH_ATTN attention backend out of potential backends: [].
(W0) INFO [monitor.py:34] torch.compile took 21.50 s in total
(W0) INFO [gpu_worker.py:298] Available KV cache memory: 50.28 GiB
(W1) INFO [gpu_worker.py:298] Available KV cache memory: 50.20 GiB
(E0) INFO [kv_cache_utils.py:1087] GPU KV cache size: 1,098,304 tokens
(E0) INFO [kv_cache_utils.py:1091] Maximum concurrency for 16,000 tokens per request: 68.64x
(W0) INFO [gpu_model_runner.py:6517] Graph capturing finished in 19 secs, took -0.39 GiB
(E0) INFO [core.py:210] init engine (profile, create kv cache, warmup model) took 65.11 s
(E0) INFO [core.py:61] Asynchronous scheduling is enabled.
"""


def test_a_log_of_gpus_is_read_in_the_words_of_its_time() -> None:
    found = log_facts(GPU_LOG)
    assert found["weights_bytes"] == round(13.47 * 2**30)
    assert found["available_kv_bytes"] == round(50.20 * 2**30)
    assert (found["kv_cache_tokens"], found["max_concurrency"]) == (1098304, 68.64)
    assert found["attention_backend"] == "FLASH_ATTN"
    assert (found["graph_capture_s"], found["graph_bytes"]) == (19, round(-0.39 * 2**30))
    assert (found["compile_s"], found["init_s"]) == (21.5, 65.11)
    assert found["async_scheduling"] is True
    # an object among the arguments does not hide the others
    assert (found["args"]["model"], found["max_num_seqs"]) == ("Q", 64)


async def test_every_planned_lever_of_a_real_start_is_found_in_effect() -> None:
    checks = compare(plan(REAL, kv_cache_tokens=23296), await known())
    assert [c for c in checks if not c.ok] == []
    assert {c.what for c in checks} == {*REAL, "kv_cache_tokens", "served_model"}


WRONG: list[tuple[str, Any]] = [
    ("max_model_len", 4096),
    ("max_num_seqs", 16),
    ("max_num_batched_tokens", 2048),
    ("chunked_prefill", False),
    ("prefix_caching", False),
    ("block_size", 16),
    ("tensor_parallel_size", 2),
    ("pipeline_parallel_size", 2),
    ("data_parallel_size", 2),
    ("async_scheduling", True),
    ("dtype", "float16"),
    ("kv_cache_bytes", 2**30),
    ("cuda_graph", 64),
    ("speculative", "off"),
    ("speculative", {"method": "ngram", "num_tokens": 5}),
    ("speculative", {"method": "eagle3", "num_tokens": 3}),
    ("shutdown_timeout_s", 30),
]


@pytest.mark.parametrize(("lever", "value"), WRONG, ids=[f"{n}={v}" for n, v in WRONG])
async def test_a_lever_that_is_not_in_effect_is_found(lever: str, value: Any) -> None:
    checks = compare(plan({**REAL, lever: value}, kv_cache_tokens=23296), await known())
    assert lever in [c.what for c in checks if not c.ok]


@pytest.mark.parametrize(
    ("planned", "by_bytes", "ok"),
    [
        (23296, True, True),
        (23297, True, False),
        (23700, False, True),
        (23800, False, False),
        (20000, False, True),
    ],
)
async def test_the_pool_is_exact_by_bytes_and_else_at_most_two_per_cent_small(
    planned: int, by_bytes: bool, ok: bool
) -> None:
    levers = {"kv_cache_bytes": 536870912} if by_bytes else {}
    found = {c.what: c.ok for c in compare(plan(levers, kv_cache_tokens=planned), await known())}
    assert found["kv_cache_tokens"] is ok


def test_what_the_engine_does_not_report_and_what_is_left_to_it_is_not_judged() -> None:
    assert compare(plan(REAL, kv_cache_tokens=23296), {}) == []
    left = {"max_model_len": "auto", "dtype": "auto", "cuda_graph": "auto", "quantization": None}
    assert compare(plan(left), {"max_model_len": 1, "dtype": "float16", "quantization": "awq"}) == []


@pytest.mark.parametrize(
    ("lever", "planned", "fact", "ok"),
    [
        ("quantization", "awq", "awq_marlin", True),
        ("quantization", "fp8", "awq", False),
        ("quantization", "fp8", None, False),
        ("kv_cache_dtype", "fp8", "fp8_e4m3", True),
        ("kv_cache_dtype", "fp8", "bfloat16", False),
        ("dtype", "bf16", "bfloat16", True),
        ("gpu_memory_utilization", 0.9, 0.9, True),
        ("gpu_memory_utilization", 0.9, 0.92, False),
    ],
)
def test_names_that_mean_the_same_are_the_same(lever: str, planned: Any, fact: Any, ok: bool) -> None:
    assert [c.ok for c in compare(plan({lever: planned}), {lever: fact})] == [ok]


def test_speculation_is_seen_by_its_counters_where_the_log_is_lost() -> None:
    on = plan({"speculative": {"method": "ngram", "num_tokens": 3}})
    assert [c.ok for c in compare(on, {"speculating": True})] == [True]
    assert [c.ok for c in compare(on, {"speculating": False})] == [False]
    assert [c.ok for c in compare(plan({"speculative": "off"}), {"speculating": True})] == [False]


def test_both_kinds_of_data_parallel_ranks_are_the_engines_one_size() -> None:
    made = plan({"attention_data_parallel_size": 4, "data_parallel_size": 1})
    assert [c.ok for c in compare(made, {"data_parallel_size": 4})] == [True]
    assert [c.ok for c in compare(dataclasses.replace(made, predictions={}), {"engines": 1})] == [False]
