"""The remedy of each refusal: figures that were tried on the planner and pass, one refusal for one cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.levers import LEVERS
from orchestrator.plan import Violation
from orchestrator.planning.findings import Finding
from orchestrator.planning.llamacpp import memory
from orchestrator.planning.llamacpp.limits import INT32_MOST
from orchestrator.planning.llamacpp.memory import Sizing
from orchestrator.planning.llamacpp.situation import Placement, Situation
from orchestrator.planning.words import count, sets, size

Change = dict[str, Any]

_OPEN = r"=(TYPE|N|'?\{method: (\.\.\.|\w+, model: FILE))"
"""A value in an engine's remedy that the reader would have to choose."""

_MEMORY = frozenset({"memory", "kv_does_not_fit", "gpu_memory"})

_LOWER = {
    "gpu_layers": 1,
    "kv_offload_bytes": memory.MIB,
    "ubatch_tokens": 1,
    "kv_cache_tokens": memory.CELLS,
    "max_num_seqs": 1,
    "max_model_len": memory.CELLS,
}
"""Levers that need less memory when they are lower, with the step in which they are tried."""

_HIGHER = {"kv_cache_bytes": memory.MIB, "gpu_memory_utilization": 0.01}
_TO_AUTO = ("flash_attention", "kv_cache_dtype", "kv_unified", "speculative")
_ORDER = (*_HIGHER, *_LOWER, *_TO_AUTO)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a plan with other levers would be: its refusals by code, and the levers that change answers."""

    codes: frozenset[str]
    lossy: frozenset[str]


Attempt = Callable[[Mapping[str, Any]], Trial]


def memory_findings(s: Situation, sizing: Sizing, placed: Placement) -> list[Finding]:
    """What does not fit: needed, available, and in what."""
    if placed.fits:
        return []
    need, have, room = placed.host_bytes, s.host_budget, placed.room
    shape = f"{count(sizing.slots, 'slot')} of {sizing.context} tokens"
    parts = (
        f"weights {size(room.weights)}, KV {size(room.kv + room.state)}, working room {size(room.compute)}"
    )
    if need <= have:
        limit = s.given("kv_cache_bytes")
        if limit is not None and room.kv > limit * max(1, len(s.gpus)):
            kv = f"{size(room.kv)} in {sizing.kv_type}"
            message = f"KV for {shape} takes {kv}, and kv_cache_bytes allows {size(limit)}"
            return [Finding("kv_does_not_fit", message)]
        message = (
            f"gpu_layers={s.given('gpu_layers')} does not fit in {size(sum(s.gpu_budgets))} of device "
            f"memory: {parts}"
        )
        return [Finding("gpu_memory", message)]
    held = f", {size(s.inputs.reservations.memory_bytes)} of it promised to others"
    promised = held if s.inputs.reservations.memory_bytes else ""
    rest = need - min(need, room.weights + room.kv + room.state + room.compute)
    message = (
        f"{shape} {'needs' if sizing.slots == 1 else 'need'} {size(need)} of host memory ({parts}, the rest "
        f"{size(rest)}), and {size(have)} can be had{promised}"
    )
    if placed.gpu_layers:
        message = f"{message}, with {count(placed.gpu_layers, 'layer')} on GPUs"
    return [Finding("memory", message)]


def settled(
    s: Situation,
    findings: Sequence[Finding],
    shortage: Sequence[Finding],
    engines: Sequence[Violation],
    attempt: Attempt,
    wanted_lossy: frozenset[str],
) -> list[Violation]:
    """The refusals as a Plan states them.

    `findings` mend themselves by their own change; `shortage` is memory's. Where mending the findings mends
    the shortage too, it is not told apart; else levers are searched for with which the plan fits, and a
    finding about one of them takes that figure. No remedy makes a plan lossy in silence: `wanted_lossy` are
    the levers that change answers anyway. `engines` are the engine's own refusals, left out where they are
    about the same levers and vanish with our change.
    """
    own: Change = {}
    for f in findings:
        own |= f.change
    better: Change = {}
    out: list[Violation] = []
    if shortage:
        found, words = _search(s, own, attempt, wanted_lossy)
        better = found or {}
        left = {k: v for k, v in better.items() if not any(k in f.change for f in findings)}
        # nothing of its own to set, and what the others set is enough: it follows from them
        if found is None or left:
            out += [_told(s, f, found, left, words) for f in shortage]
    elif own and not attempt(own).lossy <= wanted_lossy:
        # the change alone would make memory short of what exact answers need
        found, _ = _search(s, own, attempt, wanted_lossy)
        better = found if found and found.keys() <= own.keys() else {}
    mended = [f.violation({k: better.get(k, v) for k, v in f.change.items()}) for f in findings]
    causes = {k for f in findings if f.code != "lossy" for k in f.change} | better.keys()
    after = attempt(own | better).codes if causes else frozenset()
    ours = {v.code for v in mended} | {f.code for f in shortage}

    def follows(v: Violation) -> bool:
        about = v.message.partition(" ")[0]
        derived = about in LEVERS and s.is_free(about)
        same_cause = derived or any(lever in v.message for lever in causes)
        return v.code in ours or (bool(causes) and v.code not in after and same_cause)

    kept = [_typeable(s, v, own | better, attempt) for v in engines if not follows(v)]
    return [*mended, *out, *kept]


def _typeable(s: Situation, v: Violation, change: Change, attempt: Attempt) -> Violation:
    """An engine's refusal whose remedy leaves a value open: with one that can be typed as it is."""
    lever = re.split(r"\W", v.message, maxsplit=1)[0]
    if not re.search(_OPEN, v.remedy) or lever not in LEVERS or s.is_free(lever):
        return v
    # a type that is left to the plan may change answers, and nobody asked for that
    closed = {lever: "f16" if lever == "kv_cache_dtype" else "auto"}
    mended = attempt({**change, **closed}).codes
    if v.code in mended or not mended <= attempt(change).codes:
        return v
    return replace(v, remedy=f"{sets(closed)}; or {v.remedy}")


def _told(s: Situation, f: Finding, found: Change | None, left: Change, words: str) -> Violation:
    if found is not None:
        return replace(f, after=words).violation(left)
    weights = size(s.card.weights_bytes)
    remedy = f"the model alone ({weights}) is too large here: --model with a smaller one or fewer bits"
    return replace(f, remedy=remedy).violation()


def _search(
    s: Situation, own: Change, attempt: Attempt, wanted_lossy: frozenset[str]
) -> tuple[Change | None, str]:
    """Levers beside or instead of `own` with which memory suffices, and what to say of them; None where no
    lever helps."""
    base = attempt(own)

    def lossless(change: Mapping[str, Any]) -> bool:
        t = attempt({**own, **change})
        return not t.codes & _MEMORY and t.codes <= base.codes and t.lossy <= wanted_lossy

    def lossy(change: Mapping[str, Any]) -> bool:
        t = attempt({**own, **change})
        return not t.codes & _MEMORY and t.codes <= base.codes

    for ok in (lossless, lossy) if not s.lossless else (lossless,):
        if ok({}):
            found: Change | None = {}
        else:
            found = next(_single(s, own, ok), None) or _several(s, own, ok)
        if found is not None:
            more = sorted(attempt({**own, **found}).lossy - wanted_lossy)
            return found, f"fits; {' and '.join(more)} can then change answers" if more else "fits"
    return None, ""


def _single(s: Situation, own: Change, ok: Callable[[Change], bool]) -> Iterator[Change]:
    """One lever that was set, at the value nearest to the set one that fits."""
    given = [lever for lever in _ORDER if not s.is_free(lever)]
    if "max_model_len" in given and "max_num_seqs" in given:
        # slots stay as they were asked for as long as each holds a request of the workload
        length = _value(s, own, "max_model_len", ok)
        if length is not None and length >= min(s.needed_context, s.given("max_model_len")):
            yield {"max_model_len": length}
    for lever in given:
        value = _value(s, own, lever, ok)
        if value is not None:
            yield {lever: value}


def _several(s: Situation, own: Change, ok: Callable[[Change], bool]) -> Change | None:
    """Several levers: what was set left to the plan, or one slot with the longest context that fits."""
    free: Change = {lever: "auto" for lever in _ORDER if not s.is_free(lever)}
    if free and ok(free):
        for lever in list(free):
            fewer = {k: v for k, v in free.items() if k != lever}
            if fewer and ok(fewer):
                free = fewer
        for lever in [k for k in free if k in _LOWER or k in _HIGHER]:
            others = dict(free)
            value = _value(s, own, lever, lambda c, others=others: ok({**others, **c}))  # type: ignore[misc]
            free[lever] = "auto" if value is None else value
        return free
    least = {**free, "max_num_seqs": 1}
    length = _value(s, own, "max_model_len", lambda c: ok({**least, **c}))
    return None if length is None else {**least, "max_model_len": length}


def _value(s: Situation, own: Change, lever: str, ok: Callable[[Change], bool]) -> Any:
    """The value of a lever nearest to what was asked that is `ok`, None where none is."""
    if lever in _TO_AUTO:
        return "auto" if ok({lever: "auto"}) else None
    given = own.get(lever, s.given(lever))
    if lever in _HIGHER:
        step = _HIGHER[lever]
        most = 100 if lever == "gpu_memory_utilization" else 2**40

        def higher(n: int) -> Any:
            return round(n * step, 2) if isinstance(step, float) else n * step

        low, high = int((given or 0) / step), most
        if not ok({lever: higher(high)}):
            return None
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if ok({lever: higher(middle)}) else (middle, high)
        return higher(high)
    step = _LOWER[lever]
    most = given if isinstance(given, int) else INT32_MOST
    if lever != "kv_offload_bytes":
        most = min(most, INT32_MOST)
    if lever == "max_model_len":
        most = min(most, s.longest)
    low, high = 0, most // step
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ok({lever: middle * step}) else (low, middle - 1)
    if low or lever in ("kv_offload_bytes", "gpu_layers"):
        return low * step if ok({lever: low * step}) else None
    return None
