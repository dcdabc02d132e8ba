"""config.json under its many spellings: sensible numbers, and what each layer does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from orchestrator.model_card.reading import Damaged, NotKnown

MAX_LAYERS = 4096
_MAX_NUMBER = 1 << 40

Mixer = Literal["full", "sliding", "delta", "kda", "mamba", "none"]
Feed = Literal["dense", "experts", "none"]


@cache
def tables() -> dict[str, Any]:
    """`config_names.yaml`."""
    import yaml

    text = (Path(__file__).parent / "config_names.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data


class Config:
    """The text model's part of a config.json, `outer` the whole of it."""

    def __init__(self, outer: Mapping[str, Any]) -> None:
        inner: Mapping[str, Any] = outer
        for part in ("text_config", "language_config", "llm_config", "thinker_config"):
            nested = inner.get(part)
            if isinstance(nested, dict):
                inner = nested
        self.outer = outer
        self.text = inner
        self.model_type = str(inner.get("model_type") or outer.get("model_type") or "")[:64]

    def get(self, key: str) -> Any:
        """From the text model, else from the whole file."""
        value = self.text.get(key)
        return self.outer.get(key) if value is None else value

    def named(self, fact: str) -> Any:
        """The raw value of a fact under any of its spellings, None where there is none."""
        return next((v for k in tables()["names"][fact] if (v := self.text.get(k)) is not None), None)

    def fact(self, fact: str, default: int | None = None, *, least: int = 0, most: int = _MAX_NUMBER) -> int:
        """A number under any of its spellings; Damaged where missing or absurd."""
        value = self.named(fact)
        if value is None and default is None:
            default = tables()["class_defaults"].get(self.model_type, {}).get(fact)
        if value is None and default is not None:
            return default
        return _sensible(tables()["names"][fact][0], value, least, most)

    def wrong(self, fact: str, why: str) -> Damaged:
        """The error of a fact whose value does not go with the others."""
        names = tables()["names"][fact]
        key = next((k for k in names if self.text.get(k) is not None), names[0])
        return Damaged(f"cannot be right: {key} is {str(self.text.get(key))[:80]}, {why}")

    def whole(self, key: str, default: int = 0) -> int:
        value = self.text.get(key)
        return default if value is None else _sensible(key, value, 0, _MAX_NUMBER)

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.get(key)
        return value if isinstance(value, dict) else {}

    def sequence(self, key: str, length: int | None = None) -> list[Any] | None:
        """A list of one entry a layer, None where there is none. Raises Damaged where it is too short."""
        value = self.text.get(key)
        if not isinstance(value, list) or not value:
            return None
        if length is not None and len(value) < length:
            raise Damaged(f"gives {key} for {len(value)} of {length} layers")
        return value[: length if length is not None else MAX_LAYERS + 1]


def number_in(table: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A whole number of a nested table."""
    value = table.get(key)
    return default if value is None else _sensible(key, value, 0, _MAX_NUMBER)


@cache
def classes() -> dict[str, frozenset[str]]:
    """`classes.yaml`."""
    import yaml

    text = (Path(__file__).parent / "classes.yaml").read_text(encoding="utf-8")
    data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {part: frozenset(map(str, names)) for part, names in data.items()}


def _sensible(key: str, value: Any, least: int, most: int) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        if value is None:
            raise NotKnown(f"has no {key}")
        raise Damaged(f"cannot be right: {key} is {str(value)[:40]}")
    return value


@dataclass(frozen=True, slots=True)
class Layers:
    """What mixes tokens and what feeds forward, one entry a layer. `window` in tokens, where one slides."""

    mixers: tuple[Mixer, ...]
    feeds: tuple[Feed, ...]
    window: int | None


def layers_of(c: Config) -> Layers:
    """Which layers attend, slide, hold a recurrent state, and have experts. Raises Damaged."""
    blocks = _blocks(c)
    count = len(blocks) if blocks else c.fact("layers", least=1, most=MAX_LAYERS)
    if count > MAX_LAYERS:
        raise Damaged(f"has {count:,} layers")
    if blocks:
        mixers: tuple[Mixer, ...] = tuple(b[0] for b in blocks)
        return Layers(mixers, tuple(b[1] for b in blocks), None)
    recurrent = _recurrent(c, count)
    window, slides = _sliding(c, count)
    return Layers(
        tuple(recurrent[i] or ("sliding" if slides[i] else "full") for i in range(count)),
        _feeds(c, count),
        window if any(slides) else None,
    )


_BLOCKS: dict[str, tuple[Mixer, Feed]] = {
    "M": ("mamba", "none"),
    "mamba": ("mamba", "none"),
    "*": ("full", "none"),
    "attention": ("full", "none"),
    "-": ("none", "dense"),
    "mlp": ("none", "dense"),
    "E": ("none", "experts"),
    "moe": ("none", "experts"),
}


def _blocks(c: Config) -> list[tuple[Mixer, Feed]] | None:
    """Nemotron-H: each block is one thing alone."""
    if c.model_type != "nemotron_h":
        return None
    pattern = c.text.get("hybrid_override_pattern") or c.text.get("layers_block_type")
    if not isinstance(pattern, (str, list)) or not 0 < len(pattern) <= MAX_LAYERS:
        return None
    try:
        return [_BLOCKS[b] for b in pattern if b != "|"]
    except (KeyError, TypeError):
        raise Damaged("has a block pattern with unknown letters") from None


def _recurrent(c: Config, count: int) -> list[Mixer | None]:
    types = c.sequence("layer_types", count) or c.sequence("layers_block_type", count)
    if types and any(t in ("linear_attention", "mamba", "mamba2") for t in types):
        state: Mixer = "mamba" if c.named("layers") and "linear_num_value_heads" not in c.text else "delta"
        return [state if t in ("linear_attention", "mamba", "mamba2") else None for t in types]
    kda = c.table("linear_attn_config").get("kda_layers")
    if isinstance(kda, list):
        # counted from one
        held = {i for i in kda if type(i) is int}
        return ["kda" if i + 1 in held else None for i in range(count)]
    if c.whole("linear_num_value_heads"):
        every = c.whole("full_attention_interval", 4) or 4
        return ["delta" if (i + 1) % every else None for i in range(count)]
    if c.whole("attn_layer_period"):
        every, first = c.whole("attn_layer_period"), c.whole("attn_layer_offset")
        return [None if i % every == first else "mamba" for i in range(count)]
    return [None] * count


def _sliding(c: Config, count: int) -> tuple[int | None, list[bool]]:
    none = [False] * count
    if c.text.get("use_sliding_window") is False or c.text.get("compress_ratios"):
        return None, none
    window = next((n for k in ("sliding_window", "attention_chunk_size") if (n := c.whole(k))), None)
    if window is None:
        return None, none
    types = c.sequence("layer_types", count)
    if types:
        return window, [t in ("sliding_attention", "chunked_attention") for t in types]
    pattern = c.sequence("hybrid_layer_pattern", count)
    if pattern:
        return window, [p == 1 for p in pattern]
    if c.model_type.startswith("llama4"):
        rope = c.sequence("no_rope_layers", count)
        every = c.whole("no_rope_layer_interval", 4) or 4
        return window, [bool(r) for r in rope] if rope else [bool((i + 1) % every) for i in range(count)]
    every = c.whole("sliding_window_pattern") or tables()["sliding_every"].get(c.model_type, 0)
    if every:
        return window, [bool((i + 1) % every) for i in range(count)]
    if window >= c.fact("context", window):
        return None, none
    if c.text.get("use_sliding_window") is True:
        return window, [i >= c.whole("max_window_layers", 0) for i in range(count)]
    return (window, [True] * count) if c.model_type in tables()["sliding_all"] else (None, none)


def _feeds(c: Config, count: int) -> tuple[Feed, ...]:
    return tuple("experts" if e else "dense" for e in _with_experts(c, count))


def _with_experts(c: Config, count: int) -> list[bool]:
    if not c.fact("experts", 0):
        return [False] * count
    named = c.sequence("mlp_layer_types", count)
    if named:
        return [t == "sparse" for t in named]
    listed = c.sequence("moe_layer_freq", count)
    if listed:
        return [bool(f) for f in listed]
    dense_first = c.whole("first_k_dense_replace")
    only_dense = c.text.get("mlp_only_layers")
    dense = (
        set(only_dense) if isinstance(only_dense, list) and all(type(i) is int for i in only_dense) else set()
    )
    every = c.whole("decoder_sparse_step", 1) or c.whole("interleave_moe_layer_step", 1) or 1
    every = max(every, c.whole("interleave_moe_layer_step", 1), c.whole("expert_layer_period", 1))
    offset = c.whole("expert_layer_offset", every - 1)
    return [i >= dense_first and i not in dense and i % every == offset for i in range(count)]
