"""The decision tree on vLLM and SGLang: one small function a lever, in the order in which `branch` asks them.

Numbers that a goal takes by table stand in `goals.yaml`, what is known of a model's family in
`model_families`. A lever that needs no flag because the engine does it anyway is decided all the same.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.plan import Decision, Rejected
from orchestrator.planning.paged import long_prompts, table
from orchestrator.planning.paged.fp8_kv import own_type, why_unread
from orchestrator.planning.paged.kv_type import is_native, why_not_fp8
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.situation import GIB, Situation
from orchestrator.planning.paged.sizing import Sizing, goal_batch
from orchestrator.planning.words import count, size

SGLANG_KEEPS = 10 * GIB
"""Host memory that SGLang leaves to others when it takes a pool of it."""

WAITING = 4
"""Conversations for each one that runs: with room for so many in the pool, host memory adds nothing."""

Decisions = dict[str, Decision]


def quantization(s: Situation) -> Decision:
    """The checkpoint's own: weights are never requantised unless somebody asks."""
    if not s.is_free("quantization"):
        lossless = s.given("quantization") == s.card.quantization
        return s.as_given("quantization", lossless=lossless)
    online = Rejected("fp8", "weights are not requantised unasked; it changes answers")
    if s.card.quantization is None:
        return Decision(
            None, "the checkpoint is not quantized", "checkpoint_quantization", rejected=(online,)
        )
    reason = f"the checkpoint is {s.card.quantization}: the engine reads that from its configuration"
    return Decision(None, reason, "checkpoint_quantization")


def kv_type(s: Situation, chosen: str) -> Decision:
    """Type of the KV cache, as the sizing took it."""
    if not s.is_free("kv_cache_dtype"):
        given = s.given("kv_cache_dtype")
        return s.as_given("kv_cache_dtype", lossless=given in ("auto", s.card.dtype))
    why = why_not_fp8(s) or "changes answers, and contexts are short"
    if s.goal == "agent" and why_not_fp8(s) is None:
        why = "changes answers, and the model's own type holds every conversation whole"
    if chosen == "auto":
        rule = "lossless" if s.lossless and s.goal == "agent" else "kv_of_the_model"
        return Decision("auto", "the model's own type", rule, rejected=(Rejected("fp8", why),))
    if chosen == own_type(s):
        why = str(why_unread(s))
        reason = f"the checkpoint keeps KV in fp8, and {why}"
        return Decision(chosen, reason, "kv_that_is_read", rejected=(Rejected("auto", why),))
    own = Rejected("auto", "holds half the tokens; --set lossless=true takes it")
    price = "" if is_native(s) else "; these cards unpack it, which costs time"
    if s.goal == "agent":
        reason = f"twice the conversation in the same memory: the pool would cut it short{price}"
        return Decision(chosen, reason, "agent_kv_quantized", lossless=False, rejected=(own,))
    reason = f"only so one request of the workload fits{price}"
    return Decision(chosen, reason, "memory_fit", lossless=False, rejected=(own,))


def utilization(s: Situation, z: Sizing) -> Decision:
    """Share of device memory that the deployment may hold."""
    if not s.is_free("gpu_memory_utilization"):
        return s.as_given("gpu_memory_utilization")
    value, goal = z.utilization, table.row(s.goal)["utilization"]
    if value < goal:
        shown = f"{size(_least_free(s))} are free of {size(_total(s))}, less a margin: others hold the rest"
        why = "the engine refuses to start where less is free than it may take"
        return Decision(value, shown, "utilization_of_what_is_free", rejected=(Rejected(goal, why),))
    graphs = (
        "graphs are counted inside it" if s.kind == "vllm" and s.version >= (0, 21) else "graphs come on top"
    )
    reason = f"what is left is a margin for what no formula knows; {graphs} on this version"
    if s.goal == "edge":
        reason = f"what is left is for a display and other programs beside it; {graphs} on this version"
    if s.kind == "sglang":
        reason = (
            f"of each device for all of it; SGLang is told mem_fraction_static, and {graphs} on this version"
        )
    more = Rejected(0.97, "starts that die at graph capture were seen at 0.98")
    return Decision(value, reason, f"{s.goal}_utilization", rejected=(more,))


def _least_free(s: Situation) -> int:
    return min((g.free_bytes for g in s.gpus), default=0)


def _total(s: Situation) -> int:
    return min((g.memory_bytes for g in s.gpus), default=0)


def context(s: Situation, z: Sizing, wish: int) -> Decision:
    """Tokens of one request."""
    if not s.is_free("max_model_len"):
        return s.as_given("max_model_len")
    value, most = z.max_model_len, s.trained_context
    if not z.fits:
        reason = "what the goal would take if the model fitted"
        if value < wish:
            reason = "one request of the workload, and not even that fits"
        return Decision(value, reason, "nothing_fits")
    if value == most:
        reason = f"the model's own limit; the workload has {s.request_tokens}"
        if most > wish:
            reason = f"all the model has: the pool holds it for every one of {z.max_num_seqs} requests"
        if s.goal == "agent":
            reason = "all the model has: conversations grow"
        return Decision(value, reason, "agent_model_context" if s.goal == "agent" else "model_context")
    pool = f"the pool's {z.tokens} tokens"
    if s.goal == "agent":
        n = -(-s.profile.workload.concurrency // max(1, z.copies))
        why = f"{count(n, 'conversation')} of that length are more than {pool}"
        reason = f"what {pool} hold for each of {count(n, 'conversation')} at once"
        if (z.tokens or 0) // n < value:
            reason = f"one request of the workload; {pool} hold fewer than {count(n, 'conversation')} at once"
        return Decision(value, reason, "agent_context_by_kv", rejected=(Rejected(wish, why),))
    if value < wish:
        why = f"one request of that length is more than {pool}"
        return Decision(value, "the longest that fits", "memory_fit", rejected=(Rejected(wish, why),))
    reason = (
        f"{s.request_tokens} tokens a request and room for longer ones: a limit for requests that run away; "
        "KV is paged, so unused length takes none"
    )
    each = " on its rank" if z.copies > 1 else ""
    why = f"{count(max(1, (z.tokens or 0) // most), 'request')} that ran on so far would fill {pool}{each}"
    if z.tokens is not None and z.tokens < most:
        why = f"one request of that length is more than {pool}{each}"
    return Decision(value, reason, f"{s.goal}_workload_context", rejected=(Rejected(most, why),))


def seqs(s: Situation, z: Sizing) -> Decision:
    """Requests that decode at once, in one copy of the model."""
    if not s.is_free("max_num_seqs"):
        return s.as_given("max_num_seqs")
    w, value = s.profile.workload, z.max_num_seqs
    if not z.fits:
        return undecided("as many as the KV pool holds, and there is none that holds a request")
    copies, mine = z.copies, -(-w.concurrency // z.copies)
    what = "ranks" if z.layout.attention_data > 1 else "copies"
    each = f" on each of {copies} {what}" if copies > 1 else ""
    pool = f"KV holds {z.tokens} tokens{each}" if z.tokens is not None else "the KV pool's size is not known"
    if s.goal == "throughput" and not s.on_cpu:
        reason = f"{pool}, a request of the workload takes {s.request_tokens}: as many as that holds"
        if value == table.row(s.goal)["most_seqs"]:
            reason = f"{pool}, room for more than these; each further one slows all and gains little"
        why = "the workload's concurrency leaves KV unused at peaks"
        if copies > 1:
            reason += f"; {value * copies} in all"
            why = f"the workload's {w.concurrency} over {copies} {what} leave KV unused at peaks"
        less = Rejected(mine, why)
        return Decision(value, reason, "seqs_by_kv", rejected=(less,) if mine < value else ())
    asked = -(-w.concurrency // max(1, z.layout.data * z.layout.attention_data))
    more = Rejected(4 * value, "every further request in a step slows the tokens of all")
    if value < asked:
        return Decision(
            value, f"{pool}: as many as have room", "memory_fit", rejected=(Rejected(asked, pool),)
        )
    each = "" if asked == w.concurrency else f", over {z.layout.data * z.layout.attention_data} copies"
    reason = f"the workload's concurrency{each}; more wait their turn"
    return Decision(value, reason, "workload_concurrency", rejected=(more,))


def undecided(why: str) -> Decision:
    """A lever that follows from what fits, where nothing does."""
    return Decision(None, f"not decided: {why}", "nothing_fits")


def batch(s: Situation, z: Sizing) -> Decision:
    """Tokens in one scheduler step, and what is kept for those that other ranks bring."""
    d = _batch(s, z)
    if not z.budget.gathered:
        return d
    kept = (
        f"experts get such a step of all {z.layout.attention_data} ranks, and what their kernel takes is "
        f"unknown: {size(z.budget.gathered)} are kept as a margin, the largest kernel's"
    )
    return replace(d, reason=f"{d.reason}; {kept}")


def _batch(s: Situation, z: Sizing) -> Decision:
    if not s.is_free("max_num_batched_tokens"):
        return s.as_given("max_num_batched_tokens")
    value, itl = z.max_num_batched_tokens, s.profile.slo.itl_p99_ms
    estimate = z.estimate
    if z.wish.batch_by_itl and itl is not None:
        stall = f" (estimated {estimate.itl_stall_ms:.0f} ms)" if estimate is not None else ""
        reason = f"one prompt's part of a step is the longest gap, and {itl:g} ms are asked for{stall}"
        if estimate is not None and estimate.itl_stall_ms > 1.1 * itl:
            gap = f"a gap of about {estimate.itl_stall_ms:.0f} ms, and {itl:g} ms are asked for"
            reason = f"the smallest step there is: still {gap}"
        stock = Rejected(8192, "one long prompt would stall every running answer for a whole step")
        return Decision(value, reason, "batch_by_itl", rejected=(stock,) if value < 8192 else ())
    reasons = {
        "throughput": "large steps keep arithmetic busy during prefill, and nobody watches the gaps",
        "latency": "small steps: a long prompt holds running answers for one step only",
        "agent": "between: first prompts are long, and other agents wait for tokens",
        "edge": "small steps need the least working memory",
    }
    rule, wished = f"{s.goal}_batch", goal_batch(s)
    if value > wished:
        return Decision(value, f"{reasons[s.goal]}; as many as requests at once need", "batch_floor")
    if value < wished:
        large = Rejected(wished, "its working memory leaves too little KV")
        reason = f"{reasons[s.goal]}; smaller to leave memory to KV"
        return Decision(value, reason, "memory_fit", rejected=(large,))
    return Decision(value, reasons[s.goal], rule)


def chunked_prefill(s: Situation) -> Decision:
    """Cut long prompts and mix them with decodes."""
    if s.given("chunked_prefill") is False:
        return s.as_given("chunked_prefill")
    reason = "a long prompt is cut, so running answers go on between its parts"
    return Decision(
        True, reason, "chunked_prefill_on", rejected=(Rejected(False, "every prompt would stall all"),)
    )


def long_prefill_threshold(s: Situation, z: Sizing) -> Decision:
    """From what length a prompt leaves part of the step to others."""
    if not s.is_free("long_prefill_token_threshold"):
        return s.as_given("long_prefill_token_threshold")
    if s.kind != "vllm":
        return Decision(0, "SGLang has none: its chunk size bounds what a prompt holds", "no_threshold")
    step, half = z.max_num_batched_tokens, z.max_num_batched_tokens // 2
    if not long_prompts.may_cut(s, step):
        return Decision(0, "no prompt has to let others pass", "no_threshold")
    if s.version < (0, 32):
        why = "before 0.32 it also slows a prompt that is alone"
        return Decision(0, why, "no_threshold", rejected=(Rejected(half, why),))
    usual = long_prompts.new_tokens(s)
    value = long_prompts.threshold(s, step, z.max_model_len)
    if not value:
        reason = f"the workload's own prompts of {usual} tokens fill a step: each would only take longer"
        why = "every ordinary prompt would take twice the steps while others run"
        return Decision(0, reason, "no_threshold", rejected=(Rejected(half, why),))
    off = Rejected(0, "one long prompt would take whole steps until it is done")
    if usual > half:
        reason = f"the workload's prompts of {usual} tokens go whole, longer ones leave the rest of a step"
        cut = Rejected(half, "an ordinary prompt would take two steps while others run")
        return Decision(value, reason, "prompt_of_the_workload", rejected=(off, cut))
    reason = "a long prompt takes half a step, so a short one beside it is not kept waiting"
    return Decision(value, reason, "half_a_step", rejected=(off,))


def prefix_caching(s: Situation) -> Decision:
    """Keep and reuse KV of shared beginnings."""
    if s.given("prefix_caching") is False:
        return s.as_given("prefix_caching")
    what = "the radix tree" if s.kind == "sglang" else "blocks that nobody needs"
    reason = (
        f"a known beginning is not computed again; {what} give way when room is short, so it costs nothing"
    )
    if s.goal == "agent":
        reason = "the goal's core: each turn pays only for what is new"
    return Decision(True, reason, "prefix_caching_on")


def kv_offload(s: Situation, z: Sizing) -> Decision:
    """Host memory for KV that leaves the devices."""
    if not s.is_free("kv_offload_bytes"):
        return s.as_given("kv_offload_bytes")
    if s.goal != "agent":
        return Decision(0, "no conversation waits for its KV", "no_offload")
    if s.on_cpu:
        return Decision(0, "KV is in host memory already", "no_offload")
    flags = ("--kv-offloading-size",) if s.kind == "vllm" else ("--hicache-size",)
    if not s.lists(*flags):
        return Decision(0, f"this version has no {flags[0]}", "no_offload")
    if s.card.hybrid is not None:
        return Decision(0, "a hybrid's state is not offloaded", "no_offload")
    most = max(0, z.kv_bytes) * z.layout.world
    held = (z.tokens or 0) * z.copies // max(1, z.max_model_len)
    if held >= WAITING * s.profile.workload.concurrency:
        return Decision(0, f"the pool holds {held} whole conversations: none has to leave it", "no_offload")
    # SGLang counts whole GB on each rank
    step = GIB if s.kind == "vllm" else 10**9 * z.layout.world
    there = s.host_budget // 4
    if s.kind == "sglang":
        # it refuses to start where its pool would leave the host less (pool_host/base.py:253)
        there = min(there, s.inputs.machine.memory_available_bytes - SGLANG_KEEPS)
    value = max(0, min(there, most)) // step * step
    if not value:
        return Decision(0, f"{size(s.host_budget)} of host memory leave no room for it", "no_offload")
    reason = "a quarter of the free host memory, as much as the pool at most: what waiting agents need again"
    return Decision(
        value, reason, "agent_offload", rejected=(Rejected(0, "their next turn would be computed anew"),)
    )


def pool(s: Situation, z: Sizing) -> dict[str, Decision | None]:
    """How the size of the KV pool is told to the engine, where a share of device memory does not say it."""
    if s.on_cpu:
        if s.kind == "sglang":
            return {"kv_cache_tokens": _cpu_pool(s, z, "kv_cache_tokens", z.tokens or 0)}
        return {"kv_cache_bytes": _cpu_pool(s, z, "kv_cache_bytes", z.kv_bytes)}
    if s.kind != "sglang":
        return {}
    out: dict[str, Decision | None] = {}
    if s.is_free("mem_fraction_static"):
        share = z.static_share
        rest = size(z.budget.free * (1 - share))
        reason = f"weights and KV pool; {rest} stay for activations and graphs, as SGLang itself reckons"
        if not z.wish.own_reserve:
            reason = f"weights and KV pool; {rest} stay for activations and graphs: less than SGLang keeps"
        out["mem_fraction_static"] = Decision(share, reason, "static_share")
    if not s.is_free("kv_cache_bytes") and s.is_free("kv_cache_tokens") and z.tokens:
        reason = "what kv_cache_bytes hold: SGLang takes the size of its pool in tokens"
        out["kv_cache_tokens"] = Decision(z.tokens, reason, "pool_in_tokens")
    return out


def _cpu_pool(s: Situation, z: Sizing, lever: str, value: int) -> Decision:
    """On a CPU the pool is always set: left alone, an engine asks for most of the machine."""
    if not s.is_free(lever):
        return s.as_given(lever)
    reason = f"{z.tokens} tokens for {count(z.max_num_seqs, 'request')} of {z.max_model_len}"
    if not s.is_free("gpu_memory_utilization"):
        share = s.given("gpu_memory_utilization")
        reason = f"{share:g} of host memory, less weights and the engine's processes"
    most = Rejected("auto", "left alone the engine asks for most of the machine")
    return Decision(value, reason, "cpu_pool", rejected=(most,))


def why_size(s: Situation, name: str, layout: Layout) -> str:
    """Why a size of the layout that is not its largest is what it is."""
    card = s.card
    match name:
        case "tensor_parallel_size" if layout.tensor == 1:
            return "each device holds the layers whole"
        case "pipeline_parallel_size" if layout.pipeline == 1:
            return "no stages: one device group holds all layers"
        case "data_parallel_size" if layout.attention_data > 1:
            return "no whole copies: attention_data_parallel_size says how attention is copied"
        case "data_parallel_size" if layout.data == 1:
            return "one copy of the model"
        case "attention_data_parallel_size" if layout.attention_data == 1:
            return "attention is not copied"
        case "attention_data_parallel_size":
            latent = "one latent for all heads, which tensor ranks would each hold whole"
            return (
                f"each rank serves requests of its own; KV is {latent if card.mla_kv_lora_rank else 'split'}"
            )
        case "expert_parallel" if layout.expert:
            return f"{card.experts} experts spread whole over {layout.ranks_sharing_experts} ranks"
        case "expert_parallel":
            return "each expert is split as the other layers are"
        case _:
            return "part of the layout"


def devices_left_out(s: Situation, layout: Layout) -> list[Rejected]:
    """Devices that the plan does not use, each with why."""
    out = [Rejected(x.gpu.uuid, x.why) for x in s.usable.left_out]
    used = {g.uuid for g in layout.devices}
    idle = [g for g in s.gpus if g.uuid not in used]
    return out + [Rejected(g.uuid, "the layout needs no more") for g in idle]
