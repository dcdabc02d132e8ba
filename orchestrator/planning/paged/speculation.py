"""Guessing tokens: which way pays for a model, an engine, a load and a goal, and what it costs.

Guesses are checked by the model itself, so answers stay as they are: every way here is lossless. A way pays
while decoding leaves arithmetic unused, that is at few requests; figures and their sources are in
`speculation.json`. Nothing is fetched: a head that is only on the hub is named, with the command to fetch it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.model_card.card import ModelCard
from orchestrator.model_families.families import Draft, Family
from orchestrator.model_families.versions import at_least
from orchestrator.plan import Decision, Rejected
from orchestrator.planning.paged import latency
from orchestrator.planning.paged.latency import Estimate
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.weights import weights_per_gpu

if TYPE_CHECKING:
    from orchestrator.planning.paged.situation import Situation

Kind = Literal["vllm", "sglang"]
Way = Literal["trained", "lookup", "draft_model"]

_WITH_A_GAIN = frozenset({"mtp_in_checkpoint", "trained_head", "draft_model"})

LOOKUPS = frozenset({"ngram", "ngram_gpu", "suffix"})
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "draft_model": ("standalone",),
    "eagle": ("nextn",),
    "mtp": ("nextn", "eagle", "deepseek_mtp"),
}
_ONE_DEVICE = Layout()


@dataclass(frozen=True, slots=True)
class SpeculationCost:
    """What a way to guess takes on one device beside the model: bytes of weights that the model's own do not
    hold (None: not known), bytes of KV a token, and tokens guessed at once. `mtp`: the checkpoint's own
    prediction layers are loaded, whose weights count with the model's."""

    weights_bytes: int
    kv_bytes_per_token: int
    tokens: int
    mtp: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """What a choice depends on. `requests` decode at once in one copy; `methods` are those the installation
    lists, by the engine's own names; `packages` what is installed beside it (a version, None: not there);
    `repeats` whether answers repeat the conversation; `local` paths by hub id of models on this machine;
    `captured` where no engine is installed."""

    card: ModelCard
    family: Family | None
    kind: Kind
    version: str
    device: str
    methods: frozenset[str]
    packages: Mapping[str, str | None]
    goal: str
    requests: int
    repeats: bool
    draft: ModelCard | None = None
    layout: Layout = _ONE_DEVICE
    local: Mapping[str, str] = field(default_factory=dict)
    captured: bool = False


def decide(s: Situation, layout: Layout) -> Decision:
    """The lever `speculative` of a plan on a layout. What somebody set is kept; a draft model goes by its
    file."""
    draft = s.inputs.draft
    if not s.is_free("speculative"):
        d = s.as_given("speculative")
        if draft is None or draft.path is None or not isinstance(d.value, Mapping):
            return d
        return Decision({**d.value, "model": draft.path}, d.reason, d.rule)
    workload, extras = s.profile.workload, s.inputs.installation.extras
    return choose(
        s.card,
        s.family,
        kind="sglang" if s.kind == "sglang" else "vllm",
        version=s.version_text,
        device=s.device,
        spec_methods=extras.get("spec_methods") or (),
        dependencies=extras.get("dependencies") or {},
        goal=s.goal,
        concurrency=workload.concurrency,
        max_num_seqs=s.given("max_num_seqs"),
        repetitive=s.goal == "agent" or workload.turns > 1,
        draft_card=draft,
        layout=layout,
        captured=s.inputs.installation.captured,
    )


def told(s: Situation, guess: Decision, layout: Layout, estimate: Estimate | None) -> Decision:
    """A decision with what it brings on the layout that was taken."""
    if guess.rule not in _WITH_A_GAIN or estimate is None:
        return guess
    n, times = at_once(s.profile.workload.concurrency, s.given("max_num_seqs"), layout), estimate.speedup
    rate = latency.acceptance(guess.value)
    how = "as published for such drafts"
    if rate is not None:
        how = f"{rate:.0%} of first guesses are right as published, and checking them all is counted"
    reason = f"{guess.reason}; about {times:.1f} times faster at {n} at once ({how})"
    return replace(guess, reason=reason)


def choose(
    card: ModelCard,
    family: Family | None,
    *,
    kind: Kind,
    version: str,
    goal: str,
    concurrency: int,
    max_num_seqs: int | None = None,
    device: str = "cuda",
    spec_methods: Sequence[str] = (),
    dependencies: Mapping[str, str | None] | None = None,
    repetitive: bool = False,
    draft_card: ModelCard | None = None,
    layout: Layout = _ONE_DEVICE,
    local: Mapping[str, str] | None = None,
    captured: bool = False,
) -> Decision:
    """The best way that pays, with what was not taken and why. `concurrency` counts over all copies."""
    case = Case(
        card,
        family,
        kind,
        version,
        device,
        frozenset(m.lower() for m in spec_methods),
        dependencies or {},
        goal,
        at_once(concurrency, max_num_seqs, layout),
        repetitive,
        draft_card,
        layout,
        local or {},
        captured,
    )
    rejected: list[Rejected] = []
    taken: tuple[Any, str, str] | None = None
    for value, why_not, reason, rule in _ways(case):
        if why_not is not None:
            rejected.append(Rejected(value, why_not))
        elif taken is None:
            taken = value, reason, rule
        else:
            rejected.append(Rejected(value, f"{taken[0]['method']} comes first: one way at a time"))
    if taken is None:
        return Decision("off", *_off(case), rejected=(*_to_bring(case), *rejected))
    value, reason, rule = taken
    off = Rejected("off", "one token a step, while arithmetic is left unused at this load")
    return Decision(
        value, reason, rule, rejected=(off, *rejected) if rule != "answers_repeat" else tuple(rejected)
    )


def at_once(concurrency: int, max_num_seqs: int | None, layout: Layout) -> int:
    """Requests that decode at once in one copy."""
    copies = layout.data * layout.attention_data
    return max(1, math.ceil(min(concurrency, max_num_seqs or concurrency) / copies))


def gain(requests: int) -> float:
    """Times the speed of one request that a good draft brings at so many at once; below 1 it costs."""
    points = [(p["requests"], p["times"]) for p in _table()["gain"]]
    if requests >= points[-1][0]:
        return float(points[-1][1])
    for (a, at_a), (b, at_b) in itertools.pairwise(points):
        if requests <= b:
            share = (math.log(max(requests, a)) - math.log(a)) / (math.log(b) - math.log(a))
            return float(at_a + share * (at_b - at_a))
    raise AssertionError("the points rise")


def cost(s: Situation, guess: Decision, layout: Layout) -> SpeculationCost | None:
    """What a decision takes on one device of a layout, None where nothing is guessed."""
    return cost_of(
        guess.value, s.card, s.inputs.draft, layout, kind="sglang" if s.kind == "sglang" else "vllm"
    )


def cost_of(
    value: Any, card: ModelCard, draft: ModelCard | None, layout: Layout, *, kind: Kind = "vllm"
) -> SpeculationCost | None:
    """As `cost`, of a lever's value. KV counts 2 bytes an element; the draft is split as the model is (vLLM
    and SGLang take the model's tensor size for it). A head whose card is not here counts no weights.

    Source: vLLM 0.33.0 config/speculative.py:1862 (draft_tensor_parallel_size), `draft.weights_bytes`.
    """
    if not isinstance(value, Mapping):
        return None
    method = str(value.get("method"))
    tokens = int(value.get("num_tokens") or _default_tokens(method, card, kind))
    if method in LOOKUPS:
        return SpeculationCost(0, 0, tokens)
    if method.endswith("mtp") and draft is None:
        return SpeculationCost(0, _kv_bytes(card, layout) * card.mtp_layers, tokens, mtp=True)
    if draft is None:
        return SpeculationCost(0, _kv_bytes(card, layout), tokens)
    split = Layout(tensor=int(value.get("draft_tensor_parallel_size") or layout.tensor))
    weights = weights_per_gpu(draft, split, kind=kind).worst
    return SpeculationCost(weights, _kv_bytes(draft, split) * draft.layers, tokens)


def why_not(kind: Kind, method: str, device: str, layout: Layout) -> str | None:
    """Why an engine cannot guess so on a device and a layout, None where it can.

    Source: SGLang 0.5.23 srt/arg_groups/validation_hook.py:119, speculative_hook.py:1079, 1287.
    """
    if kind == "sglang":
        if device == "cpu":
            return "SGLang's CPU kernels have no drafting"
        if method in ("ngram", "suffix") and device not in ("cuda", "xpu"):
            return "SGLang looks guesses up on CUDA and XPU only"
        if layout.pipeline > 1:
            return "SGLang has no speculation with pipeline stages"
        if layout.attention_data > 1 and method in ("ngram", "draft_model"):
            return f"SGLang has no {method} guesses with attention data parallelism"
    elif device == "cpu" and method not in LOOKUPS:
        return "a CPU has no spare arithmetic for a draft's own passes"
    elif layout.pipeline > 1 and method not in LOOKUPS:
        return "a draft waits for every pipeline stage: no gain is known"
    return None


def _ways(c: Case) -> list[tuple[dict[str, Any], str | None, str, str]]:
    """Every way there is for this model, best first: value, why it is not for now, reason, rule."""
    out = [_trained(c, d) for d in (c.family.drafts(c.kind, c.version) if c.family else ())]
    if c.draft is not None:
        out.append(_small_model(c, c.draft))
    if c.kind == "vllm":
        out.append(_lookup(c, "suffix", _table()["lookup_tokens"]["suffix"]["num_tokens"]))
    out.append(_lookup(c, "ngram", None))
    return out


def _trained(c: Case, d: Draft) -> tuple[dict[str, Any], str | None, str, str]:
    path = c.local.get(d.model) if d.model is not None else c.card.path or c.card.source
    value: dict[str, Any] = {"method": d.method, **_steps(c, d)}
    if d.model is not None:
        value["model"] = path or d.model
    elif d.give_target:
        value["model"] = path
    why = _blocked(c, d.method, "trained")
    if why is None and d.model is None:
        why = _no_layers(c.card)
    if why is None and d.model is not None and path is None:
        setting = (
            f"--set 'speculative={{method: {d.method}, model: {d.model}, num_tokens: {value['num_tokens']}}}'"
        )
        why = f"it is not on this machine: llmserve models pull {d.model}, then {setting}"
    where = "in the checkpoint: no model beside it" if d.model is None else "trained for this very model"
    reason = f"{d.method} is {where}; lossless"
    return value, why, reason, "mtp_in_checkpoint" if d.model is None else "trained_head"


def _to_bring(c: Case) -> list[Rejected]:
    """What would guess for this model if somebody brought it, where the load lets it."""
    out: list[tuple[str, Way, str, int, str]] = []
    if not any(d.model is not None for d in (c.family.drafts(c.kind, c.version) if c.family else ())):
        out.append(("eagle3", "trained", "HEAD", 3, "a head that was trained for this very model (EAGLE-3)"))
    if c.draft is None:
        words = f"a model of the same {c.card.vocab_size} words, and a quarter of the size at most"
        out.append(("draft_model", "draft_model", "MODEL", 4, words))
    return [
        Rejected(
            {"method": method},
            f"none is here; {what} would do: --set 'speculative={{method: {method}, model: {name}, "
            f"num_tokens: {tokens}}}'",
        )
        for method, way, name, tokens, what in out
        if _blocked(c, method, way) is None
    ]


def _small_model(c: Case, draft: ModelCard) -> tuple[dict[str, Any], str | None, str, str]:
    steps = _sglang_steps(c.card) if c.kind == "sglang" else {"num_tokens": 4}
    value = {"method": "draft_model", "model": draft.path or draft.source, **steps}
    why = _blocked(c, "draft_model", "draft_model")
    if why is None and draft.vocab_size != c.card.vocab_size:
        why = f"{draft.name} has {draft.vocab_size} words and {c.card.name} {c.card.vocab_size}"
    if why is None and draft.weights_bytes * 4 > c.card.weights_bytes:
        why = f"{draft.name} is more than a quarter of {c.card.name}: its own passes cost what they gain"
    return value, why, f"{draft.name} has the same vocabulary and is small beside it; lossless", "draft_model"


def _lookup(c: Case, method: str, tokens: int | None) -> tuple[dict[str, Any], str | None, str, str]:
    table = _table()["lookup_tokens"]
    if c.kind == "sglang":
        figures = {"num_tokens": table["sglang"]["num_tokens"]}
    elif tokens is not None:
        figures = {"num_tokens": tokens}
    else:
        size = (
            "cpu" if c.device == "cpu" else "few" if c.requests <= table["few"]["up_to_requests"] else "many"
        )
        figures = {k: v for k, v in table[size].items() if k != "up_to_requests"}
    why = _blocked(c, method, "lookup")
    if why is None and method == "suffix" and not c.packages.get("arctic-inference"):
        why = "it needs the package arctic-inference beside vLLM, which is not installed here"
        if not c.captured:
            why = "the package arctic-inference is not in the engine's environment"
    if why is None and c.kind == "vllm" and c.device == "cpu":
        why = (
            "on busy cores vLLM's look-up was seen to slow every step many times: set it where cores are free"
        )
    if why is None and not c.repeats:
        why = "pays where answers repeat the conversation; free prose gains nothing"
    reason = "tool calls and edits repeat the conversation in long pieces; needs no memory, and is lossless"
    if c.kind == "vllm" and c.device != "cpu" and (method == "suffix" or not at_least(c.version, "0.32")):
        reason += "; it turns async scheduling off"
    return {"method": method, **figures}, why, reason, "answers_repeat"


def _blocked(c: Case, method: str, way: Way) -> str | None:
    """Why the engine or the load forbids a way."""
    names = (method, *_ALIASES.get(method, ()))
    listed = not c.methods or any(n in c.methods for n in names)
    lowest = _table()["since"].get(c.kind, {}).get(method)
    gone = _table()["until"].get(c.kind, {}).get(method)
    if not listed or (gone is not None and at_least(c.version, gone)):
        return f"{c.kind} {c.version} has no {method}"
    if lowest is not None and not at_least(c.version, lowest):
        return f"{method} runs from {c.kind} {lowest} on, this is {c.version}"
    if c.card.encoder_decoder:
        return "an encoder's model has no drafts"
    limit = _table()["most_requests"][way].get(c.goal, 0)
    if not limit:
        return "full batches leave no spare arithmetic to check guesses"
    if c.requests > limit:
        return f"{c.requests} at once leave too little arithmetic: up to {limit} for this goal"
    return why_not(c.kind, method, c.device, c.layout)


def _no_layers(card: ModelCard) -> str | None:
    if not card.mtp_layers:
        return f"{card.name} says of no layers that predict ahead"
    if card.weight_groups and not card.weight_groups.get("mtp"):
        return "the configuration names prediction layers, and the files hold none"
    return None


def _steps(c: Case, d: Draft) -> dict[str, Any]:
    """Tokens guessed at once; on vLLM with MTP a multiple of the checkpoint's layers (0.33.0
    config/speculative.py:1604), and no more than those where many requests share the arithmetic."""
    if c.kind == "sglang":
        return _sglang_steps(c.card)
    layers = max(1, c.card.mtp_layers)
    tokens = d.tokens or (layers if d.method == "mtp" else 3)
    if d.method == "mtp" and d.model is None:
        tokens = layers if c.requests > 8 else tokens
        tokens = max(tokens // layers * layers, min(tokens, layers))
    return {"num_tokens": tokens}


def _sglang_steps(card: ModelCard) -> dict[str, int]:
    table = _table()["sglang_steps"]
    steps, topk, tokens = table.get(card.architecture, table["else"])
    return {"num_tokens": tokens, "num_steps": steps, "topk": topk}


def _default_tokens(method: str, card: ModelCard, kind: Kind) -> int:
    """What the engine guesses where nobody said."""
    if method == "suffix":
        return int(_table()["lookup_tokens"]["suffix"]["num_tokens"])
    if kind == "sglang":
        return 12 if method == "ngram" else _sglang_steps(card)["num_tokens"]
    return max(1, card.mtp_layers) if method.endswith("mtp") else 3


def _off(c: Case) -> tuple[str, str]:
    """Reason and rule of guessing nothing."""
    if c.goal == "throughput":
        return "full batches leave no spare arithmetic to check guesses", "no_spare_arithmetic"
    if c.kind == "sglang" and c.device == "cpu":
        return "SGLang's CPU kernels have no drafting", "engine_has_none"
    most = _table()["most_requests"]["trained"].get(c.goal, 0)
    if c.requests > most:
        slower = f"about {gain(c.requests):.1f} times the speed at best"
        return f"{c.requests} requests at once leave too little arithmetic ({slower})", "no_spare_arithmetic"
    return "no trained draft is here, and free prose gains nothing from look-up", "no_draft_here"


def _kv_bytes(card: ModelCard, layout: Layout) -> int:
    """Bytes of KV that one layer keeps for a token on one device, at 2 bytes an element."""
    if card.mla_kv_lora_rank:
        return 2 * (card.mla_kv_lora_rank + (card.mla_qk_rope_head_dim or 0))
    heads = max(1, card.kv_heads // layout.tensor)
    return 2 * heads * (card.head_dim + (card.value_head_dim or card.head_dim))


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((Path(__file__).parent / "speculation.json").read_text("utf-8"))
    return data
