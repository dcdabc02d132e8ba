"""Weights on one device: what is split, what is on every rank, what a stage holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import cards

from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import GIB
from orchestrator.planning.paged.weights import weights_per_gpu

NAMES = sorted(cards())


def gib(name: str, layout: Layout, **options: object) -> float:
    return weights_per_gpu(cards()[name], layout, **options).worst / GIB  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "tensor", "logged_gib"),
    [
        # "Model loading took" of public logs, see launch_cases.jsonl
        ("gpt-oss-20b", 1, 13.47),
        ("Llama-3.3-70B-FP8", 1, 67.72),
        ("Llama-3.1-8B", 1, 14.99),
        ("Qwen3-0.6B", 1, 1.12),
        ("Qwen3-32B", 1, 61.03),
        ("Qwen3-32B", 2, 30.59),
        ("Qwen2-7B", 2, 7.1217),
        ("gpt-oss-120b", 1, 64.38),
        ("Llama-3.1-70B", 4, 32.95),
        ("Qwen3.6-27B-FP8", 2, 14.28),
        ("Mistral-Small-3.2-24B", 1, 44.76),
        ("DeepSeek-R1-Distill-Qwen-14B", 2, 13.9476),
    ],
)
def test_weights_are_those_that_engines_log(name: str, tensor: int, logged_gib: float) -> None:
    assert gib(name, Layout(tensor=tensor)) == pytest.approx(logged_gib, rel=0.015)


@pytest.mark.parametrize("name", NAMES)
def test_one_device_holds_what_is_stored_and_no_prediction_layers(name: str) -> None:
    card = cards()[name]
    one = weights_per_gpu(card, Layout()).worst
    stored = card.weights_bytes - card.weight_groups.get("mtp", 0)
    # more only where latent attention keeps a second form, experts are padded, the vocabulary rounded
    assert stored * 0.999 <= one <= stored * 1.08
    with_mtp = weights_per_gpu(card, Layout(), mtp_loaded=True).worst
    assert with_mtp - one == pytest.approx(card.weight_groups.get("mtp", 0), abs=4)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from([2, 4, 8]), st.booleans())
def test_ranks_together_hold_at_least_what_one_would(name: str, tensor: int, expert: bool) -> None:
    card = cards()[name]
    one = weights_per_gpu(card, Layout()).worst
    each = weights_per_gpu(card, Layout(tensor=tensor, expert=expert)).worst
    assert each * tensor >= one * 0.999
    assert each < one * (1 / tensor + 0.12)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from([1, 2, 4]), st.integers(2, 5))
def test_stages_together_hold_a_rank_and_the_tied_head_twice(name: str, tensor: int, stages: int) -> None:
    card = cards()[name]
    whole = weights_per_gpu(card, Layout(tensor=tensor)).worst
    parts = weights_per_gpu(card, Layout(tensor=tensor, pipeline=stages)).stages
    extra = card.weight_groups["embedding"] / tensor if card.tied_embeddings else 0
    assert len(parts) == stages
    assert sum(parts) == pytest.approx(whole + extra, rel=0.001)


def test_kv_projections_are_whole_beyond_their_heads() -> None:
    card = replace(cards()["Llama-3.1-8B"], weight_groups={"kv_proj": 8000})
    assert [weights_per_gpu(card, Layout(tensor=t)).worst for t in (1, 4, 8, 16)] == [8000, 2000, 1000, 1000]


def test_norms_routers_and_latent_projections_are_on_every_rank() -> None:
    card = replace(cards()["Qwen3-30B-A3B"], weight_groups={"norm": 10, "router": 20, "mla": 40})
    assert weights_per_gpu(card, Layout(tensor=8)).worst == 70


@pytest.mark.parametrize(
    ("layout", "share"),
    [
        (Layout(tensor=4), 1 / 4),
        (Layout(tensor=4, expert=True), 32 / 128),
        (Layout(tensor=3, expert=True), 43 / 128),
        (Layout(attention_data=8, expert=True), 16 / 128),
        (Layout(tensor=2, attention_data=4, expert=True), 16 / 128),
        (Layout(tensor=4, data=2), 1 / 4),
    ],
)
def test_experts_are_sliced_or_kept_whole(layout: Layout, share: float) -> None:
    card = replace(cards()["Qwen3-30B-A3B"], weight_groups={"experts": 128_000})
    assert weights_per_gpu(card, layout).worst == pytest.approx(128_000 * share, abs=1)


def test_attention_is_whole_on_each_rank_of_attention_data() -> None:
    spread, sliced = Layout(attention_data=8, expert=True), Layout(tensor=8, expert=True)
    card = cards()["DeepSeek-V3"]
    inner = card.weight_groups["attention"] * 7 / 8
    more = weights_per_gpu(card, spread).worst - weights_per_gpu(card, sliced).worst
    assert more > inner
    # SGLang spreads dense and shared layers over all of them
    on_sglang = weights_per_gpu(card, spread, kind="sglang").worst
    assert on_sglang < weights_per_gpu(card, spread).worst


def test_latent_attention_keeps_its_up_projections_twice() -> None:
    card = replace(cards()["DeepSeek-V3"], weight_groups={"norm": 0})
    # 61 layers x 512 latent x 128 heads x (128 of a key + 128 of a value) x 2 bytes
    assert weights_per_gpu(card, Layout()).worst == 61 * 512 * 128 * 256 * 2
    assert weights_per_gpu(card, Layout(tensor=8)).worst == 61 * 512 * 16 * 256 * 2


def test_the_vocabulary_is_padded_to_64_rows() -> None:
    card = replace(cards()["Llama-3.1-8B"], vocab_size=100, weight_groups={"embedding": 100_000})
    assert weights_per_gpu(card, Layout(tensor=2)).worst == 64_000


def test_embeddings_are_on_the_first_stage_and_the_head_on_the_last() -> None:
    card = replace(cards()["Llama-3.1-8B"], weight_groups={"embedding": 6400, "lm_head": 640, "mlp": 3200})
    assert weights_per_gpu(card, Layout(pipeline=4)).stages == (7200, 800, 800, 1440)


def test_a_partition_of_ones_own_moves_layers() -> None:
    card = replace(cards()["Llama-3.1-8B"], weight_groups={"mlp": 3200})
    assert weights_per_gpu(card, Layout(pipeline=2), partition=(8, 24)).stages == (800, 2400)


def test_32_bits_are_loaded_in_16_unless_asked_for() -> None:
    card = replace(cards()["Llama-3.1-8B"], dtype="float32", weight_groups={"mlp": 4000})
    assert weights_per_gpu(card, Layout()).worst == 2000
    assert weights_per_gpu(card, Layout(), dtype="float32").worst == 4000


def test_quantizing_while_loading_halves_the_matrices_alone() -> None:
    card = replace(cards()["Llama-3.1-8B"], weight_groups={"mlp": 4000, "embedding": 1000, "norm": 10})
    assert weights_per_gpu(card, Layout(), quantization="fp8").worst == 3010
    # a checkpoint that is quantized already stays as it is
    quantized = replace(card, quantization="fp8")
    assert weights_per_gpu(quantized, Layout(), quantization="fp8").worst == 5010


def test_without_known_tensors_the_split_is_an_estimate() -> None:
    card = replace(cards()["Llama-3.1-8B"], weight_groups={}, weights_estimated=False)
    for layout in (Layout(), Layout(tensor=4), Layout(pipeline=3)):
        found = weights_per_gpu(card, layout)
        assert found.basis == "estimated"
        assert sum(found.stages) * layout.tensor == pytest.approx(card.weights_bytes, rel=0.04)


def test_the_basis_is_the_cards() -> None:
    card = cards()["Llama-3.1-8B"]
    assert weights_per_gpu(card, Layout()).basis == "estimated"
    assert weights_per_gpu(replace(card, weights_estimated=False), Layout()).basis == "computed"
