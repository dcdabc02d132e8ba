"""What a model is loaded in, and what its weights and its KV then take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import KINDS, card, machine, plan

from orchestrator.model_card.card import ModelCard
from orchestrator.plan import Plan

LLAMA = "meta-llama/Meta-Llama-3.1-8B"
H100 = replace(machine("8xh100"), gpus=machine("8xh100").gpus[:1], links=())


def weights(made: Plan) -> float:
    return made.predictions["weights_bytes_per_gpu"].value


def codes(made: Plan) -> set[str]:
    return {v.code for v in made.violations}


def gemma(dtype: str = "bfloat16") -> ModelCard:
    """A model type that is unstable in half precision; sizes of no consequence."""
    return replace(
        card(LLAMA),
        name="gemma-like",
        model_type="gemma3_text",
        architectures=("Gemma3ForCausalLM",),
        architecture="Gemma3ForCausalLM",
        dtype=dtype,
        weight_groups={},
        weights_bytes=2 << 30,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_doubles_weights_and_kv(kind: str) -> None:
    own = plan(LLAMA, H100, kind=kind)
    wide = plan(LLAMA, H100, kind=kind, sets=["dtype=float32"])
    assert weights(wide) == pytest.approx(2 * weights(own), rel=0.01)
    token = "kv_bytes_per_token_per_gpu"
    assert wide.predictions[token].value == pytest.approx(2 * own.predictions[token].value)
    assert not codes(own)
    assert "weights_do_not_fit" in codes(plan(LLAMA, "1xl4", kind=kind, sets=["dtype=float32"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", ["auto", "half", "bfloat16"])
def test_a_checkpoint_of_32_bits_is_halved(kind: str, asked: str) -> None:
    stored = replace(
        card(LLAMA),
        dtype="float32",
        weights_bytes=2 * card(LLAMA).weights_bytes,
        weight_groups={k: 2 * v for k, v in card(LLAMA).weight_groups.items()},
    )
    sets = [] if asked == "auto" else [f"dtype={asked}"]
    assert weights(plan(stored, H100, kind=kind, sets=sets)) == pytest.approx(
        weights(plan(LLAMA, H100, kind=kind)), rel=0.01
    )
    wide = plan(stored, H100, kind=kind, sets=["dtype=float32"])
    assert weights(wide) == pytest.approx(2 * weights(plan(LLAMA, H100, kind=kind)), rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_quantizing_while_loading_halves_linear_weights(kind: str) -> None:
    own, small = (weights(plan(LLAMA, H100, kind=kind, sets=x)) for x in ([], ["quantization=fp8"]))
    assert 0.5 * own < small < 0.6 * own


def test_what_is_quantized_after_loading_must_fit_before() -> None:
    # 15 GiB of 16 bits on a card of 15: 0.32 quantizes layer by layer, SGLang and earlier ones at the end
    def fits(kind: str, version: str | None) -> bool:
        made = plan(
            LLAMA, "1xt4", kind=kind, version=version, goal="edge", sets=["quantization=bitsandbytes"]
        )
        return not codes(made) & {"weights_do_not_fit", "kv_does_not_fit"}

    assert fits("vllm", "0.33.0")
    assert not fits("vllm", "0.27.1")
    assert not fits("sglang", None)


def test_a_model_unstable_in_half_precision_is_loaded_in_single_where_there_is_no_bfloat16() -> None:
    made = plan(gemma(), "1xt4", kind="vllm", goal="edge", sets=["lossless=true"])
    taken = made.levers["dtype"]
    assert (taken.value, taken.lossless, taken.rule) == ("float32", True, "no_bfloat16_nor_half")
    assert not codes(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_that_is_left_out_binds_nothing(kind: str) -> None:
    old = replace(machine("1xt4").gpus[0], index=1, uuid="GPU-old")
    mixed = replace(H100, gpus=(*H100.gpus, old))
    made = plan(LLAMA, mixed, kind=kind)
    assert [g["used"] for g in made.machine["gpus"]] == [True, False]
    assert not any("bfloat16" in text for text in (*made.warnings, *(v.message for v in made.violations)))
    assert made.levers["dtype"].value == "auto"


@pytest.mark.parametrize("asked", ["half", "bfloat16"])
def test_the_remedy_of_a_type_that_cannot_be_had_leads_out(asked: str) -> None:
    made = plan(gemma(), "1xt4", kind="vllm", goal="edge", sets=[f"dtype={asked}"])
    (found,) = [v for v in made.violations if v.code in ("no_float16", "bfloat16_needs_8_0")]
    assert found.remedy == "use --set dtype=float32"
    assert not codes(plan(gemma(), "1xt4", kind="vllm", goal="edge", sets=["dtype=float32"]))


def test_a_model_that_is_stable_in_half_precision_takes_it_and_says_so() -> None:
    taken = plan(LLAMA, "1xt4", kind="vllm", goal="edge").levers["dtype"]
    assert (taken.value, taken.lossless) == ("half", False)


@pytest.mark.parametrize(
    ("dtype", "keeps"),
    [("float16", False), ("half", False), ("bfloat16", True), ("float32", True), ("auto", True)],
)
def test_a_type_that_is_set_is_lossy_where_it_cannot_hold_the_checkpoint(dtype: str, keeps: bool) -> None:
    made = plan(LLAMA, H100, kind="vllm", sets=[f"dtype={dtype}", "lossless=true"])
    assert made.levers["dtype"].lossless is keeps
    assert ("lossy" in codes(made)) is not keeps
