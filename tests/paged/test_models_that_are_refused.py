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
