"""The decision tree on llama.cpp: one small function a lever, in the order in which `planner` asks them.

Numbers that a goal takes by table stand in `goals.yaml` with where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.plan import Decision, Rejected
from orchestrator.planning.llamacpp import fit, memory
from orchestrator.planning.llamacpp.situation import CANNOT_OFFLOAD, Situation
from orchestrator.planning.words import size


@cache
def _table() -> dict[str, dict[str, Any]]:
    import yaml

    text = (Path(__file__).parent / "goals.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return table


def _row(s: Situation) -> dict[str, Any]:
    return _table()[s.goal]


def _device(s: Situation) -> str:
    return "gpu" if s.gpus else "cpu"


def context(s: Situation) -> Decision:
    """Tokens of one request: what the workload needs, or all the model has for the agent goal."""
    if not s.is_free("max_model_len"):
        return s.as_given("max_model_len")
    row, need = _row(s), s.request_tokens
    all_of_it = Rejected(s.longest, f"the model's whole context costs {size(_kv(s, s.longest))} of KV a slot")
    if not row["context_factor"]:
        return Decision(
            s.longest,
            "all the model has: each turn sends the conversation again, and it grows",
            "agent_model_context",
            rejected=(Rejected(s.needed_context, "the next turns would not fit"),),
        )
    wish = max(memory.padded(row["context_factor"] * need), row["least_context"])
    if wish >= s.longest:
        return Decision(s.longest, f"the model's own limit; the workload has {need}", "model_context")
    if row["context_factor"] > 1:
        reason = f"{need} tokens a request, and as many again so that a longer one is not turned away"
    elif wish == row["least_context"]:
        reason = f"modest: {need} tokens a request, and room for a few turns"
    else:
        reason = f"{need} tokens a request, in whole cells of {memory.CELLS}; the rest goes to more slots"
    return Decision(wish, reason, f"{s.goal}_workload_context", rejected=(all_of_it,))


def slots(s: Situation) -> Decision:
    """Requests that run at once: the workload's concurrency, within what cores or a GPU can carry."""
    if not s.is_free("max_num_seqs"):
        return s.as_given("max_num_seqs")
    row, asked = _row(s), s.profile.workload.concurrency
    by_cores = row["slots_per_core"] * threads(s).value if not s.gpus else 0
    bound = min(by_cores or row["slots"], row["slots"])
    if asked <= bound:
        what = "one for each conversation, so its KV stays where it is" if s.goal == "agent" else ""
        more_pay = f"; up to {bound} would pay here" if bound > asked else ""
        reason = what or f"the workload's concurrency{more_pay}"
        more = (Rejected(bound, "empty slots hold KV that nobody uses"),) if bound > asked else ()
        return Decision(asked, reason, "workload_concurrency", rejected=more)
    where = f"{threads(s).value} computing core(s)" if by_cores else "llama.cpp on a GPU"
    reason = f"what {where} can carry for this goal, of {asked} asked for; the others wait their turn"
    why = "every further slot slows all of them"
    return Decision(bound, reason, f"{s.goal}_slots_by_device", rejected=(Rejected(asked, why),))


def kv_type(s: Situation) -> Decision:
    """Type of the KV cache: f16, but 8 bits where long conversations are the goal."""
    if not s.is_free("kv_cache_dtype"):
        return s.as_given("kv_cache_dtype", lossless=s.given("kv_cache_dtype") in memory.EXACT_NAMES)
    f16, q8 = (size(memory.kv_bytes_per_token(s.card, t) * 1024) for t in ("f16", "q8_0"))
    if s.goal != "agent":
        why = "changes answers, and a CPU reads it slower" if not s.gpus else "changes answers"
        return Decision(
            "f16", "the model's own precision; contexts are short", "kv_f16", rejected=_kv_no(why)
        )
    if s.lossless:
        return Decision("f16", "lossless: true forbids fewer bits", "lossless", rejected=_kv_no("is lossy"))
    if not fit.quantized_kv_works(s):
        off = s.given("flash_attention") == "off"
        why = "needs flash attention" if off else f"a head of {s.card.head_dim} is no multiple of 32"
        return Decision("f16", f"8 bits are not possible: {why}", "kv_f16_by_shape", rejected=_kv_no(why))
    price = "" if s.gpus else "; on a CPU tokens come about a third slower"
    return Decision(
        "q8_0",
        f"{q8} for 1024 tokens instead of {f16}: twice the conversation{price}",
        "agent_kv_quantized",
        lossless=False,
        rejected=(
            Rejected("f16", "holds half the tokens; --set lossless=true takes it"),
            Rejected("q4_0", "changes answers noticeably"),
        ),
    )


def _kv_no(why: str) -> tuple[Rejected, ...]:
    return (Rejected("q8_0", why),)


def flash_attention(s: Situation, kv: str) -> Decision:
    """Fused attention: the engine's own choice, but required where V is quantized."""
    if not s.is_free("flash_attention"):
        return s.as_given("flash_attention")
    if kv in memory.QUANTIZED:
        off = Rejected("off", f"llama.cpp refuses {kv} for V without it")
        return Decision("on", f"KV in {kv} needs it", "flash_for_quantized_kv", rejected=(off,))
    reason = "the engine takes it where the device has it; working memory then stays small"
    return Decision("auto", reason, "flash_auto")


def unified(s: Situation, n: int) -> Decision:
    """One KV pool for all slots, where lengths differ much (agents)."""
    if not s.is_free("kv_unified"):
        return s.as_given("kv_unified")
    if not s.is_free("kv_cache_tokens"):
        return Decision(True, "kv_cache_tokens sets one pool", "pool_was_set")
    length = s.given("max_model_len")
    if length is not None and length < min(memory.CELLS, s.longest):
        why = f"a slot's own cache holds {memory.CELLS} tokens at the least: nothing to share"
        return Decision(False, why, "own_cache")
    if s.goal == "agent" and n > 1:
        return Decision(
            True,
            "a long conversation borrows from short ones",
            "agent_shared_pool",
            rejected=(Rejected(False, "each slot would lock its whole context, used or not"),),
        )
    why = "requests are alike: none needs another's room" if n > 1 else "a single slot shares with nobody"
    return Decision(
        False, why, "own_cache", rejected=(Rejected(True, "one long request could starve others"),)
    )


def batch(s: Situation, n: int) -> Decision:
    """Tokens between two looks at who is waiting: a prompt stalls every running answer for one batch."""
    if not s.is_free("max_num_batched_tokens"):
        return s.as_given("max_num_batched_tokens")
    row, itl = _row(s), s.profile.slo.itl_p99_ms
    value, rule = row["batch"][_device(s)], f"{s.goal}_batch"
    big = Rejected(2048, "a long prompt would hold every running answer up to 4 times longer")
    rejected: tuple[Rejected, ...] = (big,) if value < 2048 else ()
    reasons = {
        "throughput": "large: prompts run at full speed, and nobody watches the gaps",
        "latency": "small: a long prompt holds running answers for one batch only",
        "agent": "between: first prompts are long, and other agents are waiting for tokens",
        "edge": "small: the least working memory, and as fast on few cores",
    }
    reason = reasons[s.goal]
    within = [r for r in row.get("itl_batch", ()) if itl is not None and itl <= r["itl_ms"]]
    if within:
        value, rule = within[0][_device(s)], "itl_table"
        reason = f"one batch is the longest gap; asked for {itl:g} ms (by table: speed is not known yet)"
    least = max(n, s.given("ubatch_tokens") or 0)
    if value < least:
        return Decision(least, "as many as slots and ubatch_tokens need", "batch_floor", rejected=rejected)
    return Decision(value, reason, rule, rejected=rejected)


def ubatch(s: Situation, logical: int) -> Decision:
    """Tokens of one pass: sets the compute buffer, at most the batch."""
    if not s.is_free("ubatch_tokens"):
        return s.as_given("ubatch_tokens")
    value = _row(s)["ubatch"][_device(s)]
    if value >= logical:
        return Decision(logical, "the whole batch in one pass", "ubatch_is_batch")
    wide = "a GPU is busy with it" if s.gpus else "no slower than wider passes on a CPU"
    more = (Rejected(logical, "working memory grows with it, speed hardly"),)
    return Decision(value, f"{wide}; the compute buffer grows with it", f"{s.goal}_ubatch", rejected=more)


def pool(s: Situation, n: int, length: int, shared: bool) -> Decision:
    """Cells of all slots together, before memory was asked."""
    if not s.is_free("kv_cache_tokens"):
        return s.as_given("kv_cache_tokens")
    value = n * memory.padded(length)
    how = "shared by all slots" if shared else "each slot its own" if n > 1 else "all for the one slot"
    return Decision(value, f"{n} x {length} tokens, {how}", "slots_times_context")


def speculation(s: Situation, n: int) -> Decision:
    """Guessing tokens: what was named, else n-gram look-up where it can pay."""
    given = s.given("speculative")
    if given not in (None, "off"):
        return s.as_given("speculative") if s.inputs.draft is None else _draft(s, given)
    longest = _row(s)["ngram_tokens"]
    guess = Rejected({"method": "ngram"}, f"no spare arithmetic at {n} slots")
    draft = Rejected("draft_model", "none was named: --set 'speculative={method: draft_model, model: FILE}'")
    if given == "off":
        d = s.as_given("speculative", rejected=(guess,) if not longest else ())
        return (
            d
            if d.rule == "user" or longest
            else Decision("off", _FULL, "no_spare_arithmetic", rejected=(guess,))
        )
    if not longest or n > 16:
        return Decision("off", _FULL, "no_spare_arithmetic", rejected=(guess, draft))
    if "--spec-type" not in s.has_flag:
        why = "this engine version cannot look guesses up"
        return Decision("off", why, "no_ngram_here", rejected=(Rejected({"method": "ngram"}, why), draft))
    reason = {
        "latency": "lossless, needs no memory, and helps where the answer repeats the prompt",
        "agent": "tool calls and edits repeat the conversation in long pieces; lossless",
        "edge": "lossless and free of memory; short guesses, as a wrong one costs time",
    }[s.goal]
    return Decision({"method": "ngram", "num_tokens": longest}, reason, f"{s.goal}_ngram", rejected=(draft,))


_FULL = "full batches leave no spare arithmetic to check guesses"


def _draft(s: Situation, given: Mapping[str, Any]) -> Decision:
    """The named draft model by its file, which is what the engine is given."""
    d, draft = s.as_given("speculative"), s.inputs.draft
    assert draft is not None
    if draft.path is None:
        return d
    reason = f"{d.reason}; {given['model']} with its KV takes {size(s.draft_bytes)}"
    return Decision({**given, "model": draft.path}, reason, d.rule)


def threads(s: Situation) -> Decision:
    """Cores that compute: within quota, affinity and physical cores, with one left free."""
    if not s.is_free("threads"):
        return s.as_given("threads")
    m, usable = s.inputs.machine, s.usable_cores
    value = max(1, usable - 1)
    left = "one is left free" if usable > 1 else "there is only one"
    reason = (
        f"{m.cpus:g} CPUs' worth of time, {m.physical_cores} physical core(s), {left}: "
        "waiting threads spin, and on a busy core all stall"
    )
    rejected = (Rejected(m.logical_cpus, "25 to 100 times slower once another process wants a core"),)
    return Decision(
        value, reason, "threads_leave_a_core", rejected=rejected if value < m.logical_cpus else ()
    )


def prefix_caching(s: Situation) -> Decision:
    """Keep a slot's KV for the next request that begins alike."""
    if s.given("prefix_caching") is False:
        return s.as_given("prefix_caching")
    return Decision(True, "a known beginning is not computed again; it costs no memory", "prefix_in_slot")


def cache_reuse(s: Situation) -> Decision:
    """Also reuse pieces behind a change, by shifting their positions."""
    if not s.is_free("cache_reuse_tokens"):
        return s.as_given("cache_reuse_tokens", lossless=not s.given("cache_reuse_tokens"))
    shift = Rejected(256, "shifted KV changes answers a little")
    if s.goal != "agent" or s.profile.workload.turns < 2:
        return Decision(0, "requests share beginnings, not middles", "no_reuse", rejected=(shift,))
    if s.lossless:
        return Decision(0, "lossless: true forbids it", "lossless", rejected=(shift,))
    if s.card.hybrid is not None or s.card.sliding_layers is not None:
        why = "recurrent state and sliding windows cannot be shifted"
        return Decision(0, why, "no_shift", rejected=(Rejected(256, why),))
    reason = "pieces of 256 tokens behind an edit of the history are shifted, not computed again"
    return Decision(
        256, reason, "agent_cache_reuse", False, rejected=(Rejected(0, "a new prefill after each edit"),)
    )


def prompt_cache(s: Situation, left_bytes: int, length: int, n: int, kv: str) -> Decision:
    """Host memory for the KV of conversations that have no slot just now: part of what memory leaves."""
    if not s.is_free("kv_offload_bytes"):
        return s.as_given("kv_offload_bytes")
    stock = Rejected(8 * memory.GIB, "the engine's own limit, without a look at what is there")
    if s.goal in ("throughput", "edge"):
        w = s.profile.workload
        if w.turns < 2 and not w.shared_prefix_tokens:
            reason = "no request comes back for its KV"
            return Decision(0, reason, "no_prompt_cache", rejected=(stock,))
    share, most, copies = {"agent": (2, 8, 4), "latency": (4, 1, 2)}.get(s.goal, (8, 1, 1))
    useful = copies * n * memory.kv_bytes_per_token(s.card, kv) * length
    value = max(0, min(left_bytes // share, most * memory.GIB, useful)) // memory.MIB * memory.MIB
    reason = f"KV of conversations that wait, {copies} for each slot, at most 1/{share} of the memory left"
    return Decision(value, reason, f"{s.goal}_prompt_cache", rejected=(stock,) if value < stock.value else ())


def gpu_layers(s: Situation, placed: int) -> Decision:
    """Layers on GPUs, the output layer counted as one; as many as their memory holds."""
    if not s.is_free("gpu_layers"):
        return s.as_given("gpu_layers")
    everything = s.card.layers + 1
    if not s.gpus:
        there = bool(s.inputs.machine.gpus)
        why = (CANNOT_OFFLOAD if not s.can_offload else "every GPU is held") if there else "there is no GPU"
        return Decision(0, why, "no_gpu")
    if placed == everything:
        return Decision(placed, f"all of them, and the output layer, on {len(s.gpus)} GPU(s)", "all_layers")
    why = f"the others do not fit in {size(sum(s.gpu_budgets))} of device memory and run on the CPU"
    return Decision(
        placed, f"{placed} of {everything}: {why}", "layers_that_fit", rejected=(Rejected(everything, why),)
    )


def devices(s: Situation) -> Decision | None:
    """Which GPUs; None where there are none to name."""
    if not s.is_free("device_ids"):
        return s.as_given("device_ids")
    if not s.gpus:
        return None
    held = [Rejected(u, "held by another deployment") for u in s.inputs.reservations.devices]
    return Decision(
        [g.uuid for g in s.gpus], "every GPU that is free here", "all_free_gpus", rejected=tuple(held)
    )


def always(s: Situation) -> dict[str, Decision]:
    """What llama.cpp does in any case."""
    return {
        "chunked_prefill": Decision(
            True, "llama.cpp always cuts prompts into batches and mixes them with decodes", "always_on"
        )
    }


def _kv(s: Situation, tokens: int) -> int:
    return memory.kv_bytes_per_token(s.card, "f16") * tokens
