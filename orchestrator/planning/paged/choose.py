"""Which layout: every legal one is sized, those that fit are ranked by the goal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.plan import Decision, Rejected
from orchestrator.planning.paged import parallelism, sizing, speculation
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.situation import Situation
from orchestrator.planning.paged.sizing import Sizing
from orchestrator.planning.words import size

NEAR = 1.1
"""Within this factor of the best the layout with fewer devices is taken."""

NEAR_THROUGHPUT = 1.05
"""Within this factor of the most tokens layouts count as equal."""

STAGES_PAY = 1.2
"""What pipeline stages must bring: they leave bubbles, and one request is no quicker."""

STAGES_WITH_COPIES_PAY = 1.5
"""What stages must bring whose devices also copy attention: no published run has both on one machine."""

APART_PAYS = 1.2
"""What deployments of their own must bring to be told of."""

TOLD = 6
"""Layouts that a plan shows with why they were not taken."""

SATURATION = 256
"""Requests at once, per device, that are offered where layouts are compared for throughput; each takes what
its pool holds. 256 is where vLLM's own default lay."""

RIVALS = 3
"""Layouts that are estimated at the workload's own concurrency, too."""


@dataclass(frozen=True, slots=True)
class Apart:
    """So many deployments, each with a layout of its own, and the tokens a second of all."""

    deployments: int
    layout: Layout
    tokens_per_s: float
    here: float
    """What the one that was taken makes when full."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The layout that was taken, why, why not the nearest others, and deployments apart that do better."""

    sizing: Sizing
    speculative: Decision
    reason: str
    rule: str
    rejected: tuple[tuple[Layout, str], ...]
    apart: Apart | None = None


@dataclass(slots=True)
class _Guesses:
    """How tokens are guessed on each layout: what it depends on is asked once."""

    s: Situation
    known: dict[Any, Decision] = field(default_factory=dict)

    def on(self, layout: Layout) -> Decision:
        s = self.s
        key: tuple[Any, ...] = (layout.pipeline, layout.data, layout.attention_data)
        known = self.known
        if s.is_free("speculative"):
            # the same in every draft of the plan; of a layout it looks at these, see `speculation.why_not`
            load = speculation.at_once(s.profile.workload.concurrency, s.given("max_num_seqs"), layout)
            split = layout.pipeline > 1, layout.attention_data > 1
            key, known = ("guess", split, load, s.inputs.draft is None), s.known
        if key not in known:
            known[key] = speculation.decide(s, layout)
        found: Decision = known[key]
        return found


def choose(s: Situation, only: Layout | None = None) -> Chosen:
    """The best layout that fits, else the one with most room, which does not; `only` where one is decided."""
    guesses = _Guesses(s)
    layouts = [only] if only is not None else _layouts(s)
    sized: list[Sizing] = []
    heavy = {x: weights for x in layouts if (weights := sizing.overweight(s, x))}
    # where no layout is light enough, the lightest tells what is short
    light = [x for x in layouts if x not in heavy] or [min(layouts, key=lambda x: (heavy[x], x.world))]
    for group in _in_turn(s, light):
        sized += [sizing.size(s, x, speculation.cost(s, guesses.on(x), x)) for x in group]
        if any(z.fits for z in sized):
            break
    fitting = [z for z in sized if z.fits]
    if not fitting:
        best = max(sized, key=lambda z: (min(z.kv_bytes, z.most_kv_bytes), -z.layout.world))
        why = "none that is legal holds the model and its KV"
        return Chosen(best, guesses.on(best.layout), why, "nothing_fits", ())
    if s.goal == "latency":
        fitting = _without_slow_links(fitting)
    rated = [_rated(s, z, guesses.on(z.layout).value) for z in fitting]
    if len(layouts) == 1:
        best, why, rule = rated[0], "one device, or a CPU: nothing to spread over", "only_layout"
        if _given(s):
            why = "the levers that were set leave one layout"
    else:
        best, why, rule = _best(s, rated)
    costs = parallelism.price(best.layout)
    if costs is not None:
        why = f"{why}; its price: {costs}"
    apart, full = _apart(s, rated, best), best
    guess = guesses.on(best.layout)
    best = sizing.estimated(s, best, at_once(s, best), guess.value)
    why += _below_full(s, rated, best, guesses)
    by_layout, measured = {z.layout: z for z in rated}, {z.layout: z for z in sized}
    told = _rivals_first(s, [x for x in layouts if x != best.layout], measured, by_layout)[:TOLD]
    rejected = tuple(
        (
            x,
            _overweight(heavy[x], best)
            if x in heavy
            else _why_not(s, x, measured.get(x), by_layout.get(x), full),
        )
        for x in told
    )
    return Chosen(best, guess, why, rule, rejected, apart)


def _rivals_first(
    s: Situation, layouts: list[Layout], measured: dict[Layout, Sizing], rated: dict[Layout, Sizing]
) -> list[Layout]:
    """Layouts that were compared, the best first; then those that fit; those that do not come last."""

    def place(x: Layout) -> tuple[int, float]:
        z = rated.get(x)
        if z is not None:
            return 0, 0.0 if z.estimate is None else -_speed(z) if s.goal == "throughput" else _whole(s, z)
        return (1 if x in measured and measured[x].fits else 2 if x not in measured else 3), 0.0

    return sorted(layouts, key=place)


def _apart(s: Situation, rated: list[Sizing], best: Sizing) -> Apart | None:
    """Deployments of their own on parts of the devices, where together they make far more tokens: vLLM makes
    no whole copies of a model with experts."""
    if s.goal != "throughput" or s.kind != "vllm" or not s.card.experts or best.estimate is None:
        return None

    def together(z: Sizing) -> float:
        return _speed(z) * (len(s.gpus) // z.layout.world)

    most = max((z for z in rated if z.layout.world * 2 <= len(s.gpus)), key=together, default=None)
    if most is None or together(most) < APART_PAYS * _speed(best):
        return None
    return Apart(len(s.gpus) // most.layout.world, most.layout, together(most), _speed(best))


def _in_turn(s: Situation, layouts: list[Layout]) -> list[list[Layout]]:
    """Layouts in groups: one is looked at only where nothing of those before it fits. The fewest devices come
    first for the lowest cost, one pool for all before copies for agents."""
    if s.goal == "edge":
        worlds = sorted({x.world for x in layouts})
        return [[x for x in layouts if x.world == world] for world in worlds]
    if s.goal == "agent":
        alone = [x.data * x.attention_data == 1 for x in layouts]
        return [[x for x, a in zip(layouts, alone, strict=True) if a is wanted] for wanted in (True, False)]
    return [layouts]


def anything_fits(s: Situation) -> bool:
    """Whether a layout holds the model and its KV: then `choose` takes such a one."""
    guesses = _Guesses(s)
    light = (x for x in _layouts(s) if not sizing.overweight(s, x))
    return any(sizing.size(s, x, speculation.cost(s, guesses.on(x), x)).fits for x in light)


def _layouts(s: Situation) -> list[Layout]:
    given = _given(s)
    key = ("layouts", tuple(given.items()), tuple(g.uuid for g in s.usable.gpus))
    if key not in s.known:
        s.known[key] = parallelism.candidates(
            s.card, s.inputs.machine, s.usable, kind=s.kind, version=s.version_text, given=given
        )
    found: list[Layout] = s.known[key]
    return found


def _without_slow_links(fitting: list[Sizing]) -> list[Sizing]:
    """Without pipelines, which make no answer quicker, and without tensor groups that cross PCIe or nodes, as
    long as another layout holds the model; with both where none does."""
    quick = [z for z in fitting if parallelism.price(z.layout) is None and z.layout.pipeline == 1]
    return quick or fitting


def at_once(s: Situation, z: Sizing) -> int:
    """Requests of the workload that run at once."""
    return min(s.profile.workload.concurrency, sizing.running(s, z) * z.copies)


def _given(s: Situation) -> dict[str, object]:
    names = (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "attention_data_parallel_size",
        "expert_parallel",
    )
    return {n: s.given(n) for n in names if not s.is_free(n)}


def _rated(s: Situation, z: Sizing, speculative: object) -> Sizing:
    """With its speed where the goal looks at it: full for throughput, at the workload's concurrency else."""
    at = _full(s, z) if s.goal == "throughput" else at_once(s, z)
    return sizing.estimated(s, z, at, speculative)


def _full(s: Situation, z: Sizing) -> int:
    """Requests at once at which layouts are compared for throughput."""
    return min(sizing.running(s, z) * z.copies, SATURATION * max(len(s.gpus), 1))


def _best(s: Situation, rated: list[Sizing]) -> tuple[Sizing, str, str]:
    fewest = min(rated, key=lambda z: (z.layout.world, z.layout.pipeline, z.layout.tensor))
    if any(z.estimate is None for z in rated):
        return _by_rule(s, rated, fewest)
    if s.goal == "edge":
        few = [z for z in rated if z.layout.world == fewest.layout.world]
        fewest = min(few, key=lambda z: (z.layout.attention_data, z.layout.data, _whole(s, z)))
        return fewest, "the fewest devices that hold it: the lowest cost", "edge_fewest_devices"
    if s.goal == "throughput":
        best = _most_tokens(s, rated)
        full, most = _full(s, best), max(map(_speed, rated))
        what = "the most tokens when full"
        if _speed(best) < most:
            equal = _speed(best) * NEAR_THROUGHPUT >= most
            what = f"within a twentieth of {what}" if equal else f"{what} without stages"
        reason = f"{what}: {_speed(best):,.0f} tokens/s estimated at {full} requests at once"
        return best, reason, "throughput_most_tokens"
    if s.goal == "agent":
        longest = max(z.max_model_len for z in rated)
        rated = [z for z in rated if z.max_model_len >= longest // 2]
    quickest = min(_whole(s, z) for z in rated)
    near = [z for z in rated if _whole(s, z) <= quickest * NEAR]
    best = min(near, key=lambda z: (z.layout.world, z.layout.pipeline, -z.layout.tensor))
    e = best.estimate
    assert e is not None
    reason = (
        f"the quickest answer: about {e.ttft_ms:.0f} ms to the first token, {e.tpot_ms:.1f} for each more"
    )
    if _whole(s, best) > quickest * 1.005:
        quick = f"about {e.ttft_ms:.0f} ms to the first token, {e.tpot_ms:.1f} for each more"
        reason = f"{quick}: more devices would make an answer less than a tenth quicker"
    if best.layout.world > 1 and s.goal == "agent":
        reason = f"one pool holds the longest conversations; {reason}"
    return best, reason, f"{s.goal}_quickest"


def _most_tokens(s: Situation, rated: list[Sizing]) -> Sizing:
    """The layout with the most tokens, full. Of those that are near one is taken that holds the workload,
    then one with fewer devices. Stages are taken where they bring much more, alone hold it, or where all
    others cross something slow."""
    wanted = s.profile.workload.concurrency

    def few(z: Sizing) -> bool:
        return z.max_num_seqs * z.copies < wanted

    most = max(_speed(z) for z in rated)
    near = [z for z in rated if _speed(z) * NEAR_THROUGHPUT >= most]
    best = min(near, key=lambda z: (few(z), z.layout.pipeline, z.layout.world, z.layout.tensor))
    if best.layout.pipeline > 1:
        whole = [z for z in rated if z.layout.pipeline == 1 and few(z) <= few(best)]
        whole = [z for z in whole if parallelism.price(z.layout) is None]
        other = max(whole, key=_speed, default=None)
        pay = STAGES_WITH_COPIES_PAY if best.layout.attention_data > 1 else STAGES_PAY
        if other is not None and _speed(other) * pay >= most:
            return other
    return best


def _by_rule(s: Situation, rated: list[Sizing], fewest: Sizing) -> tuple[Sizing, str, str]:
    """Without speeds, as nothing is known of the device: copies for throughput, sharing for latency."""
    unknown = "how fast this device is is not known"
    if s.goal == "throughput":
        best = max(rated, key=lambda z: (z.layout.data, -z.layout.tensor))
        return best, f"as many copies as fit; {unknown}", "throughput_copies"
    if s.goal == "latency" and not s.on_cpu:
        best = max(rated, key=lambda z: (z.layout.pipeline == 1, z.layout.tensor))
        return best, f"as many devices on each token as may share it; {unknown}", "latency_most_tensor"
    return fewest, f"the fewest devices that hold it; {unknown}", "fewest_devices"


def _speed(z: Sizing) -> float:
    return z.estimate.output_tokens_per_s if z.estimate is not None else 0.0


def _below_full(s: Situation, rated: list[Sizing], best: Sizing, guesses: _Guesses) -> str:
    """Which layout makes more at the workload's own concurrency, where that is less than what fills the best:
    the goal is the most tokens, and who has fewer requests should know what it costs."""
    some = at_once(s, best)
    if s.goal != "throughput" or best.estimate is None or some >= _full(s, best):
        return ""
    rivals = sorted((z for z in rated if z.layout != best.layout), key=_speed, reverse=True)[:RIVALS]
    at = [sizing.estimated(s, z, at_once(s, z), guesses.on(z.layout).value) for z in rivals]
    most = max(at, key=_speed, default=best)
    if _speed(most) < _speed(best) * NEAR_THROUGHPUT:
        return ""
    return (
        f"; with {some} at once {words(most.layout)} would make {_speed(most):,.0f}, "
        f"this one {_speed(best):,.0f}"
    )


def _whole(s: Situation, z: Sizing) -> float:
    """Milliseconds of a whole answer."""
    e = z.estimate
    return e.ttft_ms + e.tpot_ms * s.profile.workload.output_tokens if e is not None else 0.0


def _why_not(s: Situation, layout: Layout, z: Sizing | None, rated: Sizing | None, best: Sizing) -> str:
    if z is None and s.goal == "edge":
        return f"{layout.world} devices"
    if z is None:
        return "each copy has a pool of its own: a conversation's next turn may arrive where its KV is not"
    if not z.fits:
        return shortage(z)
    if rated is None and s.goal == "latency" and z.layout.pipeline > 1:
        return "stages make no answer quicker, and other layouts hold the model"
    if rated is None and s.goal == "latency":
        return f"crosses something slow: {parallelism.price(z.layout)}"
    if rated is None or rated.estimate is None:
        return "comes after it by rule"
    e = rated.estimate
    price = f"; {z.layout.link} between its devices" if parallelism.price(z.layout) else ""
    if s.goal == "throughput":
        held = rated.max_num_seqs * rated.copies
        few = ", too few for the workload" if held < s.profile.workload.concurrency else ""
        more = ""
        if _speed(rated) > _speed(best):
            stages = layout.pipeline > best.layout.pipeline
            more = "; stages would have to bring more" if stages else "; hardly more"
        return f"{_speed(rated):,.0f} tokens/s estimated at {_full(s, rated)} at once{few}{more}{price}"
    if s.goal == "edge":
        return f"as many devices, and {e.tpot_ms:.1f} ms a token estimated"
    more = " with more devices" if z.layout.world > best.layout.world else ""
    if layout.expert > best.layout.expert and _whole(s, rated) >= _whole(s, best) * 0.995:
        more = "; no quicker here, and experts that are spread wait for the busiest device"
    return f"{e.ttft_ms:.0f} ms and {e.tpot_ms:.1f} ms a token estimated{more}{price}"


def _overweight(weights: int, best: Sizing) -> str:
    given = size(best.budget.requested)
    return f"weights take {size(weights)} of the {given} that a device gives: nothing is left for KV"


def shortage(z: Sizing) -> str:
    """What does not fit, in a few words."""
    if z.kv_bytes <= 0:
        return _overweight(z.budget.weights, z)
    need = z.kv.bytes_needed(z.max_model_len)
    needs = f", {size(need)} are needed" if need is not None else ""
    return f"{size(z.kv_bytes)} of KV for {z.max_model_len} tokens{needs}"


def words(layout: Layout) -> str:
    """`tensor 4 x data 2 with experts spread`."""
    parts = [
        f"{name} {n}"
        for name, n in (
            ("tensor", layout.tensor),
            ("pipeline", layout.pipeline),
            ("data", layout.data),
            ("attention data", layout.attention_data),
        )
        if n > 1
    ]
    text = " x ".join(parts) or "one device"
    return f"{text} with experts spread" if layout.expert else text


def rejected(chosen: Chosen) -> tuple[Rejected, ...]:
    """Other layouts as a plan shows them."""
    return tuple(Rejected(words(layout), why) for layout, why in chosen.rejected)
