"""Rules of a KV cache in 4-bit floats, which few GPUs and models have: `kv_types.yaml`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from orchestrator.engines.vllm.checks.settings import Settings
from orchestrator.plan import Violation

_BFLOAT16 = 8.0
"""First compute capability with bfloat16."""


def check(s: Settings) -> list[Violation]:
    """What leaves vLLM without an attention backend ("No valid attention backend found", vLLM 0.32.0
    vllm/platforms/cuda.py, get_attn_backend_cls)."""
    asked = s.text("--kv-cache-dtype")
    own = str(s.model.get("kv_cache_dtype") or "")
    kv = asked if asked not in (None, "auto") else own
    if not kv.startswith("nvfp4") or s.device not in ("cuda", "rocm"):
        return []
    why = _why_not(s, kv)
    if why is None:
        return []
    said = f"kv_cache_dtype is {kv}" if asked == kv else f"the checkpoint keeps KV in {kv}"
    old = (s.capability() or _BFLOAT16) < _BFLOAT16
    wide = "auto" if kv != own else "float16" if old else "bfloat16"
    return [Violation("kv_type_not_read", f"{said}, and {why}", f"use --set kv_cache_dtype={wide}")]


def _why_not(s: Settings, kv: str) -> str | None:
    if s.device == "rocm":
        return f"vLLM {s.installation.version} reads it on no AMD GPU"
    capability, table, model = s.capability(), _table(), s.model
    if capability is None:
        return None
    here, major = f"compute capability {capability:.1f}", int(capability)
    if kv.endswith("_ds_mla"):
        ours = table["nvfp4_ds_mla"]
        return (
            None
            if major in ours
            else f"sparse latent attention reads it on {_listed(ours)} alone, not {here}"
        )
    if model.get("mla"):
        # said by the model's own rule
        return None
    row = next(r for r in table["nvfp4"] if s.at_least(r["since"]))
    if major not in row["majors"]:
        return f"vLLM {s.installation.version} reads it on {_listed(row['majors'])}, not on {here}"
    heads = model.get("head_dim")
    if heads is not None and heads not in table["head_sizes"]:
        return f"nothing reads it in heads of {heads}"
    if major not in row["own_kernels"]:
        return None
    if kv not in row["own_kernels_read"]:
        return f"{here} has only {', '.join(row['own_kernels_read'])} of its kinds"
    if heads in row["own_kernels_misread"]:
        return f"heads of {heads} are misread in it on {here}"
    if set(model.get("architectures") or ()) & set(table["sinks"]):
        return f"attention with sinks does not read it on {here}"
    return None


def _listed(majors: list[int]) -> str:
    names = [f"{n}.x" for n in majors]
    return f"compute capability {' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}"


@functools.cache
def _table() -> dict[str, Any]:
    import yaml

    text = (Path(__file__).parent / "kv_types.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found
