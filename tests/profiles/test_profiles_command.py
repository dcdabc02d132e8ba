from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.profiles import complete_profile

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        code = "from orchestrator.cli.main import main; main()"
        env = os.environ | {"LLMSERVE_HOME": str(tmp_path), "TERM": "dumb"}
        return subprocess.run(
            [sys.executable, "-c", code, "profiles", *args],
            capture_output=True,
            text=True,
            env=env,
            cwd=tmp_path,
        )

    return run


def as_json(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(result.stdout)
    assert data["schema_version"] == 1
    return data


def test_list_shows_built_in_and_own_and_marks_what_is_broken(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("profile: mine\nextends: edge\n")
    (folder / "worse.yaml").write_text("profile: worse\n")
    result = run("list")
    assert result.returncode == 0
    assert "broken" in result.stdout
    assert "llmserve profiles validate worse" in result.stdout
    rows = {row["name"]: row for row in as_json(run("list", "--json"))["profiles"]}
    assert list(rows) == ["agent", "edge", "latency", "mine", "throughput", "worse"]
    assert (rows["mine"]["goal"], rows["mine"]["extends"], rows["mine"]["builtin"]) == ("edge", "edge", False)
    assert rows["edge"]["builtin"] is True
    assert "goal" in rows["worse"]["error"]


def test_show_prints_the_file_with_its_comments(run: Run) -> None:
    result = run("show", "edge")
    assert result.returncode == 0
    assert result.stdout.startswith("# yaml-language-server")
    assert "# one user at a time" in result.stdout


def test_show_merged_is_a_whole_profile_that_validates(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("profile: mine\nextends: edge\n")
    merged = run("show", "./mine.yaml", "--merged").stdout
    assert "input_tokens: 512" in merged
    (tmp_path / "whole.yaml").write_text(merged)
    assert run("validate", "whole.yaml").returncode == 0


def test_show_as_json_says_who_wrote_each_key(run: Run) -> None:
    data = as_json(run("show", "latency", "--json"))
    assert data["profile"]["goal"] == "latency"
    assert data["builtin"] is True
    assert data["origin"]["slo.ttft_ms"].startswith("profile latency (")


def test_an_unknown_profile_exits_5(run: Run) -> None:
    result = run("show", "edg", "--json")
    assert result.returncode == 5
    assert as_json(result)["error"]["code"] == "no_such_profile"


def test_validate_names_every_problem_of_every_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("profile: a\ngoal: edge\nlevers:\n  thread: 1\n")
    (tmp_path / "b.yaml").write_text("profile: b\nextends: edge\n")
    result = run("validate", "a.yaml", "b.yaml")
    assert result.returncode == 2
    assert "a.yaml:4: levers.thread: there is no lever `thread`" in result.stdout
    assert "did you mean `threads`?" in result.stdout
    data = as_json(run("validate", "a.yaml", "b.yaml", "--json"))
    assert [(f["file"], f["valid"]) for f in data["files"]] == [("a.yaml", False), ("b.yaml", True)]
    assert data["files"][0]["problems"][0]["code"] == "unknown_key"
    assert run("validate", "b.yaml").returncode == 0
    assert run("validate", "gone.yaml").returncode == 5


def test_schema_is_for_editors_and_with_json_an_object_of_ours(run: Run) -> None:
    schema = json.loads(run("schema").stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert as_json(run("schema", "--json"))["schema"] == schema


def test_diff_shows_only_what_differs(run: Run) -> None:
    result = run("diff", "edge", "agent")
    assert result.returncode == 0
    assert "workload.concurrency" in result.stdout
    assert "supervision.restart.budget" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    rows = {row["key"]: row for row in as_json(run("diff", "edge", "agent", "--json"))["differences"]}
    assert (rows["workload.input_tokens"]["a"], rows["workload.input_tokens"]["b"]) == (512, 6000)
    assert rows["levers.chunked_prefill"] == {"key": "levers.chunked_prefill", "a": "auto", "b": True}
    assert as_json(run("diff", "edge", "edge", "--json"))["differences"] == []


def test_the_shell_completes_profiles_without_loading_a_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    assert complete_profile("") == ["agent", "edge", "latency", "throughput"]
    assert complete_profile("la") == ["latency"]
    code = (
        "import sys; from orchestrator.cli.profiles import complete_profile; complete_profile('');"
        "print([m for m in ('yaml', 'pydantic', 'httpx') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
