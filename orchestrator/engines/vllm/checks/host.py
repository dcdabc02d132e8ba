"""Rules of host memory: what is set aside there must be there."""

from __future__ import annotations

from orchestrator.engines.vllm.checks.settings import Settings
from orchestrator.plan import Violation

_GIB = 1 << 30


def check(s: Settings) -> list[Violation]:
    """The KV that GPUs put aside is pinned at the start, all of it: where that much is not free the system
    ends the process. --kv-offloading-size is GiB over the tensor ranks (vLLM 0.32.0
    vllm/config/cache.py:266), and each data-parallel rank has its own (0.33.0 vllm/config/vllm.py:1174)."""
    size = s.number("--kv-offloading-size")
    there = s.machine.get("memory_available_bytes")
    copies = s.number("--data-parallel-size-local") or s.count("--data-parallel-size")
    if size is None or not isinstance(there, int) or size * _GIB * copies <= there:
        return []
    return [
        Violation(
            "host_memory",
            f"kv_offload_bytes asks for {size * copies:g} GiB of host memory, and {there / _GIB:.1f} GiB are "
            "free",
            f"use --set kv_offload_bytes={there // _GIB // 2}GiB, or --set kv_offload_bytes=0",
        )
    ]
