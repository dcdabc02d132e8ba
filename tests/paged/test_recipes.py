"""The planner's plans against the published vLLM recipes: none does otherwise without saying why."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path
from typing import Any

import planned
import pytest
from recipes_expected import (
    Expectation,
    card_for,
    contradictions,
    expectations,
    judge,
    machine_for,
    recipes,
)

from orchestrator.machine import load
from orchestrator.model_families.families import family
from orchestrator.model_families.versions import at_least
from orchestrator.plan import Decision, EngineRef, Plan, Violation

ROOT = Path(__file__).parents[2]
REPORT = runpy.run_path(str(ROOT / "scripts" / "recipes-report"))
ALL = [e for recipe in recipes() for e in expectations(recipe)]
NEWEST = "0.33.0"


def plan(e: Expectation, goal: str, version: str = NEWEST, **how: Any) -> Plan:
    """The plan of an expectation's model on its machine, with consent where the model comes with code."""
    machine, card = machine_for(e.hardware), card_for(e)
    assert machine is not None
    sets = ["trust_remote_code=true"] if card.needs_remote_code else []
    return planned.plan(card, machine, goal=goal, version=version, sets=sets, **how)


def pick(model: str, hardware: str) -> Expectation:
    return next(e for e in ALL if e.model == model and e.hardware == hardware)


@pytest.mark.parametrize("goal", planned.GOALS)
def test_no_plan_contradicts_a_recipe_without_a_reason(goal: str) -> None:
    found = REPORT["judged"](goal)
    assert len(found) == len(ALL) > 200
    assert [c for _, _, j in found for c in j.contradictions] == []


def test_on_an_old_version_what_it_lacks_is_said() -> None:
    found = REPORT["judged"](REPORT["OLD_GOAL"], REPORT["OLD"])
    assert [c for _, _, j in found for c in j.contradictions] == []
    assert sum(t.startswith("version: ") for _, _, j in found for t in j.explained) > 100
    lacking = {t.partition(": ")[0] for _, _, j in found for t in j.explained if "has no such" in t}
    assert {"--moe-backend", "VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"} <= lacking


def test_consent_is_given_only_where_a_plan_asks_for_it() -> None:
    code = {str(e) for e in ALL if card_for(e).needs_remote_code}
    for e, made, j in REPORT["judged"]("latency"):
        assert made.levers["trust_remote_code"].value is (str(e) in code), e
        assert ("--trust-remote-code" in planned.flags(made)) is (str(e) in code), e
        if e.needed.get("trust_remote_code") and str(e) not in code:
            (said,) = (t for t in j.explained if t.startswith("trust_remote_code: "))
            assert "without code of its own" in said
            assert "--trust-remote-code" in made.layout["published_left_out"]
    assert len(code) > 20


def test_variables_of_a_recipe_are_set_where_the_version_has_them() -> None:
    r1 = pick("deepseek-ai/DeepSeek-R1", "h200")
    name = "VLLM_USE_FLASHINFER_MOE_FP8"
    for version, there in (("0.12.0", True), ("0.20.2", True), ("0.27.1", False), (NEWEST, False)):
        made = plan(r1, "throughput", version)
        assert (made.processes[0].env.get(name) == "1") is there, version
        assert (name in made.layout["environment"]) is there
        said = made.layout["published_left_out"].get(name, "")
        assert (f"vllm {version} has no such variable" in said) is not there
    # 0.20.2 had it, 0.27.1 has not: of those between nobody knows
    between = plan(r1, "throughput", "0.23.0")
    assert name not in between.processes[0].env
    assert "unknown" in between.layout["published_left_out"][name]


def test_variables_for_other_weights_and_those_that_nobody_reads_are_left_out() -> None:
    made = plan(pick("deepseek-ai/DeepSeek-R1", "b200"), "throughput", "0.20.2")
    assert "VLLM_USE_FLASHINFER_MOE_FP4" not in made.processes[0].env
    assert made.layout["published_left_out"]["VLLM_USE_FLASHINFER_MOE_FP4"].endswith("these are fp8")
    amd = plan(pick("deepseek-ai/DeepSeek-R1", "mi300x"), "throughput")
    assert amd.processes[0].env["VLLM_ROCM_USE_AITER"] == "1"
    assert "SAFETENSORS_FAST_GPU" in amd.layout["published_left_out"]


def test_every_lowest_version_of_a_family_is_no_lower_than_the_recipe_s() -> None:
    """A checkpoint that somebody else made of a recipe's model has the family's row alone."""
    wrong, held = [], 0
    for e in {e.model: e for e in ALL}.values():
        found = family(dataclasses.replace(card_for(e), source="", name=f"{e.model}-W4A16"))
        if found is not None and not found.recipe and "vllm" in found.since:
            lowest, held = found.since["vllm"], held + 1
            if not at_least(lowest, e.min_version):
                wrong.append((e.model, lowest, e.min_version))
    assert wrong == []
    assert held > 20


def test_parsers_are_the_recipe_s_for_agents() -> None:
    for e, made, _ in REPORT["judged"]("agent"):
        for name in ("tool_call_parser", "reasoning_parser"):
            told = getattr(e, name)
            assert told is None or made.levers[name].value is not None, (e, name)


@pytest.mark.parametrize("version", ["0.16.0", "0.10.0"])
def test_a_version_below_the_recipe_s_lowest_is_said(version: str) -> None:
    older = {e.model: e for e in ALL if not at_least(version, e.min_version)}
    assert len(older) >= {"0.16.0": 20, "0.10.0": 40}[version]
    for e in older.values():
        made = plan(e, "latency", version)
        said = (*made.warnings, *(v.message for v in made.violations))
        assert any(e.min_version in text for text in said), e


def test_some_plans_are_refused_and_each_for_the_machine_s_size() -> None:
    refused = {str(e): made for e, made, _ in REPORT["judged"]("throughput") if made.violations}
    assert 10 < len(refused) < 30
    assert "zai-org/GLM-5.2 on b200" in refused
    assert {v.code for p in refused.values() for v in p.violations} <= {
        "weights_do_not_fit",
        "kv_does_not_fit",
    }


V4 = pick("deepseek-ai/DeepSeek-V4-Flash", "b200")


@pytest.mark.parametrize(
    "changed",
    [
        {"tool_call_parser": Decision("hermes", "", "")},
        {"kv_cache_dtype": Decision("auto", "", "")},
        {"block_size": Decision(16, "", "")},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_plan_that_does_otherwise_unsaid_is_found(changed: dict[str, Decision]) -> None:
    made = plan(V4, "agent")
    assert contradictions(made, V4) == []
    bare = {n: dataclasses.replace(d, rejected=()) for n, d in made.levers.items()}
    found = contradictions(dataclasses.replace(made, levers={**bare, **changed}, warnings=()), V4)
    assert any(f" {name} is " in text for text in found for name in (*changed, "layout"))


def test_a_plan_without_the_published_flags_is_found() -> None:
    made = plan(V4, "agent")
    bare = tuple(dataclasses.replace(p, argv=("vllm", "serve"), env={}) for p in made.processes)
    found = contradictions(dataclasses.replace(made, processes=bare), V4)
    assert len(found) >= len([f for f in V4.flags if f.startswith("--")]) + len(V4.env) > 0


@pytest.mark.parametrize(
    "code", ["weights_do_not_fit", "quantization_not_supported", "needs_remote_code", "version", "anything"]
)
def test_a_refusal_that_does_not_hold_is_a_contradiction(code: str) -> None:
    """The recipe runs it there: it fits, the version is new enough, its kernels are there."""
    refused = dataclasses.replace(plan(V4, "agent"), violations=(Violation(code, "no", "none"),))
    (found,) = contradictions(refused, V4)
    assert code in found


def test_a_refusal_that_holds_is_none() -> None:
    large = pick("zai-org/GLM-5.2", "b200")
    refused = plan(large, "agent")
    assert refused.violations
    assert contradictions(refused, large) == []
    assert any(t.startswith("launch: ") for t in judge(refused, large).explained)
    # one that does not hold beside it is found all the same
    two = (*refused.violations, Violation("anything", "no", "none"))
    assert contradictions(dataclasses.replace(refused, violations=two), large)
    old = dataclasses.replace(plan(V4, "agent"), engine=EngineRef("vllm", "vllm", "0.19.0"))
    told = (Violation("version", f"from {V4.min_version} on", "upgrade"),)
    assert contradictions(dataclasses.replace(old, violations=told), V4) == []


def test_4_bit_checkpoints_of_one_maker_load_on_the_other_s_devices() -> None:
    """vLLM 0.32 platforms/rocm.py lists modelopt_fp4, its kernel there is an emulation; recipes ran so."""
    e = pick("nvidia/MiniMax-M2.5-NVFP4", "mi300x")
    assert load("8xmi300x").gpus[0].vendor == "amd"
    made = plan(e, "latency")
    assert made.violations == ()
    assert any("emulated" in w for w in made.warnings)
    hopper = pick("nvidia/MiniMax-M2.5-NVFP4", "h200")
    assert not any("emulated" in w for w in plan(hopper, "latency").warnings)


def test_the_page_on_recipes_is_of_this_code() -> None:
    page = (ROOT / "docs" / "plans" / "recipes.md").read_text()
    assert page == REPORT["page"](), "run scripts/recipes-report --write"
