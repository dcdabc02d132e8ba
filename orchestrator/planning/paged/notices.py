"""What a plan on vLLM or SGLang says beside its levers: what is not refused and should be known."""

from __future__ import annotations

import math
from collections.abc import Mapping

from orchestrator.model_families import variables
from orchestrator.model_families.versions import at_least
from orchestrator.plan import Plan
from orchestrator.planning.paged import more_at_once, parallelism
from orchestrator.planning.paged.choose import Chosen
from orchestrator.planning.paged.situation import GIB, Situation
from orchestrator.planning.paged.sizing import Sizing
from orchestrator.planning.words import count, size, written

CROWDED = 2
"""So many times the KV pool's tokens in requests at once are said."""

LEAST_SLACK = GIB // 2
"""Device memory outside of the engine's share for what its own estimate of graphs misses: with 0.48 GiB (0.98
of a 24 GB card, vLLM 0.29) capture ran out of memory, with 0.72 it did not."""


def notices(
    s: Situation, plan: Plan, chosen: Chosen, passes: more_at_once.Passes | None = None
) -> tuple[str, ...]:
    """Warnings of a plan, the one about changed answers first. `passes` where the plan itself does."""
    z = chosen.sizing
    return (
        *_answers(plan),
        *_captured(s),
        *_version(s),
        *_context(s, z),
        *_requests(s, z),
        *(more_at_once.waiting(s, z, passes) if passes is not None else ()),
        *more_at_once.apart(s, chosen),
        *_model(s, z),
        *_devices(s, z),
        *_graphs(s, z),
        *_no_effect(s, plan),
        *_variables(s),
        *s.inputs.engine.warnings(plan, s.inputs.installation),
    )


def _answers(plan: Plan) -> list[str]:
    lossy = [f"{name}={written(d.value, name)}" for name, d in plan.levers.items() if not d.lossless]
    return [f"can change answers: {', '.join(lossy)}; --set lossless=true forbids it"] if lossy else []


def _captured(s: Situation) -> list[str]:
    if not s.inputs.installation.captured:
        return []
    extras = s.inputs.installation.extras
    table = extras["table"] if extras.get("table_note") else s.version_text
    near = "" if table == s.version_text else f", the nearest known version below {s.version_text}"
    return [f"{s.kind} is not installed here: flags are those that {table} is known to take{near}"]


def _version(s: Situation) -> list[str]:
    lowest = s.family.min_version(s.kind) if s.family is not None else None
    if lowest is None or at_least(s.version_text, lowest):
        return []
    known = f"{s.kind} {lowest}" if lowest != "nightly" else f"a {s.kind} newer than the last release"
    return [f"{s.card.name} is published to run from {known} on, and this is {s.version_text}"]


def _context(s: Situation, z: Sizing) -> list[str]:
    if z.max_model_len >= s.request_tokens:
        return []
    what = f"a request of the workload has {s.request_tokens} tokens"
    if z.max_model_len >= s.trained_context:
        return [f"{what}, more than {z.max_model_len}: the model has no more"]
    return [f"{what}, more than max_model_len={z.max_model_len}: such a request is turned away"]


def _requests(s: Situation, z: Sizing) -> list[str]:
    """More requests at once than the pool holds: running ones lose their KV and are computed again."""
    each = max(1, min(s.request_tokens, z.max_model_len))
    if not z.tokens or z.max_num_seqs * each < CROWDED * z.tokens:
        return []
    lose = "takes KV away from running ones" if s.kind == "vllm" else "retracts running ones"
    return [
        f"max_num_seqs={z.max_num_seqs} requests of {each} tokens, and the KV pool holds {z.tokens}: about "
        f"{max(1, z.tokens // each)} run, and more at once {lose}, which are computed again; "
        "--set max_num_seqs=auto"
    ]


def _model(s: Situation, z: Sizing) -> list[str]:
    out, card = [], s.card
    if s.goal == "agent":
        if card.kv_heads == card.heads and card.mla_kv_lora_rank is None and card.hybrid is None:
            out.append(
                "every head of this model keeps its own KV (MHA): a GQA model holds far longer contexts"
            )
        if card.hybrid is not None:
            out.append(
                "a hybrid model: beginnings are reused in whole blocks of its state, and 8-bit KV saves less"
            )
    if z.tokens is None:
        out.append("how many tokens the KV pool holds is unknown before the start: the engine finds out")
    if not card.class_known:
        named = card.architectures[0] if card.architectures else card.architecture
        out.append(f"{named} is not known here: figures follow its configuration's common keys")
    if card.weights_estimated:
        out.append("weights are estimated from the configuration")
    if card.format == "config":
        out.append("a configuration without weights: this can be planned, not launched")
    out += list(z.kv.notes)
    if s.family is not None:
        out += s.family.notes_for(s.kind, tools=s.goal == "agent" or not s.is_free("tool_call_parser"))
    return out


def _devices(s: Situation, z: Sizing) -> list[str]:
    out = []
    gpus = s.inputs.machine.gpus
    if gpus and s.on_cpu:
        out.append(f"{count(len(gpus), 'GPU')} stay unused: {s.inputs.installation.name} computes on the CPU")
        return out
    reasons: dict[str, int] = {}
    for x in s.usable.left_out:
        reasons[x.why] = reasons.get(x.why, 0) + 1
    out += [f"{count(n, 'GPU')} left out: {why}" for why, n in reasons.items()]
    idle = parallelism.idle_reason(s.card, s.usable, z.layout, s.kind, s.version_text)
    if idle is not None and s.goal != "edge":
        out.append(idle)
    if z.layout.nodes > 1:
        how = "Ray must run on all of them first" if s.kind == "vllm" else "HEAD is the first one's address"
        out.append(f"the layout takes {z.layout.nodes} nodes: {how}")
    if s.gpu is not None and s.gpu.vendor == "amd":
        out.append("AMD devices are planned from a machine file: nothing here measured them")
        if s.kind == "vllm" and "nvfp4" in (s.card.quantization or ""):
            out.append(
                "NVFP4 is emulated on AMD, weights are unpacked in every step: MXFP4 or FP8 are faster"
            )
    return out


def _graphs(s: Situation, z: Sizing) -> list[str]:
    # what the driver and a display take of an empty card is not others'
    held = z.budget.free < z.budget.total * 0.9
    there = z.budget.free if held else z.budget.total
    rest = there - z.budget.requested
    if s.kind != "vllm" or s.gpu is None or not z.graph or rest >= LEAST_SLACK:
        return []
    less = max(0.01, math.floor(100 * (there - LEAST_SLACK) / z.budget.total) / 100)
    return [
        f"{size(rest)} of a device stay outside the engine's share, and recording CUDA graphs has run out of "
        f"memory there: --set gpu_memory_utilization={less:g}, or cuda_graph=off"
    ]


def _no_effect(s: Situation, plan: Plan) -> list[str]:
    values = []
    for name in plan.not_expressible:
        lever, _, figure = name.partition(".")
        value = s.given(lever)
        if figure:
            value = value.get(figure) if isinstance(value, Mapping) else None
        if value is not None:
            values.append(f"{name}={written(value, name)}")
    return [f"without effect on {s.inputs.installation.name}: {', '.join(values)}"] if values else []


def _variables(s: Situation) -> list[str]:
    """Variables that somebody set for vLLM and that it does not have: it says so in its log, and goes on."""
    has = s.inputs.installation.extras
    if s.kind != "vllm" or "variables" not in has:
        return []
    unsure = has.get("variables_unsure", ())
    _, unknown = variables.known(s.profile.env, s.version_text, has["variables"], unsure)
    return [f"env: {name} is set, and {why}" for name, why in unknown.items()]
