"""Plans for AMD devices: what an engine refuses there, and what it does more slowly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import card, plan

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8"}
LLAMA = card("meta-llama/Meta-Llama-3.1-8B")


@pytest.mark.parametrize(("kind", "table"), [("nvfp4", NVFP4), ("fp8", FP8)])
def test_sglang_refuses_modelopts_checkpoints_on_amd(kind: str, table: dict[str, object]) -> None:
    model = replace(LLAMA, quantization=kind, quantization_config=table)
    made = plan(model, "8xmi300x", kind="sglang")
    told = {v.code: v for v in made.violations}
    assert f"modelopt_fp{4 if kind == 'nvfp4' else 8}" in told["quantization_not_on_amd"].message
    assert not any("emulated" in w for w in made.warnings)
    assert not plan(model, "8xh100", kind="sglang").violations


def test_vllm_emulates_nvfp4_on_amd_and_the_plan_says_so() -> None:
    made = plan(replace(LLAMA, quantization="nvfp4", quantization_config=NVFP4), "8xmi300x")
    assert not made.violations
    assert any("emulated" in w for w in made.warnings)


@pytest.mark.parametrize(
    ("model", "on"),
    [
        ("meta-llama/Meta-Llama-3.1-8B", "8xmi300x"),
        ("Qwen/Qwen3-1.7B", "1xt4"),
        ("openai/gpt-oss-20b", "8xh100"),
    ],
)
def test_kv_in_4_bits_is_refused_where_nothing_reads_it(model: str, on: str) -> None:
    made = plan(model, on, sets=["kv_cache_dtype=nvfp4"])
    assert "kv_type_not_read" in {v.code for v in made.violations}
    assert not plan(LLAMA, "8xh100", sets=["kv_cache_dtype=nvfp4"]).violations
