"""What single levers say, and that it is so."""

import io
import re

import planned
import pytest
from rich.console import Console

from orchestrator.cli import plan_view
from orchestrator.plan import Decision, Plan

LLAMA_70B, QWEN_MOE = "meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-30B-A3B"
QWEN_32B, DEEPSEEK = "Qwen/Qwen3-32B", "deepseek-ai/DeepSeek-V3"


def lever(plan: Plan, name: str) -> Decision:
    return plan.levers[name]


def ttft(plan: Plan) -> float:
    return plan.predictions["ttft_ms"].value or 0.0


def test_an_ordinary_prompt_is_not_a_long_one() -> None:
    plan = planned.plan(LLAMA_70B, "8xh100", goal="latency")
    d = lever(plan, "long_prefill_token_threshold")
    assert d.value >= 1024 > lever(plan, "max_num_batched_tokens").value // 2
    assert "1024 tokens go whole" in d.reason
    large = planned.plan(LLAMA_70B, "8xh100", goal="latency", sets=("workload.input_tokens=6000",))
    assert lever(large, "long_prefill_token_threshold").value == 0
    # of a conversation only what a turn adds is computed
    agent = planned.plan(QWEN_MOE, "4xa100-80-nvlink", goal="agent")
    assert lever(agent, "long_prefill_token_threshold").value == 2048


def test_a_threshold_that_cuts_ordinary_prompts_is_counted() -> None:
    cut = ("long_prefill_token_threshold=256",)
    assert ttft(planned.plan(LLAMA_70B, "8xh100", goal="latency", sets=cut)) > ttft(
        planned.plan(LLAMA_70B, "8xh100", goal="latency")
    )


def test_latency_takes_the_engines_own_share_and_edge_says_why_not() -> None:
    assert lever(planned.plan(LLAMA_70B, "8xh100", goal="latency"), "gpu_memory_utilization").stock
    edge = lever(planned.plan("Qwen/Qwen3-8B", "1xrtx4090", goal="edge"), "gpu_memory_utilization")
    assert edge.value == 0.9
    assert "display" in edge.reason


@pytest.mark.parametrize(
    ("model", "machine", "goal", "sets", "value"),
    [
        (LLAMA_70B, "8xh100", "latency", (), "interactivity"),
        (QWEN_MOE, "4xa100-80-nvlink", "agent", (), "interactivity"),
        (QWEN_MOE, "4xa100-80-nvlink", "agent", ("workload.concurrency=64",), "balanced"),
        (LLAMA_70B, "8xh100", "throughput", (), "balanced"),
        ("Qwen/Qwen3-8B", "1xrtx4090", "edge", (), "balanced"),
    ],
)
def test_the_preset_fits_the_batches(
    model: str, machine: str, goal: str, sets: tuple[str, ...], value: str
) -> None:
    d = lever(planned.plan(model, machine, goal=goal, sets=sets), "performance_mode")
    assert d.value == value
    assert "what the presets would" not in d.reason
    other = "balanced" if value == "interactivity" else "interactivity"
    assert other in [r.value for r in d.rejected]


def test_what_follows_from_what_fits_is_not_decided_where_nothing_does() -> None:
    for goal in ("throughput", "latency"):
        plan = planned.plan(QWEN_32B, "2xrtx3090-pcie", goal=goal)
        assert plan.violations
        for name in ("max_num_seqs", "cuda_graph"):
            assert lever(plan, name).value is None
            assert "not decided" in lever(plan, name).reason
        flags = planned.flags(plan)
        assert "--max-num-seqs" not in flags
        assert "--max-cudagraph-capture-size" not in flags
    assert lever(plan, "max_queued_requests").value is None


def test_the_length_is_a_limit_for_what_runs_away() -> None:
    d = lever(planned.plan(DEEPSEEK, "8xh200", goal="throughput"), "max_model_len")
    assert "run away" in d.reason
    assert d.rejected[0].why.endswith("on its rank")


@pytest.mark.parametrize("kind", planned.KINDS)
def test_what_experts_take_for_other_ranks_is_said_to_be_unknown(kind: str) -> None:
    spread = ("attention_data_parallel_size=8", "expert_parallel=true")
    plan = planned.plan(DEEPSEEK, "8xh200", goal="throughput", kind=kind, sets=spread)
    d = lever(plan, "max_num_batched_tokens")
    assert "unknown" in d.reason
    assert "kept as a margin" in d.reason
    alone = planned.plan(DEEPSEEK, "8xh200", goal="throughput", kind=kind, sets=("tensor_parallel_size=8",))
    assert "margin" not in lever(alone, "max_num_batched_tokens").reason


def test_requests_of_a_rank_are_told_from_those_of_all() -> None:
    spread = ("attention_data_parallel_size=8", "expert_parallel=true")
    d = lever(planned.plan(DEEPSEEK, "8xh200", goal="throughput", sets=spread), "max_num_seqs")
    assert "on each of 8 ranks" in d.reason
    assert d.reason.endswith(f"; {8 * d.value} in all")
    assert [r.value for r in d.rejected] == [4]
    assert "the workload's 32 over 8 ranks" in d.rejected[0].why


@pytest.mark.parametrize("kind", planned.KINDS)
def test_a_refused_plan_shows_one_set_of_figures_and_no_command(kind: str) -> None:
    plan = planned.plan(QWEN_32B, "2xrtx3090-pcie", goal="throughput", kind=kind)
    message = next(v.message for v in plan.violations if v.code == "weights_do_not_fit")
    sink = io.StringIO()
    plan_view.explain(Console(width=160, file=sink), plan)
    shown = sink.getvalue()
    needed = re.search(r"needs ([0-9.]+ GiB) on each device \((.*?)\)", message)
    assert needed is not None
    assert f"{needed[1]} needed of " in shown
    for part in needed[2].split(", "):
        assert part in shown
    assert "no command" in shown
    assert plan.processes[0].argv[0] + " serve" not in shown
