"""KV in 4-bit floats: on which GPUs and for which heads vLLM has a kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from test_vllm_checks import MODELS, installed, plan

from orchestrator.engines.vllm.checks import check
from orchestrator.engines.vllm.checks.kv_types import _table as four_bits
from orchestrator.plan import Violation
from orchestrator.planning.paged.fp8_kv import _table as eight_bits

LLAMA = {**MODELS["heads8"]["facts"], "head_dim": 128, "architectures": ["LlamaForCausalLM"]}


def told(
    capability: str,
    kv: str = "nvfp4",
    version: str = "0.32.0",
    device: str = "cuda",
    **facts: Any,
) -> list[Violation]:
    engine = installed(version, device)
    case = {"model": "heads8", "argv": ["--kv-cache-dtype", kv], "gpus": [["a GPU", 80, capability]]}
    made = plan(case, engine)
    found = check(dataclasses.replace(made, model=LLAMA | facts), engine)
    return [v for v in found if v.code == "kv_type_not_read"]


@pytest.mark.parametrize(
    ("capability", "kv", "version", "facts"),
    [
        ("7.5", "nvfp4", "0.32.0", {}),
        ("7.5", "nvfp4", "0.20.2", {}),
        ("9.0", "nvfp4", "0.27.1", {}),
        ("11.0", "nvfp4", "0.32.0", {}),
        ("9.0", "nvfp4_4over6", "0.32.0", {}),
        ("9.0", "nvfp4", "0.32.0", {"head_dim": 64}),
        ("8.6", "nvfp4", "0.32.0", {"head_dim": 80}),
        ("12.0", "nvfp4", "0.32.0", {"architectures": ["MiMoV2FlashForCausalLM"]}),
        ("9.0", "nvfp4_ds_mla", "0.32.0", {"mla": True}),
    ],
)
def test_kv_that_nothing_reads_is_refused(
    capability: str, kv: str, version: str, facts: dict[str, Any]
) -> None:
    (refusal,) = told(capability, kv, version, **facts)
    assert kv in refusal.message
    assert refusal.remedy == "use --set kv_cache_dtype=auto"


@pytest.mark.parametrize(
    ("capability", "kv", "version", "facts"),
    [
        ("8.6", "nvfp4", "0.32.0", {}),
        ("9.0", "nvfp4", "0.32.0", {}),
        ("12.1", "nvfp4", "0.32.0", {}),
        ("10.0", "nvfp4", "0.27.1", {}),
        ("10.0", "nvfp4_4over6", "0.32.0", {"head_dim": 64}),
        ("10.3", "nvfp4_ds_mla", "0.32.0", {"mla": True}),
        ("9.0", "fp8", "0.32.0", {"head_dim": 64}),
        ("9.0", "nvfp4", "0.32.0", {"head_dim": None}),
    ],
)
def test_kv_that_something_reads_passes(
    capability: str, kv: str, version: str, facts: dict[str, Any]
) -> None:
    assert not told(capability, kv, version, **facts)


def test_no_amd_gpu_reads_it() -> None:
    (refusal,) = told("9.4", device="rocm")
    assert "no AMD GPU" in refusal.message


@pytest.mark.parametrize(("capability", "wide"), [("7.5", "float16"), ("11.0", "bfloat16")])
def test_a_checkpoints_own_type_gives_way_to_16_bits(capability: str, wide: str) -> None:
    (refusal,) = told(capability, "auto", kv_cache_dtype="nvfp4")
    assert "the checkpoint keeps KV in nvfp4" in refusal.message
    assert refusal.remedy == f"use --set kv_cache_dtype={wide}"
    assert not told(capability, wide, kv_cache_dtype="nvfp4")
    assert not told("9.0", "auto", kv_cache_dtype="nvfp4")


def test_models_with_sinks_are_the_same_for_every_type_of_kv() -> None:
    assert set(four_bits()["sinks"]) == set(eight_bits()["sinks"])
