"""Whether vLLM's attention reads KV in 8-bit floats on a device: `fp8_kv.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.model_families.versions import at_least
from orchestrator.planning.paged import dtype
from orchestrator.planning.paged.kv_cache import resolved_dtype
from orchestrator.planning.paged.situation import Situation


def why_unread(s: Situation, kv_dtype: str = "fp8") -> str | None:
    """What keeps vLLM on this device from reading KV of this type, None where nothing is known to."""
    if s.kind != "vllm" or s.device != "cuda" or not kv_dtype.startswith("fp8"):
        return None
    capability, table = s.capability, _table()
    if capability is None or capability >= table["native"]:
        return None
    left, card = table["flashinfer"], s.card
    lowest = next(r["lowest"] for r in left["capability"] if at_least(s.version_text, r["since"]))
    sizes = {card.head_dim, card.value_head_dim or card.head_dim, *(card.head_dim_per_layer or ())}
    odd = sorted(sizes - set(left["head_sizes"]))
    below = f"compute capability {capability:.1f}"
    if capability < lowest:
        return f"no attention reads it on {below}"
    if card.mla_kv_lora_rank is not None:
        return f"latent attention does not read it on {below}"
    if kv_dtype not in left["types"]:
        return f"on {below} attention reads only {', '.join(left['types'])}"
    if set(card.architectures) & set(table["sinks"]):
        return f"attention with sinks does not read it on {below}"
    if odd:
        return f"attention with heads of {', '.join(map(str, odd))} does not read it on {below}"
    return None


def own_type(s: Situation) -> str:
    """The type of KV where nobody asks for one: "auto", or 16 bits where that is a checkpoint's that no
    attention reads here."""
    if not at_least(s.version_text, _table()["checkpoint_since"]):
        return "auto"
    if why_unread(s, resolved_dtype(s.card, "auto")) is None:
        return "auto"
    loaded = dtype.taken(s)
    return "float16" if (s.card.dtype if loaded == "auto" else loaded) in ("half", "float16") else "bfloat16"


@cache
def _table() -> dict[str, Any]:
    import yaml

    text = (Path(__file__).parent / "fp8_kv.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded
