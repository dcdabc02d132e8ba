"""Layouts over several nodes: what each engine is told, and that nothing of it is started here."""

from __future__ import annotations

import dataclasses

import planned
import pytest

from orchestrator.plan import Plan

TWO_NODES = "2x8xh100-ib"
GPUS = 8
MIXTURE, DENSE, LARGE = "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B-FP8", "meta-llama/Meta-Llama-3.1-405B"
ONE_NODE = ("tensor_parallel_size=2", "pipeline_parallel_size=1", "data_parallel_size=1")
GOALS = ("throughput", "latency", "agent")


def two_nodes(model: str, kind: str, **how) -> Plan:
    return planned.plan(model, TWO_NODES, goal=how.pop("goal", "throughput"), kind=kind, **how)


def value(plan: Plan, flag: str, process: int = 0) -> str | None:
    """What follows a flag on a command line; None where it is not there."""
    argv = plan.processes[process].argv
    return argv[argv.index(flag) + 1] if flag in argv else None


def world(plan: Plan) -> int:
    sizes = ("tensor", "pipeline", "data", "attention_data")
    found = [plan.levers.get(f"{s}_parallel_size") for s in sizes]
    product = 1
    for d in found:
        product *= d.value if d else 1
    return product


def codes(plan: Plan) -> set[str]:
    return {v.code for v in plan.violations}


@pytest.mark.parametrize("kind", planned.KINDS)
def test_no_engine_refuses_the_counts_of_a_layout_that_the_plan_chose(kind):
    over = 0
    for turn, goal in enumerate(GOALS):
        for model in sorted(planned.configs())[turn :: len(GOALS)]:
            plan = two_nodes(model, kind, goal=goal, sets=("trust_remote_code=true",))
            refused = planned.engine(kind).check(plan, planned.installation(kind))
            # what does not fit at all has no pool to speak of
            assert {v.code for v in refused} <= {"pool_below_context"}, (model, goal)
            assert codes(plan) <= {"weights_do_not_fit", "kv_does_not_fit"}, model
            over += world(plan) > GPUS
    assert over > 20


def test_ray_starts_the_ranks_of_vllm_on_every_node():
    plan = two_nodes(LARGE, "vllm")
    assert world(plan) == 16
    assert [p.role for p in plan.processes] == ["server"]
    assert value(plan, "--distributed-executor-backend") == "ray"
    assert "--data-parallel-backend" not in plan.processes[0].argv
    decision = plan.levers["distributed_executor_backend"]
    assert (decision.value, decision.rule) == ("ray", "ranks_on_several_nodes")
    assert [r.value for r in decision.rejected] == ["mp"]
    assert "2 nodes" in decision.reason


@pytest.mark.parametrize("model", [MIXTURE, DENSE])
@pytest.mark.parametrize("version", ["0.10.0", "0.20.2", None])
def test_ray_places_the_copies_of_vllm_half_on_each_of_two_nodes(model, version):
    plan = two_nodes(model, "vllm", version=version)
    assert value(plan, "--data-parallel-size") == "16"
    assert value(plan, "--data-parallel-backend") == "ray"
    assert value(plan, "--data-parallel-size-local") == "8"


def test_processes_of_one_machine_are_refused_for_a_layout_over_two():
    plan = two_nodes(LARGE, "vllm", sets=("distributed_executor_backend=mp",))
    assert plan.levers["distributed_executor_backend"].value == "mp"
    assert "more_ranks_than_gpus" in codes(plan)


def test_more_ranks_than_both_nodes_have_are_refused_with_ray_too():
    plan = two_nodes(LARGE, "vllm")
    words = ["32" if w == "8" else w for w in plan.processes[0].argv]
    process = dataclasses.replace(plan.processes[0], argv=tuple(words))
    larger = dataclasses.replace(plan, processes=(process,))
    found = planned.engine("vllm").check(larger, planned.installation("vllm"))
    assert "more_ranks_than_gpus" in {v.code for v in found}


@pytest.mark.parametrize("version", planned.engine("sglang").captured_versions())
def test_each_node_has_a_command_of_sglang_and_knows_its_rank(version):
    plan = two_nodes(LARGE, "sglang", version=version)
    assert [p.role for p in plan.processes] == ["server", "node-1"]
    assert [value(plan, "--node-rank", i) for i in (0, 1)] == ["0", "1"]
    for i in (0, 1):
        assert value(plan, "--nnodes", i) == "2"
        assert value(plan, "--dist-init-addr", i) == "HEAD:20000"
        assert value(plan, "--nccl-port", i) is None
    first, second = (list(p.argv) for p in plan.processes)
    rank = first.index("--node-rank") + 1
    assert first[:rank] + first[rank + 1 :] == second[:rank] + second[rank + 1 :]
    assert "distributed_executor_backend" not in plan.levers


@pytest.mark.parametrize("kind", planned.KINDS)
def test_the_devices_of_one_node_are_not_named_to_the_others(kind):
    for process in two_nodes(LARGE, kind).processes:
        assert not [v for v in process.env if "VISIBLE" in v]
    one = planned.plan(DENSE, "8xh100", kind=kind).processes[0]
    assert "CUDA_VISIBLE_DEVICES" in one.env


@pytest.mark.parametrize("kind", planned.KINDS)
def test_a_layout_on_one_of_the_nodes_is_as_on_one_machine(kind):
    plan = two_nodes(DENSE, kind, sets=ONE_NODE)
    assert world(plan) == 2
    assert [p.role for p in plan.processes] == ["server"]
    assert not {"--nnodes", "--dist-init-addr", "--distributed-executor-backend"} & set(planned.flags(plan))
    assert plan.machine["nodes"] == 2


@pytest.mark.parametrize("kind", planned.KINDS)
def test_llmserve_plans_for_nodes_and_does_not_start_on_them(kind):
    installed = dataclasses.replace(planned.installation(kind), captured=False)
    launching = two_nodes(LARGE, kind, installed=installed, launching=True)
    (refusal,) = (v for v in launching.violations if v.code == "more_than_one_node")
    assert "2 nodes" in refusal.message
    assert "llmserve plan" in refusal.remedy
    assert two_nodes(LARGE, kind, installed=installed).violations == ()
    alone = two_nodes(DENSE, kind, sets=ONE_NODE, installed=installed, launching=True)
    assert "more_than_one_node" not in codes(alone)


def test_a_version_without_words_for_nodes_is_refused():
    whole = planned.installation("sglang")
    flags = tuple(f for f in whole.flags if "--node-rank" not in f.spellings)
    plan = two_nodes(LARGE, "sglang", installed=dataclasses.replace(whole, flags=flags))
    assert "nodes_not_expressible" in codes(plan)
    assert "--node-rank" not in planned.flags(plan)


@pytest.mark.parametrize("kind", planned.KINDS)
def test_a_plan_over_nodes_is_read_back_as_it_was_written(kind):
    plan = two_nodes(MIXTURE, kind)
    assert Plan.from_json(plan.to_json()).processes == plan.processes
