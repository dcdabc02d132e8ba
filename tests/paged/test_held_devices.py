"""Devices of which others hold memory: what is said, and who should give it back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import KINDS, machine, plan

from orchestrator.machine.machine import Holder, Machine

GIB = 2**30
LLAMA = "meta-llama/Meta-Llama-3.1-8B"
LARGE = "meta-llama/Meta-Llama-3.1-405B"


def held(free_gib: float, count: int = 1) -> Machine:
    """H100s of which a process holds all but so much."""
    on = machine("8xh100")
    holder = (Holder(4711, int(70 * GIB), "trainer"),)
    gpus = tuple(replace(g, free_bytes=int(free_gib * GIB), holders=holder) for g in on.gpus[:count])
    return replace(on, gpus=gpus, links=() if count == 1 else on.links)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_fits_without_the_others_says_who_holds_the_card(kind: str) -> None:
    (found,) = [
        v
        for v in plan(LLAMA, held(2), kind=kind).violations
        if v.code in ("weights_do_not_fit", "kv_does_not_fit")
    ]
    assert "held by trainer (pid 4711) with 70.0 GiB" in found.remedy
    assert "too large" not in found.remedy
    assert "one device needs" in found.message
    assert "on each device" not in found.message


def test_who_holds_the_card_comes_before_weights_in_fewer_bits() -> None:
    found = next(v for v in plan(LLAMA, held(14), kind="vllm").violations if "not_fit" in v.code)
    assert found.remedy.startswith("the model fits once others give memory back")
    assert found.remedy.endswith("; or --set quantization=fp8 fits; it can change answers")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_would_not_fit_either_way_is_too_large(kind: str) -> None:
    made = plan(LARGE, held(2), kind=kind)
    assert any("too large here" in v.remedy for v in made.violations)
    assert not any("trainer" in v.remedy for v in made.violations)


def test_a_card_that_nobody_holds_is_not_said_to_be_held() -> None:
    made = plan(LARGE, held(79.2), kind="vllm")
    assert any("too large here" in v.remedy for v in made.violations)


def test_graphs_need_room_in_what_is_free() -> None:
    # 29.3 of 79.2 GiB are free: 0.37 asks for all of them
    tight = plan(LLAMA, held(29.4), kind="vllm", sets=["gpu_memory_utilization=0.37"])
    (warning,) = [w for w in tight.warnings if "recording CUDA graphs" in w]
    assert "gpu_memory_utilization=0.36" in warning
    loose = plan(LLAMA, held(29.4), kind="vllm", sets=["gpu_memory_utilization=0.36"])
    assert not any("recording CUDA graphs" in w for w in loose.warnings)


@pytest.mark.parametrize("whole", [None, 0.9])
def test_sglang_starts_beside_others_within_what_is_free(whole: float | None) -> None:
    sets = [] if whole is None else [f"gpu_memory_utilization={whole}"]
    made = plan(LLAMA, held(29.3), kind="sglang", sets=sets)
    assert not made.violations
    share = made.levers["mem_fraction_static"].value
    pool = share * 29.3 * GIB - made.predictions["weights_bytes_per_gpu"].value
    assert pool >= made.predictions["kv_bytes_per_gpu"].value > GIB
    outside = (1 - share) * 29.3 * GIB
    assert outside >= made.predictions["activation_bytes_per_gpu"].value
