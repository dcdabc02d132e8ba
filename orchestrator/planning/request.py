"""What a plan is made from, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import Engine, Installation
from orchestrator.machine import Machine
from orchestrator.model_card.card import ModelCard
from orchestrator.plan import Rejected

if TYPE_CHECKING:
    from orchestrator.profiles import Resolved


@dataclass(frozen=True, slots=True)
class Reservations:
    """What other deployments hold that the machine's free figures do not show yet.

    `memory_bytes` is host memory promised to deployments that are still loading; `devices` are UUIDs of GPUs
    that are held whole.
    """

    memory_bytes: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Which model or engine was taken, by which rule, and what else there was."""

    value: str
    reason: str
    rule: str
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Everything a Plan depends on: the same inputs give the same Plan.

    `served_model` is the name that was asked for, which the server answers to; `name` the deployment's;
    `port` None means the first free one at launch. `draft` is the card of the draft model that the profile
    names, None where it names none or it is not on this machine. `launching` refuses what can be planned and
    cannot be started.
    """

    resolved: Resolved
    card: ModelCard
    machine: Machine
    installation: Installation
    engine: Engine
    served_model: str
    name: str
    model_choice: Choice
    engine_choice: Choice
    reservations: Reservations = Reservations()
    host: str = "127.0.0.1"
    port: int | None = None
    draft: ModelCard | None = None
    launching: bool = False

    def with_levers(self, change: Mapping[str, Any]) -> PlanInputs:
        """The same inputs with some levers set otherwise; "auto" leaves one to the planner again."""
        profile = self.resolved.profile
        changed = profile.model_copy(update={"levers": {**profile.levers, **change}})
        guess = changed.levers.get("speculative")
        drafts = isinstance(guess, Mapping) and guess.get("model") is not None
        resolved = replace(self.resolved, profile=changed)
        return replace(self, resolved=resolved, draft=self.draft if drafts else None)
