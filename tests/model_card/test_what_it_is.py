"""Which architectures are known, which answer in text, and what is said where one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import CONFIG, folder

from orchestrator.errors import LlmserveError
from orchestrator.model_card import read_card
from orchestrator.model_card.huggingface import card_of


def of(**changes: Any) -> Any:
    config = {k: v for k, v in (CONFIG | changes).items() if v is not ...}
    return card_of(config, source="s", name="n", path=None)


def refusal(path: Path, **changes: Any) -> LlmserveError:
    config = {k: v for k, v in (CONFIG | changes).items() if v is not ...}
    with pytest.raises(LlmserveError) as e:
        read_card(str(folder(path, config, shards=0)))
    return e.value


def test_a_class_that_nobody_has_is_not_known() -> None:
    odd = {"architectures": ["FooBarForCausalLM"], "model_type": "foobar"}
    assert not of(**odd).class_known
    assert of().class_known
    assert not of(architectures=["T5ForConditionalGeneration"], model_type="t5").class_known
    assert of(architectures=["WhisperForConditionalGeneration"], model_type="whisper").class_known
    # one of both is enough
    assert of(architectures=["FooBarForCausalLM"]).class_known
    assert of(model_type="foobar").class_known


def test_an_unknown_class_that_the_repository_brings_needs_its_code() -> None:
    mapped = {"AutoModelForCausalLM": "modeling_foobar.FooBarForCausalLM"}
    odd = {"architectures": ["FooBarForCausalLM"], "model_type": "foobar"}
    assert of(**odd, auto_map=mapped).needs_remote_code
    assert not of(**odd).needs_remote_code
    assert not of(auto_map=mapped).needs_remote_code


@pytest.mark.parametrize(
    "name",
    [
        "BertModel",
        "BertForMaskedLM",
        "RobertaForSequenceClassification",
        "XLMRobertaModel",
        "LlamaForSequenceClassification",
        "Qwen2ForRewardModel",
        "LlamaModel",
    ],
)
def test_classes_that_answer_with_vectors_or_classes_are_no_generators(name: str) -> None:
    assert not of(architectures=[name]).generates


@pytest.mark.parametrize(
    "name",
    [
        "LlamaForCausalLM",
        "GPT2LMHeadModel",
        "ChatGLMModel",
        "InternVLChatModel",
        "Gemma3ForConditionalGeneration",
        "FooBarForCausalLM",
        "SomethingElse",
    ],
)
def test_classes_that_answer_in_text_are_generators(name: str) -> None:
    assert of(architectures=[name]).generates


def test_without_a_class_the_model_type_tells() -> None:
    assert not of(architectures=..., model_type="xlm-roberta").generates
    assert of(architectures=...).generates


@pytest.mark.parametrize(
    ("model_type", "context"), [("falcon", 2048), ("RefinedWebModel", 2048), ("gpt2", 1024), ("bloom", 2048)]
)
def test_a_key_that_the_class_has_a_default_for_may_be_left_out(model_type: str, context: int) -> None:
    assert of(model_type=model_type, max_position_embeddings=...).context_length == context


def test_falcon_7b_as_it_is_published() -> None:
    # tiiuae/falcon-7b config.json, without max_position_embeddings
    config = {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 65024,
        "alibi": False,
        "bias": False,
    }
    c = card_of(config, source="s", name="n", path=None)
    assert (c.context_length, c.kv_heads, c.head_dim) == (2048, 1, 64)
    assert c.parameters is not None
    assert c.parameters / 1e9 == pytest.approx(6.92, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba", "num_attention_heads": ...}, "Mamba"),
        (
            {
                "architectures": ["WhisperForConditionalGeneration"],
                "model_type": "whisper",
                "hidden_size": ...,
                "num_attention_heads": ...,
            },
            "Whisper",
        ),
        (
            {
                "architectures": ["T5ForConditionalGeneration"],
                "model_type": "t5",
                "max_position_embeddings": ...,
            },
            "T5",
        ),
    ],
)
def test_a_configuration_of_another_kind_is_called_unknown_not_damaged(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    e = refusal(tmp_path, **changes)
    assert named in e.message
    assert "is not known here" in e.message
    assert "again" not in e.remedy


def test_a_number_that_cannot_be_right_is_still_damage(tmp_path: Path) -> None:
    e = refusal(tmp_path, hidden_size=-4)
    assert "cannot be right" in e.message
    assert "again" in e.remedy
