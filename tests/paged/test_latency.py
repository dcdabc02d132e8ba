"""The roofline against published runs, and its behaviour where nothing was published.

`published_speeds.jsonl`: facts of models, runs with their source, and runs left out with the reason.
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machine import Gpu
from orchestrator.machine.machine import LinkKind
from orchestrator.model_card.card import HybridState, ModelCard
from orchestrator.planning.paged.latency import Estimate, batch_tokens_for_itl, estimate, gain, why_unknown
from orchestrator.planning.paged.layout import Layout

GIB = 2**30
LINES = [
    json.loads(line) for line in (Path(__file__).parent / "published_speeds.jsonl").read_text().splitlines()
]
MODELS = {line["model"]: line["facts"] for line in LINES if "facts" in line}
RUNS = {line["id"]: line for line in LINES if "id" in line}
FIGURES = [(i, f) for i, run in RUNS.items() for f in ("tpot_ms", "ttft_ms", "output_tok_s") if f in run]


def card(name: str) -> ModelCard:
    facts = dict(MODELS[name])
    dense, linear, mla = facts.pop("dense_layers", 0), facts.pop("linear_layers", 0), facts.pop("mla", 0)
    layers = facts["layers"]
    if facts.get("experts"):
        facts["expert_layers"] = tuple(i >= dense for i in range(layers))
    if linear:
        facts["hybrid"] = HybridState(layers=linear, state_bytes_per_layer=None)
    if mla:
        facts |= {"mla_kv_lora_rank": mla - 64, "mla_qk_rope_head_dim": 64}
    facts |= {
        "source": name,
        "name": name,
        "path": None,
        "format": "config",
        "architecture": "x",
        "context_length": 1 << 18,
    }
    return ModelCard(**facts)


def gpus(name: str, count: int = 1) -> tuple[Gpu, ...]:
    amd = name.startswith("AMD")
    return tuple(
        Gpu(i, f"GPU-{i}", name, 80 * GIB, 80 * GIB, vendor="amd" if amd else "nvidia") for i in range(count)
    )


def kv_bytes(c: ModelCard, layout: Layout) -> float:
    if c.mla_kv_lora_rank is not None:
        return c.layers * (c.mla_kv_lora_rank + 64) * 2
    full = c.layers - (c.hybrid.layers if c.hybrid is not None else 0)
    return 2 * full / layout.pipeline * max(1, c.kv_heads // layout.tensor) * c.head_dim * 2


def speed(c: ModelCard, layout: Layout, **changes: Any) -> Estimate:
    share = c.weights_bytes // (layout.tensor * layout.pipeline * layout.attention_data)
    arguments: dict[str, Any] = {
        "weights_per_gpu": share,
        "kv_bytes_per_token_per_gpu": kv_bytes(c, layout),
        "input_tokens": 1024,
        "output_tokens": 256,
        "concurrency": 1,
        "max_num_batched_tokens": 8192,
        "kind": "vllm",
    }
    found = estimate(c, layout, **arguments | changes)
    assert found is not None
    return found


def of_run(run: dict[str, Any]) -> Estimate:
    layout = Layout(
        tensor=run["tensor"],
        expert=run.get("expert", False),
        devices=gpus(run["gpu"], run["tensor"]),
        link=run["link"],
    )
    return speed(
        card(run["model"]),
        layout,
        input_tokens=run["input_tokens"],
        output_tokens=run["output_tokens"],
        concurrency=run["concurrency"],
        kind=run["engine"],
        speculative={"method": run["speculative"]} if "speculative" in run else None,
    )


def ratio(run: dict[str, Any], figure: str) -> float:
    """Published over estimated."""
    e = of_run(run)
    return (
        float(run[figure])
        / {"tpot_ms": e.tpot_ms, "ttft_ms": e.ttft_ms, "output_tok_s": e.output_tokens_per_s}[figure]
    )


@pytest.mark.parametrize(("name", "figure"), FIGURES, ids=lambda v: str(v))
def test_a_published_figure_lies_inside_the_band(name: str, figure: str) -> None:
    e = of_run(RUNS[name])
    assert e.low <= ratio(RUNS[name], figure) <= e.high


def test_the_error_over_all_published_figures_is_small_on_average() -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    for name, figure in FIGURES:
        errors[figure].append(math.log(ratio(RUNS[name], figure)))
    for figure, logs in sorted(errors.items()):
        middle, spread = math.exp(statistics.mean(logs)), math.exp(statistics.pstdev(logs))
        sys.stdout.write(
            f"{figure}: {len(logs)} published / estimated: {middle:.2f} on average, x/÷ {spread:.2f}\n"
        )
        assert 0.8 < middle < 1.25
        assert spread < 1.3
    near = [abs(e) < math.log(1.25) for logs in errors.values() for e in logs]
    assert sum(near) / len(near) > 0.7


def test_what_was_left_out_says_why() -> None:
    left = [line for line in LINES if "left_out" in line]
    assert left
    assert all(line["why"] for line in left)
    assert len(left) + len(RUNS) + len(MODELS) == len(LINES)


LLAMA = card("Llama-3.1-8B")
H100 = "NVIDIA H100 80GB HBM3"


def on(name: str, link: LinkKind | None = "nvlink", **sizes: Any) -> Layout:
    layout = Layout(**sizes)
    return replace(layout, devices=gpus(name, layout.world), link=link if layout.tensor > 1 else None)


def test_two_cards_on_nvlink_answer_one_request_sooner_but_not_twice_as_soon() -> None:
    one, two = speed(LLAMA, on(H100)), speed(LLAMA, on(H100, tensor=2))
    assert 1.2 < one.tpot_ms / two.tpot_ms < 2


def test_without_peer_access_two_cards_lose_to_one_at_high_concurrency() -> None:
    qwen, a100 = card("Qwen2-7B-Instruct"), "NVIDIA A100-SXM4-80GB"
    load = {"concurrency": 100, "input_tokens": 1024, "output_tokens": 1024}
    assert speed(qwen, on(a100, tensor=2)).tpot_ms < speed(qwen, on(a100)).tpot_ms
    assert (
        speed(qwen, on(a100, "pcie-host", tensor=2), **load).tpot_ms > speed(qwen, on(a100), **load).tpot_ms
    )
    assert speed(qwen, on(a100, tensor=2), **load).tpot_ms < speed(qwen, on(a100), **load).tpot_ms


def test_a_worse_link_is_never_faster() -> None:
    kinds: tuple[LinkKind, ...] = ("nvlink", "pcie-switch", "pcie-host", "cross-socket")
    speeds = [speed(LLAMA, on(H100, kind, tensor=4), concurrency=32) for kind in kinds]
    assert [e.tpot_ms for e in speeds] == sorted(e.tpot_ms for e in speeds)
    assert [e.ttft_ms for e in speeds] == sorted(e.ttft_ms for e in speeds)


def test_two_nodes_are_slower_than_one_and_a_fast_network_helps() -> None:
    two = replace(on(H100, None, tensor=16), devices=gpus(H100, 8), nodes=2)
    slow, fast = speed(LLAMA, two, concurrency=16), speed(LLAMA, two, concurrency=16, node_link_gbps=400)
    assert speed(LLAMA, on(H100, tensor=8), concurrency=16).tpot_ms < fast.tpot_ms < slow.tpot_ms


def test_copies_give_their_number_of_tokens() -> None:
    one, four = speed(LLAMA, on(H100), concurrency=32), speed(LLAMA, on(H100, data=4), concurrency=128)
    assert four.output_tokens_per_s == pytest.approx(4 * one.output_tokens_per_s)
    assert four.tpot_ms == pytest.approx(one.tpot_ms)


def test_copies_beat_sharing_in_tokens_and_lose_in_latency() -> None:
    copies, sharing = on(H100, data=8), on(H100, tensor=8)
    assert speed(LLAMA, sharing).tpot_ms < speed(LLAMA, copies).tpot_ms
    full = {"concurrency": 2048}
    assert (
        speed(LLAMA, copies, **full).output_tokens_per_s > speed(LLAMA, sharing, **full).output_tokens_per_s
    )


def test_a_pipeline_gives_one_request_nothing() -> None:
    assert speed(LLAMA, on(H100, pipeline=4)).tpot_ms >= speed(LLAMA, on(H100)).tpot_ms * 0.99
    many = {"concurrency": 256}
    assert (
        speed(LLAMA, on(H100, pipeline=4), **many).output_tokens_per_s
        > speed(LLAMA, on(H100), **many).output_tokens_per_s
    )


def test_attention_copies_leave_each_rank_less_kv_to_read() -> None:
    deepseek = card("DeepSeek-V3.1")
    load = {"concurrency": 512, "input_tokens": 65536, "output_tokens": 8192}
    shared = speed(deepseek, on("NVIDIA H200", tensor=8), **load)
    spread = speed(deepseek, on("NVIDIA H200", attention_data=8, expert=True), **load)
    # latent attention keeps all of its KV on every tensor rank
    assert spread.tpot_ms < shared.tpot_ms / 2


def test_few_requests_touch_few_experts() -> None:
    layout = on("NVIDIA H200", tensor=8)
    deepseek = card("DeepSeek-V3.1")
    one, many = speed(deepseek, layout), speed(deepseek, layout, concurrency=64, output_tokens=8192)
    whole = deepseek.weights_bytes / 8 / (4800 * 1e6 * 0.5)
    assert one.tpot_ms < whole
    assert many.tpot_ms > 0.8 * whole


def test_recorded_graphs_help_most_where_steps_are_short() -> None:
    def lost(concurrency: int) -> float:
        off = speed(LLAMA, on(H100), concurrency=concurrency, cuda_graph=False)
        return off.tpot_ms / speed(LLAMA, on(H100), concurrency=concurrency).tpot_ms

    assert lost(1) > 1.3
    assert 1 < lost(512) < lost(1)


@pytest.mark.parametrize("itl", [20.0, 50.0, 100.0, 300.0])
@pytest.mark.parametrize("shape", [Layout(), Layout(tensor=2), Layout(data=2)])
def test_the_batch_for_an_itl_is_the_largest_that_keeps_it(itl: float, shape: Layout) -> None:
    layout = on(H100, tensor=shape.tensor, data=shape.data)
    shared: dict[str, Any] = {
        "weights_per_gpu": LLAMA.weights_bytes // layout.tensor,
        "kv_bytes_per_token_per_gpu": kv_bytes(LLAMA, layout),
        "input_tokens": 2048,
        "output_tokens": 512,
        "concurrency": 32,
    }
    tokens = batch_tokens_for_itl(LLAMA, layout, itl_ms=itl, **shared)
    assert tokens
    assert tokens % 64 == 0
    stalls = [
        speed(LLAMA, layout, max_num_batched_tokens=t, **shared).itl_stall_ms for t in (tokens, tokens + 64)
    ]
    assert stalls[0] <= itl < stalls[1]


def test_an_itl_below_a_bare_step_leaves_no_batch() -> None:
    layout = on("NVIDIA L4")
    tokens = batch_tokens_for_itl(
        LLAMA,
        layout,
        weights_per_gpu=LLAMA.weights_bytes,
        kv_bytes_per_token_per_gpu=kv_bytes(LLAMA, layout),
        input_tokens=100,
        output_tokens=100,
        concurrency=1,
        itl_ms=20,
    )
    assert tokens == 0


def test_an_unknown_device_has_no_estimate_but_a_reason() -> None:
    arguments: dict[str, Any] = {
        "weights_per_gpu": 1,
        "kv_bytes_per_token_per_gpu": 1.0,
        "input_tokens": 1,
        "output_tokens": 1,
        "concurrency": 1,
    }
    for layout, why in ((on("test card"), "no figures are known of test card"), (Layout(), "CPU")):
        assert estimate(LLAMA, layout, max_num_batched_tokens=1, kind="vllm", **arguments) is None
        assert batch_tokens_for_itl(LLAMA, layout, itl_ms=1, **arguments) is None
        assert why in (why_unknown(layout) or "")
    assert why_unknown(on(H100)) is None


def test_a_card_of_a_generation_without_published_runs_has_a_wider_band() -> None:
    known, guessed = speed(LLAMA, on(H100)), speed(LLAMA, on("NVIDIA L4"))
    assert guessed.high > known.high
    assert guessed.low * guessed.high == pytest.approx(1)
    assert f"factor of {guessed.high:g}" in guessed.basis


def test_fp8_weights_compute_faster_where_the_silicon_has_fp8() -> None:
    eight = replace(LLAMA, quantization="fp8")
    long = {"input_tokens": 16384, "weights_per_gpu": LLAMA.weights_bytes // 2}
    assert speed(eight, on(H100), **long).ttft_ms < 0.7 * speed(LLAMA, on(H100), **long).ttft_ms
    a100 = on("NVIDIA A100-SXM4-80GB")
    assert speed(eight, a100, **long).ttft_ms == pytest.approx(speed(LLAMA, a100, **long).ttft_ms)


def test_speculation_pays_alone_and_costs_in_a_crowd() -> None:
    for method in ("eagle3", "draft_model", "ngram"):
        gains = [gain({"method": method}, c) for c in (1, 4, 16, 64, 256, 1024)]
        assert gains == sorted(gains, reverse=True)
        assert gains[0] > 1.3
        assert gains[-1] < 1
    assert gain({"method": "eagle3"}, 1) == 2.0
    assert 1.7 < gain({"method": "eagle3"}, 4) < 2.0
    assert gain("off", 1) == gain(None, 1) == gain({"method": "new"}, 1) == 1.0


def test_one_guess_gains_what_was_published_less_what_checking_costs() -> None:
    deepseek, eight = card("DeepSeek-V3.1"), on("NVIDIA H200", tensor=8)
    one = {"method": "mtp", "num_tokens": 1}
    gains = [speed(deepseek, eight, concurrency=n, speculative=one).speedup for n in (1, 4)]
    # 85 % of second tokens are right, and at four requests two tokens each touch far more experts than one
    assert 1.4 < gains[0] < 1.85
    assert 1.2 < gains[1] < gains[0]
    plain = speed(deepseek, eight, concurrency=4)
    assert plain.speedup == 1.0
    assert plain.tpot_ms > speed(deepseek, eight, concurrency=4, speculative=one).tpot_ms
    # SGLang counts the sure token among those that are checked: three passes, four tokens
    three = {"method": "mtp", "num_tokens": 4, "num_steps": 3, "topk": 1}
    same = speed(deepseek, eight, concurrency=1, speculative={"method": "mtp", "num_tokens": 3})
    assert speed(deepseek, eight, concurrency=1, speculative=three).tpot_ms == pytest.approx(same.tpot_ms)


@pytest.mark.parametrize("name", MODELS)
def test_every_figure_is_positive_and_finite_at_the_edges(name: str) -> None:
    c = card(name)
    for layout in (
        on(H100),
        on(H100, tensor=8),
        on(H100, tensor=2, pipeline=4),
        on(H100, tensor=2, attention_data=4),
    ):
        for changes in (
            {},
            {"input_tokens": 0},
            {"output_tokens": 1},
            {"concurrency": 4096},
            {"max_num_batched_tokens": 1},
        ):
            e = speed(c, layout, **changes)
            assert all(0 < v < 1e9 for v in (e.ttft_ms, e.tpot_ms, e.itl_stall_ms, e.output_tokens_per_s))
