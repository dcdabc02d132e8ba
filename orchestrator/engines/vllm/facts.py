"""What a vLLM server reports about itself after readiness: /metrics, /v1/models and /version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orchestrator.engines.reply import fetch
from orchestrator.engines.vllm.health import metrics
from orchestrator.engines.vllm.metrics import Samples

if TYPE_CHECKING:
    import httpx

_CACHE_INTEGERS = {
    "num_gpu_blocks": "num_gpu_blocks",
    "block_size": "block_size",
    "kv_cache_memory_bytes": "kv_cache_bytes",
}
_SPEC_COUNTERS = {
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "draft_tokens",
    "spec_decode_num_accepted_tokens_total": "accepted_tokens",
}


async def facts(client: httpx.AsyncClient, base_url: str) -> dict[str, Any]:
    """Facts by name; a key that is missing was not reported. Sizes in bytes, lengths and pools in tokens.

    `kv_cache_tokens` is the pool of one engine (data-parallel rank), the smallest of them; `engines` how many
    there are; `max_model_len` the final length, after a fit at the start too.
    """
    found: dict[str, Any] = {}
    version = await _json(client, f"{base_url}/version")
    if isinstance(version, dict) and isinstance(version.get("version"), str):
        found["version"] = version["version"]
    models = await _json(client, f"{base_url}/v1/models")
    if isinstance(models, dict):
        rows = [m for m in models.get("data") or [] if isinstance(m, dict)]
        found["served_models"] = [m["id"] for m in rows if isinstance(m.get("id"), str)]
        lengths = [m["max_model_len"] for m in rows if isinstance(m.get("max_model_len"), int)]
        if lengths:
            found["max_model_len"] = min(lengths)
    samples = await metrics(client, base_url)
    if samples is not None:
        found |= read_facts(samples)
    return found


def read_facts(samples: Samples) -> dict[str, Any]:
    """Facts out of /metrics. `vllm:cache_config_info` has one sample for each engine, its labels the fields
    of CacheConfig (0.33.0 vllm/config/cache.py:440). Without a token count the pool is blocks times size."""
    found: dict[str, Any] = {}
    rows = samples.labels("cache_config_info")
    if rows:
        first = rows[0]
        found["engines"] = len(rows)
        for label, name in _CACHE_INTEGERS.items():
            values = [int(r[label]) for r in rows if r.get(label, "").isdigit()]
            if values:
                found[name] = min(values)
        pools = [tokens for r in rows if (tokens := _pool_tokens(r)) is not None]
        if pools:
            found["kv_cache_tokens"] = min(pools)
        if first.get("cache_dtype"):
            found["kv_cache_dtype"] = first["cache_dtype"]
        if first.get("enable_prefix_caching") in ("True", "False"):
            found["prefix_caching"] = first["enable_prefix_caching"] == "True"
        for label, name in (
            ("gpu_memory_utilization", "gpu_memory_utilization"),
            ("kv_cache_max_concurrency", "max_concurrency"),
        ):
            try:
                found[name] = min(float(r[label]) for r in rows)
            except (KeyError, ValueError):
                continue
        counters = {name: samples.total(label) for label, name in _SPEC_COUNTERS.items()}
        # the counters are there from the start where speculation is on, and absent where it is off
        found["speculating"] = any(v is not None for v in counters.values())
        if found["speculating"]:
            found["speculation"] = {name: int(v or 0) for name, v in counters.items()}
    return found


def _pool_tokens(labels: dict[str, str]) -> int | None:
    said = labels.get("kv_cache_size_tokens", "")
    if said.isdigit():
        return int(said)
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    import httpx

    try:
        status, body = await fetch(client, "GET", url)
        return json.loads(body) if status == 200 else None
    except (httpx.HTTPError, ValueError, RecursionError):
        return None
