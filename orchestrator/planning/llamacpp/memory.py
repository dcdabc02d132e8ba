"""What llama.cpp's memory holds: weights + KV + state + compute + checkpoints + the process itself.

KV is exact: it agrees with the engine's own log to the byte (SmolLM2-135M: 23,040 B a token at f16, 12,240 at
q8_0, for separate and shared caches). The rest are estimates with their formula beside them, measured with
xllamacpp 2026.10 on SmolLM2-135M (hidden 576, vocabulary 49,152) and rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.model_card.card import ModelCard

MIB = 2**20
GIB = 2**30

CACHE_TYPE_BYTES: dict[str, float] = {
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes of one element by KV type: ggml stores quantized types in blocks of 32 with a scale."""

_SAME = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "half": "f16", "bfloat16": "bf16"}

EXACT_NAMES = frozenset({*_SAME, *_SAME.values()})
"""Names of KV types that keep at least 16 bits."""

QUANTIZED = frozenset(t for t, size in CACHE_TYPE_BYTES.items() if size < 2)
BLOCK = 32
"""Elements in a block of a quantized type; a head's size must be a multiple of it."""

CELLS = 256
"""llama.cpp rounds a context up to this many cells."""

CHECKPOINTS = 32
CHECKPOINT_SPACING = 8192
"""Context checkpoints a slot keeps at most, and the tokens between two (llama-server's defaults)."""


def cache_type(name: str) -> str:
    """The type whose bytes a name stands for; f16 where the name is unknown, which the engine refuses."""
    known = _SAME.get(name, name)
    return known if known in CACHE_TYPE_BYTES else "f16"


@dataclass(frozen=True, slots=True)
class Sizing:
    """The levers that memory depends on. `pool_tokens` is the whole KV pool in cells: `slots * context`
    where each slot has its own cache, at least `context` where they share one (`unified`)."""

    context: int
    slots: int
    pool_tokens: int
    unified: bool
    kv_type: str
    flash_attention: bool
    batch: int
    ubatch: int

    def with_slots(self, slots: int) -> Sizing:
        """The same with another number of slots; a shared pool shrinks in proportion."""
        if not self.unified:
            return replace(self, slots=slots, pool_tokens=slots * self.context)
        share = self.pool_tokens * slots // self.slots
        return replace(self, slots=slots, pool_tokens=max(self.context, padded(share)), unified=slots > 1)

    def with_context(self, context: int) -> Sizing:
        """The same with another context for each request; the pool shrinks in proportion."""
        pool = self.slots * context
        if self.unified:
            pool = max(context, min(pool, padded(self.pool_tokens * context // self.context)))
        return replace(self, context=context, pool_tokens=pool)


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes by what they are for. `state_known` is False where a hybrid's state has no known rule and
    `state` is a margin."""

    weights: int
    kv: int
    state: int
    compute: int
    checkpoints: int
    process: int
    state_known: bool = True

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.state + self.compute + self.checkpoints + self.process


def padded(tokens: int) -> int:
    """Tokens rounded up to what llama.cpp allocates."""
    return -(-tokens // CELLS) * CELLS


def kv_bytes_per_token(card: ModelCard, kv_type: str, *, sliding: bool = False) -> int:
    """KV bytes of one token over the layers that keep every token (or only the `sliding` ones).

    layers x KV heads x (key size + value size) x bytes of the type; MLA keeps one latent per token,
    (kv_lora_rank + qk_rope_head_dim) x bytes, whose values are part of its keys.
    """
    size = CACHE_TYPE_BYTES[kv_type]
    elements = 0.0
    for layer in range(card.layers):
        slides = card.sliding_layers is not None and card.sliding_layers[layer]
        if slides != sliding:
            continue
        elements += _elements(card, layer)
    return round(elements * size)


def _elements(card: ModelCard, layer: int) -> float:
    heads = card.kv_heads_per_layer[layer] if card.kv_heads_per_layer is not None else _heads(card)
    if not heads:
        return 0
    if card.mla_kv_lora_rank is not None:
        return card.mla_kv_lora_rank + (card.mla_qk_rope_head_dim or 0)
    return heads * (card.head_dim + (card.value_head_dim or card.head_dim))


def _heads(card: ModelCard) -> float:
    """KV heads of a layer where the card gives one number; a hybrid's state layers keep no KV."""
    if card.hybrid is None or not card.layers:
        return card.kv_heads
    return card.kv_heads * max(0, card.layers - card.hybrid.layers) / card.layers


def sliding_cells(card: ModelCard, sizing: Sizing) -> int:
    """Cells of one sliding-window cache: pad(window x sequences in it + ubatch, 256), at most the context."""
    window = card.sliding_window or 0
    sequences = sizing.slots if sizing.unified else 1
    whole = sizing.pool_tokens if sizing.unified else sizing.context
    return min(whole, padded(window * sequences + sizing.ubatch))


def kv_bytes(card: ModelCard, sizing: Sizing) -> int:
    """The whole KV cache: every cell of the full layers, the window's cells of the sliding ones."""
    full = kv_bytes_per_token(card, sizing.kv_type) * sizing.pool_tokens
    return full + _sliding_bytes(card, sizing) * (1 if sizing.unified else sizing.slots)


def _sliding_bytes(card: ModelCard, sizing: Sizing) -> int:
    if not card.sliding_layers or not any(card.sliding_layers):
        return 0
    return kv_bytes_per_token(card, sizing.kv_type, sliding=True) * sliding_cells(card, sizing)


def state_bytes(card: ModelCard, slots: int) -> tuple[int, bool]:
    """A hybrid's recurrent state for all slots, and whether a rule for it is known.

    Where none is, the margin is 128 MiB a slot: more than the largest state that is published.
    """
    if card.hybrid is None:
        return 0, True
    if card.hybrid.state_bytes_per_layer is None:
        return 128 * MIB * slots, False
    return card.hybrid.layers * card.hybrid.state_bytes_per_layer * slots, True


def compute_bytes(card: ModelCard, sizing: Sizing) -> int:
    """Working buffers of one pass: an upper estimate, the part of llama.cpp's memory that has no exact rule.

    Activations 64 B x hidden a ubatch token (measured 52), the attention mask 2 B x ubatch x cells that a
    sequence sees (exact), without flash attention also 4 B x heads x ubatch x cells (exact), one row of
    logits a ubatch token (builds that compute only the rows asked for need less), 16 B x vocabulary a slot
    for logits and sampling. Measured for ubatch 512: 15.1 MiB at 512 cells, 22.6 at 8,192, 78.6 at 65,536
    shared ones, 327.5 at 16,384 without flash attention; the estimate is 115, 123, 179, 435.
    """
    cells = sizing.pool_tokens if sizing.unified else sizing.context
    mask = 2 * sizing.ubatch * cells
    if not sizing.flash_attention:
        mask += (2 + 4 * card.heads) * sizing.ubatch * cells
    activations = 64 * card.hidden_size * sizing.ubatch
    logits = 4 * card.vocab_size * sizing.ubatch + 16 * card.vocab_size * sizing.slots
    return activations + mask + logits


def checkpoint_bytes(card: ModelCard, sizing: Sizing) -> int:
    """Host memory for the checkpoints that models with sliding windows or recurrent state need to step back.

    Each holds one sequence's window and state; a slot takes one every 8,192 tokens, 32 at most.
    """
    state, _ = state_bytes(card, 1)
    # a checkpoint is one sequence's, whether the cache is shared or not
    single = replace(sizing, slots=1, unified=False, pool_tokens=sizing.context)
    one = state + _sliding_bytes(card, single)
    return one * sizing.slots * min(CHECKPOINTS, 1 + sizing.context // CHECKPOINT_SPACING)


def process_bytes(card: ModelCard) -> int:
    """The server without the model: 96 MiB, and 512 B a vocabulary entry for the tokenizer (measured: 60 MiB
    in all for the embedded server)."""
    return 96 * MIB + 512 * card.vocab_size


def room(card: ModelCard, sizing: Sizing, *, draft_bytes: int = 0) -> Room:
    """Everything this sizing needs, wherever it lies. `draft_bytes` are a draft model's weights and KV."""
    state, known = state_bytes(card, sizing.slots)
    return Room(
        weights=card.weights_bytes + draft_bytes,
        kv=kv_bytes(card, sizing),
        state=state,
        compute=compute_bytes(card, sizing),
        checkpoints=checkpoint_bytes(card, sizing),
        process=process_bytes(card),
        state_known=known,
    )


def os_margin_bytes(limit_bytes: int) -> int:
    """Host memory left to everything else: 5 % of the limit, at least 128 MiB, at most 2 GiB."""
    return min(2 * GIB, max(128 * MIB, limit_bytes // 20))
