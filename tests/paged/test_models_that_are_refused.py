"""Models that an engine here cannot serve, or that are planned by common keys alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import KINDS, card, plan

LLAMA = card("meta-llama/Meta-Llama-3.1-8B")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_does_not_answer_in_text_is_refused(kind: str) -> None:
    bert = replace(LLAMA, architectures=("BertModel",), model_type="bert", generates=False)
    found = {v.code: v for v in plan(bert, "1xl4", kind=kind).violations}
    assert "BertModel" in found["not_a_generator"].message


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_names_no_class_is_refused(kind: str) -> None:
    nameless = replace(LLAMA, architectures=(), format="safetensors", path="/models/x")
    assert "no_architectures" in {v.code for v in plan(nameless, "8xh100", kind=kind).violations}
    named = replace(nameless, architectures=("LlamaForCausalLM",))
    assert not plan(named, "8xh100", kind=kind).violations


def test_figures_of_an_unknown_class_are_estimates_and_the_plan_says_why() -> None:
    odd = replace(LLAMA, architectures=("FooBarForCausalLM",), model_type="foobar", class_known=False)
    made = plan(odd, "8xh100")
    assert any("FooBarForCausalLM is not known here" in w for w in made.warnings)
    token = "kv_bytes_per_token_per_gpu"
    assert made.predictions[token].basis == "estimated"
    known = plan(LLAMA, "8xh100")
    assert known.predictions[token].basis == "computed"
    assert not any("is not known here" in w for w in known.warnings)


@pytest.mark.parametrize("goal", ["throughput", "latency", "agent"])
def test_weights_in_fewer_bits_are_named_where_they_fit(goal: str) -> None:
    qwen, cards = "Qwen/Qwen3-32B", "2xrtx3090-pcie"
    (v,) = plan(qwen, cards, goal=goal).violations
    assert v.remedy.startswith("--set quantization=fp8 fits; it can change answers")
    assert "published checkpoint of it in FP8 or 4 bits (AWQ, GPTQ)" in v.remedy
    assert not plan(qwen, cards, goal=goal, sets=("quantization=fp8",)).violations
    (exact,) = plan(qwen, cards, goal=goal, sets=("lossless=true",)).violations
    assert "--set quantization" not in exact.remedy


def test_fewer_bits_are_not_named_where_they_do_not_fit_either() -> None:
    (v,) = plan("meta-llama/Meta-Llama-3.1-70B", "1xt4", goal="latency").violations
    assert "quantization" not in v.remedy
    assert "published" not in v.remedy
    (one,) = plan("Qwen/Qwen3-32B", "1xrtx4090", goal="latency").violations
    assert "in 4 bits (AWQ, GPTQ)" in one.remedy
    assert "FP8" not in one.remedy
