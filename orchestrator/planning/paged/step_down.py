"""One lever lower, prepared for the day on which memory runs out all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.plan import Decision
from orchestrator.planning.paged.situation import Situation, stepped
from orchestrator.planning.paged.sizing import LEAST_BATCH, Sizing

OUT_OF_MEMORY = ("out_of_memory", "out_of_memory_at_load", "out_of_memory_at_capture")
KV_TOO_SMALL = ("kv_cache_too_small", "no_kv_memory")

LESS_UTILIZATION = 0.04
SHORTER = 0.98
"""Part of what was thought to fit that is tried next (the contract's two percent)."""


def smaller(
    s: Situation, z: Sizing, levers: Mapping[str, Decision]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Failure classes with the levers that are set instead.

    Out of memory: smaller steps and fewer requests at once, and a smaller share. KV too small for
    max_model_len: a shorter one. Levers that somebody set are left alone.
    """
    change: dict[str, Any] = {}
    if s.is_free("gpu_memory_utilization") and not s.on_cpu and z.utilization > 0.5:
        change["gpu_memory_utilization"] = round(z.utilization - LESS_UTILIZATION, 2)
    if s.kind == "sglang" and s.is_free("mem_fraction_static") and not s.on_cpu:
        # else smaller steps would let SGLang's own share grow
        less = LESS_UTILIZATION if z.static_share > 0.5 else 0.0
        change["mem_fraction_static"] = round(z.static_share - less, 3)
    seqs = max(1, z.max_num_seqs // 2)
    if s.is_free("max_num_seqs") and seqs < z.max_num_seqs:
        change["max_num_seqs"] = seqs
    batch = z.max_num_batched_tokens // 2
    if s.is_free("max_num_batched_tokens") and batch >= max(LEAST_BATCH, z.max_num_seqs):
        change["max_num_batched_tokens"] = batch
    if change:
        yield OUT_OF_MEMORY, change
    length = stepped(int(z.max_model_len * SHORTER))
    if s.is_free("max_model_len") and length > s.needed_context // 2:
        yield KV_TOO_SMALL, {"max_model_len": max(1, length)}
