"""What a plan predicts on vLLM and SGLang: memory per device, the KV pool, and speed."""

from __future__ import annotations

from orchestrator.plan import Prediction
from orchestrator.planning.paged.situation import Situation
from orchestrator.planning.paged.sizing import Sizing


def predict(s: Situation, z: Sizing) -> dict[str, Prediction]:
    """Bytes are of the fullest device; tokens and requests of all copies together.

    `basis` is "computed" where a rule is exact, "estimated" where it is a formula with an error, "unknown"
    where there is none. Speeds are a roofline's, with a band: never a promise.
    """
    b, token = z.budget, z.kv.bytes_per_token_per_gpu
    out = {
        "weights_bytes": Prediction(s.card.weights_bytes, "bytes", _stored(s)),
        "weights_bytes_per_gpu": Prediction(b.weights, "bytes", b.basis.get("weights", "estimated")),
        "kv_bytes_per_token_per_gpu": _known(
            round(token, 3) if token is not None else None,
            "bytes",
            "computed" if s.card.class_known else "estimated",
        ),
        "kv_bytes_per_gpu": Prediction(
            max(0, z.kv_bytes), "bytes", "computed" if _is_set(s) else "estimated"
        ),
        "kv_cache_tokens": _known(
            z.tokens * z.copies if z.tokens is not None else None,
            "tokens",
            "computed" if _is_set(s) else "estimated",
        ),
        "max_concurrency": _known(_at_once(s, z), "requests", "computed" if _is_set(s) else "estimated"),
        "activation_bytes_per_gpu": Prediction(b.activation, "bytes", "estimated"),
        "non_torch_bytes_per_gpu": Prediction(b.non_torch, "bytes", "estimated"),
        "graph_bytes_per_gpu": Prediction(b.graphs, "bytes", "estimated"),
        "draft_bytes_per_gpu": Prediction(b.draft, "bytes", "computed"),
        "margin_bytes_per_gpu": Prediction(b.margin, "bytes", "estimated"),
        "gpu_memory_bytes": Prediction(b.total, "bytes", "computed"),
        "gpu_memory_requested_bytes": Prediction(b.requested, "bytes", "computed"),
    }
    return out | _speed(z)


def _stored(s: Situation) -> str:
    return "estimated" if s.card.weights_estimated or not s.card.class_known else "computed"


def _is_set(s: Situation) -> bool:
    """Whether the pool's bytes are told to the engine, so that its tokens follow exactly."""
    return s.on_cpu or not s.is_free("kv_cache_bytes")


def _known(value: float | int | None, unit: str, basis: str = "computed") -> Prediction:
    return Prediction(value, unit, "unknown" if value is None else basis)


def _at_once(s: Situation, z: Sizing) -> int | None:
    """Requests of the workload's size that the KV holds at once, at most max_num_seqs a copy."""
    if z.tokens is None:
        return None
    each = max(1, min(s.request_tokens, z.max_model_len))
    return min(z.max_num_seqs, z.tokens // each) * z.copies


def _speed(z: Sizing) -> dict[str, Prediction]:
    e = z.estimate
    figures = {
        "ttft_ms": ("ms", e.ttft_ms if e else None, 1),
        "tpot_ms": ("ms", e.tpot_ms if e else None, 2),
        "itl_stall_ms": ("ms", e.itl_stall_ms if e else None, 1),
        "output_tokens_per_s": ("tokens/s", e.output_tokens_per_s if e else None, 0),
    }
    return {
        name: Prediction(
            round(v, digits) if v is not None else None, unit, "estimated" if v is not None else "unknown"
        )
        for name, (unit, v, digits) in figures.items()
    }
