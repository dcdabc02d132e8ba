"""Public launches (launch_cases.jsonl) as calls of the memory functions, and what they say of each."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.machine.machine import Gpu
from orchestrator.model_card.card import ModelCard
from orchestrator.model_card.huggingface import card_of
from orchestrator.planning.paged.budget import Budget, budget, sglang_defaults
from orchestrator.planning.paged.kv_cache import KvCache, kv_cache
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import GIB, by_version, rules, since
from orchestrator.planning.paged.weights import Weights, weights_per_gpu

HERE = Path(__file__).parent
Case = dict[str, Any]

LEAST_SLACK_BYTES = int(0.5 * GIB)
"""Device memory that must stay outside of the engine's share for what its estimate of graphs misses: at 0.98
of a 24 GB card (0.48 GiB) capture died, at 0.97 it did not."""


def cases() -> list[Case]:
    return [json.loads(line) for line in (HERE / "launch_cases.jsonl").read_text().splitlines()]


@cache
def cards() -> dict[str, ModelCard]:
    rows = [json.loads(line) for line in (HERE / "launch_models.jsonl").read_text().splitlines()]
    return {r["card"]: card_of(r["config"], source=r["card"], name=r["card"], path=None) for r in rows}


def flags(case: Case) -> dict[str, Any]:
    return dict(case.get("flags", {}))


def layout(case: Case) -> Layout:
    attention = case.get("attention_data", 1)
    return Layout(
        tensor=case["tensor"],
        pipeline=case["pipeline"],
        attention_data=attention,
        expert=bool(flags(case).get("enable_expert_parallel")) or attention > 1,
    )


def total_bytes(case: Case) -> int | None:
    """What the driver shows of the smallest device; None where the log does not say."""
    total = case["total_gib"]
    if isinstance(total, list):
        total = min(total)
    return None if total is None else int(total * GIB)


def stock_batch(case: Case) -> tuple[int, int]:
    """Tokens and sequences of a step that `vllm serve` takes by itself (vllm/engine/arg_utils.py:2939)."""
    total = total_bytes(case) or 0
    if total >= 160 * GIB:
        return 16384, 1024
    if total >= 70 * GIB and "A100" not in (case["gpu"] or ""):
        return 8192, 1024
    return 2048, 256


def batch(case: Case) -> tuple[int, int]:
    f = flags(case)
    tokens, sequences = stock_batch(case)
    tokens = f.get("max_num_batched_tokens", f.get("chunked_prefill_size", tokens))
    return tokens, 0 if f.get("pooling") else min(f.get("max_num_seqs", sequences), tokens)


def cache_of(case: Case) -> KvCache:
    f = flags(case)
    speculative = f.get("mtp", 0)
    return kv_cache(
        cards()[case["card"]],
        layout(case),
        kind=case["engine"],
        version=case["version"],
        kv_dtype=case["kv_dtype"],
        block_size=f.get("block_size"),
        prefix_caching=f.get("enable_prefix_caching", True),
        speculative_tokens=speculative,
        mtp=bool(speculative),
        max_num_batched_tokens=batch(case)[0],
        async_scheduling=f.get("async_scheduling", True),
        context_parallel=f.get("decode_context_parallel_size", 1),
        partition=partition(case),
    )


def token_ratio(case: Case) -> float | None:
    """The planner's tokens from the pool's logged bytes over the log's own; None where the log lacks either.

    A refusal tells the longest length that fits instead. SGLang's pool is logged beside its states'.
    """
    o = case["observed"]
    if "card" not in case or case["engine"] not in ("vllm", "sglang"):
        return None
    pool = o["k_gib"] + o["v_gib"] if "k_gib" in o else o.get("available_kv_gib")
    if pool is None:
        return None
    cache = dataclasses.replace(cache_of(case), state_share=0.0)
    size = int(pool * GIB)
    if "kv_tokens" in o:
        found = cache.tokens(size, case["max_model_len"])
        return None if found is None else found / o["kv_tokens"]
    if "estimated_max_len" in o:
        if case["pipeline"] > 1:
            cache = cache_of(case | {"pipeline": 1, "stage_layers": None})
        return cache.largest_context(size, case["max_model_len"]) / o["estimated_max_len"]
    return None


def partition(case: Case) -> tuple[int, ...] | None:
    """Layers of each pipeline stage where the launch set them."""
    layers = case.get("stage_layers")
    return tuple(layers) if layers else None


def utilization(case: Case) -> float:
    if case["utilization"] is not None:
        return float(case["utilization"])
    if case["engine"] == "sglang":
        total = total_bytes(case)
        return sglang_defaults(cards()[case["card"]], layout(case), total).mem_fraction_static
    return by_version(rules()["vllm"]["default_utilization"], case["version"])


def gpu(case: Case) -> Gpu:
    total = total_bytes(case) or 0
    free = case["observed"].get("free_at_start_gib")
    return Gpu(
        0,
        "GPU-0",
        case["gpu"] or "",
        total,
        int(free * GIB) if free is not None else total,
        vendor="amd" if (case["gpu"] or "").startswith("MI") else "nvidia",
    )


def budget_of(case: Case) -> Budget:
    """Of the device with least room: each stage's weights on its own device where they differ."""
    f = flags(case)
    weights = weights_per_gpu(
        cards()[case["card"]],
        layout(case),
        kind=case["engine"],
        mtp_loaded=bool(f.get("mtp")),
        partition=partition(case),
    )
    total = case["total_gib"]
    if isinstance(total, list):
        each = [
            _budget(case | {"total_gib": gib}, Weights((size,), weights.basis))
            for gib, size in zip(total, weights.stages, strict=True)
        ]
        return min(each, key=lambda b: b.kv)
    return _budget(case, weights)


def _budget(case: Case, weights: Weights) -> Budget:
    f = flags(case)
    tokens, sequences = batch(case)
    graphs = 0 if case.get("eager") else min(512, 2 * max(sequences, 1))
    return budget(
        cards()[case["card"]],
        layout(case),
        gpu(case),
        kind=case["engine"],
        version=case["version"],
        utilization=utilization(case),
        max_num_batched_tokens=tokens,
        max_num_seqs=sequences,
        cuda_graph_max=f.get("cuda_graph_max", graphs),
        total_bytes=total_bytes(case),
        weights=weights,
    )


def kv_bytes(case: Case) -> int:
    """The pool that the flags alone lead to."""
    fixed = flags(case).get("kv_cache_gib")
    return int(fixed * GIB) if fixed else budget_of(case).kv


def verdict(case: Case) -> str:
    """ "starts", "refused:CLASS" or "warned:CLASS" of a launch, by its flags alone.

    A length that the case does not tell is not held against it: one block of KV is enough.
    """
    b = budget_of(case)
    device = gpu(case)
    if b.weights >= b.requested:
        return "refused:weights"
    if case["engine"] == "vllm" and device.free_bytes < b.requested:
        return "refused:free_memory"
    c = cache_of(case)
    pool = kv_bytes(case)
    # what the margin keeps back may be there: with it in, a launch is refused, without it warned of
    most = pool + b.margin
    if not c.known:
        return "refused:kv_cache" if most <= 0 else "warned:unknown_rule"
    length = case["max_model_len"] or c.block_tokens
    needed = c.bytes_needed(length) or 0
    if case["pipeline"] > 1 and _stages_counted_together(case):
        whole = kv_cache(
            cards()[case["card"]],
            Layout(tensor=case["tensor"]),
            version=case["version"],
            kv_dtype=case["kv_dtype"],
        )
        needed = whole.bytes_needed(length) or 0
    if most < needed:
        return "refused:kv_cache"
    if pool < needed:
        return "warned:kv_cache"
    if b.graphs and b.total - b.requested < LEAST_SLACK_BYTES:
        return "warned:graph_capture"
    return "starts"


def _stages_counted_together(case: Case) -> bool:
    return case["engine"] == "vllm" and not since(
        case["version"], rules()["vllm"]["stages_counted_together_below"]
    )
