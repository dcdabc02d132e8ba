"""Qwen2.5-72B in bf16 on two 80 GB cards: it loads, and next to no KV is left at its full context."""

from __future__ import annotations

import dataclasses
import re

import planned
import pytest

from orchestrator.machine import Machine
from orchestrator.model_card.card import ModelCard
from orchestrator.model_card.huggingface import card_of

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 80,
    "hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""config.json of Qwen/Qwen2.5-72B."""

FULL = 131072
TOKEN = 80 * 2 * 8 * 128 * 2
"""Bytes of KV a token: layers x keys and values x KV heads x head size x bfloat16."""


def model() -> ModelCard:
    return card_of(CONFIG, source="Qwen/Qwen2.5-72B", name="Qwen2.5-72B", path=None)


def two(name: str) -> Machine:
    whole = planned.machine(name)
    gpus = whole.gpus[:2]
    there = {g.uuid for g in gpus}
    links = tuple(x for x in whole.links if {x.a, x.b} <= there)
    return dataclasses.replace(whole, name=f"two of {name}", gpus=gpus, links=links)


CARDS = ["8xh100", "8xa100-80", "4xa100-80-nvlink"]


@pytest.mark.parametrize("goal", planned.GOALS)
@pytest.mark.parametrize("kind", planned.KINDS)
@pytest.mark.parametrize("cards", CARDS)
def test_full_context_is_refused_with_the_length_that_fits(cards: str, kind: str, goal: str) -> None:
    asked = ["tensor_parallel_size=2", "kv_cache_dtype=bfloat16"]
    full = [*asked, f"max_model_len={FULL}"]
    (found,) = planned.plan(model(), two(cards), goal=goal, kind=kind, sets=full).violations
    assert found.code == "kv_does_not_fit"
    assert f"max_model_len={FULL} needs 20.0 GiB of KV" in found.message
    (length,) = (int(n) for n in re.findall(r"--set max_model_len=([0-9]+) fits", found.remedy))
    assert 1024 < length < FULL // 4

    fits = planned.plan(model(), two(cards), goal=goal, kind=kind, sets=[*asked, f"max_model_len={length}"])
    assert fits.violations == ()
    assert fits.predictions["kv_cache_tokens"].value >= length
    assert fits.levers["max_model_len"].value == length
    # and it is the longest, within a step
    longer = [*asked, f"max_model_len={length + 512}"]
    assert planned.plan(model(), two(cards), goal=goal, kind=kind, sets=longer).violations


@pytest.mark.parametrize("kind", planned.KINDS)
@pytest.mark.parametrize("cards", CARDS)
def test_left_alone_it_is_planned_with_what_fits(cards: str, kind: str) -> None:
    """A workload of 9,000 tokens: the goals' own lengths and shares make room or say why not."""
    for goal in planned.GOALS:
        made = planned.plan(model(), two(cards), goal=goal, kind=kind)
        assert made.violations == ()
        assert made.levers["tensor_parallel_size"].value * made.levers["pipeline_parallel_size"].value == 2
        assert made.levers["max_model_len"].value < FULL


def test_the_figures_are_the_ones_that_one_reckons_by_hand() -> None:
    made = planned.plan(
        model(),
        two("8xh100"),
        sets=["tensor_parallel_size=2", "kv_cache_dtype=bfloat16", "max_model_len=4096"],
    )
    p = {name: x.value for name, x in made.predictions.items()}
    assert p["kv_bytes_per_token_per_gpu"] == TOKEN / 2
    assert p["weights_bytes_per_gpu"] == pytest.approx(72.7e9, rel=0.01)
    # 79.2 GiB are there, 67.7 take the weights: a tenth of the card is left for everything else
    assert 0 < p["kv_bytes_per_gpu"] < 7 * 2**30
    assert p["kv_cache_tokens"] == pytest.approx(p["kv_bytes_per_gpu"] / (TOKEN / 2), rel=0.01)


def test_four_cards_hold_the_full_context() -> None:
    whole = planned.machine("4xa100-80-nvlink")
    asked = ["tensor_parallel_size=4", "kv_cache_dtype=bfloat16", f"max_model_len={FULL}"]
    assert planned.plan(model(), whole, sets=asked).violations == ()
