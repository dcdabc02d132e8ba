"""More requests at once than the KV pool holds, because somebody set so many."""

from __future__ import annotations

import pytest
from planned import GOALS, KINDS, plan

from orchestrator.plan import Plan

LLAMA = "meta-llama/Meta-Llama-3.1-8B"


def told(made: Plan) -> list[str]:
    return [w for w in made.warnings if "which are computed again" in w]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goal", GOALS)
def test_requests_that_the_pool_cannot_hold_are_said(kind: str, goal: str) -> None:
    crowded = plan(LLAMA, "1xl4", kind=kind, goal=goal, sets=["max_num_seqs=1024"])
    (warning,) = told(crowded)
    assert "max_num_seqs=1024" in warning
    assert not told(plan(LLAMA, "1xl4", kind=kind, goal=goal))
    assert not told(plan(LLAMA, "1xl4", kind=kind, goal=goal, sets=["max_num_seqs=2"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goal", GOALS)
def test_kv_keeps_its_type_where_somebody_set_too_many_requests(kind: str, goal: str) -> None:
    made = plan(LLAMA, "1xl4", kind=kind, goal=goal, sets=["max_num_seqs=1024"])
    assert made.levers["kv_cache_dtype"].value == "auto"
