"""SGLang's own default of each lever: what its parser says, and what it computes from the GPU's memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import Installation
from orchestrator.engines.sglang.captured import release

if TYPE_CHECKING:
    from orchestrator.machine.machine import Gpu

_MIB = 1 << 20
_LEAST_TOKENS = 2048
_FLOOR_ABOVE_MIB = 60 * 1024
_FLOOR_MIB = 10 * 1024
_MANY_GRAPHS = 300
_SPECULATING_REQUESTS = 48

_LISTED = {
    "kv_cache_dtype": "--kv-cache-dtype",
    "dtype": "--dtype",
    "scheduling_policy": "--schedule-policy",
    "stream_interval": "--stream-interval",
}
_FIXED: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "attention_data_parallel_size": 1,
    "expert_parallel": False,
    "chunked_prefill": True,
    "prefix_caching": True,
    "async_scheduling": True,
    "kv_unified": True,
    "kv_offload_bytes": 0,
    "max_queued_requests": 0,
    "replicas": 1,
    "disaggregation": "off",
    "front": "none",
    "speculative": "off",
    "cuda_graph": "auto",
    "trust_remote_code": False,
    "long_prefill_token_threshold": 0,
    # models with special attention kernels start with a larger one
    "block_size": 1,
}


def stock(lever: str, installation: Installation, *, gpu: Gpu | None = None) -> Any:
    """The default in the lever's unit; None where SGLang computes it from what is not given here (context
    from the model, KV tokens and requests from the memory that is left), or knows no such thing.

    With `gpu`, the step and the static share that SGLang takes on one such GPU.
    """
    if lever in _LISTED:
        flag = installation.flag(_LISTED[lever])
        default = flag.default if flag is not None else None
        return int(default) if default is not None and default.isdigit() else default
    if lever in ("max_num_batched_tokens", "mem_fraction_static"):
        if gpu is None:
            return None
        found = memory_defaults(installation.version, gpu.memory_bytes // _MIB)
        step = found.chunked_prefill_size
        return step if lever == "max_num_batched_tokens" else found.mem_fraction_static
    return _FIXED.get(lever)


@dataclass(frozen=True, slots=True)
class MemoryDefaults:
    """What SGLang sets by a GPU's memory. `cuda_graph_max_bs` is None where the version does not set it so;
    `reserved_mib` is what the static share leaves free on each GPU, None where the memory is not known."""

    chunked_prefill_size: int
    cuda_graph_max_bs: int | None
    mem_fraction_static: float
    reserved_mib: float | None


def memory_defaults(
    version: str,
    memory_mib: float | None,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    attention_data: int = 1,
    chunked_prefill_size: int | None = None,
    cuda_graph: int | str | None = None,
    max_running_requests: int | None = None,
    max_prefill_tokens: int = 16384,
    mla: bool = False,
    method: str | None = None,
    prefill_graphs: bool | None = None,
) -> MemoryDefaults:
    """SGLang's figures for GPUs of `memory_mib` each; a setting that is given is kept.

    `tensor` is --tp-size (the attention ranks inside it), `chunked_prefill_size` -1 where off, `cuda_graph`
    "off" or a number, `method` SGLang's speculative algorithm, `prefill_graphs` None for the version's own
    choice on CUDA without a pipeline. Models with pictures get a smaller share, and
    DeepEP another 2 GiB of reserve (memory_hook.py:421, :409): neither is counted here.
    """
    period = _period(version)
    graphs_off = cuda_graph == "off"
    chunk, graph = _by_memory(period, memory_mib, tensor)
    if chunked_prefill_size is not None:
        chunk = chunked_prefill_size
    if isinstance(cuda_graph, int):
        graph = cuda_graph
    elif graph is not None and max_running_requests is not None and period["graph_within_requests"]:
        graph = min(graph, max_running_requests)
    if memory_mib is None:
        return MemoryDefaults(chunk, graph, period["unknown"][2], None)
    if period["rule"] == "table":
        reserved = _table_reserve(period, memory_mib, tensor * pipeline)
        reserved += period["attention_mib"] if attention_data > 1 else 0
    else:
        tokens = max(chunk if chunk > 0 else max_prefill_tokens, _LEAST_TOKENS)
        reserved = 512 + 1.5 * tokens + tensor * pipeline / 8 * 1024
        if prefill_graphs is None:
            prefill_graphs = period["prefill_graphs"] and not graphs_off and pipeline == 1
        reserved += _graph_reserve(0 if graphs_off else graph or 0, attention_data)
        reserved += _prefill_reserve(chunk, mla) if prefill_graphs else 0
        if memory_mib > _FLOOR_ABOVE_MIB:
            reserved = max(reserved, _FLOOR_MIB)
    if method is not None:
        reserved += period["draft_mib"].get(method, period["draft_mib"]["*"])
    return MemoryDefaults(chunk, graph, round((memory_mib - reserved) / memory_mib, 3), reserved)


def requests_default(pool_tokens: int, context_tokens: int, *, speculating: bool = False) -> int:
    """Requests that run at once on one rank where --max-running-requests is not given
    (sglang 0.5.23 kv_cache_configurator.py:3119, speculative_hook.py:1090)."""
    most = pool_tokens // 2
    estimate = max(min(int(pool_tokens / context_tokens * 512), 4096), 2048)
    return min(_SPECULATING_REQUESTS if speculating else estimate, most)


def _by_memory(period: Mapping[str, Any], memory_mib: float | None, tensor: int) -> tuple[int, int | None]:
    if memory_mib is None:
        return period["unknown"][0], period["unknown"][1]
    row = next(r for r in period["tiers"] if r[0] is None or memory_mib < r[0])
    chunk, graph, graph_of_four = row[1:]
    return chunk, graph if tensor < 4 else graph_of_four


def _graph_reserve(graph: int, attention_data: int) -> float:
    """MiB for decode graphs, and for the padding of attention ranks."""
    reserved = 2.0 * graph
    if attention_data > 1:
        reserved += 3 * graph * attention_data
        if graph > _MANY_GRAPHS:
            reserved += 1.5 * graph * attention_data
    return reserved


def _prefill_reserve(chunk: int, mla: bool) -> float:
    """MiB for prefill graphs: 8 for each captured size (cuda_graph_hook.py:480)."""
    if mla:
        return 1536.0
    sizes = [
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64),
        *range(1280, 4097, 256), *range(4608, chunk + 1, 512),
    ]  # fmt: skip
    return 8.0 * len([size for size in sizes if size <= chunk])


def _table_reserve(period: Mapping[str, Any], memory_mib: float, ranks: int) -> float:
    row = next(r for r in period["reserved_gib"] if r[0] is None or memory_mib < r[0])
    reserved: float = (row[1] + row[2] * ranks) * 1024
    return reserved


def _period(version: str) -> Mapping[str, Any]:
    """The rules of a version; of the oldest known one for what is older."""
    periods = _periods()
    here = release(version)
    return next((p for p in reversed(periods) if release(p["since"]) <= here), periods[0])


@lru_cache(maxsize=1)
def _periods() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("stock.json").read_text(encoding="utf-8")
    periods: list[dict[str, Any]] = json.loads(text)["periods"]
    return periods
