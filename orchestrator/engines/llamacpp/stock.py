"""llama-server's own default of each lever, from the installation's help where it says one."""

from __future__ import annotations

from typing import Any

from orchestrator.engines.base import Installation

_NUMBERS = {
    "max_num_batched_tokens": ("--batch-size", 2048),
    "ubatch_tokens": ("--ubatch-size", 512),
    "cache_reuse_tokens": ("--cache-reuse", 0),
}
_NAMES = {
    "kv_cache_dtype": ("--cache-type-k", "f16"),
    "flash_attention": ("--flash-attn", "auto"),
    "reasoning_parser": ("--reasoning-format", "auto"),
}
_FIXED: dict[str, Any] = {
    # what `--parallel -1` (auto) becomes
    "max_num_seqs": 4,
    "kv_unified": True,
    "chunked_prefill": True,
    "prefix_caching": True,
    "speculative": "off",
    "scheduling_policy": "fcfs",
    "tensor_parallel_size": 1,
    "data_parallel_size": 1,
    "stream_interval": 1,
}
_CACHE_RAM_MIB = 8192


def stock(lever: str, installation: Installation) -> Any:
    """The default in the lever's unit; None where llama-server computes it (context from the model, threads
    from the CPUs, layers on the GPU from its memory) or knows no such thing.

    The embedded server has the same defaults: it sets the number of slots as llama-server would.
    """
    if lever == "kv_offload_bytes":
        mib = _number(installation, "--cache-ram", _CACHE_RAM_MIB)
        return max(mib, 0) << 20 if installation.flag("--cache-ram") else 0
    if lever in _NUMBERS:
        return _number(installation, *_NUMBERS[lever])
    if lever in _NAMES:
        flag, default = _NAMES[lever]
        known = installation.flag(flag)
        return known.default if known is not None and known.default else default
    return _FIXED.get(lever)


def _number(installation: Installation, flag: str, default: int) -> int:
    known = installation.flag(flag)
    try:
        return int(known.default) if known is not None and known.default else default
    except ValueError:
        return default
