"""What vLLM and SGLang leave undecided, and why."""

from __future__ import annotations

LEFT_OUT: dict[str, str] = {
    "ubatch_tokens": "a pass of llama.cpp's; a step here is max_num_batched_tokens",
    "gpu_layers": "all layers lie on the devices",
    "kv_unified": "KV lies in pages that all requests share",
    "kv_cache_tokens": "follows from gpu_memory_utilization; the prediction says how many",
    "kv_cache_bytes": "follows from gpu_memory_utilization; set it to fix the pool",
    "cache_reuse_tokens": "pages are reused from the beginning on, never shifted",
    "flash_attention": "the engine takes the fastest kernel that the device has",
    "mem_fraction_static": "SGLang's",
    "block_size": "the engine's own choice for its attention kernel",
    "performance_mode": "this version or engine has none",
    "distributed_executor_backend": "the engine's own choice: processes of one machine",
    "device_ids": "there is no GPU to name",
    "expert_parallel": "the model has no experts",
    "attention_data_parallel_size": "it goes with spread experts, and the model has none",
    "gpu_memory_utilization": "a CPU computes: the KV pool is set by its size",
    "threads": "GPUs compute",
    "tool_call_parser": "the agent goal's; set it where clients send tools",
    "reasoning_parser": "the agent goal's; set it where clients want thoughts apart",
    "chat_template": "the model's own",
    "shutdown_timeout_s": "this engine has none: the supervisor waits for requests before it ends it",
    "replicas": "copies behind one balancer are data_parallel_size; servers behind a router come later",
    "disaggregation": "off: prompts and answers are computed in one process tree",
    "front": "nothing stands in front",
}
"""Levers that may stay undecided on vLLM and SGLang, and why."""

IN_EFFECT: dict[str, tuple[object, ...]] = {
    "flash_attention": ("auto", "on"),
    "kv_unified": (True,),
    "cache_reuse_tokens": (0,),
    "replicas": (1,),
    "disaggregation": ("off",),
    "front": ("none", "auto"),
}
"""Values that hold on these engines without any flag."""

WORDLESS = ("ubatch_tokens", "gpu_layers", "kv_unified", "cache_reuse_tokens", "flash_attention")
"""Levers that these engines have no word for."""
