"""What a plan says of layouts that it did not take, of deployments apart, and of requests that wait."""

import re

import planned
import pytest

from orchestrator.plan import Decision, Plan

LLAMA_70B, GPT_OSS = "meta-llama/Meta-Llama-3.1-70B", "openai/gpt-oss-120b"
KIMI = "nvidia/Kimi-K2.7-Code-NVFP4"


def sizes(plan: Plan) -> Decision:
    """The lever that carries the layout's reason."""
    return next(d for n, d in plan.levers.items() if n.endswith("_parallel_size") and d.rejected)


def tokens(text: str) -> float:
    found = re.search(r"([\d,]+) tokens/s", text)
    assert found is not None
    return float(found.group(1).replace(",", ""))


def warning(plan: Plan, about: str) -> str | None:
    return next((w for w in plan.warnings if about in w), None)


@pytest.mark.parametrize("kind", planned.KINDS)
def test_layouts_that_fit_are_named_before_those_that_do_not(kind: str) -> None:
    plan = planned.plan(LLAMA_70B, "4xl40s-pcie", goal="throughput", kind=kind)
    whys = [r.why for r in sizes(plan).rejected]
    named = [str(r.value) for r in sizes(plan).rejected[:2]]
    assert named == ["pipeline 4", "tensor 4"]
    compared = [w for w in whys if "tokens/s" in w]
    assert whys[: len(compared)] == compared
    assert [tokens(w) for w in compared] == sorted(map(tokens, compared), reverse=True)
    assert any("nothing is left for KV" in w for w in whys)


def test_layouts_are_compared_with_steps_as_small_as_their_pool_needs() -> None:
    plan = planned.plan(LLAMA_70B, "4xl40s-pcie", goal="throughput", kind="sglang")
    asked = ["tensor_parallel_size=2", "pipeline_parallel_size=2"]
    same = planned.plan(LLAMA_70B, "4xl40s-pcie", goal="throughput", kind="sglang", sets=asked)
    assert same.levers["max_num_batched_tokens"].value == 2048
    assert plan.layout["words"] == same.layout["words"] == "tensor 2 x pipeline 2"


@pytest.mark.parametrize("goal", planned.GOALS)
@pytest.mark.parametrize("kind", planned.KINDS)
@pytest.mark.parametrize("machine", ["4xl40s-pcie", "8xh100"])
@pytest.mark.parametrize("model", [LLAMA_70B, "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B-FP8"])
def test_a_layout_that_makes_more_tokens_says_why_it_was_not_taken(
    model: str, machine: str, kind: str, goal: str
) -> None:
    plan = planned.plan(model, machine, goal=goal, kind=kind)
    if plan.violations or goal != "throughput":
        return
    main = sizes(plan)
    for other in main.rejected:
        if "tokens/s" in other.why and tokens(other.why) > tokens(main.reason):
            assert "hardly more" in other.why or "stages would have to bring more" in other.why
            assert not main.reason.startswith("the most tokens when full:")


def test_stages_beside_attention_copies_are_taken_only_where_they_bring_far_more() -> None:
    plan = planned.plan("Qwen/Qwen3-30B-A3B", "4xl40s-pcie", goal="throughput")
    assert plan.layout["words"] == "attention data 4 with experts spread"
    other = sizes(plan).rejected[0]
    assert other.value == "pipeline 2 x attention data 2 with experts spread"
    assert "stages would have to bring more" in other.why


def test_deployments_apart_are_told_where_vllm_makes_no_copies() -> None:
    small = "nvidia/Qwen3.6-35B-A3B-NVFP4"
    told = warning(planned.plan(small, "4xl40s-pcie", goal="throughput"), "deployments apart")
    assert told is not None
    assert "4 deployments apart (one device each, --set device_ids)" in told
    whole = planned.plan(small, "4xl40s-pcie", goal="throughput")
    alone = planned.plan(small, "4xl40s-pcie", goal="throughput", sets=["device_ids=[GPU-file-0]"])
    assert not alone.violations
    assert tokens(told) > 1.2 * tokens(sizes(whole).reason)
    for plan in (
        planned.plan(small, "4xl40s-pcie", goal="throughput", kind="sglang"),
        planned.plan(small, "4xl40s-pcie", goal="latency"),
        planned.plan("meta-llama/Meta-Llama-3.1-8B", "4xl40s-pcie", goal="throughput"),
    ):
        assert warning(plan, "deployments apart") is None


def waiting(plan: Plan) -> str | None:
    return warning(plan, "run at once, the others wait")


def test_requests_that_wait_for_memory_are_told_with_levers_that_let_more_run() -> None:
    model, machine = "meta-llama/Meta-Llama-3.1-8B", "1xl4"
    sets = ["workload.input_tokens=4000", "workload.concurrency=64"]
    tight = planned.plan(model, machine, goal="latency", sets=sets)
    told = waiting(tight)
    assert told is not None
    held = tight.levers["max_num_seqs"].value
    assert told.startswith(f"{held} of the workload's 64 requests")
    ways = re.findall(r"(\d+) with --set (\S+) \(", told)
    assert [w.split("=")[0] for _, w in ways] == ["gpu_memory_utilization", "kv_cache_dtype"]
    for more, change in ways:
        after = planned.plan(model, machine, goal="latency", sets=[*sets, change])
        assert not after.violations
        assert after.levers["max_num_seqs"].value == int(more) > held
    assert waiting(planned.plan(model, machine, goal="latency")) is None


def test_what_gives_no_more_is_not_named() -> None:
    # this checkpoint's KV is in 8 bits already
    plan = planned.plan(KIMI, "8xh100", sets=["trust_remote_code=true"])
    told = waiting(plan)
    if told is not None:
        assert "kv_cache_dtype" not in told
    lossless = planned.plan(
        "meta-llama/Meta-Llama-3.1-8B", "1xl4", sets=["workload.concurrency=64", "lossless=true"]
    )
    assert "kv_cache_dtype" not in (waiting(lossless) or "")


def test_a_number_that_was_set_is_no_shortage() -> None:
    plan = planned.plan("meta-llama/Meta-Llama-3.1-8B", "1xl4", sets=["max_num_seqs=2"])
    assert waiting(plan) is None


@pytest.mark.parametrize("kind", planned.KINDS)
@pytest.mark.parametrize("goal", planned.GOALS)
def test_a_speed_is_of_no_more_requests_than_the_pool_holds(goal: str, kind: str) -> None:
    sets = ["max_num_seqs=64", "workload.concurrency=64", "workload.input_tokens=4000"]
    plan = planned.plan("meta-llama/Meta-Llama-3.1-8B", "1xl4", goal=goal, kind=kind, sets=sets)
    assert not plan.violations
    held = plan.predictions["max_concurrency"].value
    assert held is not None
    assert held < 64
    assert plan.layout["speed_at_requests"] == held
    rate, each = (plan.predictions[n].value or 0 for n in ("output_tokens_per_s", "tpot_ms"))
    assert rate <= held * 1000 / each * 1.02


def test_copies_run_their_requests_together() -> None:
    one = ["max_num_seqs=1", "data_parallel_size=8"]
    plan = planned.plan("meta-llama/Meta-Llama-3.1-8B", "8xh100", kind="sglang", sets=one)
    assert plan.layout["speed_at_requests"] == plan.predictions["max_concurrency"].value == 8


def test_layouts_are_compared_at_the_load_that_each_can_hold_and_the_load_is_told() -> None:
    plan = planned.plan("deepseek-ai/DeepSeek-V3", "8xh200", goal="throughput", kind="vllm")
    main = sizes(plan)
    compared = [r.why for r in main.rejected if "tokens/s" in r.why]
    assert compared
    assert all(re.search(r"estimated at [\d,]+ at once", w) for w in compared)
    tensor = next(r.why for r in main.rejected if str(r.value) == "tensor 8 with experts spread")
    alone = planned.plan(
        "deepseek-ai/DeepSeek-V3", "8xh200", goal="throughput", sets=["tensor_parallel_size=8"]
    )
    assert f"at {alone.levers['max_num_seqs'].value} at once" in tensor, "not at a share of what it holds"


def test_a_plan_for_a_full_server_says_which_layout_is_better_at_the_workloads_own_load() -> None:
    model = "deepseek-ai/DeepSeek-V3"
    reason = sizes(planned.plan(model, "8xh200", goal="throughput", kind="vllm")).reason
    found = re.search(
        r"with 32 at once tensor 8 with experts spread would make (\d+), this one (\d+)", reason
    )
    assert found is not None
    assert int(found[1]) > int(found[2])
    filled = planned.plan(model, "8xh200", goal="throughput", sets=["max_num_seqs=4"])
    assert "at once tensor" not in sizes(filled).reason


def test_spread_experts_that_bring_nothing_say_why_they_are_not_taken() -> None:
    plan = planned.plan("Qwen/Qwen3-30B-A3B", "4xa100-80-nvlink", goal="agent", kind="vllm")
    spread = next(r.why for r in sizes(plan).rejected if str(r.value) == "tensor 4 with experts spread")
    assert "no quicker here" in spread
