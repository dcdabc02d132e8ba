"""Command lines to check: one lever after another, and many at once."""

import random
from collections.abc import Iterator
from typing import Any

from orchestrator.engines.base import Installation, Rendered, RenderRequest
from orchestrator.engines.sglang.render import render
from orchestrator.plan import Decision

VALUES: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1, 2, 8),
    "pipeline_parallel_size": (1, 2),
    "data_parallel_size": (1, 4),
    "attention_data_parallel_size": (1, 8),
    "expert_parallel": (False, True),
    "max_model_len": (1, 4096, 131072, 10_000_000),
    "max_num_seqs": (1, 48, 4096),
    "max_num_batched_tokens": (512, 8192),
    "chunked_prefill": (True, False),
    "mem_fraction_static": (0.5, 0.835, 0.9049),
    "gpu_memory_utilization": (0.9,),
    "kv_cache_bytes": (1 << 30,),
    "kv_cache_tokens": (1, 8192, 2_000_000),
    "kv_cache_dtype": ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bf16", "bfloat16", "float16", "nvfp4"),
    "prefix_caching": (True, False),
    "kv_offload_bytes": (0, 1, 64 * 10**9, 10**12),
    "speculative": (
        "off",
        {"method": "ngram", "num_tokens": 3},
        {"method": "ngram", "num_tokens": 16, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        {"method": "eagle3", "model": "/m/head", "num_tokens": 3},
        {"method": "eagle", "model": "/m/head", "num_tokens": 7, "num_steps": 5, "topk": 4},
        {"method": "mtp", "num_tokens": 1},
        {"method": "mtp"},
        {"method": "draft_model", "model": "/m/small", "num_tokens": 5},
        {"method": "dflash", "model": "/m/head", "num_tokens": 7},
        {"method": "suffix", "num_tokens": 8},
        {"method": "medusa", "model": "/m/head", "num_tokens": 3},
    ),
    "quantization": ("fp8", "awq", "compressed-tensors", "mxfp4", "gptq_bitblas"),
    "dtype": ("auto", "bfloat16", "fp16", "float32"),
    "block_size": (1, 16, 64),
    "cuda_graph": ("auto", "off", 16, 512),
    "scheduling_policy": ("fcfs", "priority", "shortest"),
    "max_queued_requests": (0, 64),
    "stream_interval": (1, 8),
    "performance_mode": ("throughput",),
    "async_scheduling": (True, False),
    "distributed_executor_backend": ("mp", "ray", "uni"),
    "device_ids": (["GPU-a", "GPU-b"],),
    "threads": (1, 16),
    "tool_call_parser": ("qwen25", "hermes", "llama3", "kimi_k3", "glm47"),
    "reasoning_parser": ("qwen3", "deepseek-r1", "kimi_k3"),
    "chat_template": ("/t.jinja",),
    "trust_remote_code": (True, False),
    "ubatch_tokens": (256,),
    "gpu_layers": (3,),
    "flash_attention": ("on", "off"),
    "long_prefill_token_threshold": (0, 1024),
    "cache_reuse_tokens": (0, 64),
    "kv_unified": (True, False),
    "shutdown_timeout_s": (30,),
}

SILENT: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "attention_data_parallel_size": (1,),
    "expert_parallel": (False, True),
    "chunked_prefill": (True,),
    "prefix_caching": (True,),
    "kv_offload_bytes": (0,),
    "speculative": ("off",),
    "cuda_graph": ("auto",),
    "max_queued_requests": (0,),
    "async_scheduling": (True,),
    "distributed_executor_backend": ("mp",),
    "trust_remote_code": (False,),
    "flash_attention": ("on",),
    "long_prefill_token_threshold": (0,),
    "cache_reuse_tokens": (0,),
    "kv_unified": (True,),
}
"""What is SGLang's own way, or (experts on one device) nothing at all: no word is needed for it."""


def rendered(
    installation: Installation,
    *,
    args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    rule: str = "because",
    stock: tuple[str, ...] = (),
    served: str = "small",
    key_file: str | None = None,
    **levers: Any,
) -> Rendered:
    decided = {k: Decision(v, "because", rule, stock=k in stock) for k, v in levers.items()}
    return render(
        RenderRequest(
            decided, installation, "/m/x", served, engine_args=args, env=env or {}, api_key_file=key_file
        )
    )


def words(made: Rendered, installation: Installation) -> list[str]:
    """The arguments, the program's own words left out, ports as numbers."""
    argv = made.processes[0].argv[len(installation.argv) :]
    return [w.replace("{port:http}", "8000").replace("{port:nccl}", "28000") for w in argv]


def single() -> Iterator[dict[str, Any]]:
    """Each lever with each of its values."""
    for lever, values in VALUES.items():
        for value in values:
            yield {lever: value}


def many(count: int) -> Iterator[dict[str, Any]]:
    """Half of all levers at once, the same ones in every run."""
    dice = random.Random(7)
    for _ in range(count):
        chosen = dice.sample(sorted(VALUES), len(VALUES) // 2)
        yield {lever: dice.choice(VALUES[lever]) for lever in chosen}
