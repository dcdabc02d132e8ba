"""What is wrong with a plan, and which levers would mend it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.plan import Violation
from orchestrator.planning.words import sets


@dataclass(frozen=True, slots=True)
class Finding:
    """A refusal: `change` are the levers that mend it (an empty one: no lever does), `remedy` the words in
    front of or instead of them."""

    code: str
    message: str
    remedy: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    after: str = ""

    def violation(self, change: Mapping[str, Any] | None = None) -> Violation:
        """As it stands in a Plan; `change` instead of the finding's own where a better one is known."""
        words = [self.remedy, sets(self.change if change is None else change), self.after]
        return Violation(self.code, self.message, " ".join(w for w in words if w))
