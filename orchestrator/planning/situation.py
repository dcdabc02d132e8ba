"""The planner's view of its inputs: what is given and what is wanted, on any engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import Flag
from orchestrator.model_card.card import ModelCard
from orchestrator.plan import Decision, Rejected
from orchestrator.planning.request import PlanInputs

if TYPE_CHECKING:
    from orchestrator.profiles import Profile

AUTO = "auto"


@dataclass(frozen=True)
class Situation:
    """Inputs with the figures that every decision needs; derived ones are computed once."""

    inputs: PlanInputs

    @property
    def profile(self) -> Profile:
        return self.inputs.resolved.profile

    @property
    def goal(self) -> str:
        return self.profile.goal

    @property
    def card(self) -> ModelCard:
        return self.inputs.card

    @property
    def lossless(self) -> bool:
        return self.profile.lossless

    @property
    def lossless_by(self) -> str:
        """Who asked for exact answers: `--set lossless=true`, or the profile with its line."""
        origin = self.inputs.resolved.origin.get("lossless", "")
        if origin == "--set":
            return "--set lossless=true was given"
        return f"{origin or f'the {self.profile.profile} profile'} says lossless: true"

    @cached_property
    def request_tokens(self) -> int:
        """Prompt and answer of the workload's typical request."""
        return self.profile.workload.input_tokens + self.profile.workload.output_tokens

    def given(self, lever: str) -> Any:
        """The value that somebody wrote for a lever, None where the planner decides."""
        value = self.profile.levers.get(lever, AUTO)
        return None if value == AUTO else value

    def is_free(self, lever: str) -> bool:
        return self.given(lever) is None

    def as_given(self, lever: str, *, lossless: bool = True, rejected: tuple[Rejected, ...] = ()) -> Decision:
        """The decision of a lever that somebody set: kept exactly."""
        by_user = self.inputs.resolved.user_set(lever)
        who = f"the {self.profile.profile} profile"
        if by_user:
            who = self.inputs.resolved.origin.get(f"levers.{lever}", who)
        return Decision(
            self.given(lever), f"set by {who}", "user" if by_user else "profile", lossless, rejected=rejected
        )

    @property
    def has_flag(self) -> Mapping[str, Flag]:
        """Every spelling of a flag that the installation lists."""
        return self.inputs.installation.by_spelling
