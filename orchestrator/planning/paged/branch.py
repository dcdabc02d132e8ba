"""A goal's branch of the decision tree on vLLM and SGLang, top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.engines.base import Rendered, RenderRequest
from orchestrator.levers import LEVERS
from orchestrator.plan import Decision, EngineRef, Plan, Violation
from orchestrator.planning import checks, environment, summary
from orchestrator.planning.findings import Finding
from orchestrator.planning.paged import checks as own_checks
from orchestrator.planning.paged import choose, dtype, levers, notices, predictions, running, speculation
from orchestrator.planning.paged.left_out import IN_EFFECT, LEFT_OUT, WORDLESS
from orchestrator.planning.paged.remedies import Trial, settled
from orchestrator.planning.paged.situation import Situation
from orchestrator.planning.paged.sizing import Sizing, wished_context
from orchestrator.planning.paged.step_down import smaller
from orchestrator.planning.request import PlanInputs

Decisions = dict[str, Decision]


def make_plan(inputs: PlanInputs) -> Plan:
    """Decide every lever, check everything, predict what can be computed, and prepare one step down."""
    s = Situation(inputs)
    draft = _draft(s)
    if draft.refused:
        trial = Trial(
            fits=lambda change: choose.anything_fits(s.changed(change)),
            codes=lambda change: _draft(s.changed(change)).codes,
        )
        violations = settled(s, draft.findings, draft.shortage, draft.engines, draft.sizing, trial)
        told = notices.notices(s, draft.plan, draft.chosen)
        return replace(draft.plan, warnings=told, violations=tuple(dict.fromkeys(violations)))

    def passes(change: Mapping[str, Any], chosen: choose.Chosen) -> bool:
        return not _draft(s.changed(change), chosen).refused

    plan = replace(draft.plan, warnings=notices.notices(s, draft.plan, draft.chosen, passes))
    steps: dict[str, Any] = {}
    for causes, change in smaller(s, draft.sizing, draft.plan.levers):
        after = s.changed(change)
        chosen = choose.choose(after, draft.sizing.layout)
        length = draft.sizing.max_model_len
        if chosen.sizing.max_model_len > length:
            # what a smaller step frees stays free: memory was less than was thought
            change = {**change, "max_model_len": length}
            after = s.changed(change)
            chosen = choose.choose(after, draft.sizing.layout)
        lower = _draft(after, chosen, below=True)
        if not lower.refused:
            steps |= dict.fromkeys(causes, _stepped(lower.plan, plan, change).to_json())
    return replace(plan, steps_down=steps)


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan before its warnings, and before its refusals have remedies: ours, memory's and the engine's."""

    plan: Plan
    chosen: choose.Chosen
    findings: list[Finding]
    shortage: list[Finding]
    engines: list[Violation]

    @property
    def sizing(self) -> Sizing:
        return self.chosen.sizing

    @property
    def refused(self) -> bool:
        return bool(self.findings or self.shortage or self.engines)

    @property
    def codes(self) -> frozenset[str]:
        ours = (f.code for f in (*self.findings, *self.shortage))
        return frozenset((*ours, *(v.code for v in self.engines)))


def _draft(s: Situation, chosen: choose.Chosen | None = None, *, below: bool = False) -> Draft:
    """Everything decided and checked. `below` a plan that passed: what does not hang on the levers that are
    lowered is not asked again."""
    inputs = s.inputs
    chosen = chosen or choose.choose(s)
    z = chosen.sizing
    decided = _decide(s, chosen)
    request = RenderRequest(
        levers=decided,
        installation=inputs.installation,
        model_path=s.card.path or s.card.source,
        served_model=inputs.served_model,
        host=inputs.host,
        port=inputs.port,
        engine_args=(*s.needs.flags, *s.profile.engine_args[s.kind]),
        env={**s.needs.env, **s.profile.env},
        nodes=z.layout.nodes,
        device_indexes={g.uuid: g.index for g in inputs.machine.gpus},
    )
    rendered = inputs.engine.render(request)
    unset = [n for n in WORDLESS if not s.is_free(n) and s.given(n) not in IN_EFFECT.get(n, ())]
    wordless = {*rendered.not_expressible, *unset}
    plan = Plan(
        goal=s.goal,
        profile=s.profile.profile,
        model=summary.model(s, s.trained_context),
        machine=summary.machine(s, [g.uuid for g in z.layout.devices]),
        engine=EngineRef(
            inputs.installation.name, s.kind, inputs.installation.version, inputs.installation.captured
        ),
        levers=decided,
        predictions=predictions.predict(s, z),
        processes=rendered.processes,
        layout={
            "name": inputs.name,
            "kind": "single",
            "model_choice": summary.choice(inputs.model_choice),
            "engine_choice": summary.choice(inputs.engine_choice),
            "left_out": {n: why for n, why in LEFT_OUT.items() if n not in decided},
            "environment": environment.explained(
                inputs, rendered.processes, {n: s.needs.why[n] for n in s.needs.env}
            ),
            "published_left_out": environment.left_out(rendered.processes, s.needs.left_out),
            "devices": [g.uuid for g in z.layout.devices],
            "words": choose.words(z.layout),
            "speed_at_requests": choose.at_once(s, z),
            "speed_band": [z.estimate.low, z.estimate.high] if z.estimate is not None else None,
        },
        not_expressible=tuple(sorted(wordless)),
        supervision=_supervision(s),
    )
    return Draft(
        plan,
        chosen,
        findings=[] if below else [*checks.neutral(s, decided, copies=True), *own_checks.own(s, chosen)],
        shortage=own_checks.memory(s, z),
        engines=_engines(s, plan, rendered),
    )


def _supervision(s: Situation) -> dict[str, Any]:
    """The profile's block, the same in every draft of a plan."""
    if "supervision" not in s.known:
        s.known["supervision"] = s.profile.supervision.model_dump()
    found: dict[str, Any] = s.known["supervision"]
    return found


def _engines(s: Situation, plan: Plan, rendered: Rendered) -> list[Violation]:
    """What the engine itself refuses: its dialect, then its checks, each kind once."""
    seen = {v.code for v in rendered.violations}
    found = s.inputs.engine.check(plan, s.inputs.installation)
    return [*rendered.violations, *(v for v in found if v.code not in seen)]


def _decide(s: Situation, chosen: choose.Chosen) -> Decisions:
    """Every lever, from the layout down."""
    z = chosen.sizing
    d = _layout(s, chosen)
    d["max_model_len"] = levers.context(s, z, wished_context(s))
    d["max_num_seqs"] = levers.seqs(s, z)
    d["max_num_batched_tokens"] = levers.batch(s, z)
    d["chunked_prefill"] = levers.chunked_prefill(s)
    d["long_prefill_token_threshold"] = levers.long_prefill_threshold(s, z)
    if not s.on_cpu:
        d["gpu_memory_utilization"] = levers.utilization(s, z)
    d["kv_cache_dtype"] = levers.kv_type(s, z.kv_dtype)
    d["prefix_caching"] = levers.prefix_caching(s)
    d["kv_offload_bytes"] = levers.kv_offload(s, z)
    d["speculative"] = speculation.told(s, chosen.speculative, z.layout, z.estimate)
    d["quantization"] = levers.quantization(s)
    d["dtype"] = dtype.decide(s)
    d["cuda_graph"] = running.graphs(s, z)
    d["async_scheduling"] = running.async_scheduling(s, chosen.speculative.value, z)
    d["scheduling_policy"] = running.scheduling(s)
    d["max_queued_requests"] = running.queue(s, z)
    d["stream_interval"] = running.stream_interval(s)
    d["trust_remote_code"] = running.trust_remote_code(s)
    optional = {
        "performance_mode": running.performance_mode(s, z),
        "shutdown_timeout_s": running.shutdown(s),
        "distributed_executor_backend": running.executor(s, z),
        "threads": running.threads(s),
        "tool_call_parser": running.parser(s, "tool_call_parser"),
        "reasoning_parser": running.parser(s, "reasoning_parser"),
    } | levers.pool(s, z)
    d |= {name: x for name, x in optional.items() if x is not None}
    # what somebody wrote is never dropped, whether this engine has a word for it or not
    for name in LEVERS:
        if name not in d and s.given(name) is not None:
            d[name] = s.as_given(name, lossless=LEVERS[name].lossless or name == "cache_reuse_tokens")
    stock = _stock(s)
    for name in d:
        if name not in stock:
            stock[name] = s.inputs.engine.stock(name, s.inputs.installation, gpu=s.gpu)
    return {name: _marked(x, stock[name]) for name, x in d.items()}


def _layout(s: Situation, chosen: choose.Chosen) -> Decisions:
    """The sizes of the layout: the largest carries the reason and the layouts that were not taken."""
    z = chosen.sizing.layout
    sizes: dict[str, Any] = {
        "tensor_parallel_size": z.tensor,
        "pipeline_parallel_size": z.pipeline,
        "data_parallel_size": z.data,
    }
    if s.card.experts:
        sizes |= {"expert_parallel": z.expert, "attention_data_parallel_size": z.attention_data}
    main = max(
        sizes, key=lambda n: (sizes[n] if not isinstance(sizes[n], bool) else 0, -list(sizes).index(n))
    )
    out: Decisions = {}
    for name, value in sizes.items():
        if not s.is_free(name):
            out[name] = s.as_given(name)
        elif name == main:
            out[name] = Decision(value, chosen.reason, chosen.rule, rejected=choose.rejected(chosen))
        else:
            out[name] = Decision(value, levers.why_size(s, name, z), chosen.rule)
    if z.devices:
        why = "the devices of this layout, those with the fastest links together"
        out["device_ids"] = s.as_given("device_ids") if not s.is_free("device_ids") else Decision(
            [g.uuid for g in z.devices], why, "devices_of_the_layout",
            rejected=tuple(levers.devices_left_out(s, z)),
        )  # fmt: skip
    return out


def _stock(s: Situation) -> dict[str, Any]:
    """The engine's own defaults on this kind of GPU as far as they were asked for."""
    key = ("stock", (s.gpu.name, s.gpu.memory_bytes) if s.gpu is not None else None)
    kept: dict[str, Any] = s.known.setdefault(key, {})
    return kept


def _marked(d: Decision, stock: Any) -> Decision:
    """With whether it is the engine's own default, and without the chosen value among the rejected ones."""
    others = tuple(r for r in d.rejected if r.value != d.value) if d.rejected else ()
    return Decision(d.value, d.reason, d.rule, d.lossless, d.value == stock, others)


def _stepped(plan: Plan, before: Plan, change: Mapping[str, Any]) -> Plan:
    """A step down as it stands in the plan it belongs to: its own reasons where it differs."""
    out = {}
    for name, d in plan.levers.items():
        was = before.levers.get(name)
        if name in change or (was is not None and was.value != d.value):
            d = replace(d, reason="one step down, after memory ran out", rule="step_down")
        out[name] = d
    return replace(plan, levers=out, warnings=before.warnings)
