"""What a config.json says against the shapes of the tensors beside it: vocabulary, hidden size, heads.

Only tensors that are stored as they are used are judged (two-dimensional floats under the common names of the
language model), and only where every layer has them alike: families of another build are left to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.model_card.config import Config, Layers

Shapes = Mapping[tuple[int | None, str], tuple[int, ...]]
"""Shape by layer (None outside of layers) and part: "embed", "q", "k", "v"."""

_PLAIN = {"F32", "F16", "BF16", "F8_E4M3"}
_NAME = re.compile(
    r"(?:(?:model|language_model|llm|thinker|transformer)\.){0,3}"
    r"(?:(?P<embed>embed_tokens)|layers\.(?P<layer>\d{1,6})\.self_attn\.(?P<part>[qkv])_proj)\.weight"
)
_DRAFTS = ("eagle", "medusa", "draft", "dflash", "dspark", "mtp")
"""Classes of models that guess for another one, whose embeddings are the other's."""
_OWN_WIDTH = ("word_embed_proj_dim", "embedding_size", "target_hidden_size", "draft_vocab_size")
_OWN_HEADS = ("block_configs", "o_lora_rank", "kv_lora_rank", "swa_head_dim", "global_head_dim")


def judged(name: str, dtype: str, shape: list[int]) -> tuple[int | None, str] | None:
    """Where a tensor belongs in `Shapes`, None for one that is not judged."""
    if len(shape) != 2 or dtype not in _PLAIN:
        return None
    found = _NAME.fullmatch(name[:256])
    if found is None:
        return None
    return (None, "embed") if found["embed"] else (int(found["layer"]), found["part"])


def check(c: Config, layers: Layers, heads: int, kv_heads: tuple[int, ...], shapes: Shapes) -> None:
    """Raises Damaged where a stored tensor disproves a figure of the configuration."""
    named = c.get("architectures")
    kind = str(named[0] if isinstance(named, list) and named else "").lower()
    if any(word in kind for word in _DRAFTS):
        return
    _embeddings(c, shapes.get((None, "embed")))
    _heads(c, layers, heads, kv_heads, shapes)


def _embeddings(c: Config, shape: tuple[int, ...] | None) -> None:
    """The vocabulary may be padded in the checkpoint, never be shorter than the configuration's."""
    if shape is None or any(c.get(key) is not None for key in _OWN_WIDTH):
        return
    rows, width = shape
    if rows < c.fact("vocabulary", least=1):
        raise c.wrong("vocabulary", f"and the stored embeddings have {rows} rows")
    if width != c.fact("hidden", least=1):
        raise c.wrong("hidden", f"and the stored embeddings are {width} wide")


def _heads(c: Config, layers: Layers, heads: int, kv_heads: tuple[int, ...], shapes: Shapes) -> None:
    if any(c.get(key) for key in _OWN_HEADS) or not isinstance(c.named("kv_heads"), int):
        return
    attending = [i for i, m in enumerate(layers.mixers) if m in ("full", "sliding") and kv_heads[i]]
    query, key, value = (_rows(shapes, attending, part) for part in "qkv")
    kv = kv_heads[attending[0]] if attending else 0
    if query is None or key is None or value != key or any(kv_heads[i] != kv for i in attending):
        return
    size = c.fact("head_dim", 0)
    if size:
        if key != kv * size:
            raise c.wrong("kv_heads", f"and the stored k_proj has {key} rows: {_hold(key, size)}")
        # an output gate doubles the query, or adds an element a head
        if query not in (heads * size, heads * (size + 1), 2 * heads * size):
            raise c.wrong("heads", f"and the stored q_proj has {query} rows: {_hold(query, size)}")
    elif key != kv * (c.fact("hidden", least=1) // heads) and key * heads != query * kv:
        # not even with a head size that the class has by itself
        raise c.wrong("kv_heads", f"of {heads} heads, and the stored k_proj has {key} rows, q_proj {query}")


def _hold(rows: int, size: int) -> str:
    return f"{rows / size:g} heads of {size}"


def _rows(shapes: Shapes, layers: list[int], part: str) -> int | None:
    """The rows of a projection where every one of these layers has it alike."""
    rows = {shapes[i, part][0] if (i, part) in shapes else None for i in layers}
    return rows.pop() if len(rows) == 1 else None
