"""What llama.cpp leaves undecided, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LEFT_OUT: dict[str, str] = {
    "tensor_parallel_size": "one server process; llama.cpp places whole layers on the devices there are",
    "pipeline_parallel_size": "layers follow gpu_layers over the devices there are",
    "data_parallel_size": "llama.cpp has no copies behind one scheduler",
    "expert_parallel": "llama.cpp has none",
    "attention_data_parallel_size": "llama.cpp has none",
    "long_prefill_token_threshold": "llama.cpp has none; max_num_batched_tokens bounds what a prompt holds",
    "gpu_memory_utilization": "the planner counts bytes; set it to bound what a GPU gives",
    "kv_cache_bytes": "follows from max_model_len, max_num_seqs and kv_cache_dtype; set it as a limit",
    "quantization": "the file's own; weights are not requantised",
    "dtype": "the file's own",
    "block_size": "llama.cpp keeps KV in single cells",
    "cuda_graph": "the engine's own choice",
    "scheduling_policy": "llama.cpp serves in order of arrival",
    "max_queued_requests": "llama.cpp has no limit on its queue",
    "stream_interval": "llama.cpp sends every token",
    "performance_mode": "llama.cpp has none",
    "async_scheduling": "llama.cpp has none",
    "distributed_executor_backend": "llama.cpp has none",
    "tool_call_parser": "llama.cpp reads tool calls by the model's own chat template",
    "reasoning_parser": "llama.cpp finds thoughts by the model's own chat template",
    "chat_template": "the model's own",
    "mem_fraction_static": "a share of SGLang's; llama.cpp's buffers are counted in bytes",
    "trust_remote_code": "a GGUF file holds no code",
    "shutdown_timeout_s": "llama.cpp ends at once; the supervisor waits for requests before it is told to",
    "device_ids": "there is no GPU to name",
    "replicas": "one server; copies need a router in front, which is not in this version",
    "disaggregation": "off: llama.cpp computes prompts and answers in one process",
    "front": "nothing stands in front",
}
"""Levers that are not decided on llama.cpp, and why."""

_RENDERED = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "kv_cache_bytes",
    "device_ids",
    "reasoning_parser",
    "chat_template",
)
"""Levers that have a flag all the same, a variable, or bound the plan."""

IN_EFFECT: dict[str, tuple[Any, ...]] = {
    "chunked_prefill": (True,),
    "stream_interval": (1,),
    "scheduling_policy": ("fcfs",),
    "long_prefill_token_threshold": (0,),
    "replicas": (1,),
    "disaggregation": ("off",),
    "front": ("none",),
    "data_parallel_size": (1,),
    "attention_data_parallel_size": (1,),
    "expert_parallel": (False,),
    "async_scheduling": (False,),
    "tool_call_parser": ("jinja",),
    "trust_remote_code": (False,),
}
"""Values that hold on llama.cpp without any flag. Tool calls are read by the template, whatever parser is
named."""

_WORDLESS = tuple(name for name in (*LEFT_OUT, "chunked_prefill") if name not in _RENDERED)


def without_effect(given: Callable[[str], Any], gpus: bool) -> list[str]:
    """Levers that somebody set and without effect on llama.cpp, apart from values that hold there anyway.

    `given` says what was set, None where nothing was; `gpus` whether the plan has any.
    """
    out = [
        name
        for name in _WORDLESS
        if given(name) is not None
        and given(name) not in IN_EFFECT.get(name, ())
        and not (gpus and name == "gpu_memory_utilization")
        and not (not gpus and name == "cuda_graph" and given(name) == "off")
    ]
    if given("chat_template") == "off":
        out.append("chat_template")
    return out
