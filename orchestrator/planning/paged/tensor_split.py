"""What tensor parallelism must divide: heads, feed-forward sizes, quantization blocks.

Vocabularies are padded and limit nothing. KV heads are copied above their number, so there the size must be a
multiple of them. Sources, as of vLLM 0.32.0: vllm/config/model.py (heads), the models' own layers (KV heads),
layers/quantization/utils/fp8_utils.py and marlin_utils.py (blocks and groups), layers/fused_moe/oracle/fp8.py
(blocks of experts), layers/mamba (recurrent heads); of SGLang 0.5.23: srt/layers/quantization/fp8.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.model_card.card import ModelCard
from orchestrator.planning.paged.layout import Layout

_FINER_BLOCKS = (0, 26)
"""vLLM up to 0.25 refuses expert blocks that a size cuts (vllm pull request 48173, July 2026), 0.32 refines
or pads them; for those between nothing is known, and nothing is refused."""

_LEAST_BLOCK = 32
"""Elements of the finest block that vLLM refines to."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """Something that the tensor parallel size does not divide; `experts_only` where spreading whole experts
    instead would mend it."""

    code: str
    message: str
    experts_only: bool = False


def uneven(card: ModelCard, layout: Layout, kind: str, version: str | tuple[int, ...]) -> list[Uneven]:
    """Everything that a layout's tensor parallel size does not divide; empty where it divides all."""
    size = layout.tensor
    if size == 1:
        return []
    found = _heads(card, size)
    if not found:
        found += _attention_blocks(card, size, kind)
    found += _recurrent(card, size)
    found += _feed_forward(card, size)
    if card.experts and not layout.expert:
        found += _experts(card, size, kind, _numbers(version))
    return found


def _heads(card: ModelCard, size: int) -> list[Uneven]:
    found = []
    if card.heads % size:
        message = f"{card.heads} attention heads cannot be divided by tensor_parallel_size {size}"
        found.append(Uneven("heads_not_divisible", message))
    if card.mla_kv_lora_rank is not None:
        # one latent for all heads, on every rank
        return found
    counts = {h for h in card.kv_heads_per_layer or (card.kv_heads,) if h}
    wrong = [h for h in sorted(counts) if h % size and size % h]
    if wrong:
        message = (
            f"{wrong[0]} KV heads can neither be divided by tensor_parallel_size {size} nor copied to it"
        )
        found.append(Uneven("kv_heads_not_divisible", message))
    return found


def _recurrent(card: ModelCard, size: int) -> list[Uneven]:
    if card.hybrid is None:
        return []
    heads = {"key": card.hybrid.key_heads, "value": card.hybrid.value_heads}
    return [
        Uneven(
            "recurrent_heads_not_divisible",
            f"{count} {name} heads of the linear layers cannot be divided by tensor_parallel_size {size}",
        )
        for name, count in heads.items()
        if count and count % size
    ]


def _attention_blocks(card: ModelCard, size: int, kind: str) -> list[Uneven]:
    """Blocks and groups in the attention's projections; those of latent attention are multiples anyway.

    vLLM lets merged columns (query, key, value) end inside a block; SGLang does for models whose keys and
    values differ in size (srt/models/mimo_v2.py); neither does for rows (the output).
    """
    block = weight_block(card)
    if block is None or card.mla_kv_lora_rank is not None or not _quantizes(card, "self_attn", "attn"):
        return []
    output = card.heads // size * (card.value_head_dim or card.head_dim)
    found = []
    if output % block.size:
        found.append(_cut(block, f"{output * size} attention channels", output, size))
    own = card.value_head_dim is not None and card.value_head_dim != card.head_dim
    if not block.both_sides or kind != "sglang" or own:
        return found
    for heads in sorted({h for h in card.kv_heads_per_layer or (card.kv_heads,) if h}):
        keys = max(1, heads // size) * card.head_dim
        if keys % block.size:
            found.append(_cut(block, f"{heads * card.head_dim} key channels", keys, size))
    return found


def _feed_forward(card: ModelCard, size: int) -> list[Uneven]:
    dense = not card.experts or (card.expert_layers is not None and not all(card.expert_layers))
    return _part(card, size, card.intermediate_size if dense else None, "feed-forward size")


def _experts(card: ModelCard, size: int, kind: str, version: tuple[int, ...]) -> list[Uneven]:
    """Sizes of single experts; whole experts on each rank avoid the cut."""
    own = card.moe_intermediate_size
    if not own:
        return []
    if own % size:
        message = f"an expert's size {own} cannot be divided by tensor_parallel_size {size}"
        return [Uneven("expert_size_not_divisible", message, experts_only=True)]
    block = weight_block(card)
    if block is None or not (own // size) % block.size:
        return []
    if not block.checked_in_experts:
        return []
    if block.both_sides and kind == "vllm" and version >= _FINER_BLOCKS:
        finest = math.gcd(block.size, own // size, card.hidden_size)
        if finest >= _LEAST_BLOCK or own % block.size == 0:
            return []
    cut = _cut(block, f"an expert's size {own}", own // size, size)
    return [Uneven(cut.code, cut.message, experts_only=True)]


def _part(card: ModelCard, size: int, whole: int | None, what: str) -> list[Uneven]:
    if not whole:
        return []
    if whole % size:
        return [
            Uneven(
                "feed_forward_not_divisible",
                f"the {what} {whole} cannot be divided by tensor_parallel_size {size}",
            )
        ]
    block = weight_block(card)
    if block is None or (whole // size) % block.size == 0 or not _quantizes(card, "mlp"):
        return []
    return [_cut(block, f"the {what} {whole}", whole // size, size)]


@dataclass(frozen=True, slots=True)
class WeightBlock:
    """Weights that share a scale: `size` in a row. `both_sides` where it is a square block, which output
    channels must hold whole too. `checked_in_experts` where engines refuse a cut in experts."""

    name: str
    size: int
    both_sides: bool
    checked_in_experts: bool


def weight_block(card: ModelCard) -> WeightBlock | None:
    """The block of a checkpoint's quantization, None where each channel or tensor has its own scale."""
    q = card.quantization_config
    if not q:
        return None
    method = str(q.get("quant_method") or "").lower()
    square = q.get("weight_block_size")
    group = q.get("group_size")
    for scheme in _schemes(q):
        square = square or (scheme.get("block_structure") if scheme.get("strategy") == "block" else None)
        group = group if group is not None else scheme.get("group_size")
    if isinstance(square, list | tuple) and square and all(isinstance(n, int) for n in square):
        return WeightBlock(f"fp8 block {square[0]}x{square[-1]}", int(max(square)), True, True)
    if not isinstance(group, int) or group <= 0 or "mxfp4" in method:
        # mxfp4 kernels pad
        return None
    # AWQ and GPTQ experts fall back to a kernel that takes smaller groups (moe_wna16.py)
    return WeightBlock(
        f"{method or 'quantization'} group {group}", group, False, method == "compressed-tensors"
    )


def _schemes(q: Mapping[str, object]) -> list[Mapping[str, object]]:
    groups = q.get("config_groups")
    found = []
    for scheme in groups.values() if isinstance(groups, Mapping) else ():
        weights = scheme.get("weights") if isinstance(scheme, Mapping) else None
        if isinstance(weights, Mapping):
            found.append(weights)
    return found


def _quantizes(card: ModelCard, *parts: str) -> bool:
    """Whether the checkpoint quantizes these modules, as far as its configuration says."""
    q = card.quantization_config or {}
    left: list[object] = []
    for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        value = q.get(key)
        left += value if isinstance(value, list | tuple) else []
    text = " ".join(str(x) for x in left)
    return not any(re.search(rf"{re.escape(part)}\b(?!\.gate\b)", text) for part in parts)


def _cut(block: WeightBlock, what: str, share: int, size: int) -> Uneven:
    message = f"tensor_parallel_size {size} cuts {what} to {share}, which is no multiple of the {block.name}"
    return Uneven("quantization_block_cut", message)


def _numbers(version: str | tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of a version; one that has none counts as the newest."""
    if isinstance(version, tuple):
        return version
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3]) or (1 << 16,)
