"""When KV in 8 bits can be had, and when the goal takes it."""

from __future__ import annotations

from orchestrator.planning.paged.fp8_kv import why_unread
from orchestrator.planning.paged.situation import Situation


def why_not_fp8(s: Situation) -> str | None:
    """Why 8-bit KV is not to be had here, None where it is."""
    if s.lossless:
        return "is lossy, and lossless: true forbids it"
    if s.on_cpu:
        return "the CPU's attention does not read it"
    if s.gpu_facts is not None and not s.gpu_facts.fp8_kv:
        return f"attention on {s.gpu_facts.generation} cards does not read it"
    if s.gpu_facts is None:
        return "what this device's attention reads is not known"
    if s.card.hybrid is not None:
        return "a hybrid's state keeps its size, so it saves little"
    return why_unread(s)


def is_native(s: Situation) -> bool:
    """Whether the device computes with 8-bit floats; else 8-bit KV saves memory and costs time."""
    return s.gpu_facts is not None and "fp8" in s.gpu_facts.native


def may_take_fp8(s: Situation) -> bool:
    """Whether 8-bit KV may be taken where the model's own type holds too little: for agents their
    conversations, else one request. Latency keeps the model's type, and so does a plan in which somebody
    set far more requests at once than the workload has: it is their working memory that is short."""
    if s.goal == "latency" or not s.is_free("kv_cache_dtype"):
        return False
    seqs = s.given("max_num_seqs")
    crowded = seqs is not None and seqs > 4 * s.profile.workload.concurrency
    return not crowded and why_not_fp8(s) is None
