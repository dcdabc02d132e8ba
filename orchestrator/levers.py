"""The neutral vocabulary of everything that can be set: one `Lever` per name.

Names are vLLM's where engines differ. What an engine calls a lever stands in `engines/<kind>/render.py`;
what value a lever gets for a goal stands in `planning/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "int", "float", "bool", "bytes", "name", "names", "speculative", "disaggregation", "cuda_graph"
]


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that can be set.

    `unit` is the unit of its value ("tokens", "bytes", "share", ...), "" where it has none.
    `lossless` is False where some of its values can change the model's answers; the plan says for
    the chosen value whether they do.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    lossless: bool = True


_ALL = (
    Lever("tensor_parallel_size", "int", "devices", "devices that share every layer", 1),
    Lever("pipeline_parallel_size", "int", "devices", "stages that the layers are cut into", 1),
    Lever("data_parallel_size", "int", "ranks", "copies of the model behind one scheduler front", 1),
    Lever("expert_parallel", "bool", "", "spread whole experts over devices"),
    Lever("attention_data_parallel_size", "int", "ranks", "attention copies beside expert parallelism", 1),
    Lever("max_model_len", "int", "tokens", "context of one request, prompt and answer together", 1),
    Lever("max_num_seqs", "int", "requests", "requests that decode at once (llama.cpp: slots)", 1),
    Lever("max_num_batched_tokens", "int", "tokens", "tokens in one scheduler step", 1),
    Lever("ubatch_tokens", "int", "tokens", "tokens in one device pass (llama.cpp's physical batch)", 1),
    Lever("chunked_prefill", "bool", "", "cut long prompts and mix them with running decodes"),
    Lever("long_prefill_token_threshold", "int", "tokens", "a prompt above this counts as long", 0),
    Lever(
        "gpu_memory_utilization",
        "float",
        "share",
        "share of total device memory the deployment may hold",
        0,
        1,
    ),
    Lever(
        "mem_fraction_static",
        "float",
        "share",
        "share of device memory for weights and KV pool (SGLang)",
        0,
        1,
    ),
    Lever("gpu_layers", "int", "layers", "layers placed on GPUs (llama.cpp)", 0),
    Lever("kv_cache_bytes", "bytes", "bytes", "KV cache per device", 0),
    Lever("kv_cache_dtype", "name", "", "type of the KV cache", lossless=False),
    Lever("kv_cache_tokens", "int", "tokens", "size of the whole KV pool", 1),
    Lever("kv_unified", "bool", "", "one KV pool shared by all slots (llama.cpp)"),
    Lever("prefix_caching", "bool", "", "keep and reuse the KV of shared beginnings"),
    Lever(
        "cache_reuse_tokens",
        "int",
        "tokens",
        "smallest chunk reused by shifting KV, 0 = off",
        0,
        lossless=False,
    ),
    Lever("kv_offload_bytes", "bytes", "bytes", "host memory for KV that left the device", 0),
    Lever("flash_attention", "name", "", "fused attention kernel", choices=("auto", "on", "off")),
    Lever("speculative", "speculative", "", "off, or {method, model, num_tokens}"),
    Lever("quantization", "name", "", "weight quantization", lossless=False),
    Lever("dtype", "name", "", "type of activations and unquantized weights", lossless=False),
    Lever("block_size", "int", "tokens", "KV block", 1),
    Lever("cuda_graph", "cuda_graph", "", "auto, off, or the largest recorded batch"),
    Lever("scheduling_policy", "name", "", "who runs next", choices=("fcfs", "priority", "shortest")),
    Lever("max_queued_requests", "int", "requests", "waiting requests before new ones are turned away", 0),
    Lever("stream_interval", "int", "tokens", "tokens between two stream chunks", 1),
    Lever("performance_mode", "name", "", "the engine's own preset"),
    Lever("async_scheduling", "bool", "", "prepare the next step while this one runs"),
    Lever("distributed_executor_backend", "name", "", "how ranks are started"),
    Lever("device_ids", "names", "", "devices by UUID"),
    Lever("threads", "int", "cores", "cores given to computing", 1),
    Lever("tool_call_parser", "name", "", "how tool calls are read out of text"),
    Lever("reasoning_parser", "name", "", "how reasoning is read out of text"),
    Lever("chat_template", "name", "", "template file, or the model's own"),
    Lever("trust_remote_code", "bool", "", "run code that comes with the model"),
    Lever("shutdown_timeout_s", "int", "s", "how long an engine finishes requests once it is told to end", 0),
    Lever("replicas", "int", "servers", "whole copies behind one address", 1),
    Lever("disaggregation", "disaggregation", "", "off, or {prefill, decode, connector}", lossless=True),
    Lever("front", "name", "", "what stands in front", choices=("auto", "none", "router")),
)

LEVERS: dict[str, Lever] = {lever.name: lever for lever in _ALL}
