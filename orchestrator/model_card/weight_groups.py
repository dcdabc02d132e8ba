"""Stored bytes by what a tensor is, as engines divide them over tensor-parallel ranks.

Groups, and how vLLM and SGLang place them on T ranks (vLLM's model_executor/layers/linear.py and
fused_moe, SGLang's srt/layers):

    embedding, lm_head   rows of the vocabulary over T (the vocabulary padded first)
    attention            query, output and latent up projections over T
    kv_proj              key and value projections over min(T, KV heads), whole heads
    recurrent            projections of linear-attention and Mamba layers over T
    mlp, shared          dense and shared-expert feed-forward over T
    experts              over T, or whole experts over the expert-parallel ranks
    mla                  latent down projections and sparse-attention indexers: on every rank
    router, norm         on every rank
    vision               image and audio encoders and projectors: over T
    mtp                  layers for multi-token prediction: loaded only where speculation asks for them
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

GROUPS = (
    "embedding",
    "lm_head",
    "attention",
    "kv_proj",
    "recurrent",
    "mlp",
    "shared",
    "experts",
    "mla",
    "router",
    "norm",
    "vision",
    "mtp",
)

FUSED = "qkv"
"""Query, key and value in one tensor; divided by their heads later."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.")
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (group, re.compile(pattern))
    for group, pattern in (
        ("vision", r"(^|\.)(visual|vision\w*|mm_projector|multi_modal_projector|audio\w*|image_newline)\b"),
        ("vision", r"(^|\.)(patch_merger|embed_vision|vit_large_projector|sound_encoder)\b"),
        ("mtp", r"(^|\.)(mtp|mtp_layers|nextn\w*|eh_proj)\b"),
        ("lm_head", r"(^|\.)(lm_head|output_layer|embed_out)\b"),
        ("embedding", r"(^|\.)(embed_tokens|wte|word_embeddings|embeddings?|tok_embeddings)\b"),
        ("norm", r"(norm|layernorm|ln_\w+|ln|sinks|q_scale|k_scale|v_scale|kv_scale)(\.(weight|bias))?$"),
        ("shared", r"\bshared_experts?\b|\bshared_mlp\b|\bshared_expert_gate\b|\bshare_expert\b"),
        ("experts", r"\b(experts|local_experts|moe\.(gate|up|down)_proj)\b"),
        ("router", r"\b(router|gate|e_score_correction_bias|wg)\b"),
        ("recurrent", r"\b(linear_attn|conv1d|A_log|dt_bias|in_proj\w*|out_proj_ssm|mamba\w*|ssm)\b"),
        ("mla", r"\b(q_a_proj|kv_a_proj\w*|fused_qkv_a_proj\w*|indexer|wq_a|wkv|compressor)\b"),
        ("kv_proj", r"\b(k_proj|v_proj|key_proj|value_proj|kv_proj|wk|wv)\b"),
        (FUSED, r"\b(qkv_proj|c_attn|query_key_value|Wqkv|qkv|W_pack)\b"),
        (
            "attention",
            r"\b(self_attn|attn|attention|q_proj|o_proj|q_b_proj|kv_b_proj|wq_b|wo\w*|self_attention)\b",
        ),
        ("mlp", r"\b(mlp|feed_forward|ffn|w1|w2|w3|fc1|fc2|c_fc|gate_proj|up_proj|down_proj|gate_up_proj)\b"),
        ("recurrent", r"\bmixer\b"),
    )
)


def group_of(tensor: str) -> tuple[int | None, str]:
    """The layer that a tensor's name has (None where it has none) and its group.

    What no rule knows is "norm": on every rank, the careful side.
    """
    name = tensor[:256]
    layer = _LAYER.search(name)
    group = next((group for group, pattern in _RULES if pattern.search(name)), "norm")
    return (int(layer[1]) if layer else None, group)


def collected(
    stored: Mapping[tuple[int | None, str], int], layers: int, *, query: int, kv: int
) -> dict[str, int]:
    """Bytes by group: layers from `layers` on are multi-token prediction; a fused tensor divides like its
    `query` and `kv` (key and value together) elements."""
    out: Counter[str] = Counter()
    for (layer, group), size in stored.items():
        if group != "vision" and layer is not None and layer >= layers:
            group = "mtp"
        if group == FUSED:
            part = size * kv // max(1, query + kv)
            out["kv_proj"] += part
            out["attention"] += size - part
        else:
            out[group] += size
    return {g: out[g] for g in GROUPS if out[g]}
