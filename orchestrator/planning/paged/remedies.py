"""The remedy of each refusal on vLLM and SGLang: levers that were tried on the planner and pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.machine.machine import Gpu
from orchestrator.plan import Violation
from orchestrator.planning.findings import Finding
from orchestrator.planning.paged import choose
from orchestrator.planning.paged.kv_type import why_not_fp8
from orchestrator.planning.paged.situation import Situation, stepped
from orchestrator.planning.paged.sizing import Sizing
from orchestrator.planning.words import count, sets, size

Change = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """The planner with some levers set otherwise: whether a layout would hold the model, and the codes of
    everything that would be refused, which takes longer to find out."""

    fits: Callable[[Mapping[str, Any]], bool]
    codes: Callable[[Mapping[str, Any]], frozenset[str]]


_MOSTLY_FREE = 0.9
"""A device with less free than this share of its memory is held by somebody."""

_HELD = 0.85
"""Of all device memory, what weights may take beside KV and working memory."""

_FOLLOWS = frozenset({"pool_below_context", "no_room_for_requests", "pool_without_room", "kv_cache_bytes"})
"""An engine's own refusals that say no more than that memory is short."""

_TO_AUTO = (
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "kv_cache_bytes",
    "kv_cache_tokens",
    "mem_fraction_static",
    "cuda_graph",
    "speculative",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "attention_data_parallel_size",
    "expert_parallel",
    "device_ids",
    "max_model_len",
)
"""Levers that are left to the plan again where what was set does not fit, in this order."""


_LAYOUT = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "attention_data_parallel_size",
        "expert_parallel",
        "device_ids",
    }
)
"""Levers that say how much of the weights a device holds."""

_BITS = "quantization"
_LIGHTER = _LAYOUT | {_BITS}

_FEWER_BITS = (("fp8", "FP8", 0.5), ("int4", "4 bits (AWQ, GPTQ)", 0.3))
"""Kinds in which models in 16 bits are published too: a format's name, words, and part of the size."""


def settled(
    s: Situation,
    findings: Sequence[Finding],
    shortage: Sequence[Finding],
    engines: Sequence[Violation],
    z: Sizing,
    trial: Trial,
) -> list[Violation]:
    """The refusals as a Plan states them: `findings` mend themselves by their own change, for `shortage`
    levers are searched for with which it fits; the engine's own that vanish with either are left out."""
    own: Change = {}
    for f in findings:
        own |= f.change
    out = [f.violation() for f in findings]
    if shortage and not (own and trial.fits(own)):
        changes = (c for c in _changes(s, z) if not _hopeless(s, z) or _LIGHTER & c.keys())
        found = next(
            (c for c in changes if trial.fits({**own, **c}) and _passes(c, own, findings, trial)), None
        )
        out += [_told(s, f, found) for f in shortage]
        own |= found or {}
    ours = {v.code for v in out} | (_FOLLOWS if shortage else frozenset())
    others = [v for v in engines if v.code not in ours]
    if own and others:
        left = trial.codes(own)
        others = [v for v in others if v.code in left]
    return [*out, *others]


def _passes(change: Change, own: Change, findings: Sequence[Finding], trial: Trial) -> bool:
    """Whether nothing else is refused with weights in other bits, for which engines have their own rules."""
    return _BITS not in change or trial.codes({**own, **change}) <= {f.code for f in findings}


def _hopeless(s: Situation, z: Sizing) -> bool:
    """Whether the weights alone fill a device of the layout with the most room: only another layout or fewer
    bits help."""
    return not s.on_cpu and z.budget.weights >= z.budget.total


def _changes(s: Situation, z: Sizing) -> Iterator[Change]:
    """Changes that may help, the one that costs least first."""
    length = s.given("max_model_len")
    longest = _longest(z) if z.tokens else 0
    if longest and length is not None:
        yield {"max_model_len": stepped(longest)}
    for lever in _TO_AUTO:
        if not s.is_free(lever):
            yield {lever: "auto"}
    if why_not_fp8(s) is None and s.given("kv_cache_dtype") is None:
        yield {"kv_cache_dtype": "fp8"}
        if longest and length is not None:
            yield {"kv_cache_dtype": "fp8", "max_model_len": stepped(2 * longest)}
    free: Change = {lever: "auto" for lever in _TO_AUTO if not s.is_free(lever)}
    if len(free) > 1:
        yield free
    if _may_quantize(s):
        yield {_BITS: "fp8"}
        if free:
            yield {**free, _BITS: "fp8"}
    if longest and length is None:
        # shorter than a request of the workload, which the plan then says
        yield {"max_model_len": stepped(longest)}


def _may_quantize(s: Situation) -> bool:
    """Whether the engine may make 8 bits of the weights while it loads them, and they may have room."""
    return s.is_free(_BITS) and not s.lossless and any(kind == "fp8" for kind, _ in _published(s))


def _published(s: Situation) -> list[tuple[str, str]]:
    """Kinds of checkpoints of the same model that these devices load and would hold."""
    facts = s.gpu_facts
    if s.card.quantization is not None or facts is None or s.on_cpu:
        return []
    there = _HELD * sum(g.memory_bytes for g in s.usable.gpus)
    return [
        (kind, words)
        for kind, words, part in _FEWER_BITS
        if s.card.weights_bytes * part < there and facts.can_load(kind)
    ]


def _longest(z: Sizing) -> int:
    """Tokens of the longest single request that the pool holds."""
    low, high = 0, z.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        need = z.kv.bytes_needed(middle)
        low, high = (middle, high) if need is not None and need <= z.kv_bytes else (low, middle - 1)
    return low


def _freed(s: Situation) -> str | None:
    """What to end where others hold so much of the devices that the model fits without them."""
    gpus = (*s.usable.gpus, *(x.gpu for x in s.usable.left_out if x.code == "in_use"))
    held = [g for g in gpus if g.free_bytes < g.memory_bytes * _MOSTLY_FREE]
    if s.on_cpu or not held:
        return None
    names = {g.uuid for g in held}
    there = s.inputs.machine
    freed = (replace(g, free_bytes=g.memory_bytes) if g.uuid in names else g for g in there.gpus)
    emptied = replace(s.inputs, machine=replace(there, gpus=tuple(freed)))
    if not choose.anything_fits(Situation(emptied)):
        return None
    told = [f"{size(g.free_bytes)} of {size(g.memory_bytes)} are free on {g.uuid}{_holders(g)}" for g in held]
    more = f", and so on for {count(len(told) - 3, 'device')}" if len(told) > 3 else ""
    return f"the model fits once others give memory back: {'; '.join(told[:3])}{more}"


def _holders(gpu: Gpu) -> str:
    names = [
        f"{h.name or 'a process'} (pid {h.pid})"
        + (f" with {size(h.memory_bytes)}" if h.memory_bytes is not None else "")
        for h in gpu.holders
    ]
    return f", held by {', '.join(names[:3])}" if names else ""


def _told(s: Situation, f: Finding, found: Change | None) -> Violation:
    kinds = " or ".join(words for _, words in _published(s))
    others = f"--model with a published checkpoint of it in {kinds}" if kinds else ""
    held = _freed(s) if found is None or _BITS in found else None
    if held is not None:
        instead = f"; or {sets(found)} fits; it can change answers" if found is not None else ""
        return replace(f, remedy=held + instead, change={}).violation({})
    if found is not None:
        after = "fits; it can change answers" if {"kv_cache_dtype", _BITS} & found.keys() else "fits"
        if _BITS in found and others:
            after += f"; or {others}"
        return replace(f, after=after).violation(found)
    weights = size(s.card.weights_bytes)
    less = others or "--model with fewer bits"
    remedy = f"the model ({weights}) is too large here: more or larger devices, or {less}"
    return replace(f, remedy=remedy, change={}).violation()
