"""What a Plan keeps of its inputs: model, machine and choices, as plain data."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from orchestrator.model_card.card import ModelCard
from orchestrator.planning.paged.kv_cache import resolved_dtype
from orchestrator.planning.request import Choice
from orchestrator.planning.situation import Situation


def model(s: Situation, context_length: int) -> dict[str, Any]:
    """The model's facts that people and an engine's own checks read. `context_length` is what the engine
    will believe the model has."""
    card = s.card
    return {
        "source": card.source,
        "path": card.path,
        "name": card.name,
        "served_model": s.inputs.served_model,
        "format": card.format,
        "architecture": card.architecture,
        "parameters": card.parameters,
        "quantization": card.quantization,
        "quantization_method": _method(card),
        "kv_cache_dtype": _kv_dtype(card),
        "context_length": context_length,
        "weights_bytes": card.weights_bytes,
        "weights_estimated": card.weights_estimated,
        "architectures": list(card.architectures),
        "model_type": card.model_type,
        "layers": card.layers,
        "heads": card.heads,
        "kv_heads": card.kv_heads,
        "head_dim": card.head_dim,
        "hidden_size": card.hidden_size,
        "vocab_size": card.vocab_size,
        "experts": card.experts,
        "mla": card.mla_kv_lora_rank is not None,
        "hybrid": card.hybrid is not None,
        "sliding_window": card.sliding_window,
        "dtype": card.dtype,
        "mtp_layers": card.mtp_layers,
        "multimodal": card.multimodal,
        "encoder_decoder": card.encoder_decoder,
        "needs_remote_code": card.needs_remote_code,
        "draft": _draft(s.inputs.draft),
    }


def _method(card: ModelCard) -> str | None:
    """The checkpoint's own word for its quantization; who writes none is ModelOpt."""
    table = card.quantization_config
    return str(table.get("quant_method") or "modelopt").lower()[:32] if table else None


def _kv_dtype(card: ModelCard) -> str | None:
    """The type in fewer bits that the checkpoint itself keeps KV in."""
    own = resolved_dtype(card, "auto")
    return own if own in ("fp8", "nvfp4") else None


def _draft(draft: ModelCard | None) -> dict[str, Any] | None:
    if draft is None:
        return None
    return {"vocab_size": draft.vocab_size, "context_length": draft.context_length}


def machine(s: Situation, used: Collection[str] | None = None) -> dict[str, Any]:
    """The machine's figures that the plan rests on; GPUs in the machine's order, those of one
    of its `nodes`. `used` are the UUIDs of those that the plan takes, None where it does not name them."""
    m = s.inputs.machine
    return {
        "name": m.name,
        "source": m.source,
        "platform": m.platform,
        "cpus": m.cpus,
        "physical_cores": m.physical_cores,
        "nodes": m.nodes,
        "memory_limit_bytes": m.memory_limit_bytes,
        "memory_available_bytes": m.memory_available_bytes,
        "gpus": [
            {
                "uuid": g.uuid,
                "name": g.name,
                "memory_bytes": g.memory_bytes,
                "compute_capability": g.compute_capability,
                "vendor": g.vendor,
            }
            | ({} if used is None else {"used": g.uuid in used})
            for g in m.gpus
        ],
    }


def choice(c: Choice) -> dict[str, Any]:
    """A choice with its rule and what was rejected."""
    rejected = [{"value": r.value, "why": r.why} for r in c.rejected]
    return {"value": c.value, "reason": c.reason, "rule": c.rule, "rejected": rejected}
