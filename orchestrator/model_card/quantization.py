"""What a checkpoint's quantization_config says: a name, bytes a weight, and which parts keep their dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.model_card.config import Config, tables

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float64": 8}


@dataclass(frozen=True, slots=True)
class Quantization:
    """`name` None where weights are plain. `bytes_per_weight` is for quantized parts, `expert_bytes` for the
    experts where they differ; `kept` are the parts that keep the checkpoint's dtype."""

    name: str | None
    bytes_per_weight: float
    expert_bytes: float
    kept: frozenset[str]


def dtype_bytes(dtype: str | None) -> int:
    """Bytes of an element; 2 where the config is silent, as nearly every published model is."""
    return _DTYPE_BYTES.get(dtype or "", 2)


def quantization_of(c: Config, beside: Mapping[str, Any], plain_bytes: int) -> Quantization:
    """From config.json, or from ModelOpt's hf_quant_config.json `beside` it (its `quantization` table)."""
    q = c.table("quantization_config") or c.table("compression_config") or beside
    if not q:
        return Quantization(None, plain_bytes, plain_bytes, frozenset())
    method = str(q.get("quant_method") or "modelopt").lower()[:32]
    algorithm = str(q.get("quant_algo") or "").lower()[:32]
    kind = _kind(q, method, algorithm)
    size = float(tables()["bytes_per_weight"].get(kind, plain_bytes))
    group = _first_group(q).get("group_size") or q.get("group_size")
    if kind == "int4" and type(group) is int and 16 <= group < 128:
        # the table's figure is for groups of 128: an f16 scale and a 4-bit zero each
        size = 0.5 + 2.5 / group
    expert = str(q.get("moe_quant_algo") or "").lower()[:32]
    if not expert and c.get("expert_dtype") == "fp4":
        expert = "mxfp4"
    expert_size = float(tables()["bytes_per_weight"].get(expert, size))
    name = kind if method in ("fp8", "mxfp4", "modelopt", kind) else f"{method}-{kind}"
    if expert and expert != kind:
        name = f"{name}+{expert}"
    return Quantization(name, size, expert_size, _kept(q, method))


def _kind(q: Mapping[str, Any], method: str, algorithm: str) -> str:
    sizes = tables()["bytes_per_weight"]
    if algorithm in sizes:
        return algorithm
    if algorithm == "mixed_precision" and method == "modelopt":
        return "nvfp4"
    if method in sizes:
        return method
    if method == "bitsandbytes":
        return "nf4" if q.get("load_in_4bit") else "int8"
    weights = _first_group(q)
    bits = weights.get("num_bits") or q.get("bits") or q.get("w_bit")
    if bits == 4 and weights.get("type") == "float":
        return "nvfp4" if weights.get("group_size") == 16 else "mxfp4"
    if bits == 8:
        return "fp8" if weights.get("type") == "float" else "int8"
    return "int4" if bits == 4 or method in ("awq", "gptq") else str(bits or "unknown")[:16]


def _first_group(q: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = q.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            return weights
    return {}


_PARTS = {
    "attention": ("self_attn", ".attn", "attention"),
    "recurrent": ("linear_attn", "mixer.conv1d", "in_proj"),
    "shared": ("shared_expert",),
    "dense": ("mlp\\.(", "mlp.gate_proj", "mlp.down_proj"),
    "vision": ("vision", "visual"),
    "mtp": ("mtp",),
}


def _kept(q: Mapping[str, Any], method: str) -> frozenset[str]:
    """Parts that an ignore list names as a whole; embeddings, head, norms and router always are kept."""
    kept = {"embeddings", "head", "router", "small", "vision"}
    if method == "mxfp4":
        kept |= {"attention", "recurrent", "shared", "dense"}
    patterns: list[str] = []
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers"):
        value = q.get(key)
        patterns += [p for p in value if isinstance(p, str)] if isinstance(value, list) else []
    kept |= {part for part, words in _PARTS.items() if _names_whole(patterns, words)}
    return frozenset(kept)


def _names_whole(patterns: Iterable[str], words: tuple[str, ...]) -> bool:
    """A pattern with a wildcard, or a list that names the part in many layers."""
    hits = [p for p in patterns if any(w in p for w in words)]
    return any("*" in p or "re:" in p for p in hits) or len(hits) >= 16
