"""Which model and which engine, and what is said where none can be chosen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning_inputs import EMBEDDED, SERVER, card

from orchestrator.engines.base import Installation
from orchestrator.errors import Exit, LlmserveError
from orchestrator.planning.choosing import choose_engine, choose_model
from orchestrator.planning.inputs import deployment_name, gather


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


def built(name: str, version: str, device: str = "cuda", kind: str = "vllm") -> Installation:
    """An installed engine of a private environment."""
    return replace(SERVER, name=name, kind=kind, version=version, extras={"device": device})


CAPTURED = replace(built("vllm", "0.33.0"), captured=True)


@pytest.mark.parametrize(
    ("asked", "gpus", "there", "taken", "says"),
    [
        ("vllm", False, [built("vllm-cpu-0.32.0", "0.32.0", "cpu")], "vllm-cpu-0.32.0", "the only one"),
        ("vllm", True, [built("b", "0.9.2"), built("a", "0.33.0"), CAPTURED], "a", "the newest of 2"),
        ("vllm@0.27.1", True, [built("mine", "0.27.1"), built("new", "0.33.0")], "mine", "the only one"),
        ("vllm@0.27.1", False, [built("mine", "0.27.1+cpu", "cpu")], "mine", "the only one"),
        ("llamacpp", False, [EMBEDDED, SERVER], "llama-server", "the first of 2"),
        ("vllm", True, [built("vllm", "0.30.0"), built("new", "0.33.0")], "vllm", "asked for by name"),
        ("vllm", True, [built("vllm-cpu-0.32.0", "0.32.0", "cpu"), CAPTURED], "vllm", "asked for by name"),
    ],
)
def test_a_kind_takes_the_newest_installed_one_of_it_that_suits(
    asked: str, gpus: bool, there: list[Installation], taken: str, says: str
) -> None:
    form: Any = "gguf" if asked == "llamacpp" else "safetensors"
    choice = choose_engine(card(format=form), there, asked=asked, gpus=gpus)
    assert choice.value == taken
    assert says in choice.reason


@pytest.mark.parametrize(
    ("asked", "gpus", "remedy"),
    [
        ("vllm", False, "`llmserve engines install vllm` installs it"),
        ("vllm@0.27.1", True, "`llmserve engines install vllm --version 0.27.1` installs it"),
        ("sglang", False, "needs a GPU, and none can be used here"),
    ],
)
def test_a_launch_of_what_is_not_installed_names_a_way_that_works_here(
    asked: str, gpus: bool, remedy: str
) -> None:
    kind = asked.partition("@")[0]
    known = replace(CAPTURED, name=asked, kind=kind)
    with pytest.raises(LlmserveError) as e:
        choose_engine(card(format="safetensors"), [known], asked=asked, gpus=gpus, launching=True)
    assert e.value.exit_code == Exit.REFUSED
    assert remedy in e.value.remedy
    if kind == "sglang":
        assert "engines install sglang" not in e.value.remedy
        assert "llmserve engines install vllm" in e.value.remedy


def test_llama_cpp_does_not_plan_the_configuration_of_safetensors() -> None:
    with pytest.raises(LlmserveError) as e:
        choose_engine(card(format="config"), [EMBEDDED], asked="embedded")
    assert (e.value.code, e.value.exit_code) == ("format_mismatch", Exit.REFUSED)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one wrong entry in engines.yaml and a model that is only a configuration."""
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "engines.yaml").write_text("mine: {kind: vllm, path: /nope}\nworse: /a/path\n")
    return tmp_path


def test_a_wrong_entry_of_engines_is_an_error_only_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.model_store import ResolvedModel

    the_card = card(format="config", path=None)
    found = ResolvedModel("small", "small", None, the_card)
    monkeypatch.setattr("orchestrator.model_store.resolve", lambda name, **_: found)
    how: dict[str, Any] = {"goal": "latency", "model": "small", "machine_file": "8xh100"}
    choice = gather(**how).engine_choice
    assert choice.rule == "captured"
    assert any(r.value == "engines.yaml" for r in choice.rejected)
    for asked in ("mine", "worse"):
        with pytest.raises(LlmserveError) as e:
            gather(**how, engine=asked)
        assert asked in e.value.message


def test_one_lever_is_not_given_two_values() -> None:
    with pytest.raises(LlmserveError) as e:
        gather(goal="edge", sets=["max_num_seqs=2", "max_num_seqs=3"])
    assert e.value.exit_code == Exit.USAGE
    assert "max_num_seqs=2" in e.value.message
    assert "max_num_seqs=3" in e.value.message
