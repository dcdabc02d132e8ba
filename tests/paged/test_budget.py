"""Where a device's memory goes, and the engines' own defaults for it."""

from __future__ import annotations

from typing import Any

import pytest
from launches import cards

from orchestrator.machine.machine import Gpu
from orchestrator.planning.paged.budget import (
    Budget,
    activation_bytes,
    budget,
    graph_bytes,
    non_torch_bytes,
    sglang_defaults,
    static_share,
    visible_bytes,
)
from orchestrator.planning.paged.kv_cache import kv_cache
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import GIB, MIB


def gpu(name: str = "NVIDIA H100 80GB HBM3", mib: int = 81559, **more: Any) -> Gpu:
    return Gpu(0, "GPU-0", name, mib * MIB, mib * MIB, **more)


def of(name: str = "Llama-3.1-8B", layout: Layout | None = None, **options: Any) -> Budget:
    return budget(cards()[name], layout or Layout(), options.pop("gpu", gpu()), **options)


@pytest.mark.parametrize(
    ("name", "mib", "shown_gib"),
    [
        # totals of public logs beside NVML's
        ("NVIDIA H100 80GB HBM3", 81559, 79.18),
        ("NVIDIA A100-SXM4-80GB", 81920, 79.25),
        ("NVIDIA GeForce RTX 3090", 24576, 23.58),
        ("NVIDIA L4", 23034, 22.05),
        ("NVIDIA B200", 183359, 178.4),
        ("NVIDIA L40S", 46068, 44.45),
    ],
)
def test_a_driver_shows_less_than_the_board_has(name: str, mib: int, shown_gib: float) -> None:
    assert visible_bytes(gpu(name, mib)) / GIB == pytest.approx(shown_gib, abs=0.1)


def test_a_slice_and_an_amd_card_show_what_they_have() -> None:
    assert visible_bytes(gpu("MIG 3g.40gb", 40448, mig=True)) == 40448 * MIB
    assert visible_bytes(gpu("AMD Instinct MI300X", 196592, vendor="amd")) == 196592 * MIB


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("version", ["0.11.0", "0.33.0"])
def test_parts_add_up_to_what_is_asked_for(kind: Any, version: str) -> None:
    b = of(kind=kind, version=version, utilization=0.9)
    inside = b.weights + b.non_torch + b.draft + b.margin + b.kv
    if kind == "vllm":
        inside += b.activation + (b.graphs if version == "0.33.0" else 0)
    assert inside == b.requested
    assert b.requested == -(-int(b.total * 0.9 * 1000) // 1000) or abs(b.requested - b.total * 0.9) <= 1


def test_graphs_come_on_top_before_0_21_and_inside_since() -> None:
    before, after = of(version="0.20.2"), of(version="0.21.0")
    assert (before.outside, after.outside) == (before.graphs, 0)
    assert before.graphs == after.graphs > 0
    assert not of(version="0.11.0", utilization=0.998).fits
    assert of(version="0.11.0", cuda_graph_max=0, utilization=0.998).fits


@pytest.mark.parametrize(
    ("name", "peak_gib"),
    [
        # logged by 0.11 servers on an H100: 8,192 tokens, 1,024 sequences
        ("gpt-oss-20b", 7.38),
        ("Llama-3.3-70B-FP8", 4.84),
        ("Llama-3.1-8B", 4.76),
        ("Qwen3-0.6B", 5.56),
        ("Qwen3-32B", 5.64),
    ],
)
def test_activation_is_the_samplers_pass_at_many_sequences(name: str, peak_gib: float) -> None:
    found = activation_bytes(cards()[name], version="0.11.0", max_num_batched_tokens=8192, max_num_seqs=1024)
    assert found / GIB == pytest.approx(peak_gib, rel=0.01)


def test_activation_is_the_forward_pass_at_few_sequences_and_grows_with_the_batch() -> None:
    card = cards()["Llama-3.1-8B"]
    small, large = (
        activation_bytes(card, version="0.33.0", max_num_batched_tokens=n, max_num_seqs=4)
        for n in (2048, 16384)
    )
    assert large == 8 * small


def test_sequences_beyond_the_batch_do_not_count() -> None:
    card = cards()["Llama-3.1-8B"]
    one, other = (
        activation_bytes(card, version="0.11.0", max_num_batched_tokens=64, max_num_seqs=n)
        for n in (64, 1024)
    )
    assert one == other


def test_what_is_not_torchs_grows_with_the_ranks() -> None:
    alone, two, eight = (non_torch_bytes(Layout(tensor=n)) / GIB for n in (1, 2, 8))
    # logged: 0.13 to 0.14 at one rank, 0.54 at two
    assert alone == pytest.approx(0.135, abs=0.01)
    assert two == pytest.approx(0.54, abs=0.02)
    assert eight > two
    assert non_torch_bytes(Layout(attention_data=8, expert=True)) / GIB == pytest.approx(eight)


def test_graphs_off_take_nothing() -> None:
    assert graph_bytes(None) == graph_bytes(0) == 0
    assert 0 < graph_bytes(8) < graph_bytes(512) < GIB


def test_a_draft_models_bytes_are_not_the_pools() -> None:
    assert of().kv - of(draft_bytes=GIB).kv == GIB


def test_a_cpu_counts_its_nodes_memory_and_a_worker() -> None:
    b = budget(cards()["Qwen3-0.6B"], Layout(), None, utilization=0.5, total_bytes=16 * GIB)
    assert b.requested == 8 * GIB
    assert b.kv == 8 * GIB - b.weights - b.non_torch
    assert (b.activation, b.graphs, b.outside) == (0, 0, 0)
    assert b.basis["non_torch"] == "margin"


def test_the_articles_example_leaves_next_to_nothing_at_full_context() -> None:
    # Qwen2.5-72B is Llama-70B's shape (80 layers, 8 KV heads of 128): bf16 on two cards of 80 GB
    card = cards()["Llama-3.1-70B"]
    two = Layout(tensor=2)
    b = budget(card, two, gpu("NVIDIA A100-SXM4-80GB", 81920), version="0.33.0", utilization=0.92)
    c = kv_cache(card, two, version="0.33.0")
    assert 0 < b.kv < (c.bytes_needed(131072) or 0)
    assert 1024 < c.largest_context(b.kv, 131072) < 65536


@pytest.mark.parametrize(
    ("layout", "options", "chunk", "graph", "fraction"),
    [
        # what SGLang 0.5.23 resolves for 81,559 MiB, prefill graphs off
        (Layout(), {}, 8192, 256, 0.835),
        (Layout(tensor=4), {}, 8192, 512, 0.824),
        (Layout(attention_data=8, expert=True), {}, 1024, 512, 0.592),
        (Layout(), {"max_running_requests": 48}, 8192, 48, 0.840),
    ],
)
def test_sglangs_own_defaults(
    layout: Layout, options: dict[str, Any], chunk: int, graph: int, fraction: float
) -> None:
    found = sglang_defaults(cards()["Llama-3.1-8B"], layout, 81559 * MIB, prefill_graphs=False, **options)
    assert (found.chunked_prefill_size, found.cuda_graph_max) == (chunk, graph)
    assert found.mem_fraction_static == pytest.approx(fraction, abs=0.0006)


def test_sglang_on_small_and_unknown_devices() -> None:
    card = cards()["Llama-3.1-8B"]
    assert sglang_defaults(card, Layout(), 15360 * MIB).chunked_prefill_size == 2048
    assert sglang_defaults(card, Layout(), 24564 * MIB).cuda_graph_max == 48
    assert sglang_defaults(card, Layout(tensor=4), 24564 * MIB).cuda_graph_max == 160
    assert sglang_defaults(card, Layout(), None).mem_fraction_static == 0.95
    # chunking off counts the largest prefill
    off = sglang_defaults(card, Layout(), 81559 * MIB, chunked_prefill_size=-1)
    assert off.mem_fraction_static < sglang_defaults(card, Layout(), 81559 * MIB).mem_fraction_static


def test_a_small_reserve_is_raised_to_sglangs_floor() -> None:
    found = sglang_defaults(cards()["Llama-3.1-8B"], Layout(), 81559 * MIB, chunked_prefill_size=2048)
    assert found.mem_fraction_static == round((81559 - 10240) / 81559, 3)


def held(free_gib: float) -> Gpu:
    """An H100 of which others hold all but so much."""
    g = gpu()
    return Gpu(0, g.uuid, g.name, g.memory_bytes, int(free_gib * GIB))


def share_of(card: str, on: Gpu, layout: Layout | None = None, **options: Any) -> float:
    how = {
        "version": "0.5.23",
        "free_bytes": on.free_bytes,
        "utilization": 0.9,
        "max_num_batched_tokens": 2048,
        "cuda_graph_max": 16,
    } | options
    return static_share(cards()[card], layout or Layout(), on, **how)


def test_sglangs_share_is_one_of_what_is_free() -> None:
    on = held(29.3)
    share = share_of("Llama-3.1-8B", on, utilization=0.36)
    b = of(kind="sglang", gpu=on, utilization=share, free_bytes=on.free_bytes, max_num_batched_tokens=2048)
    assert b.requested == pytest.approx(on.free_bytes * share, abs=1)
    # what the engine computes itself after loading: free after - free before x (1 - fraction)
    loaded = on.free_bytes - b.weights
    assert loaded - on.free_bytes * (1 - share) == pytest.approx(b.kv + b.non_torch + b.margin, abs=2)
    assert b.fits


def test_sglangs_deployment_holds_no_more_than_its_share_of_the_total() -> None:
    for free, whole in ((79.0, 0.9), (79.0, 0.5), (29.3, 0.9), (29.3, 0.3)):
        on = held(free)
        share = share_of("Llama-3.1-8B", on, utilization=whole, own_reserve=False)
        b = of(
            kind="sglang", gpu=on, utilization=share, free_bytes=on.free_bytes,
            max_num_batched_tokens=2048, cuda_graph_max=16,
        )  # fmt: skip
        limit = min(b.total * whole, on.free_bytes)
        assert b.requested + b.outside <= limit + 1
        # and leaves no more of it unused than a thousandth
        assert b.requested + b.outside >= limit - on.free_bytes / 1000 - 2


@pytest.mark.parametrize(("graph", "share"), [(512, 0.59), (64, 0.81)])
def test_sglangs_reserve_for_attention_ranks_follows_the_graphs_that_are_taken(
    graph: int, share: float
) -> None:
    # 0.592 is what 0.5.23 resolves for 81,559 MiB, eight attention ranks and its own 512 graphs
    eight = Layout(attention_data=8, expert=True)
    found = share_of(
        "DeepSeek-V3", held(79.18), eight, utilization=1.0, max_num_batched_tokens=1024, cuda_graph_max=graph
    )
    assert found == pytest.approx(share, abs=0.03)


def test_vllm_cannot_ask_for_more_than_is_free() -> None:
    assert of(utilization=0.9).fits
    assert not of(utilization=0.9, gpu=held(40), free_bytes=40 * GIB).fits
    assert of(utilization=0.5, gpu=held(40), free_bytes=40 * GIB).fits


def test_experts_keep_memory_for_the_tokens_of_all_ranks() -> None:
    hopper = gpu("NVIDIA H200", 143771, compute_capability="9.0")
    card, tokens = cards()["DeepSeek-V3"], 8192

    def gathered(layout: Layout, on: Gpu = hopper, version: str = "0.32.0") -> int:
        return budget(card, layout, on, version=version, max_num_batched_tokens=tokens).gathered

    alone, spread = Layout(tensor=8, expert=True), Layout(attention_data=8, expert=True)
    assert gathered(alone) == 0
    # of seven other ranks: DeepGEMM's workspaces (3 bytes for each of 8 experts), and the rows themselves
    rows = 7 * tokens
    assert gathered(spread) == rows * card.hidden_size * (8 * 3 + 4)
    # other kernels hold 16 bits in both
    ampere = gpu("NVIDIA A100-SXM4-80GB", 81920, compute_capability="8.0")
    assert gathered(spread, ampere) == rows * card.hidden_size * (8 * 4 + 4)
    # versions that went through them in parts
    assert gathered(spread, version="0.16.0") < gathered(spread)
    assert gathered(Layout(tensor=2, attention_data=4, expert=True)) == 3 * tokens * card.hidden_size * 28
    one, many = (budget(card, x, hopper, version="0.32.0") for x in (alone, spread))
    assert many.activation == one.activation + many.gathered
    assert many.basis["activation"] == "margin"
    sglang = budget(card, spread, hopper, kind="sglang", version="0.5.23", max_num_batched_tokens=tokens)
    assert sglang.outside >= sglang.gathered == gathered(spread)
