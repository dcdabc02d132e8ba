"""From GGUF headers to a model card, by the rules of llama.cpp (see `gguf_types.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.model_card.card import HybridState, ModelCard
from orchestrator.model_card.gguf import MAX_LAYERS, GgufHeader, Passed, read_header, tables
from orchestrator.model_card.reading import Damaged, LocalFile, unreadable

MAX_CONTEXT_TOKENS = 2**31 - 1
"""The largest context that an engine's whole number holds."""

_SPLIT = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def split_files(name: str) -> list[str]:
    """All file names of the split that `name` belongs to, first to last; `[name]` where it is whole."""
    m = _SPLIT.match(name)
    if m is None or not 1 <= int(m["count"]) <= 9999:
        return [name]
    return [f"{m['stem']}-{i:05d}-of-{m['count']}.gguf" for i in range(1, int(m["count"]) + 1)]


def stem(name: str) -> str:
    """What a GGUF file is called without its suffix and the number of its part."""
    m = _SPLIT.match(name)
    return m["stem"] if m else name.removesuffix(".gguf")


def read_gguf(path: Path, source: str, name: str) -> ModelCard:
    """The card of a GGUF file, or of a split one by its first shard.

    Raises LlmserveError: `model_not_found` where a file is missing, `model_unreadable` where one is
    damaged, cut, or not the first shard.
    """
    files = split_files(path.name)
    if path.name != files[0]:
        raise unreadable(str(path), "is a later part of a split model", f"give the first part, {files[0]}")
    headers = []
    for file in files:
        part = path.with_name(file)
        if len(files) > 1 and not part.exists():
            raise unreadable(
                str(path), f"is one of {len(files)} parts, and {file} is missing", "fetch the missing part"
            )
        with LocalFile(part) as f:
            try:
                headers.append(read_header(f))
            except Damaged as e:
                raise unreadable(str(part), str(e)) from None
    try:
        return card_of(headers, source, name, str(path.absolute()), files)
    except Damaged as e:
        raise unreadable(str(path), str(e)) from None


def card_of(
    headers: Sequence[GgufHeader], source: str, name: str, path: str | None, files: Sequence[str]
) -> ModelCard:
    """Headers (of every shard, the first first) to a card. Raises Damaged where a needed fact is missing."""
    first = headers[0]
    shards = first.values.get("split.count", 1)
    if isinstance(shards, int) and shards > 1 and shards != len(headers):
        raise Damaged(f"is part of a model in {shards} files, and its name does not say so")
    facts = _Facts(first)
    if facts.architecture == "clip" or first.values.get("general.type") in ("mmproj", "adapter", "imatrix"):
        raise Damaged("holds a projector, adapter or matrix, not a language model")
    mtp = facts.whole("nextn_predict_layers", 0)
    layers = facts.whole("block_count", least=1, most=MAX_LAYERS) - mtp
    if layers < 1:
        raise Damaged(f"has {mtp} multi-token-prediction layers and no others")
    present = max(h.blocks for h in headers)
    if layers > present:
        raise facts.wrong("block_count", f"and {present} of its layers have tensors")
    heads = facts.per_layer("attention.head_count", layers, default=0)
    kv = facts.per_layer("attention.head_count_kv", layers, default=None) or heads
    if facts.architecture not in tables()["recurrent"]["no_attention"]:
        _require_attention(facts, heads, kv)
    kv = _without_shared(kv, facts, layers)
    hidden = facts.whole("embedding_length", least=1)
    head_dim = facts.whole("attention.key_length", hidden // max(heads) if max(heads) else 0)
    if max(kv) and not head_dim:
        key = "attention.key_length" if facts.has("attention.key_length") else "embedding_length"
        raise facts.wrong(key, f"which leaves nothing for each of {max(heads)} heads")
    value_dim = facts.whole("attention.value_length", head_dim)
    window, sliding = _sliding(facts, layers)
    narrow = facts.whole("attention.key_length_swa", head_dim)
    dims = None
    if sliding and narrow != head_dim:
        dims = tuple(narrow if s else head_dim for s in sliding)
    rank = facts.whole("attention.kv_lora_rank", 0)
    mla_head = facts.whole("attention.key_length_mla", 0)
    notes = []
    if rank and not mla_head:
        notes.append("converted before MLA was kept compressed: the KV cache holds every head in full")
    if facts.whole("attention.indexer.head_count", 0):
        notes.append("sparse attention: its index keys are cached beside the KV")
    if facts.has("attention.compress_ratios"):
        notes.append("compressed attention: KV is not linear in length, and no rule for it is known")
    if first.unknown_types:
        notes.append(
            f"tensor types {list(first.unknown_types)} are not known here: weights counted by file size"
        )
    hybrid = _hybrid(facts, layers, heads, kv)
    if hybrid is not None:
        recurrent = _recurrent(facts, layers, kv)
        if facts.architecture not in tables()["recurrent"]["every_layer"]:
            kv = tuple(0 if r else n for n, r in zip(kv, recurrent, strict=True))
    experts = facts.whole("expert_count", 0)
    return ModelCard(
        source=source,
        name=name,
        path=path,
        format="gguf",
        architecture=facts.architecture,
        layers=layers,
        heads=max(heads),
        kv_heads=max(kv),
        kv_heads_per_layer=kv if len(set(kv)) > 1 else None,
        head_dim=mla_head or head_dim,
        value_head_dim=facts.whole("attention.value_length_mla", 0) or value_dim,
        head_dim_per_layer=dims,
        hidden_size=hidden,
        vocab_size=facts.vocabulary(),
        context_length=facts.whole("context_length", least=1, most=MAX_CONTEXT_TOKENS),
        weights_bytes=sum(h.tensor_bytes for h in headers),
        parameters=sum(h.parameters for h in headers),
        quantization=_quantization(headers),
        chat_template=_present(first.values.get("tokenizer.chat_template")),
        mla_kv_lora_rank=rank if rank and mla_head else None,
        mla_qk_rope_head_dim=facts.whole("rope.dimension_count", 0) if rank and mla_head else None,
        experts=experts or None,
        experts_per_token=facts.most("expert_used_count") if experts else None,
        sliding_window=window,
        sliding_layers=sliding,
        hybrid=hybrid,
        mtp_layers=mtp,
        files=tuple(files),
        notes=tuple(notes),
        intermediate_size=facts.largest("feed_forward_length"),
        moe_intermediate_size=(
            (facts.largest("expert_feed_forward_length") or facts.largest("feed_forward_length"))
            if experts
            else None
        ),
        shared_experts=facts.whole("expert_shared_count", 0) if experts else 0,
        encoder_decoder=facts.architecture == "t5",
        generates=facts.architecture not in tables()["encoders"],
        index_head_dim=facts.whole("attention.indexer.key_length", 0) or None,
        compressed_attention=facts.has("attention.compress_ratios"),
    )


class _Facts:
    """The architecture's own keys, held to be sensible numbers."""

    def __init__(self, header: GgufHeader) -> None:
        architecture = header.values.get("general.architecture")
        if not isinstance(architecture, str) or not re.fullmatch(r"[\w.-]{1,64}", architecture):
            raise Damaged("does not name its architecture")
        self.architecture = architecture
        self.header = header

    def get(self, key: str) -> Any:
        return self.header.values.get(f"{self.architecture}.{key}")

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def whole(self, key: str, default: int | None = None, *, least: int = 0, most: int = 1 << 40) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        return self._sensible(key, value, least, most)

    def most(self, key: str) -> int:
        """A number, or the largest where the file gives one a layer."""
        value = self.get(key)
        return self._sensible(key, max(value, default=0) if isinstance(value, tuple) else value, 0, 1 << 40)

    def largest(self, key: str) -> int | None:
        """`most`, None where the file does not say."""
        return self.most(key) or None if self.has(key) else None

    def per_layer(self, key: str, layers: int, *, default: int | None) -> tuple[int, ...]:
        """One number a layer; () where the key is missing and `default` is None."""
        value = self.get(key)
        if value is None:
            return () if default is None else (default,) * layers
        if not isinstance(value, tuple):
            return (self._sensible(key, value, 0, 1 << 20),) * layers
        if len(value) < layers:
            raise Damaged(f"gives {key} for {len(value)} of {layers} layers")
        return tuple(self._sensible(key, v, 0, 1 << 20) for v in value[:layers])

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        value = self.get(key)
        if not isinstance(value, tuple):
            return None
        if len(value) < layers:
            raise Damaged(f"gives {key} for {len(value)} of {layers} layers")
        return tuple(bool(v) for v in value[:layers])

    def wrong(self, key: str, why: str) -> Damaged:
        """The error of a key whose value does not go with the rest of the file."""
        value = self.get(key)
        if isinstance(value, tuple):
            value = list(value[:8])
        return Damaged(f"cannot be right: {self.architecture}.{key} is {str(value)[:80]}, {why}")

    def vocabulary(self) -> int:
        tokens = self.header.values.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Passed):
            return tokens.length
        if self.has("vocab_size"):
            return self.whole("vocab_size", least=1)
        if self.header.embedding_rows:
            return self.header.embedding_rows
        raise Damaged("does not say how large its vocabulary is")

    def _sensible(self, key: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            said = "is missing" if value is None else f"is {str(value)[:40]}"
            raise Damaged(f"cannot be right: {self.architecture}.{key} {said}")
        return value


def _require_attention(facts: _Facts, heads: tuple[int, ...], kv: tuple[int, ...]) -> None:
    """Some layer attends, and every one that does divides its heads by its KV heads without rest.

    A layer with 0 is legal: hybrids have such layers. Raises Damaged.
    """
    if not max(heads):
        if not facts.has("attention.head_count"):
            raise Damaged(f"cannot be right: {facts.architecture}.attention.head_count is missing")
        raise facts.wrong("attention.head_count", "and a model of this architecture attends")
    if not max(kv):
        raise facts.wrong("attention.head_count_kv", "and a model of this architecture keeps KV")
    for layer, (q, k) in enumerate(zip(heads, kv, strict=True)):
        if q and k and q % k:
            raise facts.wrong("attention.head_count_kv", f"which does not divide the {q} of layer {layer}")


def _without_shared(kv: tuple[int, ...], facts: _Facts, layers: int) -> tuple[int, ...]:
    own: int = tables()["kv_layers_from_start"].get(facts.architecture, layers)
    own = min(own, layers - min(facts.whole("attention.shared_kv_layers", 0), layers))
    return kv[:own] + (0,) * (layers - own)


def _sliding(facts: _Facts, layers: int) -> tuple[int | None, tuple[bool, ...] | None]:
    architecture = facts.architecture
    rule = tables()["sliding"].get(architecture, {})
    named = facts.most("attention.sliding_window") if facts.has("attention.sliding_window") else None
    if architecture in tables()["sliding_ignored"] or named == 0 or rule.get("only_layers", layers) != layers:
        return None, None
    fixed = rule.get("window") if rule.get("fixed") else None
    window = fixed or named or rule.get("window")
    own = facts.get("attention.sliding_window_pattern")
    every = own if isinstance(own, int) and not isinstance(own, bool) else rule.get("every")
    flags = facts.flags("attention.sliding_window_pattern", layers)
    if flags is None and every is not None:
        full_at = 0 if rule.get("full_first") else every - 1
        flags = tuple(every == 0 or il % every != full_at for il in range(layers))
    if not window or flags is None or not any(flags):
        return None, None
    return window, flags


def _recurrent(facts: _Facts, layers: int, kv: tuple[int, ...]) -> tuple[bool, ...]:
    rules = tables()["recurrent"]
    architecture = facts.architecture
    if architecture in rules["every_layer"] or architecture in rules["no_attention"]:
        return (True,) * layers
    if architecture in rules["kv_heads_zero"]:
        return tuple(n == 0 for n in kv)
    if architecture in rules["kv_heads_and_ff_zero"]:
        ff = facts.per_layer("feed_forward_length", layers, default=0)
        return tuple(n == 0 and f == 0 for n, f in zip(kv, ff, strict=True))
    if architecture in rules["interval"]:
        own = facts.flags("attention.recurrent_layers", layers)
        every = facts.whole("full_attention_interval", 4, least=1)
        return own or tuple((il + 1) % every != 0 for il in range(layers))
    return (False,) * layers


def _hybrid(facts: _Facts, layers: int, heads: tuple[int, ...], kv: tuple[int, ...]) -> HybridState | None:
    """State in f32, as llama.cpp keeps it: a convolution's last columns and the recurrent matrix."""
    count = sum(_recurrent(facts, layers, kv))
    if not count:
        return None

    def number(key: str) -> int:
        return facts.whole(key, 0)

    kernel, inner, state = number("ssm.conv_kernel"), number("ssm.inner_size"), number("ssm.state_size")
    groups, short, kda = number("ssm.group_count"), number("shortconv.l_cache"), number("kda.head_dim")
    columns = max(kernel - 1, 0)
    elements: int | None = columns * (inner + 2 * groups * state) + state * inner
    value_heads: int | None = number("ssm.time_step_rank") or None
    if short:
        elements = facts.whole("embedding_length") * (short - 1)
    elif kda:
        value_heads = max(heads)
        elements = 3 * (columns or 3) * value_heads * kda + kda * kda * value_heads
    elif number("wkv.head_size") or facts.architecture == "minimax-01" or not inner:
        elements = None
    return HybridState(
        layers=count,
        state_bytes_per_layer=None if elements is None else 4 * elements,
        key_heads=groups or None,
        value_heads=value_heads,
        key_head_dim=kda or state or None,
        value_head_dim=kda or (inner // value_heads if inner and value_heads else None),
        conv_kernel=kernel or short or None,
    )


def _quantization(headers: Sequence[GgufHeader]) -> str | None:
    named = tables()["file_types"].get(headers[0].values.get("general.file_type"))
    if named is not None:
        return str(named)
    stored: dict[str, int] = {}
    for header in headers:
        for kind, size in header.bytes_by_type.items():
            stored[kind] = stored.get(kind, 0) + size
    return max(stored, key=lambda k: stored[k]) if stored else None


def _present(template: Any) -> bool:
    return isinstance(template, Passed) or bool(template)
