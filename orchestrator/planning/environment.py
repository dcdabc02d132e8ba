"""The variables of a plan's processes, each with why it is set. `environment.json` has those of llmserve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from orchestrator.plan import ProcessPlan
from orchestrator.planning.request import PlanInputs


def explained(
    inputs: PlanInputs, processes: Sequence[ProcessPlan], published: Mapping[str, str]
) -> dict[str, str]:
    """Name to reason; `published` has the reasons of those that the model's recipe sets."""
    out, own = {}, _own()
    for name, value in ((n, v) for p in processes for n, v in p.env.items()):
        if name in inputs.resolved.profile.env:
            reason = f"set by {inputs.resolved.origin.get(f'env.{name}', 'the profile')}"
        elif name in published:
            reason = f"the model's published launch sets it ({published[name]}; vllm-project/recipes)"
        elif name in own["installation"]:
            reason = own["installation"][name]
        elif inputs.installation.env.get(name) == value:
            reason = f"env of {inputs.installation.name} in engines.yaml"
        else:
            reason = own["variables"].get(name, "llmserve starts this engine so")
        out[name] = reason
    return out


def left_out(processes: Sequence[ProcessPlan], published: Mapping[str, str]) -> dict[str, str]:
    """Flags and variables of the model's published launch that the processes do not have, each with why."""
    there = {word for p in processes for word in (*p.argv, *p.env)}
    return {word: why for word, why in published.items() if word not in there}


@cache
def _own() -> dict[str, dict[str, str]]:
    text = (Path(__file__).parent / "environment.json").read_text("utf-8")
    own: dict[str, dict[str, str]] = json.loads(text)
    return own
