"""The planner: a goal's branch of the decision tree, top to bottom, for the engine that was chosen.

Pure: the same inputs give the same Plan, with no clock, network or disk in between.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.plan import Plan
from orchestrator.planning.request import PlanInputs


def make_plan(inputs: PlanInputs) -> Plan:
    """Decide every lever, check everything, predict what can be computed, and prepare one step down.

    A Plan with violations is whole otherwise: it can be shown and explained.
    """
    if inputs.installation.kind == "llamacpp":
        from orchestrator.planning.llamacpp import branch as llamacpp

        return llamacpp.make_plan(inputs)
    from orchestrator.planning import checkpoint
    from orchestrator.planning.paged import branch as paged

    plan = paged.make_plan(inputs)
    return replace(plan, warnings=(*plan.warnings, *checkpoint.words(inputs.card)))
