"""What a vLLM server wrote about itself while it started: the figures that `/metrics` does not give.

Lines are those of vLLM 0.10 to 0.33: vllm/v1/core/kv_cache_utils.py (KV cache size), vllm/v1/worker/
gpu_worker.py (KV memory), vllm/v1/worker/gpu_model_runner.py (weights, graphs), vllm/v1/engine/core.py (the
configuration as the engine holds it), vllm/entrypoints/utils.py (non-default args).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

GIB = 1 << 30
_START_CHARS = 2 << 20  # a start is over long before
_ARGS = re.compile(r"non-default args: (\{.*\})\s*$", re.MULTILINE)
_PAIR = re.compile(r"'(\w+)': (True|False|None|-?\d+(?:\.\d+)?(?:e-?\d+)?|'[^']*')(?=[,}])")
_CONFIG = re.compile(
    r"Initializing a V1 LLM engine \(v(?P<version>[^)]*)\) with config: (?P<config>.*)$", re.M
)
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_FITTED = re.compile(r"Auto-fit max_model_len: reduced from ([\d,]+) to ([\d,]+)")
_BATCHED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_MODEL_LEN = re.compile(r"Using max model len (\d+)")
_SPEC = re.compile(r"SpeculativeConfig\(method='([^']*)', model=(?:None|'([^']*)'), num_spec_tokens=(\d+)\)")
_BACKEND = re.compile(
    r"Using (\w+) attention backend|Using (\w*(?:ATTN|MLA|FLASHINFER|Attention)\w*) backend", re.I
)
_GRAPHS = re.compile(r"Graph capturing finished in (\d+) secs?, took (-?[\d.]+) GiB")
_ASYNC_SAID = re.compile(r"Asynchronous scheduling is (enabled|disabled)")
_ASYNC_OFF = re.compile(
    r"Async(?:hronous)? scheduling (?:not supported|will be disabled|is disabled|is not compatible)"
)
_RUNNER_V1 = re.compile(r"using the V1 model runner instead")
_SCALARS = (
    # key, pattern, scale, smallest of several ranks rather than largest
    ("available_kv_bytes", re.compile(r"Available KV cache memory: (-?[\d.]+) GiB"), GIB, True),
    ("weights_bytes", re.compile(r"Model loading took ([\d.]+) GiB"), GIB, False),
    ("load_s", re.compile(r"Loading weights took ([\d.]+) seconds"), 1, False),
    ("compile_s", re.compile(r"torch\.compile took ([\d.]+) s in total"), 1, False),
    (
        "init_s",
        re.compile(r"init engine \(profile, create kv cache, [\w ]+\) took ([\d.]+) s"),
        1,
        False,
    ),
)
_CONFIG_FIELDS = {
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "device_config": "device",
    "trust_remote_code": "trust_remote_code",
}


def log_facts(log: str) -> dict[str, Any]:
    """Facts of a start by name; a key that is missing was not said.

    Sizes in bytes (the log rounds GiB to two digits), times in s, lengths in tokens. Of several ranks or
    engines the smallest KV pool and the largest weights count. `args` are the arguments that differ from the
    defaults, as the engine's parser understood them.
    """
    found: dict[str, Any] = {}
    log = log[:_START_CHARS]
    args = _args(log)
    if args is not None:
        found["args"] = args
        if isinstance(args.get("max_num_seqs"), int):
            found["max_num_seqs"] = args["max_num_seqs"]
    found |= _config(log)
    if (length := _MODEL_LEN.search(log)) and "max_model_len" not in found:
        found["max_model_len"] = int(length[1])
    if fitted := _FITTED.findall(log):
        found["max_model_len"] = min(_number(to) for _, to in fitted)
    if batched := _BATCHED.search(log):
        found["max_num_batched_tokens"] = int(batched[1])
        found.setdefault("chunked_prefill", True)
    elif args and isinstance(args.get("max_num_batched_tokens"), int):
        found["max_num_batched_tokens"] = args["max_num_batched_tokens"]
    if pools := _KV_TOKENS.findall(log):
        found["kv_cache_tokens"] = min(_number(p) for p in pools)
    if concurrency := _CONCURRENCY.findall(log):
        found["max_concurrency"] = min(float(times) for _, times in concurrency)
    for key, pattern, scale, smallest in _SCALARS:
        if values := [float(v) * scale for v in pattern.findall(log)]:
            value = min(values) if smallest else max(values)
            found[key] = round(value) if scale == GIB else value
    if graphs := _GRAPHS.findall(log):
        found["graph_capture_s"] = max(int(s) for s, _ in graphs)
        found["graph_bytes"] = round(max(float(gib) for _, gib in graphs) * GIB)
    if backend := _BACKEND.search(log):
        found["attention_backend"] = backend[1] or backend[2]
    asynchronous = _async_scheduling(log, found)
    if asynchronous is not None:
        found["async_scheduling"] = asynchronous
    if _RUNNER_V1.search(log):
        found["model_runner"] = "V1"
    return found


def _args(log: str) -> dict[str, Any] | None:
    match = _ARGS.search(log)
    if match is None:
        return None
    try:
        value = ast.literal_eval(match[1])
        return value if isinstance(value, dict) else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        # an object of the engine's own stands among the values
        return {name: ast.literal_eval(text) for name, text in _PAIR.findall(match[1])}


def _config(log: str) -> dict[str, Any]:
    """The fields of the line in which the engine core prints its configuration."""
    match = _CONFIG.search(log)
    if match is None:
        return {}
    found: dict[str, Any] = {"version": match["version"]}
    text = match["config"]
    # the compilation part repeats names
    head = text.partition("compilation_config=")
    for name, key in _CONFIG_FIELDS.items():
        if field := re.search(rf"(?:^|, ){name}=([^,]+?)(?:, \w+=|$)", head[0]):
            found[key] = _plain(field[1])
    speculation = _SPEC.search(head[0])
    if speculation is not None:
        method, model, tokens = speculation.groups()
        found["speculative"] = {"method": method, "num_tokens": int(tokens)} | (
            {"model": model} if model else {}
        )
    elif "speculative_config=None" in head[0]:
        found["speculative"] = "off"
    if mode := re.search(r"['\"]cudagraph_mode['\"]: <CUDAGraphMode\.(\w+)", head[2]):
        found["cudagraph_mode"] = mode[1]
    if largest := re.search(r"['\"]max_cudagraph_capture_size['\"]: (\d+)", head[2]):
        found["max_cudagraph_capture_size"] = int(largest[1])
    return found


def _async_scheduling(log: str, found: Mapping[str, Any]) -> bool | None:
    """What the log tells of it: said outright in some versions, else by what turns it off."""
    if said := _ASYNC_SAID.search(log):
        return said[1] == "enabled"
    if _ASYNC_OFF.search(log) or found.get("device") == "cpu":
        return False
    asked = (found.get("args") or {}).get("async_scheduling")
    return asked if isinstance(asked, bool) else None


def _plain(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if text == "None":
        return None
    text = text.removeprefix("torch.").strip("'")
    return int(text) if text.lstrip("-").isdigit() else text


def _number(text: str) -> int:
    return int(text.replace(",", ""))
