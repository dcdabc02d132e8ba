"""A goal's branch of the decision tree on llama.cpp, top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import Rendered, RenderRequest
from orchestrator.levers import LEVERS
from orchestrator.plan import Decision, EngineRef, Plan, Prediction, Rejected, Violation
from orchestrator.planning import checks, environment, summary
from orchestrator.planning.llamacpp import checks as own_checks
from orchestrator.planning.llamacpp import fit, left_out, limits, memory, notices, remedies
from orchestrator.planning.llamacpp import levers as tree
from orchestrator.planning.llamacpp.memory import Sizing
from orchestrator.planning.llamacpp.remedies import Trial
from orchestrator.planning.llamacpp.situation import Placement, Situation
from orchestrator.planning.request import PlanInputs
from orchestrator.planning.words import size

if TYPE_CHECKING:
    from orchestrator.planning.findings import Finding

Decisions = dict[str, Decision]

_OUT_OF_MEMORY = ("out_of_memory", "context_failed")


def make_plan(inputs: PlanInputs) -> Plan:
    """Decide every lever, check everything, predict what can be computed, and prepare one step down.

    A Plan with violations is whole otherwise: it can be shown and explained.
    """
    s = Situation(inputs)
    wish, wanted = _wish(s)
    sizing = fit.fit(s, wanted).sizing
    draft = _plan(s, wish, sizing)
    if draft.refused:
        found = (draft.findings, draft.shortage, draft.engines)
        violations = remedies.settled(s, *found, lambda change: _try(s, change), draft.goals_lossy)
        return replace(draft.plan, violations=tuple(dict.fromkeys(violations)))
    lower = fit.step_down(s, sizing)
    if lower is None:
        return draft.plan
    smaller = _plan(s, wish, lower, ceiling=draft.plan.levers)
    if smaller.refused:
        return draft.plan
    steps = {cause: smaller.plan.to_json() for cause in _OUT_OF_MEMORY}
    return replace(draft.plan, steps_down=steps)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan before its refusals have remedies: ours, memory's and the engine's."""

    plan: Plan
    findings: list[Finding]
    shortage: list[Finding]
    engines: list[Violation]

    @property
    def refused(self) -> bool:
        return bool(self.findings or self.shortage or self.engines)

    @property
    def codes(self) -> frozenset[str]:
        ours = (f.code for f in (*self.findings, *self.shortage))
        return frozenset((*ours, *(v.code for v in self.engines)))

    @property
    def lossy(self) -> frozenset[str]:
        return frozenset(name for name, d in self.plan.levers.items() if not d.lossless)

    @property
    def goals_lossy(self) -> frozenset[str]:
        """Levers that change answers because somebody or the goal wants it, not because memory is short."""
        return frozenset(n for n in self.lossy if self.plan.levers[n].rule != "memory_fit")


def _try(s: Situation, change: Mapping[str, Any]) -> Trial:
    """What would be refused if some levers were others."""
    other = Situation(s.inputs.with_levers(change))
    wish, wanted = _wish(other)
    draft = _plan(other, wish, fit.fit(other, wanted).sizing)
    return Trial(draft.codes, draft.lossy)


def _wish(s: Situation) -> tuple[Decisions, Sizing]:
    """The tree down to memory: what the goal would take if memory were no question."""
    d: Decisions = {}
    d["max_model_len"] = tree.context(s)
    d["max_num_seqs"] = tree.slots(s)
    d["kv_cache_dtype"] = tree.kv_type(s)
    d["flash_attention"] = tree.flash_attention(s, d["kv_cache_dtype"].value)
    slots = d["max_num_seqs"].value
    d["kv_unified"] = tree.unified(s, slots)
    shared = d["kv_unified"].value
    d["kv_cache_tokens"] = tree.pool(s, slots, d["max_model_len"].value, shared)
    d["max_num_batched_tokens"] = tree.batch(s, slots)
    d["ubatch_tokens"] = tree.ubatch(s, d["max_num_batched_tokens"].value)
    pool = d["kv_cache_tokens"].value
    if shared and pool < d["max_model_len"].value and s.is_free("max_model_len"):
        d["max_model_len"] = Decision(pool, "one request may fill the pool that was set", "pool_was_set")
    return d, _sizing(d)


def _sizing(d: Decisions) -> Sizing:
    """What memory is asked about, of the levers above it."""
    context, slots, shared = d["max_model_len"].value, d["max_num_seqs"].value, d["kv_unified"].value
    return Sizing(
        context=context,
        slots=slots,
        pool_tokens=memory.padded(d["kv_cache_tokens"].value) if shared else slots * memory.padded(context),
        unified=shared,
        kv_type=memory.cache_type(d["kv_cache_dtype"].value),
        flash_attention=d["flash_attention"].value != "off",
        batch=d["max_num_batched_tokens"].value,
        ubatch=d["ubatch_tokens"].value,
    )


def _decide(s: Situation, wish: Decisions, sizing: Sizing, placed: Placement) -> Decisions:
    """The tree below memory: what fits, then speculation, threads, caches and GPU layers."""
    d = _fitted(s, wish, sizing)
    d["speculative"] = tree.speculation(s, sizing.slots)
    d["threads"] = tree.threads(s)
    d["prefix_caching"] = tree.prefix_caching(s)
    d["cache_reuse_tokens"] = tree.cache_reuse(s)
    left = s.host_budget - placed.host_bytes
    d["kv_offload_bytes"] = tree.prompt_cache(s, left, sizing.context, sizing.slots, sizing.kv_type)
    d["gpu_layers"] = tree.gpu_layers(s, placed.gpu_layers)
    devices = tree.devices(s)
    if devices is not None:
        d["device_ids"] = devices
    d |= tree.always(s)
    # what somebody wrote is never dropped, whether this engine has a word for it or not
    for name in LEVERS:
        if name not in d and not s.is_free(name):
            d[name] = s.as_given(name, lossless=LEVERS[name].lossless or name in ("quantization", "dtype"))
    stock = {name: s.inputs.engine.stock(name, s.inputs.installation) for name in d}
    return {name: replace(_consistent(x), stock=x.value == stock[name]) for name, x in d.items()}


def _consistent(d: Decision) -> Decision:
    """Without the chosen value among the rejected ones: a rule further down may have taken it after all."""
    return replace(d, rejected=tuple(r for r in d.rejected if r.value != d.value))


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
    where = _bound(s, _sizing(wish))
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
        out["flash_attention"] = tree.flash_attention(s, sizing.kv_type)
    return out


def _bound(s: Situation, wished: Sizing) -> str:
    """What the wished sizing does not fit in."""
    limit = s.given("kv_cache_bytes")
    if limit is not None and memory.kv_bytes(s.card, wished) > limit * max(1, len(s.gpus)):
        each = " a GPU" if s.gpus else ""
        return f"the {size(limit)} of KV{each} that kv_cache_bytes allows"
    where = f"{size(s.host_budget)} of host memory"
    return f"{size(sum(s.gpu_budgets))} of device and {where}" if s.gpus else where


def _plan(s: Situation, wish: Decisions, sizing: Sizing, ceiling: Decisions | None = None) -> _Draft:
    """The plan of a sizing. `ceiling`: the levers of the plan that this one is a step down from; what it
    gives up is not spent on anything else."""
    inputs, card = s.inputs, s.card
    most_layers = ceiling["gpu_layers"].value if ceiling else None
    placed = s.place(sizing, s.set_cache_bytes, most_layers)
    levers = _decide(s, wish, sizing, placed)
    if ceiling is not None:
        levers = _lowered(levers, ceiling)
    cache = levers["kv_offload_bytes"].value or 0
    placed = s.place(sizing, cache, most_layers)
    request = RenderRequest(
        levers=levers,
        installation=inputs.installation,
        model_path=card.path or card.source,
        served_model=inputs.served_model,
        host=inputs.host,
        port=inputs.port,
        engine_args=tuple(s.profile.engine_args[inputs.engine.kind]),
        env=s.profile.env,
    )
    rendered = inputs.engine.render(request)
    wordless = {*rendered.not_expressible, *left_out.without_effect(s.given, bool(s.gpus))}
    plan = Plan(
        goal=s.goal,
        profile=s.profile.profile,
        model=summary.model(s, s.trained_context),
        machine=summary.machine(s),
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
            "model_choice": summary.choice(inputs.model_choice),
            "engine_choice": summary.choice(inputs.engine_choice),
            "left_out": {n: why for n, why in left_out.LEFT_OUT.items() if n not in levers},
            "environment": environment.explained(inputs, rendered.processes, {}),
        },
        not_expressible=tuple(sorted(wordless)),
        warnings=notices.notices(s, levers, placed, wordless),
        supervision=s.profile.supervision.model_dump(),
    )
    return _Draft(
        plan,
        findings=[
            *checks.neutral(s, levers),
            *own_checks.own(s),
            *limits.engine_limits(s, levers, sizing),
        ],
        shortage=remedies.memory_findings(s, sizing, placed),
        engines=_engines(s, plan, rendered),
    )


def _engines(s: Situation, plan: Plan, rendered: Rendered) -> list[Violation]:
    """What the engine itself refuses: its dialect, then its checks, each kind once."""
    seen = {v.code for v in rendered.violations}
    found = s.inputs.engine.check(plan, s.inputs.installation)
    return [*rendered.violations, *(v for v in found if v.code not in seen)]


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
    return min(sizing.slots, sizing.pool_tokens // max(1, min(s.request_tokens, sizing.pool_tokens)))
