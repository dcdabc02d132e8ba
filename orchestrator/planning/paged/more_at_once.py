"""Requests that wait though the workload has them at once: what would let more of them run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.planning.paged import choose, table
from orchestrator.planning.paged.choose import Chosen
from orchestrator.planning.paged.kv_type import why_not_fp8
from orchestrator.planning.paged.situation import Situation
from orchestrator.planning.paged.sizing import LEAST_BATCH, Sizing
from orchestrator.planning.words import count, sets

Passes = Callable[[Mapping[str, Any], Chosen], bool]
"""Whether a plan with levers set otherwise passes, with what was chosen for it."""

MORE_UTILIZATION = 0.95
"""Between what goals take and 0.97; starts that die at graph capture were seen at 0.98."""


def waiting(s: Situation, z: Sizing, passes: Passes) -> list[str]:
    """A warning where memory lets fewer requests run than the workload has at once."""
    held, wanted = z.max_num_seqs * z.copies, s.profile.workload.concurrency
    if z.tokens is None or held >= wanted or not s.is_free("max_num_seqs") or not z.fits:
        return []
    ways = []
    for change, price in _ways(s, z):
        other = choose.choose(s.changed(change))
        more = min(wanted, other.sizing.max_num_seqs * other.sizing.copies)
        if other.sizing.fits and more > held and passes(change, other):
            ways.append(f"{more} with {sets(change)} ({price})")
            if more == wanted:
                break
    what = f"{held} of the workload's {count(wanted, 'request')} run at once, the others wait"
    lighter = "more or larger cards, or weights in fewer bits, hold more"
    told = f"it would be {', '.join(ways)}" if ways else lighter
    return [f"{what}: KV holds {z.tokens * z.copies} tokens; {told}"]


def _ways(s: Situation, z: Sizing) -> Iterator[tuple[dict[str, Any], str]]:
    """Levers that leave more KV, each with its price in words."""
    goal = table.row(s.goal)["utilization"]
    if not s.on_cpu and s.is_free("gpu_memory_utilization") and z.utilization == goal:
        yield {"gpu_memory_utilization": MORE_UTILIZATION}, "less margin"
    if s.is_free("max_num_batched_tokens") and z.max_num_batched_tokens > LEAST_BATCH:
        yield {"max_num_batched_tokens": LEAST_BATCH}, "smaller steps"
    if s.is_free("kv_cache_dtype") and z.kv_dtype == "auto" and why_not_fp8(s) is None:
        yield {"kv_cache_dtype": "fp8"}, "can change answers"


def apart(s: Situation, chosen: Chosen) -> list[str]:
    """A note where deployments of their own would make far more tokens than one over all devices."""
    found = chosen.apart
    if found is None:
        return []
    each = f"{choose.words(found.layout)} each, --set device_ids"
    return [
        f"{s.inputs.installation.name} makes no whole copies of a model with experts, and "
        f"{count(found.deployments, 'deployment')} apart ({each}) would make about "
        f"{found.tokens_per_s:,.0f} tokens/s when full, this one {found.here:,.0f}; clients choose among "
        "their ports"
    ]
