"""The planner: a goal's branch of the decision tree, top to bottom, for the engine that was chosen.

Pure: the same inputs give the same Plan, with no clock, network or disk in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.engines.base import RenderRequest
from orchestrator.levers import LEVERS
from orchestrator.plan import Decision, EngineRef, Plan, Prediction, Rejected
from orchestrator.planning import checks, fit, left_out, llamacpp, memory
from orchestrator.planning.memory import Sizing
from orchestrator.planning.request import Choice, PlanInputs
from orchestrator.planning.situation import Placement, Situation
from orchestrator.planning.words import size

Decisions = dict[str, Decision]

_OUT_OF_MEMORY = ("out_of_memory", "context_failed")


def make_plan(inputs: PlanInputs) -> Plan:
    """Decide every lever, check everything, predict what can be computed, and prepare one step down.

    A Plan with violations is whole otherwise: it can be shown and explained.
    """
    s = Situation(inputs)
    wish, wanted = _wish(s)
    found = fit.fit(s, wanted)
    plan = _plan(s, wish, found.sizing)
    lower = fit.step_down(s, found.sizing)
    if lower is None or plan.violations:
        return plan
    smaller = _plan(s, wish, lower, ceiling=plan.levers)
    if smaller.violations:
        return plan
    return replace(plan, steps_down={cause: smaller.to_json() for cause in _OUT_OF_MEMORY})


def _wish(s: Situation) -> tuple[Decisions, Sizing]:
    """The tree down to memory: what the goal would take if memory were no question."""
    d: Decisions = {}
    d["max_model_len"] = llamacpp.context(s)
    d["max_num_seqs"] = llamacpp.slots(s)
    d["kv_cache_dtype"] = llamacpp.kv_type(s)
    d["flash_attention"] = llamacpp.flash_attention(s, d["kv_cache_dtype"].value)
    slots = d["max_num_seqs"].value
    d["kv_unified"] = llamacpp.unified(s, slots)
    shared = d["kv_unified"].value
    d["kv_cache_tokens"] = llamacpp.pool(s, slots, d["max_model_len"].value, shared)
    d["max_num_batched_tokens"] = llamacpp.batch(s, slots)
    d["ubatch_tokens"] = llamacpp.ubatch(s, d["max_num_batched_tokens"].value)
    pool = d["kv_cache_tokens"].value
    if shared and pool < d["max_model_len"].value and s.is_free("max_model_len"):
        d["max_model_len"] = Decision(pool, "one request may fill the pool that was set", "pool_was_set")
    sizing = Sizing(
        context=d["max_model_len"].value,
        slots=slots,
        pool_tokens=memory.padded(pool),
        unified=shared,
        kv_type=memory.cache_type(d["kv_cache_dtype"].value),
        flash_attention=d["flash_attention"].value != "off",
        batch=d["max_num_batched_tokens"].value,
        ubatch=d["ubatch_tokens"].value,
    )
    return d, sizing


def _decide(s: Situation, wish: Decisions, sizing: Sizing, placed: Placement) -> Decisions:
    """The tree below memory: what fits, then speculation, threads, caches and GPU layers."""
    d = _fitted(s, wish, sizing)
    d["speculative"] = llamacpp.speculation(s, sizing.slots)
    d["threads"] = llamacpp.threads(s)
    d["prefix_caching"] = llamacpp.prefix_caching(s)
    d["cache_reuse_tokens"] = llamacpp.cache_reuse(s)
    left = s.host_budget - placed.host_bytes
    d["kv_offload_bytes"] = llamacpp.prompt_cache(s, left, sizing.context, sizing.slots, sizing.kv_type)
    d["gpu_layers"] = llamacpp.gpu_layers(s, placed.gpu_layers)
    devices = llamacpp.devices(s)
    if devices is not None:
        d["device_ids"] = devices
    d |= llamacpp.always(s)
    # what somebody wrote is never dropped, whether this engine has a word for it or not
    for name in LEVERS:
        if name not in d and not s.is_free(name):
            d[name] = s.as_given(name, lossless=LEVERS[name].lossless or name in ("quantization", "dtype"))
    stock = {name: s.inputs.engine.stock(name, s.inputs.installation) for name in d}
    return {name: replace(x, stock=x.value == stock[name]) for name, x in d.items()}


def _fitted(s: Situation, wish: Decisions, sizing: Sizing) -> Decisions:
    """The wish with what memory made smaller, each with what was wished and why it is not."""
    values: dict[str, Any] = {
        "max_model_len": sizing.context,
        "max_num_seqs": sizing.slots,
        "kv_cache_dtype": sizing.kv_type,
        "kv_unified": sizing.unified,
        "kv_cache_tokens": sizing.pool_tokens,
        "ubatch_tokens": sizing.ubatch,
    }
    where = f"{size(s.host_budget)} of host memory"
    if s.gpus:
        where = f"{size(sum(s.gpu_budgets))} of device and {where}"
    out = dict(wish)
    for name, value in values.items():
        was = wish[name]
        if not s.is_free(name) or was.value == value:
            continue
        out[name] = Decision(
            value,
            f"the largest that fits in {where}" if isinstance(value, int) else f"taken to fit in {where}",
            "memory_fit",
            lossless=not (name == "kv_cache_dtype" and value in memory.QUANTIZED),
            rejected=(Rejected(was.value, f"does not fit in {where}"), *was.rejected),
        )
    if out["kv_cache_dtype"].value != wish["kv_cache_dtype"].value:
        out["flash_attention"] = llamacpp.flash_attention(s, sizing.kv_type)
    return out


def _plan(s: Situation, wish: Decisions, sizing: Sizing, ceiling: Decisions | None = None) -> Plan:
    """The Plan of a sizing. `ceiling`: the levers of the plan that this one is a step down from; what it
    gives up is not spent on anything else."""
    inputs, card = s.inputs, s.card
    most_layers = ceiling["gpu_layers"].value if ceiling else None
    placed = s.place(sizing, s.set_cache_bytes, most_layers)
    levers = _decide(s, wish, sizing, placed)
    if ceiling is not None:
        levers = _lowered(levers, ceiling)
    cache = levers["kv_offload_bytes"].value or 0
    placed = s.place(sizing, cache, most_layers)
    rendered = inputs.engine.render(
        RenderRequest(
            levers=levers,
            installation=inputs.installation,
            model_path=card.path or card.source,
            served_model=inputs.served_model,
            host=inputs.host,
            port=inputs.port,
            engine_args=tuple(s.profile.engine_args[inputs.engine.kind]),
            env=s.profile.env,
        )
    )
    wordless = {*rendered.not_expressible, *_wordless(s)} - set(left_out.HONOURED)
    plan = Plan(
        goal=s.goal,
        profile=s.profile.profile,
        model=_model(s),
        machine=_machine(s),
        engine=EngineRef(
            inputs.installation.name,
            inputs.installation.kind,
            inputs.installation.version,
            inputs.installation.captured,
        ),
        levers=levers,
        predictions=_predict(s, sizing, placed, cache),
        processes=rendered.processes,
        layout={
            "name": inputs.name,
            "kind": "single",
            "model_choice": _choice(inputs.model_choice),
            "engine_choice": _choice(inputs.engine_choice),
            "left_out": {n: why for n, why in left_out.LEFT_OUT.items() if n not in levers},
        },
        not_expressible=tuple(sorted(wordless)),
        warnings=_warnings(s, levers, placed, wordless),
        supervision=s.profile.supervision.model_dump(),
    )
    violations = [
        *checks.neutral(s, levers, sizing),
        *checks.memory_violations(s, sizing, placed),
        *rendered.violations,
    ]
    seen = {v.code for v in violations}
    violations += [v for v in inputs.engine.check(plan, inputs.installation) if v.code not in seen]
    return replace(plan, violations=tuple(dict.fromkeys(violations)))


def _lowered(levers: Decisions, ceiling: Decisions) -> Decisions:
    """Levers of a step down: what differs from before gives that as its reason, and no cache grows."""
    out: Decisions = {}
    for name, d in levers.items():
        was = ceiling.get(name, d)
        if name == "kv_offload_bytes" and d.value > was.value:
            d = was
        if d.value != was.value:
            tried = Rejected(was.value, "memory ran out with it")
            d = replace(d, reason="one step down, after memory ran out", rule="step_down", rejected=(tried,))
        out[name] = d
    return out


def _wordless(s: Situation) -> list[str]:
    """Levers that were written and have no effect on llama.cpp, unless the value holds there anyway."""
    return [
        name
        for name in left_out.LEFT_OUT.keys() | left_out.IN_EFFECT.keys()
        if not s.is_free(name)
        and name not in ("device_ids", "tool_call_parser", "reasoning_parser", "chat_template")
        and name not in ("tensor_parallel_size", "pipeline_parallel_size")
        and s.given(name) not in left_out.IN_EFFECT.get(name, ())
    ]


def _model(s: Situation) -> dict[str, Any]:
    card = s.card
    return {
        "source": card.source,
        "path": card.path,
        "name": card.name,
        "served_model": s.inputs.served_model,
        "format": card.format,
        "architecture": card.architecture,
        "parameters": card.parameters,
        "quantization": card.quantization,
        "context_length": s.trained_context,
        "weights_bytes": card.weights_bytes,
        "weights_estimated": card.weights_estimated,
    }


def _machine(s: Situation) -> dict[str, Any]:
    m = s.inputs.machine
    return {
        "name": m.name,
        "source": m.source,
        "platform": m.platform,
        "cpus": m.cpus,
        "physical_cores": m.physical_cores,
        "memory_limit_bytes": m.memory_limit_bytes,
        "memory_available_bytes": m.memory_available_bytes,
        "gpus": [{"uuid": g.uuid, "name": g.name, "memory_bytes": g.memory_bytes} for g in m.gpus],
    }


def _choice(c: Choice) -> dict[str, Any]:
    rejected = [{"value": r.value, "why": r.why} for r in c.rejected]
    return {"value": c.value, "reason": c.reason, "rule": c.rule, "rejected": rejected}


def _predict(s: Situation, sizing: Sizing, placed: Placement, cache: int) -> dict[str, Prediction]:
    """What can be computed. Speeds are not: there is no model of them yet, and none is invented."""
    room, card = placed.room, s.card
    devices = max(1, sum(1 for b in placed.gpu_bytes if b))
    share = placed.gpu_layers / (card.layers + 1) / devices
    weights = "estimated" if card.weights_estimated else "computed"
    token = memory.kv_bytes_per_token(card, sizing.kv_type)
    state = "computed" if room.state_known else "unknown"
    out = {
        "weights_bytes": Prediction(room.weights, "bytes", weights),
        "weights_bytes_per_gpu": Prediction(int(room.weights * share), "bytes", weights),
        "kv_bytes_per_token": Prediction(token, "bytes", "computed"),
        "kv_bytes_per_token_per_gpu": Prediction(int(token * share), "bytes", "computed"),
        "kv_cache_tokens": Prediction(sizing.pool_tokens, "tokens", "computed"),
        "kv_bytes": Prediction(room.kv + room.state, "bytes", state),
        "max_concurrency": Prediction(_concurrency(s, sizing), "requests", "computed"),
        "compute_bytes": Prediction(room.compute, "bytes", "estimated"),
        "prompt_cache_bytes": Prediction(cache, "bytes", "computed"),
        "other_bytes": Prediction(room.process + room.checkpoints, "bytes", "estimated"),
        "host_memory_bytes": Prediction(placed.host_bytes, "bytes", "estimated"),
        "host_memory_available_bytes": Prediction(s.host_budget, "bytes", "computed"),
        "gpu_memory_bytes": Prediction(sum(placed.gpu_bytes), "bytes", "estimated"),
        "gpu_memory_available_bytes": Prediction(sum(s.gpu_budgets), "bytes", "computed"),
    }
    units = {"ttft_ms": "ms", "tpot_ms": "ms", "output_tokens_per_s": "tokens/s"}
    return out | {name: Prediction(None, unit, "unknown") for name, unit in units.items()}


def _concurrency(s: Situation, sizing: Sizing) -> int:
    """Requests of the workload's size that the KV holds at once, at most the slots."""
    return min(sizing.slots, sizing.pool_tokens // min(s.request_tokens, sizing.pool_tokens))


def _warnings(s: Situation, levers: Decisions, placed: Placement, wordless: set[str]) -> tuple[str, ...]:
    out = []
    lossy = [f"{name}={d.value}" for name, d in levers.items() if not d.lossless]
    if lossy:
        out.append(f"can change answers: {', '.join(lossy)}; --set lossless=true forbids it")
    card, length = s.card, levers["max_model_len"].value
    if length < s.request_tokens:
        why = "the model has no more" if length >= s.longest else "max_model_len is"
        out.append(f"a request of the workload has {s.request_tokens} tokens, more than {length}: {why}")
    if s.goal == "agent":
        if card.kv_heads == card.heads and card.mla_kv_lora_rank is None:
            out.append(
                "every head of this model keeps its own KV (MHA): a GQA model holds far longer contexts"
            )
        if card.hybrid is not None:
            out.append("a hybrid model: prompts are reused from checkpoints only, and fewer bits save less")
    if not placed.room.state_known:
        out.append(f"the recurrent state of {card.architecture} has no known size: a margin is kept for it")
    if card.weights_estimated:
        out.append("weights are estimated from the configuration")
    if card.format == "config":
        out.append("a configuration without weights: this can be planned, not launched")
    values = [f"{name}={s.given(name)}" for name in sorted(wordless) if not s.is_free(name)]
    if values:
        out.append(f"without effect on {s.inputs.installation.name}: {', '.join(values)}")
    if s.given("threads") is not None and s.given("threads") > s.inputs.machine.physical_cores:
        out.append(
            f"threads={s.given('threads')} is more than the physical cores: waiting threads spin and stall"
        )
    return tuple(out)
