from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from typer.testing import CliRunner

from orchestrator.cli.goals import complete_goal
from orchestrator.cli.main import app
from orchestrator.errors import Exit, LlmserveError
from orchestrator.goals import EVERY_GOAL, GOALS, Strategy
from orchestrator.lever_values import SPECULATIVE_METHODS
from orchestrator.levers import LEVERS

ALL = [s for g in GOALS.values() for s in g.strategies] + list(EVERY_GOAL)


def test_the_tree_has_the_four_goals_and_their_strategies() -> None:
    tree = {name: [s.name for s in goal.strategies] for name, goal in GOALS.items()}
    assert tree == {
        "throughput": ["continuous_batching", "many_sequences", "prefix_caching", "weight_quantization"],
        "latency": ["tensor_parallelism", "chunked_prefill", "speculative_decoding", "disaggregation"],
        "agent": ["radix_cache", "gqa_models", "kv_quantization"],
        "edge": ["gguf_quantization", "llamacpp", "small_models"],
    }


def test_beside_the_goals_stand_the_levers_that_serve_all() -> None:
    assert [s.name for s in EVERY_GOAL] == [
        "more_concurrent_sequences",
        "more_memory_for_kv",
        "priority_and_streaming",
        "cuda_graphs",
    ]


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: s.name)
def test_a_strategy_names_existing_levers_and_says_gain_cost_and_when_not(strategy: Strategy) -> None:
    assert strategy.levers
    assert set(strategy.levers) <= set(LEVERS)
    assert strategy.mechanism
    assert strategy.gains
    assert all(g.what and g.said_by for g in strategy.gains)
    assert strategy.costs
    assert strategy.not_when


def test_speculation_has_every_kind_and_their_methods_can_be_set() -> None:
    (speculative,) = [s for s in GOALS["latency"].strategies if s.name == "speculative_decoding"]
    methods = [m for v in speculative.variants for m in v.method.split(", ")]
    assert sorted(methods) == sorted(SPECULATIVE_METHODS)
    assert [v.name for v in speculative.variants] == [
        "Draft model",
        "N-gram, suffix",
        "MEDUSA",
        "EAGLE, EAGLE-3, MTP",
    ]


def test_the_tree_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        GOALS["edge"].title = "x"  # type: ignore[misc]


def test_goals_imports_nothing_of_ours() -> None:
    code = "import sys, orchestrator.goals; print([m for m in sys.modules if m.startswith('orchestrator.')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['orchestrator.goals']"


def test_the_command_draws_every_strategy_and_lever_in_80_columns() -> None:
    result = CliRunner().invoke(app, ["goals"])
    assert result.exit_code == 0
    assert all(s.title in result.output for s in ALL)
    assert all(lever in result.output for s in ALL for lever in s.levers)
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_one_goal_is_drawn_alone_and_long_adds_every_claim() -> None:
    short = CliRunner().invoke(app, ["goals", "latency"]).output
    long = CliRunner().invoke(app, ["goals", "latency", "--long"]).output
    assert "GQA models" not in short
    assert "DistServe" in short
    assert "TetriInfer" not in short
    assert "TetriInfer" in long
    assert "ngram, suffix" in long
    assert max(len(line) for line in long.splitlines()) <= 80


def test_json_holds_the_whole_tree() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli.main import main; main()", "goals", "edge", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    data = json.loads(run.stdout)
    assert data["schema_version"] == 1
    assert [g["name"] for g in data["goals"]] == ["edge"]
    assert data["goals"][0]["strategies"][1]["options"] == ["--engine"]
    assert len(data["every_goal"]) == 4


def test_an_unknown_goal_is_refused_with_the_nearest() -> None:
    result = CliRunner().invoke(app, ["goals", "latncy"])
    assert isinstance(result.exception, LlmserveError)
    assert result.exception.exit_code == Exit.USAGE
    assert result.exception.remedy == "did you mean `latency`?"


def test_the_shell_completes_goals() -> None:
    assert complete_goal("") == ["throughput", "latency", "agent", "edge"]
    assert complete_goal("a") == ["agent"]
