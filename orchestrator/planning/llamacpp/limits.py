"""What llama.cpp's own numbers can hold: least and most of each lever, and their steps.

The minima were found by starting the engine (xllamacpp 2026.10, SmolLM2-135M): a context or a logical batch
of one token aborts it, two tokens serve; a physical batch of one token serves. A shared pool caps a slot at
exactly max_model_len, and the chat that proves readiness must fit in; a slot's own cache is rounded up to 256
tokens anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.plan import Decision
from orchestrator.planning.findings import Finding
from orchestrator.planning.llamacpp import memory
from orchestrator.planning.llamacpp.memory import Sizing
from orchestrator.planning.llamacpp.situation import Situation
from orchestrator.planning.words import count, written

MOST_SLOTS = 256
"""llama.cpp's LLAMA_MAX_SEQ."""

LEAST_TOKENS = 2
INT32_MOST = 2**31 - 1

_INT_FLAGS = ("max_num_batched_tokens", "ubatch_tokens", "cache_reuse_tokens", "gpu_layers")
"""Levers whose flag is read as a 32-bit int and that nothing else bounds."""


def engine_limits(s: Situation, levers: Mapping[str, Decision], sizing: Sizing) -> list[Finding]:
    """Every refusal because a figure is below, above or between what llama.cpp takes."""
    return [
        *_least(s, levers, sizing),
        *_slots(s),
        *_pool(s, sizing),
        *_integers(s),
        *_threads(s),
        *_prompt_cache(s),
    ]


def _least(s: Situation, levers: Mapping[str, Decision], sizing: Sizing) -> Iterator[Finding]:
    # where the pool that was set gave the context, the pool is what is too small
    lever = "max_model_len" if not s.is_free("max_model_len") else "kv_cache_tokens"
    whole = min(memory.CELLS, s.longest)
    if sizing.context < LEAST_TOKENS:
        yield Finding(
            "context_too_small",
            f"{lever} is {sizing.context}: llama.cpp aborts on a context of fewer than {LEAST_TOKENS} tokens",
            change={lever: whole},
        )
    elif sizing.unified and sizing.context < whole and not s.is_free(lever):
        yield Finding(
            "context_too_small",
            f"{lever} is {s.given(lever)}: a request in a shared pool gets exactly that, and the chat that "
            "proves a start needs more",
            change={lever: whole},
        )
    if levers["max_num_batched_tokens"].value < LEAST_TOKENS:
        yield Finding(
            "batch_too_small",
            f"max_num_batched_tokens is {levers['max_num_batched_tokens'].value}: "
            f"llama.cpp aborts on fewer than {LEAST_TOKENS}",
            change={"max_num_batched_tokens": max(LEAST_TOKENS, sizing.slots)},
        )


def _slots(s: Situation) -> Iterator[Finding]:
    slots, batch = s.given("max_num_seqs"), s.given("max_num_batched_tokens")
    if slots is not None and slots > MOST_SLOTS:
        yield Finding(
            "too_many_slots",
            f"max_num_seqs is {slots}, and llama.cpp has at most {MOST_SLOTS} slots",
            change={"max_num_seqs": MOST_SLOTS},
        )
    elif slots is not None and batch is not None and LEAST_TOKENS <= batch < slots:
        yield Finding(
            "batch_below_slots",
            f"max_num_batched_tokens is {batch}: {count(slots, 'slot')} need a token each in a batch",
            change={"max_num_batched_tokens": slots},
        )


def _pool(s: Situation, sizing: Sizing) -> Iterator[Finding]:
    pool, length = s.given("kv_cache_tokens"), s.given("max_model_len")
    if pool is not None and s.given("kv_unified") is False:
        if pool != sizing.slots * sizing.context:
            each = f"{count(sizing.slots, 'slot')} with {sizing.context} tokens each"
            yield Finding(
                "pool_without_sharing",
                f"kv_cache_tokens is {pool}, the size of one shared pool, and kv_unified is false: {each} "
                f"make {sizing.slots * sizing.context}",
                change={"kv_unified": True},
            )
    elif pool is not None and length is not None and pool < min(length, s.longest):
        yield Finding(
            "pool_below_context",
            f"kv_cache_tokens is {pool}, and one request may need {length}",
            change={"kv_cache_tokens": memory.padded(min(length, s.longest))},
        )
    if sizing.pool_tokens > INT32_MOST and sizing.context <= s.trained_context < INT32_MOST:
        most = INT32_MOST // memory.CELLS * memory.CELLS
        change = {"kv_cache_tokens": most}
        if pool is None:
            change = {"max_model_len": most // sizing.slots // memory.CELLS * memory.CELLS}
        yield Finding(
            "context_too_large",
            f"{count(sizing.slots, 'slot')} and {sizing.context} tokens a request make "
            f"{sizing.pool_tokens} cells, and --ctx-size holds {INT32_MOST}",
            change=change,
        )


def _integers(s: Situation) -> Iterator[Finding]:
    for lever in _INT_FLAGS:
        value = s.given(lever)
        if value is None or value <= INT32_MOST:
            continue
        layers = s.card.layers + 1 if s.gpus else "auto"
        yield Finding(
            "int_too_large",
            f"{lever} is {value}, and llama.cpp's own number holds at most {INT32_MOST}",
            change={lever: {"gpu_layers": layers, "cache_reuse_tokens": 256}.get(lever, "auto")},
        )


def _threads(s: Situation) -> Iterator[Finding]:
    threads, usable = s.given("threads"), s.usable_cpus
    if threads is not None and threads > usable:
        yield Finding(
            "too_many_threads",
            f"threads is {threads}, and {count(usable, 'logical CPU')} can be used: waiting threads spin on "
            "the cores of the working ones until nothing is answered",
            change={"threads": max(1, s.usable_cores - 1)},
        )


def _prompt_cache(s: Situation) -> Iterator[Finding]:
    value = s.given("kv_offload_bytes")
    if value is None or value % memory.MIB == 0:
        return
    below = value // memory.MIB * memory.MIB
    yield Finding(
        "kv_offload_step",
        f"kv_offload_bytes is {value}, and llama.cpp counts its prompt cache in whole MiB",
        change={"kv_offload_bytes": below},
        after=f"or kv_offload_bytes={written(below + memory.MIB, 'kv_offload_bytes')}",
    )
