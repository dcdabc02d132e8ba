"""The deployment's state machine: events and a clock in, actions out. It touches nothing.

    starting ─► ready ⇄ degraded, unhealthy ─► stopping ─► stopped
        ▲            └──── backoff ◄── exit not asked for ──► failed
        └──────────────────┘

Any exit that was not asked for is a failure, whatever its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from orchestrator.engines.base import Failure
from orchestrator.supervisor.restart import RestartSettings, after_failure

State = Literal["starting", "ready", "degraded", "unhealthy", "backoff", "stopping", "stopped", "failed"]
STATES: frozenset[str] = frozenset(get_args(State))
RUNNING: frozenset[State] = frozenset({"starting", "ready", "degraded", "unhealthy"})
_NO_PROGRESS = "no progress"
ENDED: frozenset[State] = frozenset({"stopped", "failed"})


# events


@dataclass(frozen=True, slots=True)
class Launched:
    """A new deployment, or one that ended, is wanted running."""


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    phase: str


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Socket ours, health good, one token came. `not_in_effect` names planned levers the engine lacks."""

    not_in_effect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Struck:
    """A liveness deadline was missed once."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Progress again after a strike."""


@dataclass(frozen=True, slots=True)
class Condemned:
    """The running process must go: `failure` says why (hang, start cap)."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class LeaderDied:
    """The engine's first process is gone; its tree is being cleared."""


@dataclass(frozen=True, slots=True)
class TreeEmpty:
    """Nothing of the generation is left. `failure` classifies the exit, in case it was not asked for."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class ShimLost:
    """The shim died, the engine lives."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    pass


@dataclass(frozen=True, slots=True)
class RestartRequested:
    pass


@dataclass(frozen=True, slots=True)
class TimerDue:
    pass


Event = (
    Launched
    | PhaseSeen
    | BecameReady
    | Struck
    | Recovered
    | Condemned
    | LeaderDied
    | TreeEmpty
    | ShimLost
    | StopRequested
    | RestartRequested
    | TimerDue
)


# actions


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the process tree as `generation`; first step down to the plan prepared for `step_down`."""

    generation: int
    step_down: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process tree by the engine's recipe; `drain` where requests may be running."""

    drain: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process tree at once."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Send `TimerDue` at this time (s)."""

    at: float


Action = Spawn | Stop | Kill | Wake


@dataclass(slots=True)
class Lifecycle:
    """What a deployment is, apart from the system. `on` is the only way it changes."""

    restart: RestartSettings
    steps_down: frozenset[str] = frozenset()
    state: State = "stopped"
    phase: str | None = None
    reason: str | None = None
    generation: int = 0
    restarts: int = 0
    ready_since: float | None = None
    retry_at: float | None = None
    last_failure: Failure | None = None
    failures: list[float] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    condemned: Failure | None = None
    start_again: bool = False
    degraded_reason: str | None = None

    def on(self, event: Event, now: float, dice: float = 0.0) -> list[Action]:
        """Take one event at time `now` (s, any steady origin that survives restarts of the supervisor)."""
        match event:
            case Launched():
                return self._begin_anew() if self.state in ENDED else []
            case PhaseSeen(phase=phase):
                if self.state == "starting":
                    self.phase = phase
                return []
            case BecameReady(not_in_effect=missing):
                if self.state == "starting":
                    self.phase, self.ready_since = None, now
                    self.degraded_reason = f"not in effect: {', '.join(missing)}" if missing else None
                    self._settle()
                return []
            case Struck():
                if self.state in ("ready", "degraded"):
                    self.state, self.reason = "unhealthy", _NO_PROGRESS
                return []
            case Recovered():
                if self.state == "unhealthy" and self.reason == _NO_PROGRESS:
                    self._settle()
                return []
            case ShimLost():
                self.degraded_reason = "unshimmed"
                if self.state in ("ready", "degraded"):
                    self._settle()
                return []
            case Condemned(failure=failure):
                if self.state not in RUNNING or self.condemned is not None:
                    return []
                self.condemned = failure
                self.state, self.reason = "unhealthy", failure.failure_class
                return [Kill()]
            case LeaderDied():
                if self.state in RUNNING and self.condemned is None:
                    self.reason, self.phase = "engine exited", None
                    if self.ready_since is not None:
                        self.state = "unhealthy"
                return []
            case TreeEmpty(failure=failure):
                return self._ended(failure, now, dice)
            case StopRequested():
                return self._stop(now)
            case RestartRequested():
                return self._restart(now)
            case TimerDue():
                if self.state == "backoff" and self.retry_at is not None and now >= self.retry_at:
                    return [self._spawn()]
                return []

    def _settle(self) -> None:
        self.state, self.reason = (
            ("degraded", self.degraded_reason) if self.degraded_reason else ("ready", None)
        )

    def _begin_anew(self) -> list[Action]:
        self.failures, self.used, self.last_failure, self.restarts = [], set(), None, 0
        return [self._spawn()]

    def _spawn(self, step_down: str | None = None) -> Spawn:
        self.generation += 1
        self.state, self.phase, self.reason = "starting", "load", None
        self.ready_since = self.retry_at = self.condemned = self.degraded_reason = None
        self.start_again = False
        return Spawn(self.generation, step_down)

    def _stop(self, now: float) -> list[Action]:
        self.start_again = False
        if self.state in RUNNING:
            drain = self.ready_since is not None
            self.state, self.phase, self.reason = "stopping", None, "stop requested"
            return [Stop(drain)]
        if self.state == "backoff":
            self.state, self.reason, self.retry_at = "stopped", None, None
        return []

    def _restart(self, now: float) -> list[Action]:
        if self.state in RUNNING:
            actions = self._stop(now)
            self.start_again, self.reason = True, "restart requested"
            return actions
        if self.state == "stopping":
            self.start_again = True
            return []
        return self._begin_anew()

    def _ended(self, failure: Failure, now: float, dice: float) -> list[Action]:
        if self.state in ENDED or self.state == "backoff":
            return []
        if self.state == "stopping":
            if self.start_again:
                return self._begin_anew()
            self.state, self.phase, self.reason, self.ready_since = "stopped", None, None, None
            return []
        failure = self.condemned or failure
        if self.ready_since is not None and now - self.ready_since >= self.restart.refill_s:
            self.failures, self.used = [], set()
        self.failures.append(now)
        self.last_failure, self.condemned, self.phase, self.ready_since = failure, None, None, None
        verdict = after_failure(self.restart, failure, self.failures, self.used, self.steps_down, now, dice)
        if verdict.action == "fail":
            self.state, self.reason = "failed", verdict.reason
            return []
        self.restarts += 1
        if failure.retry in ("once", "step_down"):
            self.used.add(failure.failure_class)
        if verdict.action == "step_down":
            return [self._spawn(failure.failure_class)]
        self.state, self.reason, self.retry_at = "backoff", failure.failure_class, now + verdict.delay_s
        return [Wake(self.retry_at)]

    def to_json(self) -> dict[str, Any]:
        """Everything but the settings, for state.json."""
        data = {
            k: getattr(self, k)
            for k in self.__dataclass_fields__
            if k not in ("restart", "steps_down", "used")
        }
        for key in ("last_failure", "condemned"):
            data[key] = asdict(data[key]) if data[key] is not None else None
        return data | {"used": sorted(self.used), "failures": list(self.failures)}

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], restart: RestartSettings, steps_down: frozenset[str]
    ) -> Lifecycle:
        """The inverse; keys of a newer version are passed over. Raises TypeError or ValueError on damage."""
        numbers = [data.get(k) for k in ("ready_since", "retry_at")] + list(data.get("failures", ()))
        if data.get("state", "stopped") not in STATES or not all(
            n is None or isinstance(n, (int, float)) for n in numbers
        ):
            raise ValueError("its state is damaged")
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        for key in ("last_failure", "condemned"):
            if known.get(key) is not None:
                known[key] = Failure(**known[key])
        return cls(restart=restart, steps_down=steps_down, **known | {"used": set(known.get("used", ()))})
