"""A recipe's vLLM arguments as levers, and as flags where no lever says the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_VALUED: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "--max-model-len": ("max_model_len", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--tensor-parallel-size": ("tensor_parallel_size", int),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--block-size": ("block_size", int),
    "--dtype": ("dtype", str),
    "--quantization": ("quantization", str),
    "--distributed-executor-backend": ("distributed_executor_backend", str),
    "--tool-call-parser": ("tool_call_parser", str),
    "--reasoning-parser": ("reasoning_parser", str),
    "--max-cudagraph-capture-size": ("cuda_graph", int),
}
_SWITCHES: Mapping[str, tuple[str, Any]] = {
    "--trust-remote-code": ("trust_remote_code", True),
    "--enable-expert-parallel": ("expert_parallel", True),
    "--enable-prefix-caching": ("prefix_caching", True),
    "--no-enable-prefix-caching": ("prefix_caching", False),
    "--enable-chunked-prefill": ("chunked_prefill", True),
    "--async-scheduling": ("async_scheduling", True),
    "--enforce-eager": ("cuda_graph", "off"),
}
SUGGESTED = frozenset(
    {
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "distributed_executor_backend",
        "async_scheduling",
        "cuda_graph",
        "chunked_prefill",
        "quantization",
    }
)
"""Levers by which a recipe tunes for its own workload: the planner decides them from memory and goal."""

LEFT_OUT: Mapping[str, str] = {
    "--served-model-name": "the server answers to the name that was asked for",
    "--allowed-local-media-path": "opens the server's disk to requests: for whom needs it to set",
    "--chat-template": "an example file of vLLM's repository, which the package does not hold",
    "--enable-auto-tool-choice": "comes with tool_call_parser",
    "--cpu-offload-gb": "weights on the host are slow; fewer bits or more devices are chosen instead",
}
"""What a recipe writes and a plan never takes over, with the reason."""

OTHER_BACKEND = "it is for another attention backend than the one published for this device"

FLAG_SINCE: Mapping[str, str] = {"--attention-backend": "0.16.0", "--mm-encoder-tp-mode": "0.12.0"}
"""First known vLLM with a flag that recipes write for older ones too (flags of 0.10.0, 0.12.0 and 0.16.0)."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """`levers` are needed, `suggested` tune; `flags` are argv for what no lever says, JSON merged by flag."""

    levers: dict[str, Any] = field(default_factory=dict)
    suggested: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def read(args: Sequence[str]) -> Arguments:
    """Split an argument list. `--a.b c`, `--a_b`, `--a=b`, `-cc.x=y` and two words in one are understood."""
    levers: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    left_out: list[str] = []
    for flag, value in _pairs(args):
        if flag in LEFT_OUT:
            left_out.append(flag)
        elif flag in _SWITCHES:
            name, meant = _SWITCHES[flag]
            levers[name] = meant
        elif flag in _VALUED and value is not None:
            name, kind = _VALUED[flag]
            if value != "auto":
                levers[name] = kind(value)
        elif "." in flag and value is not None:
            _into(flags, flag, _typed(value))
        elif value is not None and value.startswith("{"):
            known = flags.get(flag)
            flags[flag] = {**(known if isinstance(known, dict) else {}), **json.loads(value)}
        else:
            flags[flag] = value
    return Arguments(
        levers={k: v for k, v in levers.items() if k not in SUGGESTED},
        suggested={k: v for k, v in levers.items() if k in SUGGESTED},
        flags=_argv(flags),
        left_out=tuple(left_out),
    )


def merged(first: Arguments, second: Arguments) -> Arguments:
    """Both, the second over the first."""
    flags: dict[str, Any] = {}
    for flag, value in (*_pairs(first.flags), *_pairs(second.flags)):
        known = flags.get(flag)
        if value is not None and value.startswith("{") and isinstance(known, dict):
            flags[flag] = {**known, **json.loads(value)}
        else:
            flags[flag] = json.loads(value) if value is not None and value.startswith("{") else value
    return Arguments(
        levers={**first.levers, **second.levers},
        suggested={**first.suggested, **second.suggested},
        flags=_argv(flags),
        left_out=tuple(dict.fromkeys((*first.left_out, *second.left_out))),
    )


def without(told: Arguments, unwanted: Sequence[str]) -> Arguments:
    """The same with some flags left out."""
    kept = {flag: value for flag, value in _pairs(told.flags) if flag not in unwanted}
    gone = tuple(flag for flag, _ in _pairs(told.flags) if flag in unwanted)
    return replace(told, flags=_argv(kept), left_out=(*told.left_out, *gone))


def with_one_backend(told: Arguments) -> Arguments:
    """Without the attention settings of weights that name a backend, where the device's own flag names one:
    vLLM refuses both (0.32.0 vllm/engine/arg_utils.py:2687)."""
    flags = dict(_pairs(told.flags))
    config = flags.get("--attention-config")
    both = "--attention-backend" in flags and config is not None and "backend" in json.loads(config)
    return without(told, ["--attention-config"]) if both else told


def draft(args: Sequence[str]) -> dict[str, Any]:
    """The speculative configuration among arguments, as vLLM's own keys; empty where there is none."""
    found: dict[str, Any] = {}
    for flag, value in _pairs(args):
        if flag == "--speculative-config" and value is not None:
            found |= json.loads(value)
        elif flag.startswith("--speculative-config.") and value is not None:
            found[flag.split(".", 1)[1]] = _typed(value)
    return found


def beside_draft(args: Sequence[str]) -> tuple[str, ...]:
    """Flags that a recipe gives together with its speculative configuration."""
    pairs = [(f, v) for f, v in _pairs(args) if not f.startswith("--speculative-config")]
    return tuple(part for f, v in pairs for part in ((f,) if v is None else (f, v)))


def _pairs(args: Sequence[str]) -> list[tuple[str, str | None]]:
    words = [w for a in args for w in (a.split(" ", 1) if a.startswith("--") and " " in a else (a,))]
    out: list[tuple[str, str | None]] = []
    for word in words:
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            name, equals, value = word.partition("=")
            out.append((_spelled(name), value if equals else None))
        elif out and out[-1][1] is None:
            out[-1] = (out[-1][0], word)
    return out


def _spelled(flag: str) -> str:
    head, dot, key = flag.partition(".")
    if head in ("-cc", "-O"):
        head = "--compilation-config"
    return head.replace("_", "-") + dot + key


def _typed(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def _into(flags: dict[str, Any], dotted: str, value: Any) -> None:
    head, *keys = dotted.split(".")
    table = flags.get(head)
    if not isinstance(table, dict):
        table = flags[head] = {}
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    table[keys[-1]] = value


def _argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    out: list[str] = []
    for flag, value in flags.items():
        out.append(flag)
        if isinstance(value, dict):
            out.append(json.dumps(value, separators=(",", ":")))
        elif value is not None:
            out.append(value)
    return tuple(out)
