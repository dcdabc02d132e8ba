"""KV in 8-bit floats is refused, and not chosen, where no attention of vLLM's reads it."""

from dataclasses import replace

import planned
import pytest

from orchestrator.planning.paged.kv_type import why_not_fp8
from orchestrator.planning.paged.situation import Situation

SMALL, SINKS, LATENT = "Qwen/Qwen3-1.7B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3.2"
FP8 = ["kv_cache_dtype=fp8"]


def refused(model: str, machine: str, **how: object) -> str | None:
    plan = planned.plan(model, machine, **{"sets": FP8, **how})
    return next((v.message for v in plan.violations if v.code == "kv_type_not_read"), None)


@pytest.mark.parametrize(
    ("model", "machine", "why"),
    [
        (SMALL, "1xt4", "no attention reads it on compute capability 7.5"),
        (SINKS, "4xa100-80-nvlink", "attention with sinks does not read it on compute capability 8.0"),
        (LATENT, "8xa100-80", "latent attention does not read it on compute capability 8.0"),
    ],
)
def test_a_type_that_no_attention_reads_is_refused(model: str, machine: str, why: str) -> None:
    assert refused(model, machine) == f"kv_cache_dtype is fp8, and {why}"


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        (SMALL, "1xa10"),
        (SMALL, "2xrtx3090-pcie"),
        (SMALL, "1xl4"),
        (SMALL, "1xrtx4090"),
        (SINKS, "8xh100"),
        (LATENT, "8xh200"),
        (SMALL, "8xmi300x"),
    ],
)
def test_a_type_that_is_read_is_not(model: str, machine: str) -> None:
    assert refused(model, machine) is None


def test_types_of_triton_alone_and_odd_heads_are_not_read_before_ada() -> None:
    assert refused(SMALL, "1xa10", sets=["kv_cache_dtype=fp8_per_token_head"]) is not None
    odd = replace(planned.card(SMALL), head_dim=96)
    plan = planned.plan(odd, "1xa10", sets=FP8)
    assert any("heads of 96" in v.message for v in plan.violations)
    assert not any(v.code == "kv_type_not_read" for v in planned.plan(odd, "1xl4", sets=FP8).violations)


def test_releases_whose_flashinfer_knows_turing_are_not_refused() -> None:
    assert refused(SMALL, "1xt4", version="0.27.1") is None


def test_sglang_has_attention_of_its_own() -> None:
    assert refused(SMALL, "1xt4", kind="sglang") is None


def test_the_remedy_passes() -> None:
    asked = planned.plan(SMALL, "1xt4", sets=FP8)
    assert [v.remedy for v in asked.violations] == ["--set kv_cache_dtype=auto"]


@pytest.mark.parametrize(("machine", "taken"), [("1xt4", "float16"), ("1xa10", "auto"), ("1xl4", "auto")])
def test_what_the_checkpoint_keeps_gives_way_where_it_is_not_read(machine: str, taken: str) -> None:
    eight = replace(
        planned.card(SMALL), quantization="fp8", quantization_config={"kv_cache_quant_algo": "FP8"}
    )
    plan = planned.plan(eight, machine)
    assert not plan.violations
    kv = plan.levers["kv_cache_dtype"]
    assert kv.value == taken
    assert kv.lossless
    words = [word for p in plan.processes for word in p.argv]
    assert ("--kv-cache-dtype" in words) == (taken != "auto")
    wide = planned.plan(planned.card(SMALL), machine).predictions["kv_bytes_per_token_per_gpu"].value
    held = plan.predictions["kv_bytes_per_token_per_gpu"].value
    assert held == (wide if taken != "auto" else wide / 2)  # type: ignore[operator]


def test_what_is_published_with_a_model_gives_way_where_it_is_not_read() -> None:
    there, not_there = (planned.plan("zai-org/GLM-5.2-FP8", machine) for machine in ("8xh200", "8xa100-80"))
    assert str(there.levers["kv_cache_dtype"].value).startswith("fp8")
    assert not_there.levers["kv_cache_dtype"].value == "auto"
    left = not_there.layout["published_left_out"]
    assert "latent attention" in left["--kv-cache-dtype fp8_e4m3"]


def test_the_planner_does_not_take_what_is_not_read() -> None:
    there = Situation(planned.inputs(SINKS, "4xa100-80-nvlink", goal="agent"))
    why = why_not_fp8(there)
    assert why is not None
    assert "sinks" in why
    assert why_not_fp8(Situation(planned.inputs(SMALL, "1xa10", goal="agent"))) is None
