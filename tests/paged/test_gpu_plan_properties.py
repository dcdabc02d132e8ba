"""What holds for every plan on vLLM and SGLang, over models, machines, goals and levers that somebody set."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import planned
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.levers import LEVERS
from orchestrator.machine import Machine
from orchestrator.plan import Plan, Violation
from orchestrator.planning.planner import make_plan
from orchestrator.planning.request import PlanInputs, Reservations

MODELS = (
    "Qwen/Qwen3-1.7B", "Qwen/Qwen3-32B", "Qwen/Qwen3-235B-A22B", "nvidia/Qwen3.6-27B-NVFP4",
    "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V4-Flash",
    "meta-llama/Meta-Llama-3.1-8B", "zai-org/GLM-5.2-FP8", "nvidia/Kimi-K2.6-NVFP4", "MiniMaxAI/MiniMax-M2.5",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
)  # fmt: skip
VERSIONS = {"vllm": ("0.10.0", "0.20.2", "0.32.0", "0.33.0"), "sglang": ("0.5.4", "0.5.9", "0.5.23")}

_SETS: dict[str, st.SearchStrategy[Any]] = {
    "tensor_parallel_size": st.sampled_from([1, 2, 3, 4, 5, 8, 16]),
    "pipeline_parallel_size": st.sampled_from([1, 2, 3]),
    "data_parallel_size": st.sampled_from([1, 2, 4]),
    "attention_data_parallel_size": st.sampled_from([1, 2, 8]),
    "expert_parallel": st.booleans(),
    "max_model_len": st.integers(1, 2_000_000),
    "max_num_seqs": st.integers(1, 5000),
    "max_num_batched_tokens": st.integers(1, 100_000),
    "chunked_prefill": st.booleans(),
    "long_prefill_token_threshold": st.integers(0, 10_000),
    "gpu_memory_utilization": st.integers(1, 100).map(lambda n: n / 100),
    "mem_fraction_static": st.integers(10, 99).map(lambda n: n / 100),
    "kv_cache_bytes": st.integers(0, 300 * 1024).map(lambda mib: mib << 20),
    "kv_cache_dtype": st.sampled_from(["fp8", "bfloat16", "fp8_e5m2", "nvfp4", "q8_0"]),
    "kv_cache_tokens": st.integers(1, 10_000_000),
    "kv_offload_bytes": st.integers(0, 512).map(lambda gib: gib << 30),
    "prefix_caching": st.booleans(),
    "quantization": st.sampled_from(["fp8", "awq"]),
    "dtype": st.sampled_from(["bfloat16", "half", "float32"]),
    "block_size": st.sampled_from([1, 16, 32, 64, 256]),
    "cuda_graph": st.sampled_from(["off", 1, 64, 512]),
    "scheduling_policy": st.sampled_from(["fcfs", "priority", "shortest"]),
    "max_queued_requests": st.integers(0, 1000),
    "stream_interval": st.integers(1, 50),
    "async_scheduling": st.booleans(),
    "speculative": st.sampled_from(
        [
            "off",
            {"method": "ngram", "num_tokens": 4},
            {"method": "mtp", "num_tokens": 1},
            {"method": "suffix", "num_tokens": 8},
        ]
    ),
    "threads": st.integers(1, 16),
    "gpu_layers": st.integers(0, 100),
    "replicas": st.integers(1, 2),
    "shutdown_timeout_s": st.integers(0, 300),
}
_sets = st.lists(st.sampled_from(sorted(_SETS)), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _SETS[name] for name in names})
)


def part(name: str, count: int, busy: int, free: float) -> Machine:
    """The first GPUs of a machine, some of them (by bits) partly used."""
    whole = planned.machine(name)
    gpus = tuple(
        dataclasses.replace(g, free_bytes=int(g.free_bytes * free)) if busy >> i & 1 else g
        for i, g in enumerate(whole.gpus[:count])
    )
    there = {g.uuid for g in gpus}
    links = tuple(x for x in whole.links if x.a in there and x.b in there)
    return dataclasses.replace(whole, gpus=gpus, links=links)


_machines = st.one_of(
    st.sampled_from((*planned.MACHINES, "cpu16")).map(planned.machine),
    st.builds(
        part,
        st.sampled_from(["8xh100", "8xh200", "8xa100-80", "4xl40s-pcie", "8xmi300x", "1xt4"]),
        st.integers(1, 8),
        st.integers(0, 255),
        st.sampled_from([0.0, 0.3, 0.7, 0.95]),
    ),
)
_kinds = st.sampled_from(planned.KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind), st.sampled_from(VERSIONS[kind]))
)
Case = tuple[str, Machine, str, tuple[str, str], dict[str, Any], bool, int]
_cases = st.tuples(
    st.sampled_from(MODELS),
    _machines,
    st.sampled_from(planned.GOALS),
    _kinds,
    _sets,
    st.booleans(),
    st.integers(0, 2),
)
"""Model, machine, goal, engine and version, what is set, whether answers may change, and how many of the
machine's first GPUs another deployment holds."""


def asked(case: Case, *more: str) -> PlanInputs:
    model, machine, goal, (kind, version), chosen, lossless, held = case
    sets = [f"{name}={json.dumps(value)}" for name, value in chosen.items()]
    return planned.inputs(
        model,
        machine,
        goal=goal,
        kind=kind,
        version=version,
        sets=[*sets, *(["lossless=true"] if lossless else []), *more],
        reservations=Reservations(devices=tuple(g.uuid for g in machine.gpus[:held])),
    )


def typed(v: Violation) -> list[str]:
    """The settings of a remedy, those after an "or" left out."""
    first = re.split(r"[,;]? or |[,;] (?![a-z_]+: )", v.remedy)[0]
    found = re.findall(r"--set ('[^']*'|[a-z_]+=[^\s',:]+)", first)
    # names in capitals and "..." stand for what only the reader knows
    return [x for x in (shlex.split(f)[0] for f in found) if not re.search(r"\.\.\.|=[A-Z_]+$", x)]


def values(plan: Plan) -> dict[str, Any]:
    return {name: d.value for name, d in plan.levers.items()}


def figures(plan: Plan) -> dict[str, Any]:
    return {name: p.value for name, p in plan.predictions.items()}


def kept_as_set(plan: Plan, chosen: Mapping[str, Any]) -> None:
    for name, value in chosen.items():
        d = plan.levers[name]
        assert d.value == value, name
        assert d.rule == "user" or value is True or plan.violations, (name, d)


def decided_whole(plan: Plan) -> None:
    left = plan.layout["left_out"]
    assert set(plan.levers) | set(left) == set(LEVERS)
    assert not set(plan.levers) & set(left)
    assert all(left.values())
    for name, d in plan.levers.items():
        assert d.reason, name
        assert d.rule, name
        assert all(r.why and r.value != d.value for r in d.rejected), (name, d)


def well_formed(plan: Plan) -> None:
    for p in plan.processes:
        assert all(isinstance(w, str) and w for w in p.argv), p.argv
        assert all(isinstance(v, str) for v in p.env.values()), p.env
        assert "None" not in p.argv
    for v in plan.violations:
        assert all((v.code, v.message, v.remedy)), v
    assert len(set(plan.violations)) == len(plan.violations)


def devices_are_right(plan: Plan, machine: Machine, held: int) -> None:
    named = plan.layout["devices"]
    there = [g.uuid for g in machine.gpus]
    assert set(named) <= set(there[held:])
    assert len(set(named)) == len(named)
    if plan.violations or not named:
        return
    v = values(plan)
    world = v["tensor_parallel_size"] * v["pipeline_parallel_size"] * v["data_parallel_size"]
    world *= v.get("attention_data_parallel_size", 1)
    # of several nodes each has its own
    assert len(named) == world or len(named) * machine.nodes == world
    assert v["device_ids"] == named


def fits(plan: Plan) -> None:
    p = figures(plan)
    per_gpu = ("weights", "activation", "non_torch", "draft", "graph")
    parts = sum(p[f"{name}_bytes_per_gpu"] for name in per_gpu) + p["kv_bytes_per_gpu"]
    assert parts <= p["gpu_memory_bytes"], p
    assert p["kv_bytes_per_gpu"] > 0
    assert p["gpu_memory_requested_bytes"] <= p["gpu_memory_bytes"]
    if p["kv_cache_tokens"] is not None:
        assert p["kv_cache_tokens"] >= values(plan)["max_model_len"], p
        assert p["max_concurrency"] >= 1
    assert values(plan)["max_model_len"] <= plan.model["context_length"]


def steps_are_smaller(plan: Plan, chosen: Mapping[str, Any]) -> None:
    p, v = figures(plan), values(plan)
    for lower in plan.steps_down.values():
        step = Plan.from_json(lower)
        assert not step.violations
        assert not step.steps_down
        w, q = values(step), figures(step)
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"):
            assert name not in v or w[name] <= v[name], name
        assert any(w[name] != v[name] for name in w)
        for name in ("weights_bytes_per_gpu", "activation_bytes_per_gpu", "gpu_memory_requested_bytes"):
            assert q[name] <= p[name], name
        assert step.layout["devices"] == plan.layout["devices"]
        for name in chosen:
            assert w[name] == v[name], name


def remedies_work(case: Case, plan: Plan) -> None:
    """The settings of all remedies, typed together, take their refusals away; where two of them meet, those
    of the next plan."""
    if any(v.code == "no_gpu" for v in plan.violations):
        return
    mended = {v.code for v in plan.violations if typed(v)}
    sets: list[str] = []
    for _ in range(3):
        sets += [x for v in plan.violations for x in typed(v)]
        plan = make_plan(asked(case, *sets))
        left = {v.code for v in plan.violations}
        if not left & mended:
            return
    raise AssertionError(f"{sets}: {plan.violations}")


@settings(max_examples=120, deadline=None, derandomize=True)
@given(_cases)
def test_a_plan_keeps_its_promises(case: Case) -> None:
    holds(case)


@pytest.mark.full
@settings(max_examples=2500, deadline=None, database=None)
@given(_cases)
def test_many_plans_keep_their_promises(case: Case) -> None:
    holds(case)


def holds(case: Case) -> None:
    _, machine, _, _, chosen, lossless, held = case
    plan = make_plan(asked(case))
    text = json.dumps(plan.to_json(), sort_keys=True)
    assert json.dumps(make_plan(asked(case)).to_json(), sort_keys=True) == text
    assert Plan.from_json(json.loads(text)).to_json() == json.loads(text)
    decided_whole(plan)
    kept_as_set(plan, chosen)
    well_formed(plan)
    devices_are_right(plan, machine, held)
    if lossless:
        lossy = [name for name, d in plan.levers.items() if not d.lossless]
        assert not lossy or "lossy" in {v.code for v in plan.violations}, lossy
    if plan.violations:
        assert not plan.steps_down
        remedies_work(case, plan)
    else:
        fits(plan)
        steps_are_smaller(plan, chosen)


OF_THE_PAIR = {
    "weights_do_not_fit",
    "kv_does_not_fit",
    "quantization_not_supported",
    "quantization_gpu",
    "more_than_one_node",
}
"""What no plan can mend: the model is too large for the machine, or of weights that it has no kernels for."""


@pytest.mark.parametrize("kind", planned.KINDS)
def test_a_plan_that_nobody_touched_is_refused_for_model_and_machine_alone(kind: str) -> None:
    models = itertools.cycle(sorted(planned.configs()))
    refused = whole = 0
    for version in VERSIONS[kind]:
        for machine, goal in itertools.product((*planned.MACHINES, "cpu16"), planned.GOALS):
            model = next(models)
            sets = ["trust_remote_code=true"]
            plan = planned.plan(model, machine, goal=goal, kind=kind, version=version, sets=sets)
            lowest = any("is published to run from" in w for w in plan.warnings)
            codes = {v.code for v in plan.violations}
            assert codes <= OF_THE_PAIR or lowest, (model, machine, goal, version, plan.violations)
            refused += bool(codes)
            whole += 1
    assert 0.2 < refused / whole < 0.6


@pytest.mark.parametrize("version", ["0.10.0", "0.27.1", "0.32.0"])
def test_a_pool_on_a_cpu_is_in_units_that_the_version_takes(version: str) -> None:
    plan = planned.plan("Qwen/Qwen3-1.7B", "cpu16", goal="agent", version=version)
    assert plan.violations == ()
    size = plan.levers["kv_cache_bytes"].value
    assert size > 0
    assert size % (2**20 if version == "0.32.0" else 2**30) == 0
    assert plan.processes[0].env.get("VLLM_CPU_KVCACHE_SPACE") == (
        None if version == "0.32.0" else str(size >> 30)
    )


@pytest.mark.parametrize(
    ("kind", "asked_for", "code"),
    [
        ("vllm", "kv_cache_bytes=100GiB", "kv_does_not_fit"),
        ("vllm", "kv_cache_bytes=17GiB", None),
        ("sglang", "kv_cache_tokens=10000000", "kv_does_not_fit"),
        ("sglang", "kv_cache_bytes=100GiB", "kv_does_not_fit"),
        ("sglang", "kv_cache_bytes=4GiB", None),
    ],
)
def test_a_pool_that_was_set_must_fit_beside_the_model(kind: str, asked_for: str, code: str | None) -> None:
    plan = planned.plan("Qwen/Qwen3-1.7B", "1xl4", kind=kind, sets=[asked_for])
    assert [v.code for v in plan.violations] == ([code] if code else [])
    large = planned.plan("Qwen/Qwen3-32B", "1xl4", kind=kind, sets=[asked_for])
    assert "weights_do_not_fit" in {v.code for v in large.violations}


def test_sglang_gets_a_pool_in_tokens() -> None:
    plan = planned.plan("Qwen/Qwen3-1.7B", "1xl4", kind="sglang", sets=["kv_cache_bytes=4GiB"])
    tokens = plan.levers["kv_cache_tokens"].value
    argv = plan.processes[0].argv
    assert argv[argv.index("--max-total-tokens") + 1] == str(tokens)
    assert tokens * plan.predictions["kv_bytes_per_token_per_gpu"].value == pytest.approx(4 * 2**30, rel=0.01)


@pytest.mark.parametrize("version", ["0.20.2", "0.32.0", "0.33.0"])
def test_n_grams_and_async_scheduling_go_together_where_the_engine_lets_them(version: str) -> None:
    """vLLM 0.32.0 vllm/config/vllm.py:1563 refuses both at once, 0.33.0 on its first model runner alone."""
    plan = planned.plan("meta-llama/Meta-Llama-3.1-8B", "1xl4", goal="agent", version=version)
    assert plan.violations == ()
    assert plan.levers["speculative"].value["method"] == "ngram"
    assert plan.levers["async_scheduling"].value is (version == "0.33.0")


def test_a_workload_that_does_not_fit_is_told_the_length_that_does() -> None:
    asked_for = ["workload.input_tokens=90000", "workload.output_tokens=2000"]
    there = part("8xh100", 1, 0, 1.0)
    (found,) = planned.plan("meta-llama/Meta-Llama-3.1-8B", "1xl4", sets=asked_for).violations
    assert found.code == "kv_does_not_fit"
    (setting,) = typed(found)
    assert setting.startswith("max_model_len=")
    mended = planned.plan("meta-llama/Meta-Llama-3.1-8B", "1xl4", sets=[*asked_for, setting])
    assert mended.violations == ()
    assert any("such a request is turned away" in w for w in mended.warnings)
    assert planned.plan("meta-llama/Meta-Llama-3.1-8B", there, sets=asked_for).violations == ()


@pytest.mark.parametrize(("kind", "word"), [("vllm", "Ray"), ("sglang", "HEAD")])
def test_a_layout_over_nodes_says_so(kind: str, word: str) -> None:
    large = planned.plan("deepseek-ai/DeepSeek-V3", "2x8xh100-ib", kind=kind)
    assert any("2 nodes" in w and word in w for w in large.warnings)
    small = planned.plan("Qwen/Qwen3-1.7B", "2x8xh100-ib", kind=kind)
    assert not any("nodes" in w for w in small.warnings)
    launched = planned.plan("deepseek-ai/DeepSeek-V3", "2x8xh100-ib", kind=kind, launching=True)
    assert "more_than_one_node" in {v.code for v in launched.violations}
