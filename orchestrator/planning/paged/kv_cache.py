"""KV and recurrent state: what a token, a block and a request take on one device.

vLLM keeps one pool of blocks; every group of layers draws its own blocks from it, and a block has the bytes
of the widest group (vllm/v1/core/kv_cache_utils.py of 0.32.0: get_kv_cache_groups,
get_kv_cache_config_from_groups). SGLang keeps a pool a token wide, and recurrent state in one of its own
(srt/mem_cache/kv_cache_configurator.py of 0.5.23).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from orchestrator.model_card.card import HybridState, ModelCard
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import Kind, ceil_div, element_bytes, rules, since, stage_layers

Holds = Literal["full", "sliding", "chunked", "state"]


@dataclass(frozen=True, slots=True)
class Group:
    """`count` groups of layers alike, each with a block table of its own. A block holds `block_tokens` tokens
    (of a state: one). `window` in tokens; `blocks` a request holds whatever its length (states)."""

    holds: Holds
    count: int
    block_tokens: int
    window: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class KvCache:
    """The pool's arithmetic on one device; on the pipeline stage that holds most.

    `block_bytes` are one block's over all layers of a group, 0 where no rule is known (`known` False, its
    reason in `notes`) or nothing is cached. `in_flight_tokens` is what sliding layers hold beyond their
    window. `context_shards` is decode context parallelism. `state_request_bytes` is SGLang's state of one
    request, `state_share` the part of its pool that states take.
    """

    kind: Kind
    known: bool
    block_bytes: int
    block_tokens: int
    groups: tuple[Group, ...]
    in_flight_tokens: int = 0
    context_shards: int = 1
    by_concurrency: bool = True
    state_request_bytes: int = 0
    state_share: float = 0.0
    bytes_a_token: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_token_per_gpu(self) -> float | None:
        """Bytes that one more token of a long request takes on one device; None where unknown."""
        return self.bytes_a_token if self.known else None

    def request_blocks(self, tokens: int) -> int:
        """Blocks that one request of this length holds at once."""
        total = 0
        for g in self.groups:
            if g.holds == "state":
                total += g.count * g.blocks
            elif g.holds == "full":
                total += g.count * ceil_div(tokens, g.block_tokens * self.context_shards)
            elif g.holds == "sliding":
                kept = min(g.window - 1 + self.in_flight_tokens, tokens)
                total += g.count * (ceil_div(kept, g.block_tokens) + 1)
            else:
                total += g.count * ceil_div(min(g.window + self.in_flight_tokens, tokens), g.block_tokens)
        return total

    def blocks(self, kv_bytes: int) -> int | None:
        """Blocks of a pool; None where unknown."""
        return max(0, int(kv_bytes)) // self.block_bytes if self.known and self.block_bytes else None

    def tokens(self, kv_bytes: int, max_model_len: int | None = None) -> int | None:
        """Tokens as the engine will report them; None where unknown.

        vLLM from 0.21: concurrency x max_model_len; before, and where no length is given, blocks of a group x
        tokens of a block, sliding layers counted in full.
        """
        blocks = self.blocks(int(kv_bytes * (1 - self.state_share)))
        if blocks is None:
            return None
        if self.by_concurrency and max_model_len:
            return int(blocks / self.request_blocks(max_model_len) * max_model_len)
        tables = sum(g.count for g in self.groups)
        return blocks // tables * self.block_tokens * self.context_shards

    def max_concurrency(self, kv_bytes: int, max_model_len: int) -> float | None:
        """Requests of the full length that the pool holds at once; None where unknown."""
        blocks = self.blocks(int(kv_bytes * (1 - self.state_share)))
        return None if blocks is None else blocks / self.request_blocks(max_model_len)

    def bytes_needed(self, max_model_len: int, requests: int = 1) -> int | None:
        """The least pool that serves `requests` of this length, the null block included; None where unknown.

        vLLM 0.32.0 kv_cache_utils.py get_kv_cache_configs refuses to start with less than that of one.
        """
        if not self.known:
            return None
        null = self.block_bytes if self.kind == "vllm" else 0
        whole = self.block_bytes * self.request_blocks(max_model_len) * requests + null
        return math.ceil(whole / (1 - self.state_share))

    def largest_context(self, kv_bytes: int, limit: int) -> int:
        """The longest request, at most `limit` tokens, that the pool serves; 0 where none or unknown.

        The engine's own "estimated maximum model length".
        """
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            needed = self.bytes_needed(middle)
            if needed is not None and needed <= kv_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def kv_cache(
    card: ModelCard,
    layout: Layout,
    *,
    kind: Kind = "vllm",
    version: str | None = None,
    kv_dtype: str | None = None,
    block_size: int | None = None,
    prefix_caching: bool = True,
    speculative_tokens: int = 0,
    mtp: bool = False,
    draft: ModelCard | None = None,
    max_num_batched_tokens: int = 8192,
    async_scheduling: bool = True,
    hybrid_manager: bool = True,
    context_parallel: int = 1,
    partition: tuple[int, ...] | None = None,
    device: str = "cuda",
    dtype: str | None = None,
) -> KvCache:
    """The cache of a model on a layout.

    `kv_dtype` None or "auto" is the checkpoint's KV algorithm, else its dtype. `mtp`: its own
    multi-token-prediction layers speculate (they keep KV too); `draft` a draft model's card.
    `speculative_tokens` counts for recurrent state under every method. `hybrid_manager` False where the user
    or a KV connector turns it off (then every layer is charged in full). `partition` are the layers of each
    pipeline stage where they are not the engine's own. `device` is "cuda", "rocm", "xpu" or "cpu". `dtype` is
    what the model is loaded in, "auto" or None its own 16 bits.
    """
    base = block_size or _block_tokens(card, kind, device)
    if card.compressed_attention or card.encoder_decoder:
        why = "compressed attention" if card.compressed_attention else "an encoder's cross attention"
        return _unknown(kind, base, f"{why} keeps KV by a rule that is not known here")
    element = resolved_dtype(card, kv_dtype, dtype)
    if _element_bytes(card, element) is None:
        return _unknown(kind, base, f"how many bytes {element} takes an element is not known here")
    stages = partition or stage_layers(card.layers, layout.pipeline)
    layers = _layers(card, layout, stages, element, mtp, draft)
    state = _state(card, layout, speculative_tokens)
    if card.hybrid is not None and state is None:
        return _unknown(kind, base, "the recurrent state of this architecture has no rule known here")
    notes = ("sparse attention: index keys are counted beside the KV",) if card.index_head_dim else ()
    if kind == "sglang":
        return _sglang(card, layers, state or 0, notes)
    in_flight = max_num_batched_tokens
    if async_scheduling and device != "cpu" and since(version, rules()["vllm"]["two_batches_from"]):
        in_flight *= 1 + layout.pipeline
    else:
        in_flight *= layout.pipeline
    by_concurrency = since(version, rules()["vllm"]["tokens_by_concurrency_from"])
    if state is not None:
        blocks = (2 if prefix_caching else 1) + speculative_tokens
        size, tokens, groups, width = _hybrid(card, layers, state, base, blocks)
    else:
        size, tokens, groups, width = _attention(card, layers, base, version, hybrid_manager)
    return KvCache(
        kind,
        known=True,
        block_bytes=size,
        block_tokens=tokens,
        groups=groups,
        in_flight_tokens=in_flight,
        context_shards=context_parallel,
        by_concurrency=by_concurrency,
        bytes_a_token=width / context_parallel,
        notes=notes,
    )


def resolved_dtype(card: ModelCard, kv_dtype: str | None, dtype: str | None = None) -> str:
    """What "auto" stands for: the checkpoint's own KV algorithm, else the type that the model is loaded in
    (vLLM vllm/utils/torch_utils.py, kv_cache_dtype "auto")."""
    if kv_dtype not in (None, "auto"):
        return str(kv_dtype)
    q = card.quantization_config or {}
    algorithm = str(q.get("kv_cache_quant_algo") or "").lower()
    if algorithm in ("fp8", "nvfp4"):
        return algorithm
    scheme = q.get("kv_cache_scheme")
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8:
        return "fp8"
    if isinstance(scheme, dict) and scheme.get("num_bits") == 4 and scheme.get("type") == "float":
        return "nvfp4"
    return "float32" if element_bytes(dtype) == 4 else "bfloat16"


def _block_tokens(card: ModelCard, kind: Kind, device: str) -> int:
    if kind == "sglang":
        return 1
    table = rules()["vllm"]
    if device == "cpu" and card.mla_kv_lora_rank is not None:
        return int(table["cpu_mla_block_tokens"])
    return int(table["block_tokens"].get(device, 16))


def _unknown(kind: Kind, block: int, why: str) -> KvCache:
    return KvCache(kind, known=False, block_bytes=0, block_tokens=block, groups=(), notes=(why,))


def _element_bytes(card: ModelCard, dtype: str) -> float | None:
    table = rules()
    if dtype in table["mla_token_bytes"]:
        return 1 if card.mla_kv_lora_rank is not None else None
    if dtype in table["per_token_head_bytes"]:
        return None if card.mla_kv_lora_rank is not None else float(table["per_token_head_bytes"][dtype])
    size = table["kv_dtype_bytes"].get(dtype)
    return None if size is None else float(size)


Layer = tuple[bool, float]
"""Whether it slides, and the bytes of one token in it on one device."""


def _layers(
    card: ModelCard,
    layout: Layout,
    stages: tuple[int, ...],
    dtype: str,
    mtp: bool,
    draft: ModelCard | None,
) -> Counter[Layer]:
    """Layers that keep KV on the fullest stage, alike ones counted together."""
    out: Counter[Layer] = Counter()
    at = 0
    for count in stages:
        mine = _slice(card, layout.tensor, dtype, at, at + count)
        at += count
        if not out or _total(mine) > _total(out):
            out = mine
    if mtp and card.mtp_layers:
        wide = max((layer for layer in out if not layer[0]), default=max(out, default=(False, 0.0)))
        # one layer's weights are run again and again for more tokens than there are layers
        out[(False, wide[1])] += 1
    if draft is not None:
        out.update(_slice(draft, layout.tensor, dtype, 0, draft.layers))
    return out


def _total(layers: Counter[Layer]) -> float:
    return sum(size * count for (_, size), count in layers.items())


def _slice(card: ModelCard, tensor: int, dtype: str, begin: int, end: int) -> Counter[Layer]:
    """The layers from `begin` to `end`, by whether they slide and a token's bytes."""
    table = rules()
    size = _element_bytes(card, dtype) or 2.0
    scales = 8.0 if dtype in table["per_token_head_bytes"] else 0.0
    out: Counter[Layer] = Counter()
    sliding, heads, dims = card.sliding_layers, card.kv_heads_per_layer, card.head_dim_per_layer
    if card.mla_kv_lora_rank is not None:
        latent = table["mla_token_bytes"].get(dtype)
        if latent is None and card.index_head_dim and size == 1:
            latent = table["mla_token_bytes"]["fp8_ds_mla"]
        if latent is None:
            latent = (card.mla_kv_lora_rank + (card.mla_qk_rope_head_dim or 0)) * size
        if card.index_head_dim:
            key = card.index_head_dim
            latent += key + ceil_div(key, 128) * table["index_scale_bytes_per_128"]
        held = sum(1 for n in heads[begin:end] if n) if heads else end - begin
        if heads is None and card.hybrid is not None:
            held = held * (card.layers - card.hybrid.layers) // card.layers
        out[(False, float(latent))] = held
        return out
    plain = card.head_dim + (card.value_head_dim or card.head_dim)
    if sliding is None and heads is None and dims is None:
        out[(False, max(1, card.kv_heads // tensor) * (plain * size + scales))] = end - begin
        return out
    for i in range(begin, end):
        n = heads[i] if heads is not None else card.kv_heads
        if not n:
            continue
        both = 2 * dims[i] if dims is not None else plain
        slides = sliding[i] if sliding is not None else False
        out[(slides, max(1, n // tensor) * (both * size + scales))] += 1
    return out


def _state(card: ModelCard, layout: Layout, speculative_tokens: int) -> int | None:
    """One sequence's state of one layer on one device; None where there is none or no rule.

    vLLM model_executor/layers/mamba/mamba_utils.py MambaStateShapeCalculator: heads over the tensor ranks,
    one more of the convolution's columns for each speculative token.
    """
    h: HybridState | None = card.hybrid
    if h is None or h.matrix_bytes is None or h.column_bytes is None:
        return None
    tensor = layout.tensor
    column = h.column_bytes
    if h.kind == "mamba" and h.key_heads and h.key_heads % tensor:
        inner = (h.value_heads or 0) * (h.value_head_dim or 0)
        groups = 2 * h.key_heads * (h.key_head_dim or 0)
        if inner + groups:
            column = column * (inner + groups // h.key_heads * tensor) // (inner + groups)
    columns = max(0, (h.conv_kernel or 4) - 1) + speculative_tokens
    return h.matrix_bytes // tensor + column // tensor * columns


def _attention(
    card: ModelCard, layers: Counter[Layer], base: int, version: str | None, hybrid_manager: bool
) -> tuple[int, int, tuple[Group, ...], float]:
    """Block bytes, tokens of a block, groups, bytes of a further token, for models without state."""
    table = rules()["vllm"]
    full = {size: n for (slides, size), n in layers.items() if not slides}
    slid = {size: n for (slides, size), n in layers.items() if slides}
    chunked = (card.model_type or card.architecture).lower().startswith("llama4")
    unequal = bool(slid) and bool(full) and set(slid) != set(full)
    in_full = not hybrid_manager or (chunked and table["chunked_local_in_full"])
    in_full = in_full or (unequal and not since(version, table["unequal_pages_from"]))
    if not slid or (full and in_full):
        width = _total(layers)
        return round(width * base), base, (Group("full", 1, base),), width
    window = card.sliding_window or 1
    if not full:
        width = _total(layers)
        return round(width * base), base, (Group("sliding", 1, base, window),), width
    n_full, n_slid = sum(full.values()), sum(slid.values())
    each = _group_size(n_full, n_slid)
    wide, narrow = max(*full, *slid), (max(full), max(slid))
    page = wide * base
    grown = not since(version, table["padded_pages_keep_block_from"])
    tokens = tuple(base * int(wide // one) if grown or wide % one == 0 else base for one in narrow)
    groups = (
        Group("full", ceil_div(n_full, each), tokens[0]),
        Group("chunked" if chunked else "sliding", ceil_div(n_slid, each), tokens[1], window),
    )
    size = round(page * each)
    return size, min(tokens), groups, size * groups[0].count / tokens[0]


def _group_size(*counts: int) -> int:
    """Layers of a group: as many as the rarest kind has, or the commonest where they are nearly as many
    (kv_cache_utils.py _get_kv_cache_groups_uniform_page_size)."""
    least, most = min(counts), max(counts)
    return most if most < 1.5 * least else least


def _hybrid(
    card: ModelCard, layers: Counter[Layer], state: int, base: int, blocks: int
) -> tuple[int, int, tuple[Group, ...], float]:
    """The same for hybrids: an attention block grows until it holds one layer's state
    (vllm/platforms/interface.py _align_hybrid_block_size)."""
    states = card.hybrid.layers if card.hybrid else 0
    attending = sum(layers.values())
    if not attending:
        return state * states, 1, (Group("state", 1, 1, blocks=blocks),), 0.0
    width = max(size for _, size in layers)
    align = max(base, 16)
    if card.mla_kv_lora_rank is not None:
        align = max(align, int(rules()["vllm"]["mla_hybrid_alignment_tokens"]))
    tokens = max(base, align * ceil_div(state, round(align * width)))
    each = _group_size(attending, states)
    groups = (
        Group("full", ceil_div(attending, each), tokens),
        Group("state", ceil_div(states, each), tokens, blocks=blocks),
    )
    size = round(tokens * width) * each
    return size, tokens, groups, size * groups[0].count / tokens


def _sglang(card: ModelCard, layers: Counter[Layer], state: int, notes: tuple[str, ...]) -> KvCache:
    table = rules()["sglang"]
    width = 0.0
    for (slides, size), count in layers.items():
        width += size * count * (table["sliding_tokens_ratio"] if slides else 1)
    ratio = table["state_to_kv_ratio"]
    return KvCache(
        "sglang",
        known=True,
        block_bytes=max(1, round(width)),
        block_tokens=1,
        groups=(Group("full", 1, 1),),
        by_concurrency=False,
        state_request_bytes=state * card.hybrid.layers if card.hybrid else 0,
        state_share=ratio / (1 + ratio) if card.hybrid else 0.0,
        bytes_a_token=width,
        notes=notes,
    )
