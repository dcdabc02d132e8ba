"""How much fits on a layout: context, requests at once, tokens a step, type of KV, share of memory.

For one layout the goal's wish is made smaller rung by rung until one request of the workload, or the length
that somebody set, has room in the KV pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from orchestrator.machine.machine import Gpu
from orchestrator.planning.paged import dtype, latency, long_prompts, table
from orchestrator.planning.paged.budget import (
    Budget,
    budget,
    sglang_defaults,
    static_share,
    visible_bytes,
)
from orchestrator.planning.paged.fp8_kv import own_type
from orchestrator.planning.paged.graphs import covering
from orchestrator.planning.paged.kv_cache import KvCache, kv_cache
from orchestrator.planning.paged.kv_type import may_take_fp8
from orchestrator.planning.paged.latency import Estimate
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.situation import GIB, MIB, Situation, stepped
from orchestrator.planning.paged.speculation import SpeculationCost
from orchestrator.planning.paged.weights import Weights, weights_per_gpu

LEAST_BATCH = 512

LEAST_THROUGHPUT_BATCH = 2048
"""vLLM's own default on cards below 70 GiB: smaller steps leave arithmetic idle."""

MORE_FOR_ALL = 1.1
"""What smaller steps must bring in requests at once where the workload's do not all run."""

MORE_BEYOND = 1.3
"""The same where they do."""

FREE_MARGIN = 512 * MIB
"""Of what is free on a device now, left to whoever holds the rest."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What memory is asked for, the goal's wish or a smaller one. `graph` is the largest recorded batch, 0
    for none; `speculative_tokens` are guessed at once; `batch_by_itl`: a step follows from the objective;
    `own_reserve`: SGLang keeps back what it would of itself, which is more than is counted here."""

    kv_dtype: str
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    graph: int
    speculative_tokens: int = 0
    batch_by_itl: bool = False
    own_reserve: bool = True


@dataclass(frozen=True, slots=True)
class Sizing:
    """A layout with what fits on it.

    `tokens` is the KV pool of one copy in tokens, None where no rule is known for the architecture;
    `kv_bytes` its bytes on each device. `fits` is whether the workload's request, or the length that was set,
    has room. `most_kv_bytes` is what a device has for a pool whose size is set. `static_share` is SGLang's
    share for weights and pool, of what is free before the start.
    """

    layout: Layout
    wish: Wish
    budget: Budget
    kv: KvCache
    kv_bytes: int
    tokens: int | None
    fits: bool
    most_kv_bytes: int
    static_share: float = 0.0
    estimate: Estimate | None = None

    @property
    def kv_dtype(self) -> str:
        return self.wish.kv_dtype

    @property
    def utilization(self) -> float:
        return self.wish.utilization

    @property
    def max_model_len(self) -> int:
        return self.wish.max_model_len

    @property
    def max_num_seqs(self) -> int:
        return self.wish.max_num_seqs

    @property
    def max_num_batched_tokens(self) -> int:
        return self.wish.max_num_batched_tokens

    @property
    def graph(self) -> int:
        return self.wish.graph

    @property
    def copies(self) -> int:
        """Schedulers with a KV pool of their own."""
        return self.layout.data * self.layout.attention_data


@dataclass(frozen=True, slots=True)
class _Site:
    """A layout with what all wishes on it have in common: what guessing costs, the weights of a device, the
    memory that it shows and that is free on it (None: all), and the type that the model is loaded in."""

    layout: Layout
    cost: SpeculationCost | None
    weights: Weights
    total: int | None
    free: int | None
    dtype: str


def _site(s: Situation, layout: Layout, cost: SpeculationCost | None) -> _Site:
    return _Site(
        layout,
        cost,
        _weights(s, layout, cost is not None and cost.mtp),
        s.inputs.machine.memory_limit_bytes if s.on_cpu else None,
        None if s.on_cpu or s.gpu is None else _free_bytes(layout, s.gpu),
        dtype.taken(s),
    )


def overweight(s: Situation, layout: Layout) -> int:
    """Bytes of weights where they alone fill a device, whatever the levers; 0 where they do not."""
    if s.on_cpu or s.gpu is None:
        return 0
    weights = _weights(s, layout).worst
    return weights if weights >= visible_bytes(s.gpu) else 0


def wished_context(s: Situation) -> int:
    """Tokens of one request before memory was asked."""
    given = s.given("max_model_len")
    if given is not None:
        return int(given)
    row = table.row(s.goal)
    if not row["context_factor"]:
        return s.trained_context
    wished = max(stepped(row["context_factor"] * s.request_tokens), int(row["least_context"]))
    return min(s.trained_context, wished)


def wish(s: Situation, layout: Layout, speculative_tokens: int = 0) -> Wish:
    """What the goal would take on a layout if memory were no question."""
    kept = s.of_levers
    if "wish" not in kept:
        kept["wish"] = _wish_anywhere(s)
    w: Wish = kept["wish"]
    row, seqs, batch, objective = table.row(s.goal), w.max_num_seqs, w.max_num_batched_tokens, False
    if s.is_free("max_num_seqs") and (s.goal != "throughput" or s.on_cpu):
        copies = layout.data * layout.attention_data
        seqs = min(-(-s.profile.workload.concurrency // copies), row["most_seqs"])
    if s.is_free("max_num_batched_tokens"):
        if s.kind == "sglang" and not s.on_cpu and s.gpu is not None:
            # a chunk reserves memory in proportion: no larger one than SGLang takes on such a card
            batch = min(batch, _sglang_chunk(s, layout, s.gpu))
        by_itl = _batch_by_itl(s, layout, w.kv_dtype)
        if by_itl is not None and by_itl < row["most_batch"]:
            batch, objective = max(LEAST_BATCH, by_itl), True
    return Wish(
        w.kv_dtype,
        utilization(s, layout),
        w.max_model_len,
        seqs,
        batch,
        w.graph,
        speculative_tokens,
        objective,
    )


def _wish_anywhere(s: Situation) -> Wish:
    """The goal's wish as far as no layout is looked at."""
    row, graph = table.row(s.goal), s.given("cuda_graph")
    if graph is None:
        graph = 0 if s.on_cpu else 512
    batch = s.given("max_num_batched_tokens")
    if batch is None:
        batch = min(goal_batch(s), 2048) if s.on_cpu else goal_batch(s)
    seqs = s.given("max_num_seqs")
    return Wish(
        kv_dtype=s.given("kv_cache_dtype") or own_type(s),
        utilization=row["utilization"],
        max_model_len=wished_context(s),
        max_num_seqs=row["most_seqs"] if seqs is None else seqs,
        max_num_batched_tokens=batch,
        graph=0 if graph == "off" else int(graph),
    )


def _sglang_chunk(s: Situation, layout: Layout, gpu: Gpu) -> int:
    """Tokens of a chunk of one attention rank that SGLang takes of itself."""
    key = ("chunk", layout.tensor, layout.pipeline, layout.attention_data, visible_bytes(gpu))
    if key not in s.known:
        s.known[key] = sglang_defaults(s.card, layout, visible_bytes(gpu)).chunked_prefill_size
    found: int = s.known[key]
    return found


def goal_batch(s: Situation) -> int:
    """Tokens of a step that the goal takes by table, for throughput by the size of the cards."""
    row = table.row(s.goal)
    if s.goal != "throughput" or s.gpu is None:
        return int(row["batch"])
    size = s.gpu.memory_bytes
    return int(row["most_batch" if size >= 160 * GIB else "batch" if size >= 70 * GIB else "small_batch"])


def _batch_by_itl(s: Situation, layout: Layout, kv_dtype: str) -> int | None:
    """Tokens of a step that takes no longer than the gap that is asked for; None where nothing is asked, or
    speed is not known."""
    itl = s.profile.slo.itl_p99_ms
    if itl is None or s.on_cpu or s.goal == "throughput":
        return None
    gpu = layout.devices[0].uuid if layout.devices else None
    kinds = kv_dtype, dtype.taken(s), s.given("quantization")
    key = ("itl", kinds, _shape(layout), layout.data, layout.nodes, layout.link, gpu, len(layout.devices))
    if key not in s.known:
        s.known[key] = _tokens_for_itl(s, layout, kv_dtype, itl)
    found: int | None = s.known[key]
    return stepped(found) if found is not None else None


def _shape(layout: Layout) -> tuple[int, int, int, bool]:
    """What weights and KV of one device depend on."""
    return layout.tensor, layout.pipeline, layout.attention_data, layout.expert


def _tokens_for_itl(s: Situation, layout: Layout, kv_dtype: str, itl: float) -> int | None:
    w = s.profile.workload
    cache = kv_cache(
        s.card,
        layout,
        kind=s.kind,
        version=s.version_text,
        kv_dtype=kv_dtype,
        device=s.device,
        dtype=dtype.taken(s),
    )
    return latency.batch_tokens_for_itl(
        s.card,
        layout,
        weights_per_gpu=_weights(s, layout).worst,
        kv_bytes_per_token_per_gpu=cache.bytes_per_token_per_gpu or 0.0,
        input_tokens=w.input_tokens,
        output_tokens=w.output_tokens,
        concurrency=w.concurrency,
        itl_ms=itl,
    )


def _weights(s: Situation, layout: Layout, mtp: bool = False) -> Weights:
    kind, quantization = dtype.taken(s), s.given("quantization")
    key = ("weights", _shape(layout), mtp, kind, quantization)
    if key not in s.known:
        s.known[key] = weights_per_gpu(
            s.card,
            layout,
            kind=s.kind,
            version=s.version_text,
            mtp_loaded=mtp,
            dtype=kind,
            quantization=quantization,
        )
    found: Weights = s.known[key]
    return found


def utilization(s: Situation, layout: Layout) -> float:
    """The goal's share of device memory, or what is free where that is less."""
    given = s.given("gpu_memory_utilization")
    if given is not None:
        return float(given)
    share = float(table.row(s.goal)["utilization"])
    for gpu in layout.devices:
        share = min(share, (gpu.free_bytes - FREE_MARGIN) / gpu.memory_bytes)
    return max(0.01, int(share * 100) / 100)


def size(s: Situation, layout: Layout, cost: SpeculationCost | None = None) -> Sizing:
    """The largest sizing on the goal's ladder that fits on a layout, or what comes nearest to it."""
    first = wish(s, layout, cost.tokens if cost is not None else 0)
    on = _site(s, layout, cost)
    nearest = _settled(s, on, first)
    if not nearest.fits and _never(s, nearest):
        return nearest
    for w in chain((first,), _rungs(s, first)):
        z = nearest if w is first else _settled(s, on, w)
        if z.fits:
            return _with_more_kv(s, on, first, z)
        # what comes nearest to fitting tells best what is short
        if z.kv_bytes > nearest.kv_bytes and z.kv_dtype == nearest.kv_dtype:
            nearest = z
    return nearest


def _with_more_kv(s: Situation, on: _Site, first: Wish, z: Sizing) -> Sizing:
    """A sizing that fits, with smaller steps or KV in 8 bits where it holds less than the workload."""
    wanted = s.profile.workload.concurrency
    if s.goal == "throughput" and s.is_free("max_num_batched_tokens"):
        # below twice the workload every request more still brings tokens
        while (held := z.max_num_seqs * z.copies) < 2 * wanted:
            half = z.max_num_batched_tokens // 2
            if half < LEAST_THROUGHPUT_BATCH:
                break
            smaller = _settled(s, on, replace(z.wish, max_num_batched_tokens=half, **_grown(first)))
            if smaller.max_num_seqs < z.max_num_seqs * (MORE_FOR_ALL if held < wanted else MORE_BEYOND):
                break
            z = smaller
    if s.goal == "agent" and z.kv_dtype == "auto" and may_take_fp8(s) and _holds_too_little(z, first):
        halved = _settled(s, on, replace(z.wish, kv_dtype="fp8", **_grown(first)))
        if halved.fits:
            return halved
    return z


def _grown(first: Wish) -> dict[str, Any]:
    """Context and requests as they were wished, to be settled anew."""
    return {"max_model_len": first.max_model_len, "max_num_seqs": first.max_num_seqs, "graph": first.graph}


def _never(s: Situation, z: Sizing) -> bool:
    """Whether no rung can help: what all of them take leaves nothing of the largest share."""
    b = z.budget
    if s.on_cpu or s.given("kv_cache_bytes") is not None or s.given("kv_cache_tokens") is not None:
        return False
    most = max(b.requested, math.ceil(b.total * z.utilization))
    return most <= b.weights + b.non_torch + b.draft + b.margin


def _holds_too_little(z: Sizing, wished: Wish) -> bool:
    """Whether conversations are shorter, or fewer, than wished because of the pool."""
    return z.max_model_len < wished.max_model_len or z.max_num_seqs < wished.max_num_seqs


def _rungs(s: Situation, w: Wish) -> Iterator[Wish]:
    """Smaller and smaller wishes, each on top of the one before."""
    if s.kind == "sglang" and not s.on_cpu and s.is_free("mem_fraction_static"):
        w = replace(w, own_reserve=False)
        yield w
    while s.is_free("max_num_batched_tokens") and w.max_num_batched_tokens // 2 >= LEAST_BATCH:
        w = replace(w, max_num_batched_tokens=w.max_num_batched_tokens // 2)
        yield w
    if w.kv_dtype == "auto" and may_take_fp8(s):
        w = replace(w, kv_dtype="fp8")
        yield w
    if s.is_free("cuda_graph") and w.graph > 8:
        w = replace(w, graph=8)
        yield w


def _settled(s: Situation, on: _Site, w: Wish) -> Sizing:
    """A wish with as many requests at once as its KV pool holds, and the context that it holds.

    Fewer requests need less working memory and leave more KV, so the number is searched for.
    """
    w = _capped(s, w, w.max_num_seqs)
    z = _measured(s, on, w)
    if z.tokens is None:
        return z
    if s.is_free("max_num_seqs") and _holds(s, z) < w.max_num_seqs:
        tried = {w.max_num_seqs: z}

        def at(seqs: int) -> Sizing:
            if seqs not in tried:
                tried[seqs] = _measured(s, on, _capped(s, w, seqs))
            return tried[seqs]

        z = at(_most_seqs(lambda seqs: _holds(s, at(seqs)), w.max_num_seqs, _holds(s, z)))
    if z.tokens is None or z.kv_bytes <= 0 or not s.is_free("max_model_len"):
        return z
    length = _length(s, z)
    return z if length == z.max_model_len else _measured(s, on, replace(z.wish, max_model_len=length))


def _most_seqs(held: Callable[[int], int], wished: int, least: int) -> int:
    """The largest number of requests that is no more than what is held with it; `least` are held with the
    wished one. What is held falls slowly as the number grows, so two steps come close."""
    low = max(1, least)
    high = min(wished, held(low))
    if high <= low:
        return low
    closer = held(high)
    if closer >= low and least:
        return min(closer, high)
    for _ in range(8):
        middle = (low + high + 1) // 2
        low, high = (middle, high) if held(middle) >= middle else (low, middle - 1)
        if low >= high:
            break
    return low


def _capped(s: Situation, w: Wish, seqs: int) -> Wish:
    """The wish with so many requests at once: a step holds a token of each, graphs their batch."""
    each = 1 + w.speculative_tokens
    graph = w.graph
    if s.is_free("cuda_graph") and graph:
        # SGLang counts requests, vLLM tokens on a grid of sizes
        graph = min(512, w.graph, seqs) if s.kind == "sglang" else min(w.graph, covering(seqs * each))
    batch = w.max_num_batched_tokens
    if s.is_free("max_num_batched_tokens"):
        batch = max(batch, seqs * each)
    if (seqs, batch, graph) == (w.max_num_seqs, w.max_num_batched_tokens, w.graph):
        return w
    return Wish(
        w.kv_dtype,
        w.utilization,
        w.max_model_len,
        seqs,
        batch,
        graph,
        w.speculative_tokens,
        w.batch_by_itl,
        w.own_reserve,
    )


def _holds(s: Situation, z: Sizing) -> int:
    """Requests of the workload's size that a sizing's pool holds."""
    if z.kv_bytes <= 0:
        return 0
    return (z.tokens or 0) // max(1, min(s.request_tokens, z.max_model_len))


def running(s: Situation, z: Sizing) -> int:
    """Requests of the workload's size that run at once in one copy: no more than its pool holds."""
    return z.max_num_seqs if z.tokens is None else min(z.max_num_seqs, max(1, _holds(s, z)))


def _length(s: Situation, z: Sizing) -> int:
    """The context of one request: the goal's wish as far as the pool holds it; all that the model has where
    every request at once may be that long."""
    tokens, wished = z.tokens or 0, z.max_model_len
    if s.goal == "agent":
        room = tokens // max(1, -(-s.profile.workload.concurrency // max(1, z.copies)))
    else:
        room = tokens
        if tokens // max(1, z.max_num_seqs) >= s.trained_context:
            wished = s.trained_context
    length = min(wished, max(stepped(room), s.needed_context))
    return _shrunk(z, length, s.needed_context) if length < wished else length


def _shrunk(z: Sizing, length: int, least: int) -> int:
    """A length that one request can have: what the engine itself checks counts whole blocks and groups."""
    while length > least and (z.kv.bytes_needed(length) or 0) > z.kv_bytes:
        length = max(least, stepped(length * 15 // 16))
    return length


def _measured(s: Situation, on: _Site, w: Wish) -> Sizing:
    """The memory of a wish on a layout, as it is."""
    layout = on.layout
    cache = _cache(s, on, w)
    share = w.utilization if s.kind == "vllm" or s.on_cpu else _static_share(s, on, w)
    room = _budget(s, on, w, share)
    kv = _kv_bytes(s, layout, w, cache, room)
    tokens = cache.tokens(kv, w.max_model_len) if kv > 0 else (0 if cache.known else None)
    most = _most_kv(s, layout, room)
    need = cache.bytes_needed(w.max_model_len) if tokens is not None and kv > 0 else None
    fits = 0 < kv <= most and (need is None or need <= kv)
    return Sizing(layout, w, room, cache, kv, tokens, fits, most, share)


def _cache(s: Situation, on: _Site, w: Wish) -> KvCache:
    prefix, mtp = s.given("prefix_caching") is not False, on.cost is not None and on.cost.mtp
    draft, block, batch = s.inputs.draft, s.given("block_size"), w.max_num_batched_tokens
    sizes = on.layout.tensor, on.layout.pipeline
    key = ("kv", sizes, w.kv_dtype, on.dtype, w.speculative_tokens, batch, mtp, block, prefix, draft is None)
    found: KvCache | None = s.known.get(key)
    if found is None:
        found = s.known[key] = kv_cache(
            s.card,
            on.layout,
            kind=s.kind,
            version=s.version_text,
            kv_dtype=w.kv_dtype,
            block_size=block,
            prefix_caching=prefix,
            speculative_tokens=w.speculative_tokens,
            mtp=mtp,
            draft=draft,
            max_num_batched_tokens=batch,
            device=s.device,
            dtype=on.dtype,
        )
    return found


def _budget(s: Situation, on: _Site, w: Wish, share: float) -> Budget:
    return budget(
        s.card,
        on.layout,
        None if s.on_cpu else s.gpu,
        kind=s.kind,
        version=s.version_text,
        utilization=share,
        max_num_batched_tokens=w.max_num_batched_tokens,
        max_num_seqs=w.max_num_seqs,
        cuda_graph_max=w.graph,
        draft_bytes=on.cost.weights_bytes if on.cost is not None else 0,
        total_bytes=on.total,
        free_bytes=on.free,
        weights=on.weights,
        dtype=on.dtype,
    )


def _static_share(s: Situation, on: _Site, w: Wish) -> float:
    """SGLang's share of what is free, for weights and pool: the deployment's share less activations and
    graphs; not above what SGLang itself would take, as long as that is enough."""
    given = s.given("mem_fraction_static")
    if given is not None:
        return float(given)
    gpu = s.gpu
    if gpu is None or on.free is None:
        return w.utilization
    return static_share(
        s.card,
        on.layout,
        gpu,
        version=s.version_text,
        free_bytes=on.free,
        utilization=w.utilization,
        max_num_batched_tokens=w.max_num_batched_tokens,
        cuda_graph_max=w.graph,
        own_reserve=w.own_reserve,
        dtype=on.dtype,
    )


def _free_bytes(layout: Layout, gpu: Gpu) -> int:
    """What is free on the device of the layout with least of it: every rank gets as much KV as that one."""
    return min((g.free_bytes for g in layout.devices), default=gpu.free_bytes)


def _kv_bytes(s: Situation, layout: Layout, w: Wish, cache: KvCache, room: Budget) -> int:
    """Bytes of the pool on each device: what was set, what the share leaves, or on a CPU what is needed."""
    given = s.given("kv_cache_bytes")
    if given is not None:
        return int(given)
    tokens, token = s.given("kv_cache_tokens"), cache.bytes_per_token_per_gpu
    if tokens is not None and token is not None and s.kind == "sglang":
        return int(tokens * token)
    if not s.on_cpu:
        return room.kv
    ranks = max(1, layout.world)
    there = s.host_budget // ranks - room.weights - room.non_torch
    # vLLM below 0.32 takes whole GiB on a CPU
    whole_gib = s.kind == "vllm" and not s.inputs.installation.extras.get("cpu_kv_in_bytes")
    step = GIB if whole_gib else MIB
    share = s.given("gpu_memory_utilization")
    if share is not None:
        whole = int(s.inputs.machine.memory_limit_bytes * share) // ranks
        return max(0, min(there, whole - room.weights - room.non_torch)) // step * step
    need = cache.bytes_needed(w.max_model_len, w.max_num_seqs)
    if need is None:
        return max(0, there // 2) // step * step
    one = cache.bytes_needed(w.max_model_len) or 0
    return max(0, min(there, -(-max(need, one) // step) * step)) // step * step


def _most_kv(s: Situation, layout: Layout, room: Budget) -> int:
    """Bytes that each device has for the pool at most. vLLM takes a pool that is set beside weights and
    activations whatever its share is; SGLang only out of its share (it then takes less)."""
    if s.on_cpu:
        return s.host_budget // max(1, layout.world) - room.weights - room.non_torch
    if s.kind == "sglang":
        return room.kv + room.margin
    return room.free - room.weights - room.activation - room.non_torch - room.draft - room.graphs


def estimated(s: Situation, z: Sizing, concurrency: int, speculative: object = None) -> Sizing:
    """With the speed at so many requests in all; `speculative` is the lever's value."""
    w = s.profile.workload
    e = latency.estimate(
        s.card,
        z.layout,
        weights_per_gpu=z.budget.weights,
        kv_bytes_per_token_per_gpu=z.kv.bytes_per_token_per_gpu or 0.0,
        input_tokens=w.input_tokens,
        output_tokens=w.output_tokens,
        concurrency=concurrency,
        max_num_batched_tokens=z.max_num_batched_tokens,
        longest_part=long_prompts.threshold(s, z.max_num_batched_tokens, z.max_model_len),
        kind=s.kind,
        cuda_graph=z.graph > 0,
        speculative=speculative,
        node_link_gbps=s.inputs.machine.node_link_gbps,
    )
    return Sizing(
        z.layout, z.wish, z.budget, z.kv, z.kv_bytes, z.tokens, z.fits, z.most_kv_bytes, z.static_share, e
    )
