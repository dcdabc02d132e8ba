"""What vLLM and SGLang make of a checkpoint's files and of the values in its config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned import KINDS, card, configs, plan

from orchestrator.model_card.card import Flaw, ModelCard

PLAIN: dict[str, Any] = {"source": "m", "name": "m", "path": "/models/m", "format": "safetensors"}


def of(**changes: Any) -> ModelCard:
    return replace(card("Qwen/Qwen3-8B"), **(PLAIN | changes))


def codes(model: ModelCard, **how: Any) -> set[str]:
    return {v.code for v in plan(model, "1xl4", **how).violations}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"quantization_config": {"quant_method": "nonsense"}}, "unknown_quantization"),
        ({"activation": "bogus"}, "unknown_activation"),
        ({"rope_scaling": {"rope_type": "nonsense", "factor": 2}}, "unknown_rope"),
        ({"rope_scaling": {"full_attention": {"type": "nonsense"}}}, "unknown_rope"),
        ({"flaws": (Flaw("no_tokenizer", "holds no tokenizer", True),)}, "no_tokenizer"),
        ({"flaws": (Flaw("weights_not_quantized", "is plain", True),)}, "weights_not_quantized"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_ends_the_engine_at_start_is_refused(kind: str, changes: dict[str, Any], code: str) -> None:
    assert codes(of(**changes), kind=kind) == {code}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"quantization_config": {"quant_method": "FP8"}},
        {"quantization_config": {"quant_method": "compressed_tensors"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2}},
        # classes with functions of their own
        {"activation": "bogus", "architectures": ("Gemma2ForCausalLM",)},
        {"rope_scaling": {"rope_type": "nonsense"}, "architectures": ("DeepseekV3ForCausalLM",)},
    ],
)
def test_what_an_engine_takes_is_not_refused(kind: str, changes: dict[str, Any]) -> None:
    found = codes(of(**changes), kind=kind)
    assert not found & {"unknown_quantization", "unknown_activation", "unknown_rope"}


def test_a_newer_engine_may_know_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from planned import installation

    newer = replace(installation("vllm"), version="9.0.0")
    assert codes(of(activation="bogus"), installed=newer) == set()


@pytest.mark.parametrize(
    ("kind", "flag"),
    [("vllm", "--tokenizer"), ("vllm", "--skip-tokenizer-init"), ("sglang", "--tokenizer-path")],
)
def test_a_tokenizer_from_elsewhere_is_enough(kind: str, flag: str) -> None:
    words = [flag] if flag.endswith("init") else [flag, "/models/other"]
    sets = [f"engine_args.{kind}={words}"]
    bare = of(flaws=(Flaw("no_tokenizer", "holds no tokenizer", True),))
    assert "no_tokenizer" not in codes(bare, kind=kind, sets=sets)


@pytest.mark.parametrize("kind", KINDS)
def test_what_makes_an_engine_serve_worse_is_said(kind: str) -> None:
    made = plan(of(flaws=(Flaw("generation_config", "has no good file", False),)), "1xl4", kind=kind)
    assert "m has no good file" in made.warnings
    assert not made.violations


def test_shards_that_an_index_names_in_vain_are_named() -> None:
    shards = tuple(f"model-{i}-of-5.safetensors" for i in range(1, 6))
    bare = of(format="config", missing_shards=shards)
    said = "model.safetensors.index.json names 5 shards and none is here (model-1-of-5.safetensors,"
    made = plan(bare, "1xl4")
    assert any(said in w and "2 more" in w for w in made.warnings)
    assert not made.violations
    refused = plan(bare, "1xl4", launching=True).violations
    assert [v.code for v in refused if said in v.message and "fetch it again" in v.remedy] == ["no_weights"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_published_model_is_refused_by_a_closed_list(kind: str) -> None:
    lists = {"unknown_quantization", "unknown_activation", "unknown_rope"}
    for model in configs():
        found = {v.code for v in plan(model, "8xb200", kind=kind, sets=["trust_remote_code=true"]).violations}
        assert not found & lists, model
