"""When a process that ended unasked is started again: pure, with the clock and the dice passed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from orchestrator.engines.base import Failure


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """`backoff_s × factor^n` up to `cap_s`; `budget` failures inside `window_s` are a crash loop; the budget
    refills after `refill_s` of being ready."""

    backoff_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 60.0
    budget: int = 5
    window_s: float = 600.0
    refill_s: float = 600.0

    @classmethod
    def of(cls, block: Mapping[str, Any] | None) -> RestartSettings:
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in (block or {}).items() if k in known})


@dataclass(frozen=True, slots=True)
class Verdict:
    """ "retry" after `delay_s`, "step_down" (the plan one lever lower, after `delay_s`), or "fail" for good
    with `reason`."""

    action: Literal["retry", "step_down", "fail"]
    delay_s: float = 0.0
    reason: str = ""


def after_failure(
    settings: RestartSettings,
    failure: Failure,
    failures: Sequence[float],
    used: Collection[str],
    steps_down: Collection[str],
    now: float,
    dice: float,
) -> Verdict:
    """Decide by cause.

    `failures` are the times (s) of this and the earlier failures since the budget was last full, this one
    last; `used` the classes whose single retry or step down is spent; `steps_down` the classes that the plan
    prepared a lower plan for; `dice` in [0, 1) spreads retries by up to a tenth.
    """
    if failure.retry == "never":
        return Verdict("fail", reason=failure.failure_class)
    recent = [t for t in failures if now - t < settings.window_s]
    if len(recent) >= settings.budget:
        return Verdict("fail", reason="crash_loop")
    delay = min(settings.cap_s, settings.backoff_s * settings.factor ** max(0, len(recent) - 1))
    delay *= 1 + 0.1 * dice
    if failure.retry == "step_down":
        if failure.failure_class in steps_down and failure.failure_class not in used:
            return Verdict("step_down", delay)
        return Verdict("fail", reason=failure.failure_class)
    if failure.retry == "once" and failure.failure_class in used:
        return Verdict("fail", reason=failure.failure_class)
    return Verdict("retry", delay)
