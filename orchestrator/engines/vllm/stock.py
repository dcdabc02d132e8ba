"""vLLM's own default of each lever, from the installation's parser where that says one, else by version.

Sources: the parser's defaults; vllm/engine/arg_utils.py of 0.33.0 (2939 to 3109: batch sizes, chunking,
caching) and of 0.10.0 (1584 to 1592); vllm/config/vllm.py:1639 of 0.33.0 (asynchronous scheduling).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import Installation
from orchestrator.engines.vllm.captured import release

if TYPE_CHECKING:
    from orchestrator.machine.machine import Gpu

_GIB = 1 << 30

_PARSED: dict[str, tuple[str, type]] = {
    "gpu_memory_utilization": ("--gpu-memory-utilization", float),
    "tensor_parallel_size": ("--tensor-parallel-size", int),
    "pipeline_parallel_size": ("--pipeline-parallel-size", int),
    "data_parallel_size": ("--data-parallel-size", int),
    "long_prefill_token_threshold": ("--long-prefill-token-threshold", int),
    "stream_interval": ("--stream-interval", int),
    "shutdown_timeout_s": ("--shutdown-timeout", int),
    "scheduling_policy": ("--scheduling-policy", str),
    "performance_mode": ("--performance-mode", str),
    "kv_cache_dtype": ("--kv-cache-dtype", str),
    "dtype": ("--dtype", str),
}
"""Levers whose default the parser says itself."""

_FIXED: dict[str, Any] = {
    "attention_data_parallel_size": 1,
    "expert_parallel": False,
    "chunked_prefill": True,
    "prefix_caching": True,
    "kv_offload_bytes": 0,
    "speculative": "off",
    "cuda_graph": "auto",
    "trust_remote_code": False,
    "kv_cache_dtype": "auto",
    "dtype": "auto",
    "stream_interval": 1,
    "shutdown_timeout_s": 0,
    "max_queued_requests": 0,
    "kv_unified": True,
    "front": "none",
    "replicas": 1,
    "disaggregation": "off",
}
"""Generate models; what an older release does that has no flag for it."""


def stock(lever: str, installation: Installation, gpu: Gpu | None = None) -> Any:
    """The default in the lever's unit for a model that generates; None where vLLM computes one (context from
    the model, KV from the memory) or has none. The batch sizes hang on the device: None without `gpu` on a
    GPU's installation.
    """
    device = installation.extras.get("device", "cuda")
    if lever in ("max_num_batched_tokens", "max_num_seqs"):
        sizes = batch_sizes(installation, gpu)
        return None if sizes is None else sizes[0 if lever == "max_num_batched_tokens" else 1]
    if lever == "async_scheduling":
        # the default is "where nothing speaks against it" from 0.16 on; never on a CPU
        return device != "cpu" and release(installation.version) >= (0, 16)
    if lever == "block_size":
        return {"cpu": 128, "cuda": 16}.get(device)
    if lever in _PARSED:
        flag, kind = _PARSED[lever]
        known = installation.flag(flag)
        if known is not None and known.default is not None:
            try:
                return kind(known.default)
            except ValueError:
                return None
    return _FIXED.get(lever)


def batch_sizes(installation: Installation, gpu: Gpu | None) -> tuple[int, int] | None:
    """(max_num_batched_tokens, max_num_seqs) that `vllm serve` takes on one device; None where it is unknown.

    On a CPU they are multiplied by tensor and pipeline ranks.
    """
    if installation.extras.get("device") == "cpu":
        return 2048, 128
    if gpu is None:
        return None
    version = release(installation.version)
    if gpu.memory_bytes >= 160 * _GIB and version >= (0, 32):
        return 16384, 1024
    # GB10's memory is large and shared with the CPU
    small = "a100" in gpu.name.lower() or (gpu.compute_capability == "12.1" and version >= (0, 33))
    return (8192, 1024) if gpu.memory_bytes >= 70 * _GIB and not small else (2048, 256)
