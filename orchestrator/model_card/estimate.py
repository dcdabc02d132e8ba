"""How many parameters a config.json describes, part by part, where there are no weights to count.

Each formula is the sum of the matrices of the family's published architecture; biases and norms are left out
where they are under a tenth of a percent.
"""

from __future__ import annotations

from collections import Counter

from orchestrator.model_card.config import Config, Feed, Layers, Mixer, number_in, tables
from orchestrator.model_card.quantization import Quantization
from orchestrator.model_card.weight_groups import GROUPS


def parameters_of(c: Config, layers: Layers, heads: int, kv_heads: tuple[int, ...]) -> Counter[str]:
    """Parameters by part: embeddings, head, attention (kv_proj and mla apart from it), recurrent, dense,
    shared, experts, router, mtp (mtp_experts apart), vision, small (what belongs nowhere else)."""
    hidden = c.fact("hidden", least=1)
    vocabulary = c.fact("vocabulary", least=1)
    out: Counter[str] = Counter({"embeddings": vocabulary * hidden})
    if not tied(c):
        out["head"] = vocabulary * hidden
    for mixer, feed, kv in zip(layers.mixers, layers.feeds, kv_heads, strict=True):
        out.update(_mixer(c, mixer, hidden, heads, kv))
        out.update(_feed(c, feed, hidden))
        out["small"] += 2 * hidden
    mtp = c.fact("mtp", 0)
    if mtp:
        kind: Feed = "experts" if "experts" in layers.feeds else "dense"
        attending = max(kv_heads)
        layer = _mixer(c, "full", hidden, heads, attending) + _feed(c, kind, hidden)
        out["mtp"] = mtp * (2 * hidden * hidden)
        for part, n in layer.items():
            out["mtp_experts" if part == "experts" else "mtp"] += mtp * n
    out["vision"] = _vision(c)
    return out


def weights_bytes_of(parameters: Counter[str], q: Quantization, plain_bytes: int) -> int:
    """Bytes as stored: quantized parts by the quantization, the kept ones in the checkpoint's dtype."""
    return round(sum(_part_bytes(parameters, q, plain_bytes).values()))


def weight_groups_of(parameters: Counter[str], q: Quantization, plain_bytes: int) -> dict[str, int]:
    """`weights_bytes_of` by group of `weight_groups`."""
    out: Counter[str] = Counter()
    for part, size in _part_bytes(parameters, q, plain_bytes).items():
        out[_GROUP.get(part, part)] += round(size)
    return {group: out[group] for group in GROUPS if out[group]}


_GROUP = {"embeddings": "embedding", "head": "lm_head", "dense": "mlp", "small": "norm", "mtp_experts": "mtp"}
_LIKE = {"kv_proj": "attention", "mla": "attention", "mtp_experts": "experts"}
"""Parts that a quantization treats as another."""


def _part_bytes(parameters: Counter[str], q: Quantization, plain_bytes: int) -> dict[str, float]:
    out = {}
    for part, n in parameters.items():
        like = _LIKE.get(part, part)
        size = q.expert_bytes if like == "experts" else q.bytes_per_weight
        out[part] = n * (plain_bytes if like in q.kept else size)
    return out


def tied(c: Config) -> bool:
    """Whether the head is the embeddings; the family's own default where the config is silent."""
    tied = c.get("tie_word_embeddings")
    if tied is None:
        return c.model_type.startswith(
            ("gemma", "gpt2", "gpt_bigcode", "bloom", "opt", "falcon", "mpt", "cohere")
        )
    return bool(tied)


def _mixer(c: Config, mixer: Mixer, hidden: int, heads: int, kv: int) -> Counter[str]:
    if mixer in ("full", "sliding"):
        return _attention(c, mixer, hidden, heads, kv)
    if mixer == "delta":
        keys = c.whole("linear_num_key_heads") * c.whole("linear_key_head_dim")
        inner = c.whole("linear_num_value_heads") * c.whole("linear_value_head_dim")
        projections = hidden * (2 * keys + 2 * inner + 2 * c.whole("linear_num_value_heads")) + inner * hidden
        return Counter(
            {"recurrent": projections, "small": (2 * keys + inner) * c.whole("linear_conv_kernel_dim", 4)}
        )
    if mixer == "kda":
        table = c.table("linear_attn_config")
        size = number_in(table, "head_dim")
        inner = number_in(table, "num_heads") * size
        gates = hidden * size + size * inner + (hidden * inner if table.get("use_full_rank_gate") else 0)
        return Counter({"recurrent": 4 * hidden * inner + gates})
    if mixer == "mamba":
        inner, groups, state, mamba_heads = mamba_sizes(c)
        if not mamba_heads:
            rank = c.whole("mamba_dt_rank", hidden // 16)
            return Counter({"recurrent": 3 * hidden * inner + inner * (2 * rank + 2 * state)})
        return Counter(
            {
                "recurrent": hidden * (2 * inner + 2 * groups * state + mamba_heads) + inner * hidden,
                "small": (inner + 2 * groups * state) * c.whole("conv_kernel", 4),
            }
        )
    return Counter()


def mamba_sizes(c: Config) -> tuple[int, int, int, int]:
    """Inner size, groups, state size, heads (0 for the first Mamba) under either family's spelling."""
    heads = c.whole("mamba_num_heads") or c.whole("mamba_n_heads")
    size = c.whole("mamba_head_dim") or c.whole("mamba_d_head")
    expand = c.whole("mamba_expand", c.whole("expand", 2))
    inner = heads * size if heads and size else expand * c.fact("hidden", 0)
    groups = (c.whole("n_groups") or c.whole("mamba_n_groups", 1)) if heads else 0
    return inner, groups, c.whole("ssm_state_size") or c.whole("mamba_d_state", 16), heads


def _attention(c: Config, mixer: Mixer, hidden: int, heads: int, kv: int) -> Counter[str]:
    rank, rope = c.whole("kv_lora_rank"), c.whole("qk_rope_head_dim")
    q_rank = c.whole("q_lora_rank")
    if rank:
        key = c.whole("qk_nope_head_dim") + rope
        value = c.whole("v_head_dim", key)
        query = q_rank * heads * key if q_rank else hidden * heads * key
        up = rank * heads * (c.whole("qk_nope_head_dim") + value)
        gate = hidden * heads * value if c.text.get("mla_use_output_gate") else 0
        down = hidden * (q_rank + rank + rope)
        return Counter(
            {
                "attention": query + up + heads * value * hidden + gate,
                "mla": down + _indexer(c, hidden, q_rank),
            }
        )
    size = head_dim_of(c, heads, mixer)
    value = c.whole("v_head_dim", size)
    if c.whole("o_lora_rank"):
        low = c.whole("o_lora_rank")
        output = heads * size * low + c.whole("o_groups", 1) * low * hidden
        down = hidden * q_rank + hidden * kv * size
        return Counter(
            {"attention": q_rank * heads * size + output, "mla": down + _indexer(c, hidden, q_rank)}
        )
    query = hidden * heads * size * (2 if c.text.get("attn_output_gate") else 1)
    return Counter({"attention": query + heads * value * hidden, "kv_proj": hidden * kv * (size + value)})


def head_dim_of(c: Config, heads: int, mixer: Mixer = "sliding") -> int:
    """Head size; Gemma 4's full layers have one of their own."""
    if mixer == "full" and c.whole("global_head_dim"):
        return c.whole("global_head_dim")
    return c.fact("head_dim", c.fact("hidden", 0) // heads if heads else 0)


def _indexer(c: Config, hidden: int, q_rank: int) -> int:
    heads, size = c.whole("index_n_heads"), c.whole("index_head_dim")
    return q_rank * heads * size + hidden * size + hidden * heads


def _feed(c: Config, feed: Feed, hidden: int) -> Counter[str]:
    if feed == "none":
        return Counter()
    matrices = 2 if c.model_type in tables()["ungated"] else 3
    if feed == "dense":
        wide = c.fact("dense_feed_forward", 0) or c.fact("feed_forward", 4 * hidden)
        return Counter({"dense": matrices * hidden * wide})
    experts = c.fact("experts")
    wide = c.fact("expert_feed_forward", 0) or c.fact("feed_forward", 4 * hidden)
    shared = c.fact("shared_feed_forward", 0) or c.fact("shared_experts", 0) * wide
    if c.model_type.startswith("llama4"):
        shared = wide
    latent = c.whole("moe_latent_size") or c.whole("routed_expert_hidden_size")
    return Counter(
        {
            "experts": experts * matrices * (latent or hidden) * wide,
            "shared": matrices * hidden * shared + 2 * hidden * latent,
            "router": hidden * experts,
        }
    )


def _vision(c: Config) -> int:
    v = c.table("vision_config")
    depth = number_in(v, "depth", number_in(v, "num_hidden_layers"))
    hidden = number_in(v, "hidden_size")
    return depth * (4 * hidden * hidden + 2 * hidden * number_in(v, "intermediate_size", 4 * hidden))
