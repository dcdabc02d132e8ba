"""Is an engine alive? Liveness is progress; `/health` alone proves nothing. Pure: looks and a clock in.

Alive means tokens moved, or one small generation came back, within the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from orchestrator.engines.base import Progress


@dataclass(frozen=True, slots=True)
class LivenessSettings:
    """Seconds. A probe is sent after `idle_s` without progress; `deadline_s` is how long it may take where
    the engine is idle, `deadline_loaded_s` where it is busy; `strikes` missed deadlines make it hung."""

    interval_s: float = 5.0
    idle_s: float = 10.0
    deadline_s: float = 15.0
    deadline_loaded_s: float = 120.0
    strikes: int = 2

    @classmethod
    def of(cls, block: Mapping[str, Any] | None) -> LivenessSettings:
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in (block or {}).items() if k in known})


Judgement = Literal["alive", "probe", "waiting", "strike", "hung"]
"""What `Judge.look` answers: "probe" asks the caller to send one small generation."""


@dataclass(slots=True)
class Judge:
    """Holds what was seen of one process generation.

    Call `look` at every interval, `probe_returned` when a probe ends. At most one probe is ever in flight:
    "probe" is not answered again before `probe_returned`.
    """

    settings: LivenessSettings
    now: float
    last_progress: float = field(init=False)
    tokens: float | None = None
    probe_since: float | None = None
    probed_busy: bool = False
    strikes: int = 0

    def __post_init__(self) -> None:
        self.last_progress = self.now

    def look(self, now: float, progress: Progress | None) -> Judgement:
        """One look: `progress` is None where the counters could not be read."""
        if progress is not None and (self.tokens is None or progress.tokens != self.tokens):
            moved = self.tokens is not None
            self.tokens = progress.tokens
            if moved:
                self._alive(now)
                return "alive"
        if self.strikes >= self.settings.strikes:
            return "hung"
        requests = 0 if progress is None else (progress.running or 0) + (progress.waiting or 0)
        if self.probe_since is None:
            if now - self.last_progress < self.settings.idle_s:
                return "alive"
            self.probe_since, self.probed_busy = now, requests > 0
            return "probe"
        # our own probe may be the one request that an idle engine counts
        busy = requests > (0 if self.probed_busy else 1)
        deadline = self.settings.deadline_loaded_s if busy else self.settings.deadline_s
        if now - self.probe_since < deadline * (self.strikes + 1):
            return "waiting"
        self.strikes += 1
        return "hung" if self.strikes >= self.settings.strikes else "strike"

    def due(self) -> float:
        """When the next look can decide something, if nothing moves."""
        if self.probe_since is None:
            return self.last_progress + self.settings.idle_s
        return self.probe_since + self.settings.deadline_s * (self.strikes + 1)

    def probe_returned(self, now: float, ok: bool) -> None:
        """A probe ended: with a token (`ok`), or with an error, which is a strike."""
        self.probe_since = None
        if ok:
            self._alive(now)
        else:
            self.strikes += 1

    def _alive(self, now: float) -> None:
        self.last_progress = now
        self.strikes = 0
