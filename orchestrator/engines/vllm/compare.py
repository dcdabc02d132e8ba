"""The plan against what the engine reports: one check for each lever that can be seen back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.engines.base import FactCheck
from orchestrator.plan import Plan

KV_TOKENS_TOLERANCE = 0.02
"""Share by which the KV pool may be smaller than predicted, where its bytes were not set."""

_ALIASES = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16", "float": "float32",
    "fp32": "float32", "f32": "float32", "fp8_e4m3": "fp8", "draft": "draft_model",
}  # fmt: skip
_FROM_ARGS = {
    # levers that only the parsed arguments show
    "scheduling_policy": "scheduling_policy",
    "max_queued_requests": "max_num_queued_reqs",
    "stream_interval": "stream_interval",
    "performance_mode": "performance_mode",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "distributed_executor_backend": "distributed_executor_backend",
    "tool_call_parser": "tool_call_parser",
    "reasoning_parser": "reasoning_parser",
    "expert_parallel": "enable_expert_parallel",
    "shutdown_timeout_s": "shutdown_timeout",
    "trust_remote_code": "trust_remote_code",
}
_EQUAL = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill", "prefix_caching",
    "block_size", "tensor_parallel_size", "pipeline_parallel_size", "async_scheduling",
)  # fmt: skip


def compare(plan: Plan, facts: Mapping[str, Any]) -> list[FactCheck]:
    """`facts` are those of `facts.facts`, laid over those of `start_log.log_facts` where the log was read
    too. What the engine does not report, and a lever left to it (auto), is not judged."""
    levers = {name: d.value for name, d in plan.levers.items() if not _left_open(d.value)}
    checks = _kv(plan, levers, facts)
    checks += [_equal(n, levers[n], facts[n]) for n in _EQUAL if n in levers and n in facts]
    checks += _data_parallel(levers, facts)
    for name, same in (
        ("kv_cache_dtype", _same_name),
        ("dtype", _same_name),
        ("quantization", _same_quantization),
    ):
        checks += _named(name, levers, facts, same)
    checks += _speculative(plan, facts)
    checks += _graphs(levers, facts)
    checks += _arguments(levers, facts)
    if "served_models" in facts and plan.model.get("name"):
        name = plan.model.get("served_model") or plan.model["name"]
        served = facts["served_models"]
        checks.append(FactCheck("served_model", name, ", ".join(served), name in served))
    return checks


def _left_open(value: Any) -> bool:
    return value is None or value in ("auto", "default") or value == -1


def _equal(what: str, planned: Any, actual: Any) -> FactCheck:
    return FactCheck(what, planned, actual, planned == actual)


def _kv(plan: Plan, levers: Mapping[str, Any], facts: Mapping[str, Any]) -> list[FactCheck]:
    """The pool: exact where its bytes were set, else not more than 2 % below the prediction."""
    checks = []
    size = levers.get("kv_cache_bytes")
    if isinstance(size, int) and isinstance(facts.get("kv_cache_bytes"), int):
        checks.append(_equal("kv_cache_bytes", size, facts["kv_cache_bytes"]))
    predicted = plan.predictions.get("kv_cache_tokens")
    if predicted is not None and predicted.value and "kv_cache_tokens" in facts:
        planned, actual = int(predicted.value), facts["kv_cache_tokens"]
        enough = planned * (1 - KV_TOKENS_TOLERANCE)
        ok = actual == planned if isinstance(size, int) else actual >= enough
        checks.append(FactCheck("kv_cache_tokens", planned, actual, ok))
    share = levers.get("gpu_memory_utilization")
    if isinstance(share, float) and not isinstance(size, int) and "gpu_memory_utilization" in facts:
        actual_share = facts["gpu_memory_utilization"]
        ok = abs(share - actual_share) < 1e-6
        checks.append(FactCheck("gpu_memory_utilization", share, actual_share, ok))
    return checks


def _data_parallel(levers: Mapping[str, Any], facts: Mapping[str, Any]) -> list[FactCheck]:
    """Both neutral kinds of data parallelism are vLLM's one size."""
    ranks = (levers.get("data_parallel_size") or 1) * (levers.get("attention_data_parallel_size") or 1)
    actual = facts.get("data_parallel_size", facts.get("engines"))
    if actual is None or (
        "data_parallel_size" not in levers and "attention_data_parallel_size" not in levers
    ):
        return []
    return [_equal("data_parallel_size", ranks, actual)]


def _named(
    name: str, levers: Mapping[str, Any], facts: Mapping[str, Any], same: Callable[[str, str], bool]
) -> list[FactCheck]:
    if name not in levers or name not in facts or facts[name] == "auto":
        return []
    planned, actual = str(levers[name]), "none" if facts[name] is None else str(facts[name])
    return [FactCheck(name, planned, actual, same(planned, actual))]


def _same_name(planned: str, actual: str) -> bool:
    return _ALIASES.get(planned, planned) == _ALIASES.get(actual, actual)


def _same_quantization(planned: str, actual: str) -> bool:
    """vLLM takes the faster kernel's name for a method (awq becomes awq_marlin)."""
    return planned == actual or actual.startswith(f"{planned}_") or planned.startswith(f"{actual}_")


def _speculative(plan: Plan, facts: Mapping[str, Any]) -> list[FactCheck]:
    decision = plan.levers.get("speculative")
    if decision is None or _left_open(decision.value):
        return []
    wanted = decision.value if isinstance(decision.value, Mapping) else None
    seen = facts.get("speculative")
    if seen is None:
        if "speculating" not in facts:
            return []
        on = bool(facts["speculating"])
        return [FactCheck("speculative", _on(wanted is not None), _on(on), on == (wanted is not None))]
    actual = seen if isinstance(seen, Mapping) else None
    if wanted is None or actual is None:
        return [FactCheck("speculative", _draft(wanted), _draft(actual), wanted is None and actual is None)]
    method, real = str(wanted.get("method")), str(actual.get("method"))
    same = _same_name(method, real) or (real == "mtp" and method.endswith("mtp"))
    tokens = wanted.get("num_tokens")
    ok = same and (tokens is None or tokens == actual.get("num_tokens"))
    return [FactCheck("speculative", _draft(wanted), _draft(actual), ok)]


def _draft(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "off"
    tokens = value.get("num_tokens")
    return f"{value.get('method')}" + (f", {tokens} tokens" if tokens else "")


def _on(value: bool) -> str:
    return "on" if value else "off"


def _graphs(levers: Mapping[str, Any], facts: Mapping[str, Any]) -> list[FactCheck]:
    wanted = levers.get("cuda_graph")
    if wanted is None:
        return []
    if wanted == "off":
        eager = facts.get("enforce_eager") or facts.get("cudagraph_mode") == "NONE"
        known = "enforce_eager" in facts or "cudagraph_mode" in facts
        return [FactCheck("cuda_graph", "off", "off" if eager else "on", bool(eager))] if known else []
    if "max_cudagraph_capture_size" in facts:
        return [_equal("cuda_graph", wanted, facts["max_cudagraph_capture_size"])]
    if facts.get("enforce_eager"):
        return [FactCheck("cuda_graph", wanted, "off", False)]
    return []


def _arguments(levers: Mapping[str, Any], facts: Mapping[str, Any]) -> list[FactCheck]:
    """Levers of which the engine shows only that its parser took them; one at its default is not shown."""
    args = facts.get("args")
    if not isinstance(args, Mapping):
        return []
    return [
        _equal(lever, levers[lever], args[name])
        for lever, name in _FROM_ARGS.items()
        if lever in levers and name in args
    ]
