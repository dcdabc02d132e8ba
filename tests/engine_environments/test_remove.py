"""What `engines remove` takes away, and when it does not."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path

import pytest

from orchestrator import settings
from orchestrator.engine_environments import entries, install, recipes, remove, store
from orchestrator.errors import Exit, LlmserveError
from orchestrator.plan import EngineRef, Plan, ProcessPlan


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    return tmp_path


def made(name: str) -> store.Environment:
    """A whole environment with its entry."""
    with store.alone():
        folder = store.begin(name)
        (folder / "bin").mkdir()
        environment = store.Environment(name, "vllm", "vllm", "0.32.0", "cpu", str(folder), "pip", 0.0)
        store.finish(environment)
    entries.add(name, "vllm", folder)
    return environment


def deployment(home: Path, name: str, engine: str, state: str, *argv: str) -> None:
    folder = home / "state" / "deployments" / name
    folder.mkdir(parents=True)
    ref = EngineRef(engine, "vllm", "0.32.0")
    processes = (ProcessPlan("server", argv),) if argv else ()
    plan = Plan("throughput", "throughput", {}, {}, ref, {}, {}, processes)
    (folder / "plan.json").write_text(json.dumps(plan.to_json()))
    (folder / "state.json").write_text(json.dumps({"state": state}))


def refusal(name: str) -> LlmserveError:
    with pytest.raises(LlmserveError) as caught:
        remove.remove(name)
    return caught.value


def test_an_environment_goes_with_its_entry(home: Path) -> None:
    made("a")
    made("b")
    done = remove.remove("a")
    assert done.entry
    assert list(settings.engines()) == list(store.environments()) == ["b"]
    assert not (home / "data" / "engines" / "a").exists()


def test_what_the_user_installed_loses_its_entry_alone(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    entries.add("mine", "vllm", mine)
    assert remove.remove("mine").environment is None
    assert settings.engines() == {}
    assert mine.is_dir()


@pytest.mark.usefixtures("home")
def test_a_name_that_the_user_pointed_elsewhere_leaves_the_environment(tmp_path: Path) -> None:
    environment = made("a")
    entries.take_out("a")
    entries.add("a", "vllm", tmp_path / "other")
    assert remove.remove("a").environment is None
    assert environment.folder.is_dir()
    # and the next removal takes that
    assert remove.remove("a").environment == environment
    assert not environment.folder.exists()


@pytest.mark.parametrize("state", ["starting", "ready", "degraded", "unknown"])
def test_an_engine_that_serves_is_not_removed(home: Path, state: str) -> None:
    environment = made("a")
    deployment(home, "chat", "a", state)
    deployment(home, "other", "b", state)
    e = refusal("a")
    assert (e.code, e.exit_code) == ("engine_in_use", Exit.REFUSED)
    assert e.message == "a serves chat"
    assert "llmserve stop chat" in e.remedy
    assert environment.folder.is_dir()
    assert list(settings.engines()) == ["a"]


def test_an_environment_that_serves_under_an_entry_that_is_no_more_is_not_removed(home: Path) -> None:
    environment = made("a")
    (home / "link").symlink_to(environment.folder)
    (environment.folder / "bin" / "python").symlink_to("/usr/bin/env")
    deployment(home, "chat", "old", "ready", str(environment.folder / "bin" / "python"), "-m", "x")
    deployment(home, "linked", "old", "ready", str(home / "link" / "bin" / "python"), "-m", "x")
    deployment(home, "other", "old", "ready", "/usr/bin/env")
    assert refusal("a").message == "a serves chat, linked"
    assert environment.folder.is_dir()


def test_a_deployment_that_runs_with_a_damaged_plan_may_be_on_it(home: Path) -> None:
    made("a")
    deployment(home, "chat", "b", "ready")
    (home / "state" / "deployments" / "chat" / "plan.json").write_text("{")
    assert refusal("a").message == "a serves chat"
    (home / "state" / "deployments" / "chat" / "state.json").write_text("{")
    assert remove.remove("a").entry


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_an_engine_whose_deployments_have_ended_is_removed(home: Path, state: str) -> None:
    made("a")
    deployment(home, "chat", "a", state)
    assert remove.remove("a").entry


@pytest.mark.usefixtures("home")
def test_an_environment_that_another_entry_names_too_stays() -> None:
    environment = made("a")
    entries.add("same", "vllm", environment.folder / "bin")
    e = refusal("a")
    assert (e.code, e.exit_code) == ("engine_in_use", Exit.REFUSED)
    assert "llmserve engines remove same" in e.remedy
    assert environment.folder.is_dir()


@pytest.mark.usefixtures("home")
def test_an_unknown_name_is_told_with_those_there_are() -> None:
    made("a")
    e = refusal("b")
    assert (e.code, e.exit_code) == ("unknown_engine", Exit.NOT_FOUND)
    assert "there are: a" in e.message


def test_a_removal_that_was_cut_off_is_finished_by_the_next_change(home: Path) -> None:
    folder = home / "data" / "engines"
    (folder / ".removing-a" / "lib").mkdir(parents=True)
    made("b")
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "b"]


@pytest.mark.usefixtures("home")
def test_a_disk_without_room_is_told_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**12, 10**12, 3 * 10**9))
    with pytest.raises(LlmserveError) as caught:
        install.install("vllm", device="cpu")
    assert (caught.value.code, caught.value.exit_code) == ("disk_full", Exit.REFUSED)
    assert "needs 5.0 GB" in caught.value.message
    assert "has 3.0 GB free" in caught.value.message
    assert store.environments() == {}
    assert recipes.choose("vllm", "cpu").disk_bytes == 5 * 10**9
