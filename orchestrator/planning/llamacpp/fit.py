"""Memory fit: a sizing made smaller rung by rung until it fits, in the order that costs the goal least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from orchestrator.planning.llamacpp import memory
from orchestrator.planning.llamacpp.memory import Sizing
from orchestrator.planning.llamacpp.situation import Placement, Situation

Fits = Callable[[Sizing], bool]

ORDER: dict[str, tuple[str, ...]] = {
    "throughput": ("slots", "kv_type", "context", "ubatch"),
    "latency": ("context", "slots", "ubatch"),
    "agent": ("pool", "context", "kv_type", "slots", "ubatch"),
    "edge": ("context", "kv_type", "ubatch", "slots"),
}
"""What each goal gives up first. Latency keeps its KV type: quantized KV is slower to read on a CPU and
changes answers."""

SMALLEST_UBATCH = 32
FEWER_BITS = "q8_0"


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest sizing on the goal's ladder that fits, or the smallest there is and `fits` False."""

    sizing: Sizing
    fits: bool


def fit(s: Situation, wish: Sizing) -> Fit:
    """Walk down the goal's ladder from `wish`. Levers that somebody set are not touched.

    With GPUs a smaller KV that leaves layers on them comes before a larger one that does not, as a layer on
    the CPU slows every token: all of them, or those that the workload's own need leaves there.
    """
    if s.gpus and s.is_free("gpu_layers"):
        for layers in (s.card.layers + 1, _place(s, _needed(s, wish)).gpu_layers):
            found = _descend(s, wish, lambda z, least=layers: _on_gpus(s, z, least))  # type: ignore[misc]
            if found.fits:
                return found
    return _descend(s, wish, lambda z: _fits(s, z))


def _descend(s: Situation, wish: Sizing, fits: Fits) -> Fit:
    sizing = wish
    if fits(sizing):
        return Fit(sizing, True)
    for step in ORDER[s.goal]:
        for smaller in _rungs(s, sizing, step, fits):
            sizing = smaller
            if fits(sizing):
                return Fit(sizing, True)
    return Fit(sizing, False)


def step_down(s: Situation, sizing: Sizing) -> Sizing | None:
    """One lever lower than a sizing that ran out of memory all the same; None where nothing is left to give.

    Half the slots, else half the context (a request of the workload's size may then not fit any more), else
    a smaller pass, else fewer bits.
    """
    if s.is_free("max_num_seqs") and sizing.slots > 1:
        return _with_slots(s, sizing, sizing.slots // 2)
    half = sizing.context // 2 // memory.CELLS * memory.CELLS
    if s.is_free("max_model_len") and s.is_free("kv_cache_tokens") and half:
        return sizing.with_context(half)
    return next(
        (z for step in ("ubatch", "kv_type") for z in _rungs(s, sizing, step, lambda z: _fits(s, z))), None
    )


def quantized_kv_works(s: Situation) -> bool:
    """Blocks of 32 must divide a head, and V in blocks needs flash attention."""
    sizes = (s.card.head_dim, s.card.value_head_dim or s.card.head_dim)
    return s.given("flash_attention") != "off" and not any(size % memory.BLOCK for size in sizes)


def _fits(s: Situation, sizing: Sizing) -> bool:
    return _place(s, sizing).fits


def _on_gpus(s: Situation, sizing: Sizing, layers: int) -> bool:
    placed = _place(s, sizing)
    return placed.fits and placed.gpu_layers >= layers


def _place(s: Situation, sizing: Sizing) -> Placement:
    return s.place(sizing, s.set_cache_bytes)


def _needed(s: Situation, wish: Sizing) -> Sizing:
    """The wish with KV for one request of the workload in every slot, as far as nobody set more."""
    context = wish.context
    if s.is_free("max_model_len") and s.is_free("kv_cache_tokens"):
        context = min(context, s.needed_context)
    pool = wish.pool_tokens
    if s.is_free("kv_cache_tokens"):
        pool = wish.slots * context
        if wish.unified:
            pool = max(context, min(pool, wish.slots * s.needed_context))
    return replace(wish, context=context, pool_tokens=pool)


def _with_slots(s: Situation, sizing: Sizing, slots: int) -> Sizing:
    smaller = sizing.with_slots(slots)
    if s.given("kv_unified") is not None or s.given("kv_cache_tokens") is not None:
        pool = sizing.pool_tokens if not s.is_free("kv_cache_tokens") else smaller.pool_tokens
        return replace(smaller, unified=sizing.unified, pool_tokens=pool)
    return smaller


def _rungs(s: Situation, sizing: Sizing, step: str, fits: Fits) -> Iterator[Sizing]:
    """Smaller and smaller sizings in one direction."""
    match step:
        case "slots":
            while s.is_free("max_num_seqs") and sizing.slots > 1:
                sizing = _with_slots(s, sizing, sizing.slots // 2)
                yield sizing
        case "pool":
            low = max(sizing.context, min(sizing.pool_tokens, sizing.slots * s.needed_context))
            if sizing.unified and s.is_free("kv_cache_tokens") and low < sizing.pool_tokens:
                yield _largest_pool(sizing, low, fits)
        case "context":
            free = s.is_free("max_model_len") and s.is_free("kv_cache_tokens")
            if free and s.needed_context < sizing.context:
                yield _largest_context(s, sizing, fits)
        case "kv_type":
            lossy = not s.lossless and s.is_free("kv_cache_dtype") and quantized_kv_works(s)
            if lossy and sizing.kv_type not in memory.QUANTIZED:
                yield replace(sizing, kv_type=FEWER_BITS, flash_attention=True)
        case "ubatch":
            while s.is_free("ubatch_tokens") and sizing.ubatch > SMALLEST_UBATCH:
                sizing = replace(sizing, ubatch=sizing.ubatch // 2)
                yield sizing


def _largest_pool(sizing: Sizing, low: int, fits: Fits) -> Sizing:
    """The largest pool that fits, at least `low`: a request of the workload's size for every slot."""

    def at(cells: int) -> Sizing:
        return replace(sizing, pool_tokens=cells * memory.CELLS)

    low_cells, high = -(-low // memory.CELLS), sizing.pool_tokens // memory.CELLS
    return at(_most(low_cells, high, lambda cells: fits(at(cells))))


def _largest_context(s: Situation, sizing: Sizing, fits: Fits) -> Sizing:
    """The longest context that fits, at least the workload's request.

    A shared pool then holds one such request and the workload's size for every slot.
    """

    def at(cells: int) -> Sizing:
        context = cells * memory.CELLS
        if not sizing.unified:
            return replace(sizing, context=context, pool_tokens=sizing.slots * context)
        pool = max(context, min(sizing.slots * context, sizing.slots * s.needed_context))
        return replace(sizing, context=context, pool_tokens=pool)

    low = -(-s.needed_context // memory.CELLS)
    return at(_most(low, sizing.context // memory.CELLS, lambda cells: fits(at(cells))))


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from low to high for which `fits` holds, which holds for every smaller one; low
    where it holds for none."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
