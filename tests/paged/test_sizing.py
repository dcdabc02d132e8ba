"""How much a plan takes of what a layout holds, and which layout: as an expert would."""

import planned
import pytest

from orchestrator.plan import Plan
from orchestrator.planning.paged.graphs import covering

LLAMA_8B, LLAMA_70B = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B"
FULL = [
    (LLAMA_8B, "1xl4"),
    (LLAMA_8B, "1xrtx4090"),
    (LLAMA_8B, "8xh100"),
    (LLAMA_70B, "4xa100-80-nvlink"),
    ("Qwen/Qwen3-32B-FP8", "2xrtx3090-pcie"),
    ("Qwen/Qwen3-30B-A3B", "4xl40s-pcie"),
]


def value(plan: Plan, lever: str) -> int:
    return int(plan.levers[lever].value)


def figure(plan: Plan, name: str) -> float:
    found = plan.predictions[name].value
    assert found is not None
    return float(found)


def copies(plan: Plan) -> int:
    attention = plan.levers.get("attention_data_parallel_size")
    return value(plan, "data_parallel_size") * (attention.value if attention else 1)


@pytest.mark.parametrize("kind", planned.KINDS)
@pytest.mark.parametrize(("model", "machine"), FULL)
def test_throughput_takes_as_many_requests_as_the_pool_holds_with_them(
    model: str, machine: str, kind: str
) -> None:
    plan = planned.plan(model, machine, goal="throughput", kind=kind)
    assert not plan.violations
    held = figure(plan, "kv_cache_tokens") / copies(plan) / 1280
    seqs = value(plan, "max_num_seqs")
    assert seqs <= held
    assert seqs == 1024 or held - seqs <= 1 + held * 0.03


def test_a_smaller_step_never_holds_fewer_requests() -> None:
    large = planned.plan(LLAMA_70B, "4xa100-80-nvlink", goal="throughput")
    small = planned.plan(
        LLAMA_70B, "4xa100-80-nvlink", goal="throughput", sets=["max_num_batched_tokens=2048"]
    )
    assert value(small, "max_num_seqs") * copies(small) >= value(large, "max_num_seqs") * copies(large)


@pytest.mark.parametrize("goal", planned.GOALS)
@pytest.mark.parametrize("kind", planned.KINDS)
def test_the_predicted_rate_is_that_of_the_requests_that_run(goal: str, kind: str) -> None:
    plan = planned.plan(LLAMA_8B, "1xrtx4090", goal=goal, kind=kind)
    at_once = min(figure(plan, "max_concurrency"), value(plan, "max_num_seqs") * copies(plan))
    assert figure(plan, "output_tokens_per_s") <= at_once * 1000 / figure(plan, "tpot_ms") * 1.02


@pytest.mark.parametrize("goal", planned.GOALS)
@pytest.mark.parametrize(("model", "machine"), FULL)
def test_every_decode_batch_is_recorded_in_the_engines_own_unit(model: str, machine: str, goal: str) -> None:
    vllm = planned.plan(model, machine, goal=goal)
    guess = vllm.levers["speculative"].value
    tokens = value(vllm, "max_num_seqs") * (1 + (guess["num_tokens"] if guess != "off" else 0))
    assert value(vllm, "cuda_graph") == covering(min(512, tokens))
    sglang = planned.plan(model, machine, goal=goal, kind="sglang")
    assert value(sglang, "cuda_graph") == min(512, value(sglang, "max_num_seqs"))


def test_one_request_of_any_length_is_served_where_the_pool_holds_all_of_them() -> None:
    plan = planned.plan(LLAMA_70B, "8xh100", goal="latency")
    assert value(plan, "max_model_len") == 131072
    less = planned.plan(LLAMA_8B, "1xl4", goal="latency")
    assert value(less, "max_model_len") < 131072
    rejected = less.levers["max_model_len"].rejected[0]
    assert rejected.value == 131072
    assert "more than the pool's" in rejected.why


@pytest.mark.parametrize("model", [LLAMA_8B, "Qwen/Qwen3-1.7B"])
@pytest.mark.parametrize("machine", ["8xh100", "4xl40s-pcie", "2xrtx3090-pcie"])
def test_stages_are_not_taken_for_latency_where_anything_else_holds_the_model(
    model: str, machine: str
) -> None:
    assert value(planned.plan(model, machine, goal="latency"), "pipeline_parallel_size") == 1


def test_stages_must_bring_much_more_tokens_to_be_taken_inside_nvlink() -> None:
    plan = planned.plan(LLAMA_8B, "8xh100", goal="throughput")
    assert value(plan, "pipeline_parallel_size") == 1
    assert value(plan, "data_parallel_size") == 8


def test_one_user_gets_no_copies_of_attention() -> None:
    plan = planned.plan("mistralai/Mixtral-8x22B-v0.1", "8xh100", goal="edge")
    assert value(plan, "attention_data_parallel_size") == 1


def test_agents_get_fewer_bits_only_where_their_conversations_would_be_cut_short() -> None:
    whole = planned.plan("Qwen/Qwen3-30B-A3B", "8xh100", goal="agent")
    assert whole.levers["kv_cache_dtype"].value == "auto"
    for kind in planned.KINDS:
        short = planned.plan(LLAMA_8B, "1xl4", goal="agent", kind=kind)
        assert short.levers["kv_cache_dtype"].value == "fp8"
        assert not short.levers["kv_cache_dtype"].lossless
        exact = planned.plan(LLAMA_8B, "1xl4", goal="agent", kind=kind, sets=["lossless=true"])
        assert exact.levers["kv_cache_dtype"].value == "auto"
        assert value(exact, "max_model_len") < value(short, "max_model_len")


def test_a_gap_that_no_step_is_small_enough_for_is_said() -> None:
    plan = planned.plan("Qwen/Qwen3-32B-FP8", "2xrtx3090-pcie", goal="latency")
    assert "the smallest step there is" in plan.levers["max_num_batched_tokens"].reason


def test_host_memory_is_taken_only_where_the_pool_is_short_of_waiting_conversations() -> None:
    ample = planned.plan("Qwen/Qwen3-30B-A3B", "8xh100", goal="agent")
    assert value(ample, "kv_offload_bytes") == 0
    assert "whole conversations" in ample.levers["kv_offload_bytes"].reason
    short = planned.plan(LLAMA_8B, "1xl4", goal="agent")
    assert value(short, "kv_offload_bytes") > 0
    refused = planned.plan(LLAMA_70B, "1xl4", goal="agent")
    assert refused.violations
    assert value(refused, "kv_offload_bytes") == 0


def test_devices_of_a_machine_file_go_by_number() -> None:
    for kind in planned.KINDS:
        (process,) = planned.plan(LLAMA_70B, "4xa100-80-nvlink", goal="latency", kind=kind).processes
        assert process.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_fewer_devices_are_taken_where_more_make_an_answer_hardly_quicker() -> None:
    plan = planned.plan("Qwen/Qwen3-1.7B", "8xh100", goal="latency")
    assert value(plan, "tensor_parallel_size") * value(plan, "data_parallel_size") < 8
    reasons = [d.reason for d in plan.levers.values()]
    assert any("less than a tenth quicker" in r for r in reasons)
