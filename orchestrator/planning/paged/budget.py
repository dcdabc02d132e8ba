"""Where a device's memory goes, before launch: what is left for KV.

vLLM (vllm/v1/worker/utils.py and gpu_worker.py): KV = ceil(utilization x total) - weights - peak activation -
what is not PyTorch's - from 0.21 an estimate of CUDA graphs; before, graphs come on top. SGLang
(0.5.23 srt/arg_groups/memory_hook.py, mem_cache/kv_cache_configurator.py:2990): pool = free after loading -
free before x (1 - fraction), so weights and pool have that fraction of what was free; activation and graphs
live in the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from orchestrator.machine.machine import Gpu
from orchestrator.model_card.card import ModelCard
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import GIB, MIB, Kind, by_version, element_bytes, rules, since
from orchestrator.planning.paged.weights import Weights, weights_per_gpu

Basis = Literal["computed", "estimated", "fitted", "margin", "set", "default"]


_NEWEST = "999"

_ON_GPU: dict[str, Basis] = {
    "activation": "fitted",
    "non_torch": "fitted",
    "graphs": "fitted",
    "margin": "margin",
    "draft": "computed",
}
_ON_CPU: dict[str, Basis] = _ON_GPU | {
    "non_torch": "margin",
    "activation": "computed",
    "graphs": "computed",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes on the fullest device. `total` is what the driver shows, `free` what of it nobody holds before
    the start, `requested` the engine's share: vLLM's of the total, SGLang's static one of what is free;
    `kv` what is left for the pool, below 0 where nothing is. `margin` is kept back from `kv`. `basis` says
    by item how a figure was got. `gathered` is what of `activation` is kept for other ranks' tokens.
    `outside` is what comes on top of `requested` (graphs of vLLM before 0.21; activation and graphs of
    SGLang)."""

    total: int
    free: int
    requested: int
    weights: int
    activation: int
    non_torch: int
    graphs: int
    draft: int
    margin: int
    kv: int
    outside: int
    basis: Mapping[str, Basis]
    gathered: int = 0

    @property
    def fits(self) -> bool:
        """Whether anything is left for KV, and what comes on top has room."""
        return self.kv > 0 and self.requested + self.outside <= self.free


def visible_bytes(gpu: Gpu) -> int:
    """What CUDA shows of a device: less than NVML counts. A MIG slice shows what it has."""
    if gpu.vendor == "amd" or gpu.mig:
        return gpu.memory_bytes
    return max(0, gpu.memory_bytes - _hidden_bytes(gpu.name))


@lru_cache(maxsize=64)
def _hidden_bytes(device: str) -> int:
    table = rules()["visible"]
    name = device.lower()
    return int(next((v for k, v in table["by_name"].items() if k in name), table["default_gib"]) * GIB)


def budget(
    card: ModelCard,
    layout: Layout,
    gpu: Gpu | None,
    *,
    kind: Kind = "vllm",
    version: str | None = None,
    utilization: float = 0.9,
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    cuda_graph_max: int | None = 512,
    draft_bytes: int = 0,
    total_bytes: int | None = None,
    free_bytes: int | None = None,
    weights: Weights | None = None,
    mtp_loaded: bool = False,
    dtype: str | None = None,
) -> Budget:
    """The budget of the fullest device.

    `utilization` is a share of the whole device (SGLang: its mem-fraction-static, a share of what is free).
    `free_bytes` is what is free on the device with least of it, None for all. `cuda_graph_max` is the largest
    captured batch, 0 or None where graphs are off. `gpu` None is a CPU: `total_bytes` is then the memory of
    its node. `total_bytes` overrides what the device shows. `weights` where they are known already. `dtype`
    is what the model is loaded in. Where weights that are quantized while loading do not fit before they
    are, `kv` is what they lack.
    """
    total = total_bytes if total_bytes is not None else (visible_bytes(gpu) if gpu is not None else 0)
    held = weights or weights_per_gpu(
        card, layout, kind=kind, version=version, mtp_loaded=mtp_loaded, dtype=dtype
    )
    of_vllm = version if kind == "vllm" else None
    gathered = gathered_bytes(card, layout, gpu, of_vllm, max_num_batched_tokens, dtype)
    basis = _bases(held.basis, on_cpu=gpu is None, gathered=gathered > 0)
    free = total if free_bytes is None else min(total, free_bytes)
    requested = math.ceil((free if kind == "sglang" and gpu is not None else total) * utilization)
    if gpu is None:
        process = int(rules()["cpu"]["worker_gib"] * GIB)
        kv = _after_loading(requested - held.worst - process - draft_bytes, held, free - process)
        return Budget(total, free, requested, held.worst, 0, process, 0, draft_bytes, 0, kv, 0, basis)
    activation = activation_bytes(
        card,
        version=version,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        dtype=dtype,
        gathered=gathered,
    )
    other = non_torch_bytes(layout)
    graphs = graph_bytes(cuda_graph_max)
    margin = int(by_version(rules()["margin_gib"][kind], version) * GIB)
    if kind == "sglang":
        activation = forward_bytes(card, max_num_batched_tokens, dtype) + gathered
        outside = activation + graphs
        kv = _after_loading(requested - held.worst - other - draft_bytes - margin, held, free - other)
        return Budget(
            total,
            free,
            requested,
            held.worst,
            activation,
            other,
            graphs,
            draft_bytes,
            margin,
            kv,
            outside,
            basis,
            gathered,
        )
    inside = since(version, rules()["vllm"]["graphs_in_budget_from"])
    kv = requested - held.worst - activation - other - draft_bytes - margin - (graphs if inside else 0)
    kv = _after_loading(kv, held, free - other)
    return Budget(
        total,
        free,
        requested,
        held.worst,
        activation,
        other,
        graphs,
        draft_bytes,
        margin,
        kv,
        0 if inside else graphs,
        basis,
        gathered,
    )


@lru_cache(maxsize=16)
def _bases(weights: Basis, *, on_cpu: bool, gathered: bool) -> Mapping[str, Basis]:
    """How each figure was got; shared by all budgets alike."""
    out: dict[str, Basis] = {"weights": weights, **(_ON_CPU if on_cpu else _ON_GPU)}
    return out | {"activation": "margin"} if gathered else out


def _after_loading(kv: int, held: Weights, room: int) -> int:
    """The pool, or what is short where the weights do not fit before they are quantized."""
    return min(kv, room - held.loading) if held.loading > room else kv


def activation_bytes(
    card: ModelCard,
    *,
    version: str | None,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    dtype: str | None = None,
    gathered: int = 0,
) -> int:
    """Peak activation of vLLM's profiling pass: the larger of the sampler's and the forward pass.

    sampler: c(version) x vocabulary x sequences, and the hidden states of the batch; forward: c x hidden x
    tokens, and what is `gathered` from other ranks. How the constants were had, and where they fail, is in
    docs/plans/accuracy.md.
    """
    table = rules()["activation"]
    tokens = max(1, max_num_batched_tokens)
    sequences = min(max_num_seqs, tokens)
    sampler = by_version(table["sampler_bytes"], version) * card.vocab_size * sequences
    sampler += table["resident_bytes"] * card.hidden_size * tokens
    return int(max(sampler, forward_bytes(card, tokens, dtype) + gathered))


def forward_bytes(card: ModelCard, tokens: int, dtype: str | None = None) -> int:
    """Peak of one forward pass over a batch of tokens."""
    return int(rules()["activation"]["forward_bytes"] * element_bytes(dtype) / 2 * card.hidden_size * tokens)


def gathered_bytes(
    card: ModelCard,
    layout: Layout,
    gpu: Gpu | None,
    vllm: str | None,
    tokens: int,
    dtype: str | None = None,
) -> int:
    """What the experts' kernel takes for tokens of other ranks, at most: 0 without attention data parallelism
    (`memory.yaml`, gathered). `vllm` is its version, None for SGLang."""
    if layout.attention_data == 1 or gpu is None or not card.experts or not card.experts_per_token:
        return 0
    table = rules()["gathered"]
    rows = tokens * (layout.attention_data - 1)
    newest = float(gpu.compute_capability or 0) >= 9
    size = table["fp8" if newest and "fp8" in (card.quantization or "") else "else"]
    one = card.moe_intermediate_size or 0
    each = size["first"] * max(one, card.hidden_size) + size["second"] * max(2 * one, card.hidden_size)
    at_once = by_version(table["rows_at_once"], vllm) or rows
    scale = element_bytes(dtype) / 2
    kernel = min(rows, at_once) * each * card.experts_per_token
    return int(scale * (kernel + rows * table["beside"] * card.hidden_size))


def non_torch_bytes(layout: Layout) -> int:
    """Driver context and communicators of one rank."""
    table = rules()["non_torch_gib"]
    ranks = layout.tensor * layout.attention_data
    return int((table["alone"] + table["per_doubling"] * math.log2(ranks)) * GIB)


def static_share(
    card: ModelCard,
    layout: Layout,
    gpu: Gpu,
    *,
    version: str | None,
    free_bytes: int,
    utilization: float,
    max_num_batched_tokens: int,
    cuda_graph_max: int,
    own_reserve: bool = True,
    dtype: str | None = None,
) -> float:
    """SGLang's --mem-fraction-static, in thousandths, with which the whole deployment holds at most
    `utilization` of the device's total: weights, pool and other static memory as a share of what is free.

    `own_reserve`: as many bytes stay for activations and graphs as SGLang would keep of itself, where those
    are more than are counted here. `max_num_batched_tokens` are one attention rank's, as the lever counts.
    """
    total = visible_bytes(gpu)
    free = max(1, min(total, free_bytes))
    kept = forward_bytes(card, max_num_batched_tokens, dtype) + graph_bytes(cuda_graph_max)
    kept += gathered_bytes(card, layout, gpu, None, max_num_batched_tokens, dtype)
    static = total * utilization - kept
    if own_reserve:
        reserved = _own_reserve_mib(
            version or _NEWEST,
            gpu.memory_bytes // MIB,
            layout.tensor * layout.attention_data,
            layout.pipeline,
            layout.attention_data,
            # the flag counts the tokens of all attention ranks
            max_num_batched_tokens * layout.attention_data,
            cuda_graph_max,
            mla=card.mla_kv_lora_rank is not None,
        )
        kept = max(kept, math.ceil(reserved * MIB))
    return max(0.01, int(min(static, free - kept) / free * 1000) / 1000)


@lru_cache(maxsize=1024)
def _own_reserve_mib(
    version: str,
    memory_mib: int,
    tensor: int,
    pipeline: int,
    attention_data: int,
    chunk: int,
    graph: int,
    *,
    mla: bool,
) -> float:
    """What SGLang's own share leaves free for activations and graphs. With the graphs told, requests at once
    change nothing."""
    from orchestrator.engines.sglang.stock import memory_defaults

    own = memory_defaults(
        version,
        memory_mib,
        tensor=tensor,
        pipeline=pipeline,
        attention_data=attention_data,
        chunked_prefill_size=chunk,
        cuda_graph=graph or "off",
        mla=mla,
    )
    return own.reserved_mib or 0.0


def graph_bytes(largest: int | None) -> int:
    """CUDA graphs by their largest captured batch."""
    if not largest:
        return 0
    table = rules()["graphs_gib"]
    return int((table["base"] + table["largest_512"] * largest / 512) * GIB)


@dataclass(frozen=True, slots=True)
class SglangMemory:
    """SGLang's own defaults for a device: chunked prefill tokens, the largest decode graph, and the fraction
    of memory for weights and pool."""

    chunked_prefill_size: int
    cuda_graph_max: int
    mem_fraction_static: float


def sglang_defaults(
    card: ModelCard,
    layout: Layout,
    total_bytes: int | None,
    *,
    chunked_prefill_size: int | None = None,
    cuda_graph_max: int | None = None,
    max_running_requests: int | None = None,
    prefill_graphs: bool = True,
) -> SglangMemory:
    """What SGLang 0.5.23 sets by itself (srt/arg_groups/memory_hook.py handle_gpu_memory_settings).

    `chunked_prefill_size` -1 is off. `total_bytes` None where the device is unknown to SGLang too.
    `prefill_graphs` False where its backend or pipeline parallelism turns them off.
    """
    table = rules()["sglang"]
    ranks = layout.tensor * layout.attention_data
    mib = total_bytes / MIB if total_bytes is not None else None
    row = table["unknown"]
    if mib is not None:
        row = next((r for r in table["defaults"] if mib < r["below_mib"]), table["defaults"][-1])
    chunk = chunked_prefill_size if chunked_prefill_size is not None else row["chunk"]
    graph = cuda_graph_max if cuda_graph_max is not None else row["graph"][1 if ranks >= 4 else 0]
    if cuda_graph_max is None and max_running_requests is not None:
        graph = min(graph, max_running_requests)
    # what a rank takes; the reserve counts the whole
    mine = chunk // layout.attention_data if chunk > 0 else chunk
    if mib is None:
        return SglangMemory(mine, graph, table["unknown"]["fraction"])
    r = table["reserve"]
    tokens = max(chunk, r["smallest_activation_tokens"]) if chunk > 0 else max(16384, chunk)
    reserved = r["base_mib"] + r["per_activation_token_mib"] * tokens
    reserved += ranks * layout.pipeline / 8 * r["per_eighth_of_world_mib"]
    reserved += r["per_decode_graph_mib"] * graph
    if layout.attention_data > 1:
        reserved += r["per_attention_data_graph_mib"] * graph * layout.attention_data
        if graph > 300:
            reserved += r["per_attention_data_graph_mib"] / 2 * graph * layout.attention_data
    if prefill_graphs:
        mla = card.mla_kv_lora_rank is not None
        reserved += r["prefill_graphs_mla_mib"] if mla else r["prefill_graphs"] * r["per_prefill_graph_mib"]
    if mib > r["floor_above_mib"]:
        reserved = max(reserved, r["floor_mib"])
    return SglangMemory(mine, graph, round((mib - reserved) / mib, 3))
