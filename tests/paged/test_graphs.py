"""Largest recorded batches lie on vLLM's grid."""

from __future__ import annotations

from orchestrator.planning.paged.graphs import MOST, covering, within

GRID = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""vLLM 0.32.0 vllm/config/vllm.py:2470."""


def test_a_batch_is_covered_by_the_smallest_size_that_holds_it() -> None:
    for n in range(1, MOST + 1):
        assert covering(n) == min(size for size in GRID if size >= n), n


def test_a_batch_above_the_largest_size_gets_the_largest() -> None:
    assert covering(513) == covering(4096) == MOST


def test_a_size_off_the_grid_is_taken_down_to_the_next_lower() -> None:
    for n in range(1, MOST + 1):
        assert within(n) == max(size for size in GRID if size <= n), n
