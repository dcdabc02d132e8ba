"""Which model and which engine, and what is said where none can be chosen."""

from typing import Any

import pytest
from planning_inputs import EMBEDDED, SERVER, card

from orchestrator.errors import Exit, LlmserveError
from orchestrator.planning.choosing import choose_engine, choose_model
from orchestrator.planning.inputs import deployment_name


def model(**changes: Any) -> Any:
    facts: dict[str, Any] = {
        "asked": None,
        "asked_by": "--model",
        "default": None,
        "stored": [],
        "known": ["smollm2-135m"],
        "goal": "edge",
    }
    return choose_model(**facts | changes)


@pytest.mark.parametrize(
    ("changes", "value", "rule"),
    [
        ({"asked": "x.gguf", "default": "y", "stored": ["z"]}, "x.gguf", "asked"),
        ({"default": "y", "stored": ["z"]}, "y", "default_model"),
        ({"stored": ["z"]}, "z", "only_stored"),
        ({"stored": ["z"], "goal": "agent"}, "z", "only_stored"),
        ({}, "smollm2-135m", "edge_small_model"),
    ],
)
def test_the_model_is_the_first_that_holds(changes: dict[str, Any], value: str, rule: str) -> None:
    choice = model(**changes)
    assert (choice.value, choice.rule) == (value, rule)
    assert choice.reason


@pytest.mark.parametrize("changes", [{"goal": "latency"}, {"stored": ["a", "b"]}])
def test_without_a_model_the_candidates_and_the_next_command_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(LlmserveError) as e:
        model(**changes)
    assert e.value.exit_code == Exit.USAGE
    assert "smollm2-135m" in e.value.message
    assert f"llmserve plan --goal {changes.get('goal', 'edge')} --model " in e.value.remedy


def test_a_llama_server_comes_before_the_embedded_one() -> None:
    choice = choose_engine(card(), [EMBEDDED, SERVER])
    assert choice.value == "llama-server"
    assert {r.value for r in choice.rejected} == {"embedded", "vllm", "sglang"}


def test_an_engine_asked_for_by_name_is_taken() -> None:
    assert choose_engine(card(), [SERVER, EMBEDDED], asked="embedded").rule == "asked"


def test_an_engine_that_is_not_there_is_exit_5() -> None:
    with pytest.raises(LlmserveError) as e:
        choose_engine(card(), [SERVER], asked="mine")
    assert e.value.exit_code == Exit.NOT_FOUND
    assert "llama-server" in e.value.message


@pytest.mark.parametrize(
    ("form", "there", "says"),
    [
        ("gguf", [], "pip install 'llmserve[edge]'"),
        ("safetensors", [SERVER], "engines install vllm"),
        ("config", [], "engines install vllm"),
    ],
)
def test_nothing_that_reads_the_model_is_refused_with_the_way_in(form: Any, there: Any, says: str) -> None:
    with pytest.raises(LlmserveError) as e:
        choose_engine(card(format=form), there)
    assert e.value.exit_code == Exit.REFUSED
    assert says in e.value.remedy


@pytest.mark.parametrize(
    ("model_name", "name"),
    [
        ("smollm2-135m", "edge-smollm2-135m"),
        ("Org/Some Model_7B.Q4.gguf", "edge-some-model-7b.q4"),
        ("///", "edge-model"),
        ("x" * 100, "edge-" + "x" * 43),
    ],
)
def test_a_deployment_is_named_by_goal_and_model(model_name: str, name: str) -> None:
    assert deployment_name("edge", model_name) == name
