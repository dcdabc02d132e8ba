"""Machines, devices and levers as the command line shows them."""

from orchestrator.cli.plan_view import _gpus
from orchestrator.cli.status import fact


def test_nodes_and_kinds_of_gpus_are_told_apart() -> None:
    assert _gpus(["H100"] * 8, 1) == "8 x H100"
    assert _gpus(["H100"] * 8, 2) == "2 nodes of 8 x H100"
    assert _gpus(["A", "B", "A"], 1) == "2 x A + 1 x B"
    assert _gpus([], 1) == "no GPU"


def test_what_an_engine_reports_has_the_levers_unit() -> None:
    assert fact("kv_cache_bytes", 3 * 2**30) == "3.0 GiB"
    assert fact("max_num_seqs", 8) == "8"
    assert fact("served_model", "small") == "small"
