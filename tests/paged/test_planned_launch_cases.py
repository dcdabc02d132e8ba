"""Every usable public launch through the planner itself: its flags as levers, its GPUs as a machine."""

from __future__ import annotations

import dataclasses

import launches
import planned
import planned_launches
import pytest
from launches import Case
from planned_launches import plan, verdict

USABLE = [c for c in launches.cases() if c["usable"]]
FAILED = [c for c in USABLE if c["outcome"] == "failed"]
STARTED = [c for c in USABLE if c["outcome"] == "started"]


def by_id(name: str) -> Case:
    return next(c for c in USABLE if c["id"] == name)


@pytest.mark.parametrize("case", STARTED, ids=lambda c: c["id"])
def test_what_started_is_not_refused(case: Case) -> None:
    assert plan(case).violations == ()


def test_at_most_a_tenth_of_the_starts_is_warned_of_not_fitting() -> None:
    told = {c["id"]: verdict(c) for c in STARTED}
    doubted = [i for i, v in told.items() if v not in ("starts", "warned:unknown_rule")]
    assert len(STARTED) == 42
    assert len(doubted) <= 4, told
    assert sum(v == "warned:unknown_rule" for v in told.values()) <= 4, told


def test_most_failures_are_refused_or_warned_of_with_the_right_class() -> None:
    told = {c["id"]: verdict(c) for c in FAILED}
    right = [c for c in FAILED if told[c["id"]].partition(":")[2] == c["class"]]
    assert len(FAILED) == 11
    assert len(right) >= 0.85 * len(FAILED), told


def test_every_refusal_is_of_memory_and_one_of_unequal_cards_too() -> None:
    for case in FAILED:
        other = {v.code for v in plan(case).violations} - set(planned_launches.CLASSES)
        assert other == ({"too_few_devices"} if "+" in case["gpu"] else set()), case["id"]


def test_the_planner_says_what_the_memory_functions_say() -> None:
    """It keeps the margin back where they only warn: what fits without it is refused."""
    told = {c["id"]: (verdict(c), launches.verdict(c)) for c in USABLE}
    differ = {i: v for i, v in told.items() if v[0] != v[1]}
    assert differ == {"A50": ("refused:kv_cache", "warned:kv_cache")}


def test_the_launch_s_own_flags_reach_the_command_line() -> None:
    made = plan(by_id("A08"))
    argv = made.processes[0].argv
    for flag, value in (("--max-model-len", "32000"), ("--gpu-memory-utilization", "0.9")):
        assert argv[argv.index(flag) + 1] == value
    assert "--tensor-parallel-size" not in argv or argv[argv.index("--tensor-parallel-size") + 1] == "1"


@pytest.mark.parametrize("name", ["A04", "A08", "A11", "A26"])
def test_what_failed_passes_on_larger_cards(name: str) -> None:
    """The refusals are of the memory and not of the rest: eight times as much and they are gone."""
    case = by_id(name)
    assert plan(case).violations
    larger = case | {"total_gib": 8 * case["total_gib"] + 200, "observed": {}}
    assert plan(larger).violations == ()


def test_a_share_above_what_is_free_is_refused_and_the_remedy_works() -> None:
    there = planned.machine("1xrtx4090")
    (gpu,) = there.gpus
    busy = dataclasses.replace(there, gpus=(dataclasses.replace(gpu, free_bytes=gpu.memory_bytes * 8 // 10),))
    asked = ["gpu_memory_utilization=0.92", "max_model_len=4096"]
    (found,) = planned.plan("Qwen/Qwen3-1.7B", busy, sets=asked).violations
    assert found.code == "memory_not_free"
    assert found.remedy.startswith("--set gpu_memory_utilization=auto")
    mended = planned.plan("Qwen/Qwen3-1.7B", busy, sets=[*asked, "gpu_memory_utilization=auto"])
    assert mended.violations == ()
    assert mended.levers["gpu_memory_utilization"].value < 0.8
    # SGLang takes its share of what is free
    assert planned.plan("Qwen/Qwen3-1.7B", busy, kind="sglang", sets=asked).violations == ()
    assert planned.plan("Qwen/Qwen3-1.7B", there, sets=asked).violations == ()


@pytest.mark.parametrize(
    ("asked", "warned"),
    [
        (["gpu_memory_utilization=0.98"], True),
        (["gpu_memory_utilization=0.98", "cuda_graph=off"], False),
        (["gpu_memory_utilization=0.97"], False),
    ],
)
def test_too_little_outside_the_share_for_recording_graphs_is_said(asked: list[str], warned: bool) -> None:
    made = planned.plan("Qwen/Qwen3-1.7B", "1xrtx4090", sets=asked)
    assert any("recording CUDA graphs has run out" in w for w in made.warnings) == warned
