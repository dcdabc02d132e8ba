"""How fast a layout is: a roofline with stated efficiencies, to rank layouts and explain them.

A decode step reads the weights that its tokens touch and the KV of its sequences, or computes, whichever
takes longer; to that come a fixed time a layer, the all-reduces of tensor parallelism, the exchange of expert
parallelism and the hops of a pipeline. Prefill computes. While requests come and go each decode step also
carries its share of their prefill. Efficiencies and the error band: `latency.yaml`, fitted to published runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from orchestrator.machine.gpu_facts import GpuFacts, facts
from orchestrator.model_card.card import ModelCard
from orchestrator.planning.paged.layout import Layout

Bound = Literal["memory", "compute", "links", "overhead"]

_FITTED = frozenset({"ampere", "hopper", "blackwell", "cdna3"})

_BYTES_PER_MS = 1e6
"""Of one GB/s."""

_OPERATIONS_PER_MS = 1e9
"""Of one TFLOPS."""

_STEP_TOKENS = 64
"""A batch that is chosen is a multiple of this, as recorded graphs and tiles are."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds and tokens a second at so many requests at once, all copies together.

    `tpot_ms` counts the prefill of others that runs meanwhile; `itl_stall_ms` is the longest gap, a step with
    a full chunk of prefill. A published figure lies between `low` and `high` times the estimate. `bound_by`
    is the largest part of a decode step; `basis` says what the estimate rests on. `speedup` is how many times
    faster tokens come than without speculation.
    """

    ttft_ms: float
    tpot_ms: float
    itl_stall_ms: float
    output_tokens_per_s: float
    low: float
    high: float
    bound_by: Bound
    basis: str
    speedup: float = 1.0


def why_unknown(layout: Layout) -> str | None:
    """Why there is no estimate for this layout, None where there is one."""
    if not layout.devices:
        return "how fast this CPU reads memory is not known"
    gpu = layout.devices[0]
    return None if facts(gpu) is not None else f"no figures are known of {gpu.name}"


def estimate(
    card: ModelCard,
    layout: Layout,
    *,
    weights_per_gpu: int,
    kv_bytes_per_token_per_gpu: float,
    input_tokens: int,
    output_tokens: int,
    concurrency: int,
    max_num_batched_tokens: int,
    kind: str,
    longest_part: int = 0,
    cuda_graph: bool = True,
    speculative: Any = None,
    active_weight_bytes_per_gpu: int | None = None,
    node_link_gbps: float | None = None,
) -> Estimate | None:
    """The speed of a layout, None where nothing is known of its device (`why_unknown` says so).

    `weights_per_gpu` in bytes; `active_weight_bytes_per_gpu` those that one token touches, from the card
    where it is not given. `concurrency` counts requests over all copies; `longest_part` are the tokens of one
    prompt in a step while others run, 0 for all of them. `speculative` is the lever's value.
    """
    s = _step(
        card,
        layout,
        weights_per_gpu,
        kv_bytes_per_token_per_gpu,
        cuda_graph,
        active_weight_bytes_per_gpu,
        node_link_gbps,
    )
    if s is None:
        return None
    copy = max(1.0, concurrency / layout.data)
    context = input_tokens + output_tokens / 2
    reading, computing, links, fixed = s.decode(copy, context)
    step = max(reading, computing) + links + fixed
    chunk = max(1, min(input_tokens, max_num_batched_tokens))
    if longest_part and copy > 1:
        chunk = min(chunk, longest_part)
    chunks = max(1, -(-input_tokens // chunk))
    work = s.prefill_ms(input_tokens, input_tokens)
    # a prompt's chunks run one after another through the stages of a pipeline
    alone = max(work, chunks * s.read_ms(chunk)) * (chunks + layout.pipeline - 1) / (chunks * layout.pipeline)
    alone += chunks * fixed
    # SGLang runs prefill in steps of its own, vLLM lets it ride on decode steps
    beside = max(work, chunks * s.read_ms(chunk)) + chunks * fixed if kind == "sglang" else work
    beside = beside * (copy - 1) / max(1, output_tokens) / layout.pipeline
    tpot = (step + beside) / gain(speculative, copy)
    agreed = _agreed(speculative)
    if agreed is not None:
        made, checked, passes = agreed
        reading_all, computing_all, links_all, _ = s.decode(copy, context, checked)
        # a prediction layer is one more for each pass
        checking = (max(reading_all, computing_all) + links_all + fixed) * (1 + passes / card.layers)
        tpot = checking / made + beside
    busy = min(0.9, beside / (step + beside))
    ttft = alone + (step if copy > 1 else 0) + alone * min(busy / (1 - busy), copy) / 2
    stall = step + s.prefill_ms(max(0, max_num_batched_tokens - int(copy)), context)
    band = s.band
    whole_ms = ttft + tpot * max(1, output_tokens - 1)
    parts: dict[Bound, float] = {"memory": reading, "compute": computing, "links": links, "overhead": fixed}
    return Estimate(
        ttft_ms=ttft,
        tpot_ms=tpot,
        itl_stall_ms=stall,
        output_tokens_per_s=concurrency * output_tokens / whole_ms * 1e3,
        low=1 / band,
        high=band,
        bound_by=max(parts, key=lambda p: parts[p]),
        basis=f"roofline of {s.source}, good to a factor of {band:g}",
        speedup=(step + beside) / tpot,
    )


def batch_tokens_for_itl(
    card: ModelCard,
    layout: Layout,
    *,
    weights_per_gpu: int,
    kv_bytes_per_token_per_gpu: float,
    input_tokens: int,
    output_tokens: int,
    concurrency: int,
    itl_ms: float,
    cuda_graph: bool = True,
    active_weight_bytes_per_gpu: int | None = None,
    node_link_gbps: float | None = None,
) -> int | None:
    """The most tokens in one scheduler step that keep its time below `itl_ms`, in whole 64s; the inverse of
    `itl_stall_ms`.

    0 where a step without any prefill is longer already; None where the device is not known.
    """
    s = _step(
        card,
        layout,
        weights_per_gpu,
        kv_bytes_per_token_per_gpu,
        cuda_graph,
        active_weight_bytes_per_gpu,
        node_link_gbps,
    )
    if s is None:
        return None
    copy = max(1.0, concurrency / layout.data)
    context = input_tokens + output_tokens / 2
    reading, computing, links, fixed = s.decode(copy, context)
    room = itl_ms - (max(reading, computing) + links + fixed)
    if room <= 0:
        return 0
    tokens = room / s.prefill_ms(1024, context) * 1024 + int(copy)
    return int(tokens) // _STEP_TOKENS * _STEP_TOKENS


def gain(speculative: Any, concurrency: float) -> float:
    """How many times faster a request's tokens come with a speculative method at so many requests a copy.

    1 without one, or with a method that no published figure is known of.
    """
    method = speculative.get("method") if isinstance(speculative, Mapping) else speculative
    points = _table()["speculation"].get(method)
    if not points:
        return 1.0
    at = math.log2(max(1.0, concurrency))
    known = [(math.log2(c), value) for c, value in points.items()]
    for (low, first), (high, second) in pairwise(known):
        if at <= high:
            return float(first + (second - first) * (at - low) / (high - low))
    return float(known[-1][1])


def acceptance(speculative: Any) -> float | None:
    """The share of a method's guesses that the model agrees with, None where only its gain is known."""
    method = speculative.get("method") if isinstance(speculative, Mapping) else speculative
    rate: float | None = _table()["acceptance"].get(method)
    return rate


def _agreed(speculative: Any) -> tuple[float, int, int] | None:
    """Tokens that a step makes on average, tokens that it computes of a sequence, and passes of the draft."""
    rate = acceptance(speculative)
    if rate is None or not isinstance(speculative, Mapping):
        return None
    guesses = int(speculative.get("num_tokens") or 1)
    # SGLang counts the token that is sure among those that are checked
    passes = int(speculative.get("num_steps") or guesses)
    checked = guesses if "num_steps" in speculative else guesses + 1
    return sum(rate**i for i in range(passes + 1)), checked, passes


@dataclass(frozen=True, slots=True)
class _Step:
    """One copy's step on its devices, times in milliseconds. `touched` bytes are read by every token,
    `routed` are all the expert weights of a device, of which a token reads `share`. `flops` are a token's
    operations on one device; `attention_flops` those for each token of its context."""

    touched: float
    routed: float
    share: float
    kv: float
    flops: float
    attention_flops: float
    bandwidth: float
    kv_bandwidth: float
    rate: float
    fixed: float
    reduce_ms: float
    reduce_token_ms: float
    stages: int
    attention_ranks: int
    band: float
    source: str

    def read_ms(self, tokens: float) -> float:
        """Reading the weights that so many tokens touch, over all stages."""
        routed = self.routed * (1 - (1 - self.share) ** tokens) if self.routed else 0.0
        return (self.touched + routed) / self.bandwidth * self.stages

    def decode(self, sequences: float, context: float, each: int = 1) -> tuple[float, float, float, float]:
        """Milliseconds of reading, computing, links and fixed work, until each sequence has one more token;
        with `each` above 1 that many are computed for it.

        A pipeline's stages work on a part of the sequences each, one after another for any one of them.
        """
        batch = max(1.0, sequences / self.stages)
        own = max(1.0, batch / self.attention_ranks)
        reading = self.read_ms(batch * each) + own * context * self.kv / self.kv_bandwidth * self.stages
        computing = batch * each * (self.flops + self.attention_flops * context) / self.rate * self.stages
        return reading, computing, self.reduce_ms + self.reduce_token_ms * batch * each, self.fixed

    def prefill_ms(self, tokens: float, context: float) -> float:
        """Computing and sending so many tokens of prompts that reach up to `context`."""
        # attention sees half of what is behind a prompt's end, on average
        flops = tokens * (self.flops + self.attention_flops * context / 2)
        return flops / self.rate * self.stages + self.reduce_token_ms * tokens


def _step(
    card: ModelCard,
    layout: Layout,
    weights: int,
    kv: float,
    graphs: bool,
    active: int | None,
    node_link_gbps: float | None,
) -> _Step | None:
    gpu = facts(layout.devices[0]) if layout.devices else None
    if gpu is None:
        return None
    t = _table()
    routed, share, dense_layers, expert_layers = _experts(card, layout, weights)
    kind = "experts" if expert_layers else "dense"
    if active is not None and expert_layers and share < 1:
        routed = max(0.0, (weights - active) / (1 - share))
    amd = gpu.compute_capability is None
    fixed = (dense_layers * t["overhead_us"]["dense"] + expert_layers * t["overhead_us"]["experts"]) / 1e3
    fixed *= (t["overhead_us"]["amd"] if amd else 1) * (1 if graphs else t["overhead_us"]["eager"])
    reduce_ms, token_ms = _links(card, layout, gpu, node_link_gbps, expert_layers)
    ranks = layout.tensor * layout.attention_data
    flops, attention = _flops(card)
    fitted = gpu.generation in _FITTED and layout.pipeline == 1 and layout.nodes == 1
    return _Step(
        touched=weights - routed,
        routed=routed,
        share=share,
        kv=kv,
        flops=flops / (ranks * layout.pipeline),
        attention_flops=attention / (ranks * layout.pipeline),
        bandwidth=gpu.bandwidth_gbps * t["bandwidth"][kind] * _BYTES_PER_MS,
        kv_bandwidth=gpu.bandwidth_gbps * t["bandwidth"]["kv"] * _BYTES_PER_MS,
        rate=_rate(card, gpu, kind) * _OPERATIONS_PER_MS,
        fixed=fixed + t["step_us"] / 1e3,
        reduce_ms=reduce_ms,
        reduce_token_ms=token_ms,
        stages=layout.pipeline,
        attention_ranks=layout.attention_data,
        band=t["band"][kind] if fitted else t["band"]["unfitted"],
        source=gpu.source,
    )


def _experts(card: ModelCard, layout: Layout, weights: int) -> tuple[float, float, int, int]:
    """(bytes of routed experts on one device, share of them that a token visits, dense and expert layers)."""
    if not card.experts or not card.experts_per_token:
        return 0.0, 1.0, card.layers, 0
    layers = sum(card.expert_layers) if card.expert_layers is not None else card.layers
    share = card.experts_per_token / card.experts
    ranks = layout.tensor * layout.attention_data * layout.pipeline
    stored = card.weight_groups.get("experts", 0)
    if not stored:
        size = _expert_parameters(card, layers)
        stored = int(card.weights_bytes * (size / card.parameters if card.parameters else 0.9))
    return min(stored / ranks, weights * 0.99), share, card.layers - layers, layers


def _expert_parameters(card: ModelCard, layers: int) -> int:
    return (card.experts or 0) * 3 * card.hidden_size * (card.moe_intermediate_size or 0) * layers


def _flops(card: ModelCard) -> tuple[float, float]:
    """Operations of the whole model for one token, and those for each token of its context.

    Twice the weights that a token passes; attention multiplies query by key and score by value in each layer
    that keeps every token.
    """
    parameters = float(card.parameters or card.weights_bytes / _bytes_per_weight(card))
    if card.experts and card.experts_per_token:
        layers = sum(card.expert_layers) if card.expert_layers is not None else card.layers
        routed = min(_expert_parameters(card, layers) or 0.9 * parameters, 0.99 * parameters)
        parameters -= routed * (1 - card.experts_per_token / card.experts)
    if not card.tied_embeddings:
        parameters = max(parameters / 2, parameters - card.vocab_size * card.hidden_size)
    full = card.layers - (card.hybrid.layers if card.hybrid is not None else 0)
    if card.sliding_layers is not None:
        full = max(0, full - sum(card.sliding_layers))
    return 2 * parameters, 4.0 * full * card.heads * card.head_dim


def _bytes_per_weight(card: ModelCard) -> float:
    name = card.quantization or ""
    if any(q in name for q in ("int4", "nvfp4", "mxfp4", "nf4")):
        return 0.56
    return 1.0 if any(q in name for q in ("fp8", "int8")) else 2.0


def _rate(card: ModelCard, gpu: GpuFacts, kind: str) -> float:
    """TFLOPS reached in the format that the matrix units get; weights that are only unpacked: 16 bits."""
    name = card.quantization or ""
    share: dict[str, float] = _table()["compute"]
    if gpu.tflops_fp4 and any(q in name and q in gpu.native for q in ("nvfp4", "mxfp4")):
        return gpu.tflops_fp4 * min(share["fp4"], share[kind])
    rate = gpu.tflops_16
    if "fp8" in name and gpu.tflops_fp8:
        rate = gpu.tflops_fp8
    elif "int8" in name and "gptq" not in name and gpu.tflops_int8:
        rate = max(gpu.tflops_int8, rate)
    return rate * share[kind]


def _links(
    card: ModelCard, layout: Layout, gpu: GpuFacts, node_link_gbps: float | None, expert_layers: int
) -> tuple[float, float]:
    """(milliseconds a step, milliseconds a token) on links: all-reduces twice a layer of a tensor group, the
    exchange of experts' tokens, the hops of a pipeline."""
    t = _table()
    fixed = token = 0.0
    hidden = card.hidden_size * 2
    node = len(layout.devices) if layout.nodes > 1 else layout.world
    if layout.tensor > 1:
        kind = "network" if layout.tensor > node else layout.link or "unknown"
        gbps = _gbps(kind, gpu, node_link_gbps)
        fixed += 2 * card.layers * t["all_reduce_us"][kind] * max(1.0, math.log2(layout.tensor) / 2) / 1e3
        token += 2 * card.layers * 2 * (layout.tensor - 1) / layout.tensor * hidden / (gbps * _BYTES_PER_MS)
    if layout.attention_data > 1:
        across = layout.tensor * layout.attention_data
        kind = "network" if across > node else "nvlink" if gpu.link_gbps and not gpu.bridge else "pcie-host"
        gbps = _gbps(kind, gpu, node_link_gbps)
        copies = min(card.experts_per_token or 1, across - 1)
        fixed += 2 * expert_layers * t["all_reduce_us"][kind] * 2 / 1e3
        # a rank sends its tokens in 8 bits and gets them back in 16
        token += expert_layers * 1.5 * hidden * copies / layout.attention_data / (gbps * _BYTES_PER_MS)
    if layout.pipeline > 1:
        kind = "network" if layout.nodes > 1 else "nvlink" if layout.link == "nvlink" else "pcie-host"
        gbps = _gbps(kind, gpu, node_link_gbps)
        fixed += layout.pipeline * t["all_reduce_us"][kind] / 1e3
        token += (layout.pipeline - 1) * hidden / (gbps * _BYTES_PER_MS)
    return fixed, token


def _gbps(kind: str, gpu: GpuFacts, node_link_gbps: float | None) -> float:
    t = _table()
    share: float = t["link_share"][kind]
    if kind == "network":
        return (node_link_gbps or float(t["network_gbps"])) * share
    if kind == "nvlink":
        return (gpu.link_gbps or gpu.pcie_gbps) * share
    return gpu.pcie_gbps * share


@cache
def _table() -> dict[str, Any]:
    import yaml

    text = (Path(__file__).parent / "latency.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded
