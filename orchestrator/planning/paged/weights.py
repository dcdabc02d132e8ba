"""Weights on one device, from stored bytes and how each kind of tensor is split over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.model_card.card import ModelCard
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import Kind, ceil_div, element_bytes, rules, since, stage_layers

Basis = Literal["computed", "estimated"]

_LINEAR = ("attention", "kv_proj", "recurrent", "mlp", "shared", "experts")
"""Groups that quantization while loading makes smaller; embeddings, head, router, norms keep their type."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes on one device of each pipeline stage, first to last. "estimated" where the checkpoint's own sizes
    are estimates or its tensors are not known apart. `loading` is what the fullest device holds before its
    weights are quantized, 0 where that is never more."""

    stages: tuple[int, ...]
    basis: Basis
    loading: int = 0

    @property
    def worst(self) -> int:
        """Bytes on the fullest device."""
        return max(self.stages)


def weights_per_gpu(
    card: ModelCard,
    layout: Layout,
    *,
    kind: Kind = "vllm",
    version: str | None = None,
    mtp_loaded: bool = False,
    dtype: str | None = None,
    quantization: str | None = None,
    partition: tuple[int, ...] | None = None,
) -> Weights:
    """Weights of one device for each stage of a layout.

    Groups are placed as `model_card.weight_groups` says. With attention data parallelism attention is whole
    on each of its ranks; experts are spread over all of them. `dtype` is what weights are loaded in ("auto"
    or None: 16 bits where the checkpoint has 32); `quantization` a method applied while loading; `partition`
    the layers of each pipeline stage where they are not the engine's own.
    """
    online = _online(card, quantization, dtype)
    loading = 0
    if online != 1 and not _by_layer(kind, version):
        whole = weights_per_gpu(
            card, layout, kind=kind, mtp_loaded=mtp_loaded, dtype=dtype, partition=partition
        )
        loading = whole.worst
    groups = card.weight_groups
    stages = partition or stage_layers(card.layers, layout.pipeline)
    if not groups:
        return replace(_unsplit(card, layout, stages, _cast(card, dtype) * online), loading=loading)
    tensor = layout.tensor
    wide = tensor * layout.attention_data if kind == "sglang" else tensor
    kv_heads = max(1, card.kv_heads)
    shrink = _cast(card, dtype)
    on_all = 0.0
    attention = recurrent = dense = experts = 0.0
    first = last = 0.0
    for group, stored in groups.items():
        size = stored * shrink * (online if group in _LINEAR else 1)
        if group == "attention":
            attention += size / tensor
        elif group == "kv_proj":
            attention += size * max(1, kv_heads // tensor) / kv_heads
        elif group == "mla":
            attention += size
        elif group == "recurrent":
            recurrent += size / tensor
        elif group == "mlp":
            dense += size / wide
        elif group == "shared":
            experts += size / wide
        elif group == "experts":
            experts += size * _expert_share(card, layout) * _padding(card, layout)
        elif group == "embedding":
            split = 1 if kind == "sglang" and layout.attention_data > 1 else tensor
            first += size * _padded_vocabulary(card) / split
            if card.tied_embeddings and layout.pipeline > 1:
                last += size * _padded_vocabulary(card) / split
        elif group == "lm_head":
            last += size * _padded_vocabulary(card) / wide
        elif group == "vision":
            first += size / tensor
        elif group == "mtp":
            if mtp_loaded:
                last += size * (_expert_share(card, layout) if card.experts else 1 / tensor)
        else:
            on_all += size
    attention += _absorbed(card, tensor) * element_bytes(dtype) / 2
    basis: Basis = "estimated" if card.weights_estimated else "computed"
    if layout.pipeline == 1:
        whole_size = round(on_all + attention + recurrent + dense + experts + first + last)
        return Weights((whole_size,), basis, loading)
    parts = _staged(card, stages, on_all, attention, recurrent, dense, experts, first, last)
    return Weights(parts, basis, loading)


def _staged(
    card: ModelCard,
    stages: tuple[int, ...],
    on_all: float,
    attention: float,
    recurrent: float,
    dense: float,
    experts: float,
    first: float,
    last: float,
) -> tuple[int, ...]:
    """Each part over the stages by how many of its layers they hold."""
    count = card.layers
    feeds = card.expert_layers or ((True,) * count if card.experts else (False,) * count)
    kv = card.kv_heads_per_layer or (1,) * count
    hybrid = card.hybrid is not None
    states = sum(1 for n in kv if not n) if hybrid else 0
    attends = max(1, count - states)
    with_experts = max(1, sum(feeds))
    without = max(1, count - sum(feeds))
    out = []
    at = 0
    for stage, layers in enumerate(stages):
        mine = range(at, at + layers)
        at += layers
        e = sum(1 for i in mine if feeds[i])
        s = sum(1 for i in mine if not kv[i]) if hybrid else 0
        size = on_all * layers / count + attention * (layers - s) / attends + experts * e / with_experts
        size += recurrent * s / max(1, states) + dense * (layers - e) / without
        size += (first if stage == 0 else 0) + (last if stage == len(stages) - 1 else 0)
        out.append(round(size))
    return tuple(out)


def _unsplit(card: ModelCard, layout: Layout, stages: tuple[int, ...], shrink: float) -> Weights:
    """Where tensors are not known apart: an even split, embeddings of 16 bits at both ends, 3 % for what is
    on every rank."""
    ends = min(card.weights_bytes // 4, 2 * card.vocab_size * card.hidden_size)
    inner = (card.weights_bytes - ends) / layout.tensor
    if layout.expert and card.experts:
        inner = (card.weights_bytes - ends) / layout.ranks_sharing_experts
    inner += 0.03 * card.weights_bytes / layout.tensor if layout.tensor > 1 else 0
    edge = ends / layout.tensor
    sizes = [inner * n / card.layers for n in stages]
    sizes[0] += edge if layout.pipeline == 1 else edge / 2
    sizes[-1] += edge / 2 if layout.pipeline > 1 else 0
    return Weights(tuple(round(s * shrink) for s in sizes), "estimated")


def _expert_share(card: ModelCard, layout: Layout) -> float:
    """One rank's share of the experts: whole ones over the expert-parallel ranks, else a slice of each."""
    ranks = layout.ranks_sharing_experts
    if layout.expert and card.experts:
        return ceil_div(card.experts, ranks) / card.experts
    return 1 / ranks


def _padding(card: ModelCard, layout: Layout) -> float:
    if "mxfp4" not in (card.quantization or "") or not card.moe_intermediate_size:
        return 1
    table = rules()["weights"]
    hidden, wide = card.hidden_size, card.moe_intermediate_size
    mine = wide if layout.expert else ceil_div(wide, layout.tensor)
    up, across = table["mxfp4_intermediate_multiple"], table["mxfp4_hidden_multiple"]
    return float(ceil_div(mine, up) * up / mine * (ceil_div(hidden, across) * across / hidden))


def _padded_vocabulary(card: ModelCard) -> float:
    multiple: int = rules()["weights"]["vocabulary_multiple"]
    return ceil_div(card.vocab_size, multiple) * multiple / card.vocab_size


def _absorbed(card: ModelCard, tensor: int) -> float:
    """MLA keeps the up projections of keys and values a second time, in 16 bits, for decoding (vLLM
    mla_attention.py process_weights_after_loading; SGLang's w_kc and w_vc)."""
    if card.mla_kv_lora_rank is None or not card.layers:
        return 0
    wide = card.head_dim - (card.mla_qk_rope_head_dim or 0) + (card.value_head_dim or card.head_dim)
    attending = card.layers - (card.hybrid.layers if card.hybrid else 0)
    return 2 * attending * card.mla_kv_lora_rank * card.heads * wide / tensor


def _cast(card: ModelCard, dtype: str | None) -> float:
    """Bytes loaded for each that is stored, of weights that are not quantized."""
    if card.quantization is not None:
        return 1
    return element_bytes(dtype) / element_bytes(card.dtype)


def _online(card: ModelCard, quantization: str | None, dtype: str | None) -> float:
    """Bytes of a linear weight that is quantized while loading, for each that is loaded."""
    if quantization is None or card.quantization is not None:
        return 1
    size = rules()["weights"]["online_bytes"].get(quantization)
    return size / element_bytes(dtype) if size else 1


def _by_layer(kind: Kind, version: str | None) -> bool:
    """Whether weights are quantized layer by layer while they are loaded."""
    return kind == "vllm" and since(version, rules()["weights"]["online_by_layer_from"])
