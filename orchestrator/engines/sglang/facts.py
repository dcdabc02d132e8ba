"""What SGLang reports about itself after readiness, its log's figures, and the plan against them.

`/server_info` is the arguments as SGLang resolved them, with the state of each scheduler behind them (sglang
0.5.23, srt/entrypoints/http_server.py). It asks the scheduler and blocks for as long as that hangs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.engines.base import FactCheck
from orchestrator.engines.reply import fetch
from orchestrator.engines.sglang.health import read_metrics
from orchestrator.plan import Plan

if TYPE_CHECKING:
    import httpx

FACTS_TIMEOUT_S = 10.0
KV_TOKENS_LOW = 0.02
"""How far below the prediction the pool may be where nothing fixes its size: the profile varies."""

_ARGUMENTS = (
    "version", "status", "max_total_num_tokens", "max_req_input_len", "tp_size", "pp_size", "dp_size",
    "attn_dp_size", "ep_size", "enable_dp_attention", "moe_a2a_backend", "context_length",
    "max_running_requests", "max_queued_requests", "max_total_tokens", "chunked_prefill_size",
    "max_prefill_tokens", "mem_fraction_static", "kv_cache_dtype", "page_size", "disable_radix_cache",
    "quantization", "dtype", "schedule_policy", "enable_priority_scheduling", "enable_mixed_chunk",
    "disable_overlap_schedule", "disable_cuda_graph", "cuda_graph_config", "cuda_graph_max_bs",
    "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps",
    "speculative_eagle_topk", "speculative_num_draft_tokens", "enable_hierarchical_cache", "hicache_size",
    "hicache_ratio", "stream_interval", "tool_call_parser", "reasoning_parser", "chat_template",
    "trust_remote_code", "device", "attention_backend", "disaggregation_mode", "schedule_conservativeness",
    "nnodes",
)  # fmt: skip
_MODEL = ("model_type", "architectures", "is_generation")
_STATE = ("effective_max_running_requests_per_dp", "memory_usage", "decode_cuda_graph_bs")

_LINES = (
    re.compile(r"KV Cache is allocated\. (?:dtype: (?P<kv_dtype>\S+), )?#tokens: (?P<kv_tokens>\d+)"),
    re.compile(
        r"K size: (?P<kv_k_gb>[\d.]+) GB, V size: (?P<kv_v_gb>[\d.]+) GB|KV size: (?P<kv_gb>[\d.]+) GB"
    ),
    re.compile(r"Load weight end\..*?mem usage=(?P<weights_gb>-?[\d.]+) ?GB"),
    re.compile(r"Memory pool end\. avail mem=(?P<memory_after_pool_gb>[\d.]+) ?GB"),
    re.compile(r"\bmax_total_num_tokens=(?P<max_total_num_tokens>\d+), chunked_prefill_size="),
    re.compile(r"\bchunked_prefill_size=(?P<chunked_prefill_size>-?\d+), max_prefill_tokens="),
    re.compile(r"\bmax_prefill_tokens=(?P<max_prefill_tokens>\d+), max_running_requests="),
    re.compile(r"\bmax_running_requests=(?P<max_running_requests>\d+), context_len="),
    re.compile(r"\bcontext_len=(?P<context_len>\d+), available_"),
    re.compile(r"available_(?:gpu|cpu|\w+)_mem(?:ory)?=(?P<available_gb>[\d.]+) ?GB"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lever that can be seen back: the flags that carry it, the argument it becomes, how it is read."""

    lever: str
    flags: tuple[str, ...]
    field: str
    kind: Literal["number", "text", "switch", "negated"] = "number"


_LEVERS = (
    _Seen("pipeline_parallel_size", ("--pp-size", "--pipeline-parallel-size"), "pp_size"),
    _Seen("block_size", ("--page-size",), "page_size"),
    _Seen("mem_fraction_static", ("--mem-fraction-static",), "mem_fraction_static"),
    _Seen("max_queued_requests", ("--max-queued-requests",), "max_queued_requests"),
    _Seen("stream_interval", ("--stream-interval",), "stream_interval"),
    _Seen("kv_cache_dtype", ("--kv-cache-dtype",), "kv_cache_dtype", "text"),
    _Seen("quantization", ("--quantization",), "quantization", "text"),
    _Seen("dtype", ("--dtype",), "dtype", "text"),
    _Seen("tool_call_parser", ("--tool-call-parser",), "tool_call_parser", "text"),
    _Seen("reasoning_parser", ("--reasoning-parser",), "reasoning_parser", "text"),
    _Seen("chat_template", ("--chat-template",), "chat_template", "text"),
    _Seen("prefix_caching", ("--disable-radix-cache",), "disable_radix_cache", "negated"),
    _Seen("async_scheduling", ("--disable-overlap-schedule",), "disable_overlap_schedule", "negated"),
    _Seen("trust_remote_code", ("--trust-remote-code",), "trust_remote_code", "switch"),
)


async def facts(client: httpx.AsyncClient, base_url: str) -> dict[str, Any]:
    """The resolved arguments that matter, the pool, the model and the names it answers to, out of
    /server_info (before 0.5.4 /get_server_info), /model_info, /v1/models and /metrics. A key that is missing
    was not reported."""
    info = await _json(client, f"{base_url}/server_info", f"{base_url}/get_server_info")
    found = read_server_info(info) if isinstance(info, dict) else {}
    model = await _json(client, f"{base_url}/model_info")
    if isinstance(model, dict):
        found |= {name: model[name] for name in _MODEL if name in model}
    models = await _json(client, f"{base_url}/v1/models")
    if isinstance(models, dict):
        rows = [m for m in models.get("data") or [] if isinstance(m, dict)]
        found["served_models"] = [m["id"] for m in rows if isinstance(m.get("id"), str)]
        lengths = [m["max_model_len"] for m in rows if isinstance(m.get("max_model_len"), int)]
        if lengths:
            found["max_model_len"] = lengths[0]
    text = await _text(client, f"{base_url}/metrics")
    if text is not None:
        found["metrics"] = {
            s.name: s.value for s in read_metrics(text) if s.name.endswith(("_gb", "_tokens", "page_size"))
        }
    return found


def read_server_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in one answer of /server_info. The pool is that of the smallest scheduler."""
    states = [s for s in info.get("internal_states") or [] if isinstance(s, dict)]
    found = {name: info[name] for name in _ARGUMENTS if name in info}
    if states:
        found |= {name: states[0][name] for name in _STATE if name in states[0]}
        # what a scheduler changed after the arguments were resolved
        found |= {n: states[0][n] for n in _ARGUMENTS if states[0].get(n) is not None}
        pools = [_number((s.get("memory_usage") or {}).get("token_capacity")) for s in states]
        known = [p for p in pools if p]
        if known:
            found["max_total_num_tokens"] = min(known)
    return found


def log_facts(log: str) -> dict[str, Any]:
    """The figures of a start's log; where several ranks say one, the last. Sizes in GB as printed.

    Keys: kv_tokens, kv_dtype, kv_k_gb and kv_v_gb (or kv_gb), weights_gb, memory_after_pool_gb,
    max_total_num_tokens, chunked_prefill_size, max_prefill_tokens, max_running_requests, context_len,
    available_gb. One that is missing was not said.
    """
    found: dict[str, Any] = {}
    for line in log.splitlines():
        if "server_args=" in line:
            continue
        for pattern in _LINES:
            match = pattern.search(line)
            if match is not None:
                found |= {k: _figure(v) for k, v in match.groupdict().items() if v is not None}
    return found


def compare(plan: Plan, facts: Mapping[str, Any]) -> list[FactCheck]:
    """One check for each planned lever and figure that SGLang reports; what it does not report is not judged.

    What the command line says counts where it holds the lever's flag (a lever can be in another unit there),
    else the lever's own value where it asks for something.
    """
    levers = {name: d.value for name, d in plan.levers.items()}
    argv = plan.processes[0].argv if plan.processes else ()
    checks = [c for seen in _LEVERS if (c := _seen(seen, levers, argv, facts)) is not None]
    checks += _layout(levers, facts)
    checks += _requests(levers, argv, facts)
    checks += _batch(levers, argv, facts)
    checks += _pool(plan, levers, argv, facts)
    checks += _graphs(levers, facts)
    checks += _speculation(levers.get("speculative"), argv, facts)
    checks += _offload(levers.get("kv_offload_bytes"), argv, facts)
    checks += _scheduling(levers.get("scheduling_policy"), facts)
    if "served_models" in facts and plan.model.get("name"):
        name = plan.model.get("served_model") or plan.model["name"]
        served = facts["served_models"]
        checks.append(FactCheck("served_model", name, ", ".join(served), name in served))
    length = levers.get("max_model_len")
    if length and "max_model_len" in facts:
        checks.append(_equal("max_model_len", length, facts["max_model_len"]))
    return checks


def given(argv: Sequence[str], *flags: str) -> str | None:
    """The last value that the command line gives to one of these flags; "" for a bare switch; else None."""
    found = None
    for i, word in enumerate(argv):
        name, equals, text = word.partition("=")
        if name not in flags:
            continue
        follows = argv[i + 1] if i + 1 < len(argv) else ""
        negative = re.fullmatch(r"-\d+(\.\d+)?", follows) is not None
        found = text if equals else follows if negative or not follows.startswith("-") else ""
    return found


def _seen(
    seen: _Seen, levers: Mapping[str, Any], argv: Sequence[str], facts: Mapping[str, Any]
) -> FactCheck | None:
    if seen.lever not in levers or seen.field not in facts:
        return None
    value, actual, said = levers[seen.lever], facts[seen.field], given(argv, *seen.flags)
    if seen.kind in ("switch", "negated"):
        if not isinstance(value, bool):
            return None
        on = bool(actual) != (seen.kind == "negated")
        return FactCheck(seen.lever, _on(value), _on(on), on == value)
    if not said and (value is None or value in ("auto", "off", False)):
        return None
    expected: Any = said or value
    if seen.kind == "number":
        expected, actual = _number(expected), _number(actual)
    return _equal(seen.lever, expected, actual)


def _layout(levers: Mapping[str, Any], facts: Mapping[str, Any]) -> list[FactCheck]:
    """SGLang's tensor size counts all ranks of a stage, the attention ranks of it among them."""
    tensor = levers.get("tensor_parallel_size") or 1
    attention = levers.get("attention_data_parallel_size") or 1
    data = levers.get("data_parallel_size") or 1
    checks = []
    if "tensor_parallel_size" in levers and "tp_size" in facts:
        checks.append(_equal("tensor_parallel_size", tensor, facts["tp_size"] // _attention(facts)))
    if "attention_data_parallel_size" in levers and "dp_size" in facts:
        checks.append(_equal("attention_data_parallel_size", attention, _attention(facts)))
    if "data_parallel_size" in levers and "dp_size" in facts:
        copies = 1 if facts.get("enable_dp_attention") and "attn_dp_size" not in facts else facts["dp_size"]
        checks.append(_equal("data_parallel_size", data, copies))
    if "expert_parallel" in levers and "ep_size" in facts and tensor * attention > 1:
        spread = facts["ep_size"] == facts.get("tp_size", tensor * attention)
        wanted = bool(levers["expert_parallel"]) or attention > 1
        checks.append(FactCheck("expert_parallel", _on(wanted), _on(spread), spread == wanted))
    return checks


def _attention(facts: Mapping[str, Any]) -> int:
    """Attention ranks; before 0.5.23 they were dp_size with enable_dp_attention."""
    if "attn_dp_size" in facts:
        return int(facts["attn_dp_size"] or 1)
    return int(facts.get("dp_size") or 1) if facts.get("enable_dp_attention") else 1


def _requests(levers: Mapping[str, Any], argv: Sequence[str], facts: Mapping[str, Any]) -> list[FactCheck]:
    most = _number(given(argv, "--max-running-requests")) or levers.get("max_num_seqs")
    each, ranks = facts.get("effective_max_running_requests_per_dp"), _attention(facts)
    if not isinstance(most, int) or "max_num_seqs" not in levers:
        return []
    if isinstance(each, int):
        return [FactCheck("max_num_seqs", most, each * ranks, each == max(1, most // ranks))]
    if isinstance(facts.get("max_running_requests"), int):
        return [_equal("max_num_seqs", most, facts["max_running_requests"])]
    return []


def _batch(levers: Mapping[str, Any], argv: Sequence[str], facts: Mapping[str, Any]) -> list[FactCheck]:
    """SGLang divides the chunk that it is told by its attention ranks; -1 is no chunking."""
    actual = facts.get("chunked_prefill_size")
    if not isinstance(actual, int):
        return []
    checks = []
    if isinstance(levers.get("chunked_prefill"), bool):
        on = actual > 0
        checks.append(FactCheck("chunked_prefill", _on(levers["chunked_prefill"]), _on(on),
                                on == levers["chunked_prefill"]))  # fmt: skip
    said, lever = _number(given(argv, "--chunked-prefill-size")), levers.get("max_num_batched_tokens")
    planned = said // _attention(facts) if said and said > 0 else lever
    if lever and planned and actual > 0:
        checks.append(_equal("max_num_batched_tokens", planned, actual))
    return checks


def _pool(
    plan: Plan, levers: Mapping[str, Any], argv: Sequence[str], facts: Mapping[str, Any]
) -> list[FactCheck]:
    """Exact, but for the last page, where the tokens or bytes are set; else at most 2 % below."""
    actual, page = facts.get("max_total_num_tokens"), _number(facts.get("page_size")) or 1
    if not isinstance(actual, int):
        return []
    tokens = _number(given(argv, "--max-total-tokens")) or levers.get("kv_cache_tokens")
    if tokens:
        return [FactCheck("kv_cache_tokens", tokens, actual, actual == tokens // page * page)]
    predicted = plan.predictions.get("kv_cache_tokens")
    if predicted is None or not predicted.value:
        return []
    least = predicted.value * (1 - KV_TOKENS_LOW)
    if levers.get("kv_cache_bytes"):
        least = int(predicted.value) // page * page
    return [FactCheck("kv_cache_tokens", predicted.value, actual, actual >= least)]


def _graphs(levers: Mapping[str, Any], facts: Mapping[str, Any]) -> list[FactCheck]:
    lever, config = levers.get("cuda_graph"), facts.get("cuda_graph_config")
    decode = config.get("decode") if isinstance(config, dict) else None
    if isinstance(decode, dict):
        off, largest = decode.get("backend") == "disabled", decode.get("max_bs")
    elif "disable_cuda_graph" in facts:
        off, largest = bool(facts["disable_cuda_graph"]), facts.get("cuda_graph_max_bs")
    else:
        return []
    actual = "off" if off else largest
    if lever == "off":
        return [FactCheck("cuda_graph", "off", actual, off)]
    if isinstance(lever, int) and not isinstance(lever, bool):
        return [FactCheck("cuda_graph", lever, actual, actual == lever)]
    return []


def _speculation(value: Any, argv: Sequence[str], facts: Mapping[str, Any]) -> list[FactCheck]:
    if "speculative_algorithm" not in facts or value is None:
        return []
    algorithm = facts["speculative_algorithm"]
    if not isinstance(value, Mapping):
        return [FactCheck("speculative", "off", algorithm or "off", not algorithm)]
    said = given(argv, "--speculative-algorithm")
    # NEXTN is EAGLE's other name
    named = {"NEXTN": "EAGLE"}.get((said or "").upper(), (said or "").upper())
    ok = bool(algorithm) and (not named or algorithm in (named, "FROZEN_KV_MTP"))
    checks = [FactCheck("speculative", said or value.get("method"), algorithm or "off", ok)]
    drafted = _number(given(argv, "--speculative-num-draft-tokens"))
    if drafted and isinstance(facts.get("speculative_num_draft_tokens"), int):
        checks.append(_equal("speculative.num_tokens", drafted, facts["speculative_num_draft_tokens"]))
    return checks


def _offload(value: Any, argv: Sequence[str], facts: Mapping[str, Any]) -> list[FactCheck]:
    if not isinstance(value, int) or "enable_hierarchical_cache" not in facts:
        return []
    on, size = bool(facts["enable_hierarchical_cache"]), _number(given(argv, "--hicache-size"))
    actual = facts.get("hicache_size") or 0
    if not value:
        return [FactCheck("kv_offload_bytes", 0, "on" if on else 0, not on)]
    return [FactCheck("kv_offload_bytes", size or value, actual, on and size in (None, actual))]


def _scheduling(value: Any, facts: Mapping[str, Any]) -> list[FactCheck]:
    if value not in ("fcfs", "priority", "shortest") or "schedule_policy" not in facts:
        return []
    policy = facts["schedule_policy"]
    actual = "priority" if facts.get("enable_priority_scheduling") else policy
    wanted = "shortest-prefill-first" if value == "shortest" else value
    return [_equal("scheduling_policy", wanted, actual)]


def _equal(what: str, planned: Any, actual: Any) -> FactCheck:
    return FactCheck(what, planned, actual, planned == actual)


def _on(value: bool) -> str:
    return "on" if value else "off"


def _number(value: Any) -> Any:
    """An int or float out of a figure or its text; None where it is none."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return None
        return int(number) if number.is_integer() and "." not in value else number
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _figure(text: str) -> Any:
    number = _number(text)
    return text if number is None else number


async def _text(client: httpx.AsyncClient, *urls: str) -> str | None:
    """The first of these that is there; None where it does not answer."""
    import httpx

    for url in urls:
        try:
            status, body = await fetch(client, "GET", url, timeout=FACTS_TIMEOUT_S)
        except (httpx.HTTPError, ValueError):
            return None
        if status != 404:
            return body.decode("utf-8", "replace") if status == 200 else None
    return None


async def _json(client: httpx.AsyncClient, *urls: str) -> Any:
    text = await _text(client, *urls)
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
