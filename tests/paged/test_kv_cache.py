"""KV on one device: by architecture, version and layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import cards

from orchestrator.planning.paged.kv_cache import KvCache, kv_cache, resolved_dtype
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import GIB, stage_layers, version_of

LLAMA = "Llama-3.1-8B"
NAMES = sorted(cards())
POOLS = [
    json.loads(line) for line in (Path(__file__).parent / "vllm_0.32_pools.jsonl").read_text().splitlines()
]
"""What vllm/v1/core/kv_cache_utils.py of vLLM 0.32.0 makes of these models' layers: get_kv_cache_groups,
_max_memory_usage_bytes_from_groups (without the null block), get_kv_cache_config_from_groups and
get_max_concurrency_for_kv_cache_config, for 2,048 tokens in flight."""


def of(name: str, layout: Layout | None = None, **options: Any) -> KvCache:
    return kv_cache(cards()[name], layout or Layout(), **{"version": "0.33.0"} | options)


@pytest.mark.parametrize(
    ("name", "layout", "options", "bytes_a_token"),
    [
        # 2 x layers x KV heads x head size x bytes
        (LLAMA, Layout(), {}, 2 * 32 * 8 * 128 * 2),
        (LLAMA, Layout(tensor=4), {}, 2 * 32 * 2 * 128 * 2),
        (LLAMA, Layout(tensor=16), {}, 2 * 32 * 1 * 128 * 2),
        (LLAMA, Layout(pipeline=2), {}, 2 * 16 * 8 * 128 * 2),
        (LLAMA, Layout(pipeline=3), {}, 2 * 11 * 8 * 128 * 2),
        (LLAMA, Layout(), {"kv_dtype": "fp8"}, 2 * 32 * 8 * 128),
        (LLAMA, Layout(), {"kv_dtype": "nvfp4"}, 2 * 32 * 8 * 128 * 0.5625),
        (LLAMA, Layout(), {"kv_dtype": "int8_per_token_head"}, 32 * 8 * (2 * 128 + 8)),
        # one latent, whole on every rank
        ("DeepSeek-V3", Layout(), {}, 61 * 576 * 2),
        ("DeepSeek-V3", Layout(tensor=8), {}, 61 * 576 * 2),
        ("DeepSeek-V3", Layout(tensor=8), {"context_parallel": 8}, 61 * 576 * 2 / 8),
        ("DeepSeek-V3", Layout(attention_data=8, expert=True), {}, 61 * 576 * 2),
        # and its index keys: 128 of one byte and a scale
        ("DeepSeek-V3.2", Layout(), {}, 61 * (576 * 2 + 132)),
        ("DeepSeek-V3.2", Layout(), {"kv_dtype": "fp8"}, 61 * (656 + 132)),
        ("DeepSeek-V3", Layout(), {"kv_dtype": "fp8"}, 61 * 576),
        # a further token is charged to the full layers alone
        ("gpt-oss-20b", Layout(), {}, 2 * 12 * 8 * 64 * 2),
        ("gpt-oss-20b", Layout(), {"hybrid_manager": False}, 2 * 24 * 8 * 64 * 2),
        ("gemma-4-31b", Layout(), {"version": "0.20.0"}, 901_120),
        ("Qwen3.6-27B-FP8", Layout(), {}, 2 * 16 * 4 * 256 * 2),
        ("Qwen3.6-27B-FP8", Layout(), {"mtp": True, "speculative_tokens": 1}, 2 * 17 * 4 * 256 * 2),
    ],
)
def test_bytes_a_token(name: str, layout: Layout, options: dict[str, Any], bytes_a_token: float) -> None:
    assert of(name, layout, **options).bytes_per_token_per_gpu == pytest.approx(bytes_a_token)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("DeepSeek-V4-Flash", {}, "compressed"),
        (LLAMA, {"kv_dtype": "brand_new_4bit"}, "brand_new_4bit"),
        (LLAMA, {"kv_dtype": "fp8_ds_mla"}, "fp8_ds_mla"),
    ],
)
def test_what_has_no_known_rule_is_unknown(kind: str, name: str, options: dict[str, Any], why: str) -> None:
    c = of(name, kind=kind, **options)
    assert not c.known
    assert c.bytes_per_token_per_gpu is None
    assert (c.tokens(GIB, 1024), c.max_concurrency(GIB, 1024), c.bytes_needed(1024)) == (None, None, None)
    assert c.largest_context(GIB, 1024) == 0
    assert why in c.notes[0]


def test_an_encoder_beside_the_decoder_has_no_rule_either() -> None:
    assert not kv_cache(replace(cards()[LLAMA], encoder_decoder=True), Layout()).known


def test_a_hybrid_whose_state_is_unknown_has_no_rule() -> None:
    card = cards()["Qwen3.6-27B-FP8"]
    assert card.hybrid is not None
    hidden = replace(card, hybrid=replace(card.hybrid, matrix_bytes=None))
    assert not kv_cache(hidden, Layout()).known


@pytest.mark.parametrize(
    "case", POOLS, ids=lambda c: f"{c['card']}-{c['tensor']}-{c['kv_dtype']}-{c['prefix_caching']}"
)
def test_pools_are_those_that_vllms_own_code_makes(case: dict[str, Any]) -> None:
    c = of(
        case["card"],
        Layout(tensor=case["tensor"]),
        version="0.32.0",
        kv_dtype=case["kv_dtype"],
        prefix_caching=case["prefix_caching"],
        max_num_batched_tokens=2048,
        async_scheduling=False,
    )
    size, length = case["kv_bytes"], case["max_model_len"]
    assert c.block_bytes == case["block_bytes"]
    assert (c.bytes_needed(length) or 0) - c.block_bytes == case["needed_bytes"]
    assert c.tokens(size, length) == case["tokens"]
    assert c.max_concurrency(size, length) == pytest.approx(case["max_concurrency"], abs=1e-6)


def test_blocks_are_of_16_tokens_and_of_128_on_a_cpu() -> None:
    assert of(LLAMA).block_tokens == 16
    assert of(LLAMA, block_size=64).block_tokens == 64
    assert of(LLAMA, device="cpu").block_tokens == 128
    assert of("DeepSeek-V3", device="cpu").block_tokens == 16
    assert of(LLAMA, kind="sglang").block_tokens == 1


def test_blocks_are_whole_and_so_are_tokens() -> None:
    c = of(LLAMA, device="cpu")
    block = 128 * 131_072
    assert c.tokens(10 * block + block - 1, 4096) == 1280
    assert c.blocks(block - 1) == 0
    assert c.tokens(-5, 4096) == 0


def test_tokens_are_concurrency_times_length_from_0_21_and_blocks_before() -> None:
    size = 5 * GIB
    old, new = of("gpt-oss-120b", version="0.11.0"), of("gpt-oss-120b", version="0.33.0")
    # both groups of 18 layers draw from one pool
    blocks = size // (18 * 2 * 8 * 64 * 2 * 16)
    assert old.tokens(size, 131072) == blocks // 2 * 16
    each = 131072 // 16 + (127 + 2 * 8192) // 16 + 2
    assert new.tokens(size, 131072) == int(blocks / each * 131072)
    assert new.max_concurrency(size, 131072) == pytest.approx(blocks / each)


def test_sliding_layers_hold_their_window_and_the_batches_in_flight() -> None:
    c = of("gpt-oss-20b", max_num_batched_tokens=2048, async_scheduling=False)
    assert c.request_blocks(100_000) == 6250 + (127 + 2048 + 15) // 16 + 1
    assert of("gpt-oss-20b", max_num_batched_tokens=2048).in_flight_tokens == 4096
    assert of("gpt-oss-20b", max_num_batched_tokens=2048, version="0.18.0").in_flight_tokens == 2048
    assert of("gpt-oss-20b", max_num_batched_tokens=2048, device="cpu").in_flight_tokens == 2048
    # never more than the request itself
    assert c.request_blocks(64) == 4 + 4 + 1


def test_gemma_4_doubles_the_block_of_its_narrow_full_layers() -> None:
    c = of("gemma-4-31b")
    assert [(g.holds, g.count, g.block_tokens) for g in c.groups] == [("full", 1, 32), ("sliding", 5, 16)]
    assert c.block_bytes == 10 * 16 * 2 * 16 * 256 * 2


def test_gemma_4_is_charged_in_full_before_0_21_or_without_the_hybrid_manager() -> None:
    for c in (of("gemma-4-31b", version="0.20.2"), of("gemma-4-31b", hybrid_manager=False)):
        assert [g.holds for g in c.groups] == ["full"]
        assert c.block_bytes == 16 * 901_120


def test_a_hybrids_block_grows_until_it_holds_a_state() -> None:
    c = of("Qwen3.6-27B-INT4", Layout(tensor=2), kv_dtype="fp8_e5m2", prefix_caching=False)
    state = 24 * 128 * 128 * 4 + (2 * 16 * 128 + 48 * 128) // 2 * 3 * 2
    width = 2 * 2 * 256
    assert c.block_tokens == -(-state // (16 * width)) * 16 == 1568
    assert c.block_bytes == 16 * 1568 * width
    # three groups of states, one block each
    assert c.request_blocks(1568 * 10) == 10 + 3 * 1


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({"prefix_caching": False}, 1),
        ({"prefix_caching": True}, 2),
        ({"prefix_caching": True, "speculative_tokens": 3, "mtp": True}, 5),
        ({"prefix_caching": True, "speculative_tokens": 3}, 5),
    ],
)
def test_states_a_request_holds(options: dict[str, Any], blocks: int) -> None:
    states = [g for g in of("Qwen3.6-27B-FP8", **options).groups if g.holds == "state"]
    assert [(g.count, g.blocks) for g in states] == [(3, blocks)]


def test_speculative_tokens_lengthen_a_states_convolution() -> None:
    # 1,600 is what a log of Qwen3.6-27B shows on four cards with three speculative tokens
    four = Layout(tensor=4)
    plain = of("Qwen3.6-27B-INT4", four, kv_dtype="fp8")
    longer = of("Qwen3.6-27B-INT4", four, kv_dtype="fp8", speculative_tokens=3, mtp=True)
    assert (plain.block_tokens, longer.block_tokens) == (1568, 1600)


def test_groups_nearly_alike_are_padded_to_the_larger() -> None:
    # gpt-oss-20b with a draft of one full layer: 13 full and 12 sliding ones
    card = cards()["gpt-oss-20b"]
    draft = replace(card, layers=1, sliding_layers=None, sliding_window=None)
    c = of("gpt-oss-20b", draft=draft)
    assert [(g.holds, g.count) for g in c.groups] == [("full", 1), ("sliding", 1)]
    assert c.block_bytes == 13 * 16 * 2 * 8 * 64 * 2


def test_fp8_does_not_double_the_room_of_a_hybrid() -> None:
    plain, small = of("Qwen3.6-27B-FP8"), of("Qwen3.6-27B-FP8", kv_dtype="fp8")
    size = 8 * GIB
    ratio = (small.max_concurrency(size, 32768) or 0) / (plain.max_concurrency(size, 32768) or 1)
    assert 1.2 < ratio < 1.9


def test_a_checkpoint_says_its_kv_type() -> None:
    card = cards()["Qwen3-32B"]
    assert resolved_dtype(card, None) == resolved_dtype(card, "auto") == "bfloat16"
    modelopt = replace(card, quantization_config={"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"})
    assert resolved_dtype(modelopt, "auto") == "fp8"
    scheme = replace(card, quantization_config={"kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    assert resolved_dtype(scheme, None) == "fp8"
    assert resolved_dtype(scheme, "bfloat16") == "bfloat16"


def test_a_checkpoint_may_keep_kv_in_4_bits() -> None:
    scheme = {"num_bits": 4, "type": "float", "dynamic": False}
    stored = replace(
        cards()["Qwen3-32B"], quantization_config={"quant_method": "modelopt", "kv_cache_scheme": scheme}
    )
    assert resolved_dtype(stored, "auto") == "nvfp4"


def test_a_draft_models_kv_comes_on_top() -> None:
    draft = cards()["Qwen3-0.6B"]
    alone, both = of("Qwen3-32B"), of("Qwen3-32B", draft=draft)
    own = kv_cache(draft, Layout()).bytes_per_token_per_gpu or 0
    assert both.bytes_per_token_per_gpu == (alone.bytes_per_token_per_gpu or 0) + own


def test_sglang_counts_single_tokens_and_keeps_states_in_a_pool_of_their_own() -> None:
    plain = of(LLAMA, kind="sglang")
    assert plain.tokens(131_072 * 1000 + 5) == 1000
    hybrid = of("Qwen3.6-27B-FP8", kind="sglang")
    assert hybrid.state_share == pytest.approx(0.9 / 1.9)
    assert hybrid.tokens(65536 * 1900) == pytest.approx(1000, abs=1)
    sliding = of("gpt-oss-20b", kind="sglang")
    assert sliding.bytes_per_token_per_gpu == pytest.approx(2 * 8 * 64 * 2 * (12 + 0.8 * 12))


def test_one_request_needs_its_blocks_and_the_null_block() -> None:
    c = of(LLAMA)
    assert c.bytes_needed(1000) == (63 + 1) * 16 * 131_072
    assert c.bytes_needed(1000, requests=4) == (4 * 63 + 1) * 16 * 131_072
    assert of(LLAMA, kind="sglang").bytes_needed(1000) == 1000 * 131_072


def test_layers_are_divided_over_stages_as_the_engines_do() -> None:
    # vLLM get_pp_indices: what is left over goes to the stages before the last
    assert stage_layers(61, 4) == (15, 15, 16, 15)
    assert stage_layers(32, 3) == (11, 11, 10)
    assert sum(stage_layers(61, 8)) == 61


def test_a_partition_of_ones_own_is_followed() -> None:
    c = of("Qwen3-30B-A3B", Layout(pipeline=2), partition=(16, 32))
    assert c.bytes_per_token_per_gpu == 2 * 32 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.11.0 (image)", (0, 11, 0)),
        ("0.15.2rc1.dev93", (0, 15, 2)),
        ("~0.20 nightly", (0, 20, 0)),
        (None, (999, 0, 0)),
        ("nightly", (999, 0, 0)),
    ],
)
def test_versions_are_read_from_what_people_write(text: str | None, version: tuple[int, int, int]) -> None:
    assert version_of(text) == version


caches = st.builds(
    lambda name, tensor, pipeline, kind, dtype, version, tokens: kv_cache(
        cards()[name],
        Layout(tensor=tensor, pipeline=pipeline),
        kind=kind,
        kv_dtype=dtype,
        version=version,
        max_num_batched_tokens=tokens,
    ),
    st.sampled_from(NAMES),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["vllm", "sglang"]),
    st.sampled_from([None, "fp8", "bfloat16"]),
    st.sampled_from(["0.10.0", "0.20.0", "0.21.0", "0.33.0"]),
    st.sampled_from([512, 2048, 16384]),
)


@settings(max_examples=150, deadline=None)
@given(caches, st.integers(0, 64 * GIB), st.integers(1, 262_144))
def test_the_longest_context_that_fits_fits_and_one_more_does_not(c: KvCache, size: int, limit: int) -> None:
    best = c.largest_context(size, limit)
    if not c.known:
        assert best == 0
        return
    if best:
        assert (c.bytes_needed(best) or 0) <= size
        assert (c.max_concurrency(size, best) or 0) >= 1
    if best < limit:
        assert (c.bytes_needed(best + 1) or 0) > size


@settings(max_examples=100, deadline=None)
@given(caches, st.integers(0, 32 * GIB), st.integers(1, 131_072))
def test_more_memory_never_means_fewer_tokens(c: KvCache, size: int, length: int) -> None:
    if c.known:
        assert (c.tokens(size * 2, length) or 0) >= (c.tokens(size, length) or 0)
        assert c.request_blocks(length + 1) >= c.request_blocks(length)
