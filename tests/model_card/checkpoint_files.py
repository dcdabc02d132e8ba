"""Small checkpoints, written by the formats' own rules."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

Tensor = tuple[str, tuple[int, ...], int, int]
"""name, shape, ggml type, bytes"""

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.file_type": ("I", 7),
    "llama.block_count": ("I", 2),
    "llama.context_length": ("I", 512),
    "llama.embedding_length": ("I", 64),
    "llama.attention.head_count": ("I", 4),
    "llama.attention.head_count_kv": ("I", 2),
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(40)],
    "tokenizer.chat_template": "{{ messages }}",
}
TENSORS: list[Tensor] = [
    ("token_embd.weight", (64, 40), 8, 64 * 40 // 32 * 34),
    ("output_norm.weight", (64,), 0, 256),
    ("blk.1.attn_norm.weight", (64,), 0, 256),
]
_CODES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def value(v: Any) -> bytes:
    """A string, a list of strings, `(code, number)`, `(code, [numbers])`, or raw bytes of type and value."""
    if isinstance(v, bytes):
        return v
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if isinstance(v, list):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(text(s) for s in v)
    code, number = v
    if isinstance(number, list):
        return struct.pack(f"<IIQ{len(number)}{code}", 9, _CODES[code], len(number), *number)
    return struct.pack("<I" + code, _CODES[code], number)


def gguf(
    pairs: dict[str, Any] | list[tuple[Any, Any]] = LLAMA,
    tensors: list[Tensor] = TENSORS,
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    items = list(pairs.items()) if isinstance(pairs, dict) else pairs
    n_tensors, n_pairs = counts or (len(tensors), len(items))
    out = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs)
    out += b"".join(text(k) + value(v) for k, v in items)
    offset = 0
    for name, shape, kind, size in tensors:
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += -(-size // alignment) * alignment
    if tensors:
        last = -(-tensors[-1][3] // alignment) * alignment - tensors[-1][3]
        out += b"\0" * (-len(out) % alignment) + b"\0" * (offset - last)
    return out


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """name → (dtype, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * offset


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 40,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


def folder(path: Path, config: dict[str, Any] = CONFIG, shards: int = 1) -> Path:
    """A Hugging Face folder with `shards` weight files of 128 bytes each."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    if shards == 1:
        (path / "model.safetensors").write_bytes(safetensors({"a": ("BF16", [8, 8], 128)}))
    elif shards:
        names = [f"model-{i:05d}-of-{shards:05d}.safetensors" for i in range(1, shards + 1)]
        for i, name in enumerate(names):
            (path / name).write_bytes(safetensors({f"t{i}": ("BF16", [8, 8], 128)}))
        index = {"metadata": {}, "weight_map": {f"t{i}": n for i, n in enumerate(names)}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
