"""What a plan says beside its levers: everything that is not refused and should be known."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.plan import Decision
from orchestrator.planning.llamacpp.situation import CANNOT_OFFLOAD, Placement, Situation
from orchestrator.planning.words import count, written

_CHANGE_ANSWERS = (
    "--rope-",
    "--yarn-",
    "--override-kv",
    "--lora",
    "--control-vector",
    "--grp-attn",
    "--context-shift",
)
"""Beginnings of llama.cpp's flags with which a model computes something else than it was trained to."""


def notices(
    s: Situation, levers: Mapping[str, Decision], placed: Placement, wordless: set[str]
) -> tuple[str, ...]:
    """Warnings of a plan, the one about changed answers first."""
    return (
        *_answers(s, levers),
        *_context(s, levers),
        *_model(s, placed),
        *_no_effect(s, wordless),
        *_machine(s),
    )


def _answers(s: Situation, levers: Mapping[str, Decision]) -> list[str]:
    out = []
    lossy = [f"{name}={written(d.value, name)}" for name, d in levers.items() if not d.lossless]
    if lossy:
        out.append(f"can change answers: {', '.join(lossy)}; --set lossless=true forbids it")
    raw = _raw_changes(s) if s.lossless else []
    if raw:
        out.append(f"{s.lossless_by}, and what engine_args or env set may change answers: {', '.join(raw)}")
    return out


def _raw_changes(s: Situation) -> list[str]:
    """Raw flags, and variables that stand for such flags, which change what the model computes."""
    extras = s.inputs.installation.extras
    named: dict[str, str] = {a: a for a in s.profile.engine_args[s.inputs.engine.kind] if a.startswith("-")}
    named |= {v: extras.get("variables", {}).get(v, "") for v in s.profile.env}
    return [word for word, flag in named.items() if flag.replace("_", "-").startswith(_CHANGE_ANSWERS)]


def _context(s: Situation, levers: Mapping[str, Decision]) -> list[str]:
    length = levers["max_model_len"].value
    if length >= s.request_tokens:
        return []
    what = f"a request of the workload has {s.request_tokens} tokens"
    if length >= s.longest:
        return [f"{what}, more than {length}: the model has no more"]
    return [f"{what}, more than max_model_len={length}: such a request is turned away"]


def _model(s: Situation, placed: Placement) -> list[str]:
    out, card = [], s.card
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
    return out


def _no_effect(s: Situation, wordless: set[str]) -> list[str]:
    values = []
    for name in sorted(wordless):
        lever, _, figure = name.partition(".")
        value = s.given(lever)
        if figure:
            value = value.get(figure) if isinstance(value, Mapping) else None
        if value is not None:
            values.append(f"{name}={written(value, name)}")
    return [f"without effect on {s.inputs.installation.name}: {', '.join(values)}"] if values else []


def _machine(s: Situation) -> list[str]:
    out = []
    gpus, threads = s.inputs.machine.gpus, s.given("threads")
    if gpus and not s.gpus and s.given("gpu_layers") != 0:
        names = ", ".join(dict.fromkeys(g.name for g in gpus))
        why = "other deployments hold what is asked for"
        if not s.can_offload:
            why = f"{CANNOT_OFFLOAD}; a llama-server built for it, named in engines.yaml, would use it"
        stay = "stays" if len(gpus) == 1 else "stay"
        out.append(f"{count(len(gpus), 'GPU')} ({names}) {stay} unused: {why}")
    if threads is not None and threads > max(1, s.usable_cores - 1):
        out.append(
            f"threads={threads} leaves none of {count(s.usable_cores, 'physical core')} free: "
            "waiting threads spin and stall the working ones"
        )
    return out
