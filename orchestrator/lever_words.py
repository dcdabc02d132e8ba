"""What a lever may be, in words: for a person, an example to type, and a shell's completion."""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.lever_values import AUTO, SPECULATIVE_FIGURES, SPECULATIVE_METHODS
from orchestrator.levers import Lever

SUGGESTED: dict[str, tuple[str, ...]] = {
    "kv_cache_dtype": (
        *("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
        *("fp8", "fp8_e4m3", "fp8_e5m2"),
    ),
    "dtype": ("bfloat16", "float16", "float32"),
    "distributed_executor_backend": ("mp", "ray", "uni"),
    "tool_call_parser": ("jinja", "hermes", "llama3_json", "mistral"),
    "reasoning_parser": ("deepseek", "deepseek_r1", "qwen3"),
}
"""Names that some engine knows: for completion and for a person; the engine judges them."""

_EXAMPLES = {
    "max_model_len": "4096",
    "max_num_seqs": "4",
    "max_num_batched_tokens": "512",
    "ubatch_tokens": "256",
    "long_prefill_token_threshold": "2048",
    "gpu_layers": "20",
    "kv_cache_tokens": "16384",
    "cache_reuse_tokens": "256",
    "block_size": "16",
    "gpu_memory_utilization": "0.9",
    "kv_cache_bytes": "2GiB",
    "kv_offload_bytes": "1GiB",
    "quantization": "fp8",
    "performance_mode": "throughput",
    "chat_template": "/path/to/template.jinja",
    "device_ids": "'[GPU-1, GPU-2]'",
    "speculative": "'{method: ngram, num_tokens: 8}'",
    "disaggregation": "'{prefill: 1, decode: 1}'",
    "cuda_graph": "off",
}


def accepted(lever: Lever) -> str:
    """What a lever may be, in words: `auto, or a whole number of tokens, 1 or more`."""
    if lever.choices:
        return _either(dict.fromkeys((AUTO, *lever.choices)))
    match lever.kind:
        case "bool":
            return _either((AUTO, "true", "false"))
        case "int" | "float":
            unit = f" of {lever.unit}" if lever.unit != "share" else ""
            what = ("a whole number" if lever.kind == "int" else "a number") + unit
            if lever.maximum is not None:
                return f"auto, or {what} from {lever.minimum:g} to {lever.maximum:g}"
            return f"auto, or {what}, {lever.minimum or 0:g} or more"
        case "bytes":
            return "auto, or bytes, such as 1073741824, 512MiB or 2GiB"
        case "names":
            return "auto, or a list of names"
        case "cuda_graph":
            return "auto, off, or the largest recorded batch"
        case "speculative":
            return f"auto, off, or a mapping of method ({', '.join(SPECULATIVE_METHODS)}) and its figures"
        case "disaggregation":
            return "auto, off, or a mapping of prefill, decode and connector"
        case "name":
            known = SUGGESTED.get(lever.name, ())
            return f"auto, or a name such as {', '.join(known)}" if known else "auto, or a name"


def example(lever: Lever) -> str:
    """A setting to type after --set: `max_model_len=4096`."""
    first = lever.choices[-1] if lever.choices else next(iter(SUGGESTED.get(lever.name, ())), "")
    return f"{lever.name}={_EXAMPLES.get(lever.name) or first or ('true' if lever.kind == 'bool' else '1')}"


def figures() -> dict[str, str]:
    """The figures of `speculative` with their range and meaning."""
    return {
        key: f"{meaning}; {least} to {most}" for key, (least, most, meaning) in SPECULATIVE_FIGURES.items()
    }


def words(lever: Lever) -> tuple[str, ...]:
    """Values that a shell can complete, () where only a figure or a free name fits."""
    if lever.choices:
        return tuple(dict.fromkeys((AUTO, *lever.choices)))
    match lever.kind:
        case "bool":
            return (AUTO, "true", "false")
        case "speculative":
            return (AUTO, "off", *(f"{{method: {m}}}" for m in SPECULATIVE_METHODS if m != "draft_model"))
        case "disaggregation" | "cuda_graph":
            return (AUTO, "off")
        case _:
            return (AUTO, *SUGGESTED.get(lever.name, ()))


def _either(choices: Collection[str]) -> str:
    *most, last = choices
    return f"{', '.join(most)} or {last}"
