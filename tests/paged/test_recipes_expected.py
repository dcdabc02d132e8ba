"""The measure that plans are held against: whole, buildable, and able to find a contradiction."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from recipes_expected import (
    BUILT,
    CPUS,
    FILES,
    NO_MACHINE,
    Expectation,
    card_for,
    configs,
    contradictions,
    expectations,
    judge,
    known,
    machine_for,
    recipes,
)

from orchestrator.model_families import family, gpu_generation
from orchestrator.model_families.arguments import Arguments, with_one_backend
from orchestrator.plan import Decision, EngineRef, Plan, ProcessPlan, Rejected, Violation

ALL = [e for recipe in recipes() for e in expectations(recipe)]


def plan_of(e: Expectation, **changes: Any) -> Plan:
    """A plan that does everything as the recipe says."""
    levers = {name: Decision(value, "", "") for name, value in e.needed.items()}
    for name in ("tool_call_parser", "reasoning_parser"):
        if getattr(e, name) is not None:
            levers[name] = Decision(getattr(e, name), "", "")
    levers["tensor_parallel_size"] = Decision(e.tensor or 8, "", "")
    if "expert_parallel" in e.needed and "single_node_tep" not in e.layouts:
        levers["tensor_parallel_size"] = Decision(1, "", "")
    plan = Plan(
        goal="agent",
        profile="agent",
        model={},
        machine={},
        engine=EngineRef("vllm", "vllm", "0.33.0" if e.min_version != "nightly" else "unknown"),
        levers=levers,
        predictions={},
        processes=(ProcessPlan("server", ("vllm", "serve", *e.flags), env=dict(e.env)),),
    )
    return replace(plan, **changes)


def pick(model: str, hardware: str) -> Expectation:
    return next(e for e in ALL if e.model == model and e.hardware == hardware)


V4 = pick("deepseek-ai/DeepSeek-V4-Flash", "b200")


def test_a_third_of_the_recipes_has_a_known_configuration() -> None:
    assert len(recipes()) == 88
    assert sum(bool(known(r)) for r in recipes()) == 35
    assert len({e.recipe for e in ALL}) == 34
    # all of its hardware is TPUs and Intel GPUs
    assert [r["model_id"] for r in recipes() if known(r) and not expectations(r)] == ["Qwen/Qwen3-32B"]


def test_every_hardware_name_is_a_machine_or_says_why_not() -> None:
    named = {h for r in recipes() for h in r.get("verified_hardware", ())}
    assert named <= {*FILES, *BUILT, *CPUS, *NO_MACHINE}
    assert not set(NO_MACHINE) & {*FILES, *BUILT, *CPUS}
    for hardware in named:
        machine = machine_for(hardware)
        assert (machine is None) == (hardware in NO_MACHINE)
        if machine is not None and hardware not in CPUS:
            assert gpu_generation(machine.gpus[0]) in ("hopper", "blackwell", "amd")


@pytest.mark.parametrize("e", ALL, ids=str)
def test_a_card_can_be_made_and_finds_its_recipe(e: Expectation) -> None:
    card = card_for(e)
    assert card.name == e.model
    found = family(card)
    assert found is not None
    assert found.recipe["model"] == e.recipe


@pytest.mark.parametrize("e", ALL, ids=str)
def test_the_product_asks_for_what_the_recipe_asks(e: Expectation) -> None:
    found, machine = family(card_for(e)), machine_for(e.hardware)
    assert found is not None
    assert machine is not None
    needs = found.requirements("vllm", "0.33.0", gpu_generation(machine.gpus[0] if machine.gpus else None))
    consent = {"trust_remote_code": True} if e.needed.get("trust_remote_code") else {}
    ceiling = {"max_model_len": needs.max_model_len} if needs.max_model_len else {}
    assert {**needs.levers, **consent, **ceiling} == dict(e.needed)
    assert (needs.suggested, needs.flags) == (e.suggested, with_one_backend(Arguments(flags=e.flags)).flags)
    # for other weights, or read by nobody: each with its reason
    left_out = {name: value for name, value in e.env.items() if needs.left_out.get(name)}
    assert {**needs.env, **left_out} == e.env
    assert not set(needs.env) & set(left_out)


@pytest.mark.parametrize("e", ALL, ids=str)
def test_a_plan_as_published_has_no_contradiction(e: Expectation) -> None:
    assert contradictions(plan_of(e), e) == []


def test_a_plan_that_says_nothing_is_found_out() -> None:
    kept = plan_of(V4).levers
    small = {**kept, "block_size": Decision(16, "", "")}
    (one,) = contradictions(plan_of(V4, levers=small), V4)
    assert "block_size is 16, the recipe says 256" in one
    parser = {**kept, "tool_call_parser": Decision("hermes", "", "")}
    assert contradictions(plan_of(V4, levers=parser), V4)
    without = {k: v for k, v in kept.items() if k != "kv_cache_dtype"}
    assert contradictions(plan_of(V4, levers=without), V4)
    bare = (ProcessPlan("server", ("vllm", "serve")),)
    assert any("--attention-config" in c for c in contradictions(plan_of(V4, processes=bare), V4))
    old = replace(plan_of(V4), engine=EngineRef("vllm", "vllm", "0.19.0"))
    assert any("version" in c for c in contradictions(old, V4))
    stages = {**kept, "pipeline_parallel_size": Decision(2, "", "")}
    assert any("layout" in c for c in contradictions(plan_of(V4, levers=stages), V4))
    fewer = {**kept, "tensor_parallel_size": Decision(4, "", "")}
    assert any("tensor_parallel_size" in c for c in contradictions(plan_of(V4, levers=fewer), V4))
    mi = pick("MiniMaxAI/MiniMax-M2", "mi300x")
    no_env = (ProcessPlan("server", ("vllm", "serve", *mi.flags)),)
    assert any("VLLM_ROCM_USE_AITER" in c for c in contradictions(plan_of(mi, processes=no_env), mi))


def test_a_reason_is_no_contradiction() -> None:
    kept = plan_of(V4).levers
    rejected = Decision(16, "", "", rejected=(Rejected(256, "the kernel here has no such block"),))
    told = judge(plan_of(V4, levers={**kept, "block_size": rejected}), V4)
    assert told.contradictions == ()
    assert told.explained == ("block_size: the kernel here has no such block",)
    refused = (Violation("version", "needs vllm 0.20.0", "upgrade"),)
    old = replace(plan_of(V4), engine=EngineRef("vllm", "vllm", "0.19.0"), violations=refused)
    assert contradictions(old, V4) == []
    assert "launch: needs vllm 0.20.0" in judge(old, V4).explained
    fewer = Decision(4, "4 hold it", "x", rejected=(Rejected("tensor 8", "slower"),))
    assert contradictions(plan_of(V4, levers={**kept, "tensor_parallel_size": fewer}), V4) == []
    # what else the user's JSON says does not matter, and neither do levers that only tune
    value = json.dumps({"use_fp4_indexer_cache": True, "backend": "X"})
    more = (ProcessPlan("server", ("vllm", "serve", f"--attention-config={value}")),)
    assert contradictions(plan_of(V4, processes=more), V4) == []


def test_configurations_are_not_kept_twice() -> None:
    own = [json.loads(x)["model"] for x in (_own()).splitlines()]
    shared = [m for m in configs() if m not in own]
    assert len(own) == len(set(own))
    assert len(configs()) == len(own) + len(shared)
    assert len(shared) == 9
    assert all(c.get("source") for m, c in configs().items() if m in own)


def _own() -> str:
    from recipes_expected import HERE

    return (HERE / "model_configs.jsonl").read_text("utf-8")
