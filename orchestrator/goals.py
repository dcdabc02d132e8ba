"""The decision tree: goal → strategies → levers, as data.

What a strategy is said to gain is a claim of whoever is named, on their hardware; it is measured here before
anything relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass

_PRACTICE = "common practice"


@dataclass(frozen=True, slots=True)
class Claim:
    """A gain that somebody reports. `said_by` names paper and venue, or common practice."""

    what: str
    said_by: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of a strategy. `method` is its value in the lever, "" where it has none."""

    name: str
    method: str
    mechanism: str
    gains: tuple[Claim, ...]
    costs: str
    not_when: str


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to a goal: how it works, the levers it moves, what it gains and costs, when it does not pay.

    `options` are choices beside the levers ("--model", "--engine").
    """

    name: str
    title: str
    mechanism: str
    levers: tuple[str, ...]
    gains: tuple[Claim, ...]
    costs: str
    not_when: str
    options: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """What a server is for. `first` is what goes before everything else."""

    name: str
    title: str
    first: str
    strategies: tuple[Strategy, ...]


_PREFIX_CACHE_GAIN = Claim("up to 6.4 times the throughput", "SGLang, NeurIPS 2024")

_THROUGHPUT = (
    Strategy(
        "continuous_batching",
        "Continuous batching",
        "The scheduler decides anew for every token step: whoever is done leaves, whoever waits joins, and "
        "nobody waits for the longest answer of a batch. KV lies in blocks, so memory is not set aside for "
        "answers that never grow that long.",
        ("max_num_batched_tokens", "block_size", "kv_unified"),
        (
            Claim("36.9 times at equal latency on a 175B model", "Orca, OSDI 2022"),
            Claim("2-4 times more from KV in blocks", "PagedAttention, SOSP 2023"),
            Claim("GPU use from 30-50 % to above 80 %", _PRACTICE),
        ),
        "each request's tokens come slower as more run beside it",
        "one user at a time",
    ),
    Strategy(
        "many_sequences",
        "Large max_num_seqs",
        "More requests decode in one step, so a read of the weights serves more tokens; the share of memory "
        "for KV is raised with it.",
        ("max_num_seqs", "gpu_memory_utilization", "kv_cache_bytes"),
        (Claim("throughput grows until KV or compute is full", _PRACTICE),),
        "past the KV's room requests are preempted and computed again",
        "KV is full already, or latency is what counts",
    ),
    Strategy(
        "prefix_caching",
        "Prefix caching",
        "KV of a beginning that many prompts share is kept, and prefill starts after it.",
        ("prefix_caching", "cache_reuse_tokens", "kv_offload_bytes"),
        (_PREFIX_CACHE_GAIN,),
        "room in the KV cache",
        "prompts share no beginning; hybrids with block limits",
    ),
    Strategy(
        "weight_quantization",
        "Quantization",
        "Weights in 8 or 4 bits (FP8, AWQ, GPTQ, NVFP4, GGUF): less to store and to read at every step.",
        ("quantization", "dtype"),
        (Claim("smaller, faster decode, cheaper cards", _PRACTICE),),
        "answers change a little; the card must support the format",
        "long prefill on old cards, where arithmetic is the limit",
        options=("--model",),
    ),
)

_SPECULATIVE = (
    Variant(
        "Draft model",
        "draft_model",
        "A small model of the same family and vocabulary guesses.",
        (Claim("2-3 times", "Leviathan, ICML 2023"),),
        "its weights and its KV",
        "the family has no small model",
    ),
    Variant(
        "N-gram, suffix",
        "ngram, suffix",
        "The guess is looked up in the prompt and in what was written so far.",
        (Claim("free where text repeats: extraction, edits, agents", _PRACTICE),),
        "nothing to load",
        "prose that does not repeat",
    ),
    Variant(
        "MEDUSA",
        "medusa",
        "Extra heads on the model guess several positions at once.",
        (Claim("2.2-3.6 times", "MEDUSA, 2024"),),
        "heads trained for the model; vLLM has dropped it by 0.32",
        "the engine no longer reads it",
    ),
    Variant(
        "EAGLE, EAGLE-3, MTP",
        "eagle, eagle3, mtp",
        "A small head reads the model's own features, so more of its guesses are accepted.",
        (
            Claim("2.7-3.5 times", "EAGLE, 2024"),
            Claim("up to 6.5 times; 1.38 times the throughput at batch 64", "EAGLE-3, 2025"),
        ),
        "a head trained for that very model",
        "no head is published for it",
    ),
)

_LATENCY = (
    Strategy(
        "tensor_parallelism",
        "Tensor parallelism",
        "Every layer is cut over several cards, which work on the same token and add up twice a layer.",
        ("tensor_parallel_size", "distributed_executor_backend"),
        (Claim("lower latency, and models that fit no single card", _PRACTICE),),
        "traffic at every layer: NVLink carries it, PCIe hardly; heads must divide",
        "the model fits one card and throughput counts: copies win",
    ),
    Strategy(
        "chunked_prefill",
        "Chunked prefill",
        "A long prompt is cut into pieces that share steps with running decodes, which so never stand still "
        "for it (8k tokens can hold a GPU for 200 ms).",
        ("chunked_prefill", "max_num_batched_tokens", "ubatch_tokens", "long_prefill_token_threshold"),
        (Claim("2.6-5.6 times the load inside a latency limit", "Sarathi-Serve, OSDI 2024"),),
        "the long prompt's own first token comes later",
        "offline work; short prompts only",
    ),
    Strategy(
        "speculative_decoding",
        "Speculative decoding",
        "Something cheap guesses several tokens and the model checks them in one step. What the model would "
        "not have said is thrown away, so answers stay the same.",
        ("speculative",),
        (Claim("latency 2-3 times better", "Leviathan, ICML 2023"),),
        "the draft's time and memory; wrong guesses are wasted work",
        "large batches, high temperature, guesses that rarely hit",
        variants=_SPECULATIVE,
    ),
    Strategy(
        "disaggregation",
        "Prefill/decode disaggregation",
        "Prefill is bound by arithmetic, decode by memory: each gets its own devices and its own settings, "
        "and KV travels from one to the other.",
        ("disaggregation", "front"),
        (
            Claim("7.4 times the requests, or limits 12.6 times tighter", "DistServe, OSDI 2024"),
            Claim("1.4 times the throughput at 20 % less cost", "Splitwise, ISCA 2024"),
            Claim("97 % less TTFT, 47 % less completion time", "TetriInfer, 2024"),
        ),
        "KV transfer, a router, two ways to fail; one side idles when the mix is off",
        "few devices, slow links, short prompts, prefix caches that hit",
    ),
)

_AGENT = (
    Strategy(
        "radix_cache",
        "Prefix or radix cache",
        "Each turn begins with the whole conversation so far; its KV is kept, in a tree of beginnings or per "
        "slot, in device memory and then in host memory, and only the new part is prefilled.",
        ("prefix_caching", "kv_offload_bytes", "cache_reuse_tokens", "kv_unified"),
        (_PREFIX_CACHE_GAIN,),
        "room for KV; a conversation must come back to its server",
        "single questions; hybrids with block limits",
    ),
    Strategy(
        "gqa_models",
        "GQA models",
        "Models whose query heads share KV heads (GQA), or keep one small latent instead (MLA), need a "
        "fraction of the KV for each token.",
        ("max_model_len", "kv_cache_bytes"),
        (Claim("long contexts fit", _PRACTICE),),
        "it is a choice of model",
        "the model is given",
        options=("--model",),
    ),
    Strategy(
        "kv_quantization",
        "KV-cache quantization",
        "KV is stored in 8 bits or fewer: more tokens in the same memory, less to read for each new one.",
        ("kv_cache_dtype", "flash_attention"),
        (Claim("twice the tokens (hybrids less), faster at long context", _PRACTICE),),
        "answers change a little",
        "short contexts; old cards",
    ),
)

_EDGE = (
    Strategy(
        "gguf_quantization",
        "GGUF quantization",
        "One file holds weights in 4 to 8 bits, tokenizer and template, ready to be mapped into memory.",
        ("quantization", "gpu_layers"),
        (Claim("the least memory for a model of that size", _PRACTICE),),
        "answers change a little, more with fewer bits",
        "many users on a large card",
        options=("--model",),
    ),
    Strategy(
        "llamacpp",
        "llama.cpp",
        "One program without Python or CUDA to install, on a CPU, a small GPU, or both.",
        ("threads", "flash_attention", "max_num_batched_tokens", "ubatch_tokens", "kv_offload_bytes"),
        (Claim("the lowest cost for one to a few users", _PRACTICE),),
        "slots share one device; more users wait",
        "many users",
        options=("--engine",),
    ),
    Strategy(
        "small_models",
        "Small models",
        "A model of 0.1 to 8 billion parameters that does the job leaves memory and time for the rest.",
        ("max_model_len", "max_num_seqs"),
        (Claim("runs where no large model fits", _PRACTICE),),
        "it knows and reasons less",
        "the task needs a large model",
        options=("--model",),
    ),
)

GOALS: dict[str, Goal] = {
    goal.name: goal
    for goal in (
        Goal("throughput", "High throughput", "cost for each token", _THROUGHPUT),
        Goal("latency", "Low latency", "what one user feels", _LATENCY),
        Goal("agent", "Long context, many turns", "no prompt computed twice", _AGENT),
        Goal("edge", "Lowest cost", "running at all on what is there", _EDGE),
    )
}

EVERY_GOAL: tuple[Strategy, ...] = (
    Strategy(
        "more_concurrent_sequences",
        "More concurrent sequences",
        "Requests run beside one another instead of waiting in line.",
        ("max_num_seqs", "max_queued_requests"),
        (Claim("more work from each read of the weights", _PRACTICE),),
        "KV for each; slower tokens for each",
        "KV is full, or every millisecond counts",
    ),
    Strategy(
        "more_memory_for_kv",
        "More memory for KV",
        "What weights and working room leave is given to KV; host memory takes what the device cannot hold.",
        ("gpu_memory_utilization", "kv_cache_bytes", "kv_cache_tokens", "kv_offload_bytes"),
        (Claim("more or longer requests before any has to wait", _PRACTICE),),
        "less left for others on the device, and for peaks",
        "the KV is never full",
    ),
    Strategy(
        "priority_and_streaming",
        "Priority and streaming: short first",
        "Tokens are sent as they come, short requests go first, long ones wait aside.",
        ("scheduling_policy", "stream_interval", "long_prefill_token_threshold"),
        (Claim("answers feel faster at the same load", _PRACTICE),),
        "long requests starve where nothing limits their wait",
        "all requests are alike",
    ),
    Strategy(
        "cuda_graphs",
        "CUDA graphs",
        "A step is recorded once and replayed, so launching its kernels costs almost nothing.",
        ("cuda_graph",),
        (Claim("launch overhead gone, most felt in small batches", _PRACTICE),),
        "memory and start-up time for each recorded size",
        "debugging; no GPU",
    ),
)
"""Strategies that serve every goal."""
