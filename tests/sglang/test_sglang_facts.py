import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.engines.sglang import facts
from orchestrator.plan import Decision, EngineRef, Plan, Prediction, ProcessPlan

URL = "http://127.0.0.1:1"
LEVERS: dict[str, Any] = {
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1, "max_model_len": 1024,
    "max_num_seqs": 16, "max_num_batched_tokens": 512, "chunked_prefill": True, "kv_cache_tokens": 8192,
    "kv_cache_dtype": "auto", "prefix_caching": True, "block_size": 1, "speculative": "off",
    "cuda_graph": "off", "scheduling_policy": "fcfs", "async_scheduling": True, "stream_interval": 1,
    "kv_offload_bytes": 0, "mem_fraction_static": 0.843, "trust_remote_code": False,
    "tool_call_parser": "auto", "dtype": "auto",
}  # fmt: skip
ARGV = (
    "python", "-m", "sglang.launch_server", "--model-path", "/models/tiny", "--served-model-name", "tiny",
    "--max-total-tokens", "8192", "--chunked-prefill-size", "512", "--max-running-requests=16",
    "--context-length", "1024",
)  # fmt: skip


def plan(levers: dict[str, Any], argv: tuple[str, ...] = ARGV, predicted: int | None = None) -> Plan:
    return Plan(
        goal="throughput",
        profile="throughput",
        model={"name": "tiny", "served_model": "tiny"},
        machine={},
        engine=EngineRef("sglang", "sglang", "0.5.23"),
        levers={k: Decision(v, "", "test") for k, v in levers.items()},
        predictions={} if predicted is None else {"kv_cache_tokens": Prediction(predicted, "tokens", "x")},
        processes=(ProcessPlan("server", argv),),
    )


@pytest.fixture
def seen(server_info: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    served = [m["id"] for m in models["models"]["data"]]
    return facts.read_server_info(server_info) | {"served_models": served, "max_model_len": 1024}


def one(checks: list[Any], what: str) -> Any:
    (check,) = [c for c in checks if c.what == what]
    return check


async def test_the_facts_of_a_real_server(
    server_info: dict[str, Any], models: dict[str, Any], idle: str
) -> None:
    answers = {
        "/server_info": server_info, "/model_info": models["model_info"], "/v1/models": models["models"],
    }  # fmt: skip

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=idle)
        return httpx.Response(200, json=answers[request.url.path])

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as c:
        found = await facts.facts(c, URL)
    assert found["version"] == "0.5.23"
    assert found["max_total_num_tokens"] == 8192
    assert found["effective_max_running_requests_per_dp"] == 16
    assert found["served_models"] == ["tiny"]
    assert found["max_model_len"] == 1024
    assert found["architectures"] == ["LlamaForCausalLM"]
    assert found["metrics"]["max_total_num_tokens"] == 8192


async def test_an_older_server_is_asked_by_its_older_name(server_info: dict[str, Any]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/get_server_info":
            return httpx.Response(200, json=server_info)
        return httpx.Response(404, json={"detail": "Not Found"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as c:
        assert (await facts.facts(c, URL))["tp_size"] == 1


async def test_a_hung_scheduler_gives_no_facts_and_no_error() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        assert request.extensions["timeout"]["read"] == facts.FACTS_TIMEOUT_S
        raise httpx.ReadTimeout("hung")

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as c:
        assert await facts.facts(c, URL) == {}
    assert "/get_server_info" not in asked


def test_the_pool_is_that_of_the_smallest_rank(server_info: dict[str, Any]) -> None:
    info = json.loads(json.dumps(server_info))
    other = json.loads(json.dumps(info["internal_states"][0]))
    other["memory_usage"]["token_capacity"] = 8000
    info["internal_states"].append(other)
    assert facts.read_server_info(info)["max_total_num_tokens"] == 8000


def test_every_lever_of_a_plan_that_is_in_effect_is_found(seen: dict[str, Any]) -> None:
    checks = facts.compare(plan(LEVERS), seen)
    assert [c for c in checks if not c.ok] == []
    assert {c.what for c in checks} == set(LEVERS) - {"tool_call_parser", "dtype", "kv_cache_dtype"} | {
        "served_model"
    }


@pytest.mark.parametrize(
    ("lever", "field", "value"),
    [
        ("tensor_parallel_size", "tp_size", 2),
        ("pipeline_parallel_size", "pp_size", 2),
        ("data_parallel_size", "dp_size", 2),
        ("max_model_len", "max_model_len", 512),
        ("max_num_seqs", "effective_max_running_requests_per_dp", 8),
        ("max_num_batched_tokens", "chunked_prefill_size", 256),
        ("chunked_prefill", "chunked_prefill_size", -1),
        ("kv_cache_tokens", "max_total_num_tokens", 8191),
        ("prefix_caching", "disable_radix_cache", True),
        ("block_size", "page_size", 16),
        ("speculative", "speculative_algorithm", "EAGLE"),
        ("cuda_graph", "cuda_graph_config", {"decode": {"backend": "full", "max_bs": 32}}),
        ("scheduling_policy", "schedule_policy", "lpm"),
        ("async_scheduling", "disable_overlap_schedule", True),
        ("stream_interval", "stream_interval", 8),
        ("kv_offload_bytes", "enable_hierarchical_cache", True),
        ("mem_fraction_static", "mem_fraction_static", 0.9),
        ("trust_remote_code", "trust_remote_code", True),
        ("served_model", "served_models", ["other"]),
    ],
)
def test_a_lever_that_is_not_in_effect_is_found_out(
    seen: dict[str, Any], lever: str, field: str, value: Any
) -> None:
    checks = facts.compare(plan(LEVERS), seen | {field: value})
    assert not one(checks, lever).ok


@pytest.mark.parametrize(("actual", "ok"), [(98_000, True), (97_999, False), (110_000, True)])
def test_a_pool_that_nothing_fixes_may_be_two_percent_below(
    seen: dict[str, Any], actual: int, ok: bool
) -> None:
    levers = {"mem_fraction_static": 0.843}
    argv = ("python", "-m", "sglang.launch_server")
    checks = facts.compare(plan(levers, argv, predicted=100_000), seen | {"max_total_num_tokens": actual})
    assert one(checks, "kv_cache_tokens").ok is ok


@pytest.mark.parametrize(("actual", "ok"), [(992, True), (1000, False), (976, False)])
def test_a_pool_that_is_set_is_exact_down_to_whole_pages(seen: dict[str, Any], actual: int, ok: bool) -> None:
    argv = ("--max-total-tokens", "1000")
    found = seen | {"max_total_num_tokens": actual, "page_size": 16}
    assert one(facts.compare(plan({"kv_cache_tokens": 1000}, argv), found), "kv_cache_tokens").ok is ok


def test_attention_ranks_share_out_the_chunk_and_the_requests(seen: dict[str, Any]) -> None:
    levers = {
        "tensor_parallel_size": 1, "attention_data_parallel_size": 8, "expert_parallel": True,
        "data_parallel_size": 1, "max_num_seqs": 256, "max_num_batched_tokens": 1024,
    }  # fmt: skip
    argv = ("--tp-size", "8", "--attn-dp-size", "8", "--ep-size", "8", "--chunked-prefill-size", "8192",
            "--max-running-requests", "256")  # fmt: skip
    found = seen | {
        "tp_size": 8, "attn_dp_size": 8, "dp_size": 1, "ep_size": 8, "chunked_prefill_size": 1024,
        "effective_max_running_requests_per_dp": 32,
    }  # fmt: skip
    checks = facts.compare(plan(levers, argv), found)
    assert [c for c in checks if not c.ok] == []
    older = {k: v for k, v in found.items() if k != "attn_dp_size"} | {"dp_size": 8}
    assert [
        c for c in facts.compare(plan(levers, argv), older | {"enable_dp_attention": True}) if not c.ok
    ] == []
    assert not one(facts.compare(plan(levers, argv), found | {"ep_size": 1}), "expert_parallel").ok


def test_speculation_is_compared_by_its_own_name(seen: dict[str, Any]) -> None:
    levers = {"speculative": {"method": "mtp", "num_tokens": 3}}
    argv = ("--speculative-algorithm", "NEXTN", "--speculative-num-draft-tokens", "4")
    found = seen | {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
    assert all(c.ok for c in facts.compare(plan(levers, argv), found))
    assert not one(facts.compare(plan(levers, argv), seen), "speculative").ok
    wrong = facts.compare(plan(levers, argv), found | {"speculative_num_draft_tokens": 3})
    assert not one(wrong, "speculative.num_tokens").ok


def test_what_is_not_reported_is_not_judged() -> None:
    assert facts.compare(plan(LEVERS), {}) == []


def test_an_offload_is_compared_in_the_unit_of_the_command_line(seen: dict[str, Any]) -> None:
    argv = ("--enable-hierarchical-cache", "--hicache-size", "8")
    found = seen | {"enable_hierarchical_cache": True, "hicache_size": 8}
    levers = {"kv_offload_bytes": 8 << 30}
    assert one(facts.compare(plan(levers, argv), found), "kv_offload_bytes").ok
    assert not one(facts.compare(plan(levers, argv), found | {"hicache_size": 4}), "kv_offload_bytes").ok
    assert not one(facts.compare(plan(levers, argv), seen), "kv_offload_bytes").ok


def test_the_log_of_a_real_start_gives_its_figures() -> None:
    text = (Path(__file__).parent / "logs" / "ready-stopped.log").read_text(encoding="utf-8")
    found = facts.log_facts(text)
    assert found == {
        "kv_tokens": 8192, "kv_dtype": "torch.bfloat16", "kv_k_gb": 0.0, "kv_v_gb": 0.0, "weights_gb": 0.0,
        "memory_after_pool_gb": 21.32, "max_total_num_tokens": 8192, "chunked_prefill_size": 512,
        "max_prefill_tokens": 16384, "max_running_requests": 16, "context_len": 1024, "available_gb": 21.32,
    }  # fmt: skip
    assert facts.log_facts("nothing") == {}


def test_a_gpu_log_of_an_older_version_is_read_too() -> None:
    text = (
        "[t TP0] Load weight end. type=LlamaForCausalLM, avail mem=63.65 GB, mem usage=15.02 GB.\n"
        "[t TP0] KV Cache is allocated. #tokens: 441953, K size: 26.97 GB, V size: 26.97 GB\n"
        "[t TP0] max_total_num_tokens=441953, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=2048, context_len=131072, available_gpu_mem=8.53 GB\n"
    )
    found = facts.log_facts(text)
    assert (found["kv_tokens"], found["kv_k_gb"], found["weights_gb"]) == (441953, 26.97, 15.02)
    assert (found["context_len"], found["available_gb"]) == (131072, 8.53)


def test_a_negative_value_is_one_and_a_bare_switch_is_empty() -> None:
    assert facts.given(("--chunked-prefill-size", "-1"), "--chunked-prefill-size") == "-1"
    assert facts.given(("--disable-radix-cache", "--port", "1"), "--disable-radix-cache") == ""
    assert facts.given(("--port=1",), "--port") == "1"
    assert facts.given((), "--port") is None
    assert dataclasses.is_dataclass(plan({}))
