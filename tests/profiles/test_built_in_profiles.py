from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from orchestrator import profile_files, profiles, strict_yaml
from orchestrator.errors import LlmserveError
from orchestrator.goals import GOALS
from orchestrator.profile_schema import json_schema

FOLDER = profile_files.builtin_dir()
EDITOR = jsonschema.Draft202012Validator(json_schema())


def data(goal: str) -> dict[str, Any]:
    return strict_yaml.read(FOLDER / f"{goal}.yaml", "bad").data


def test_the_committed_schema_is_the_one_that_the_code_makes() -> None:
    committed = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
    assert committed == json_schema(), "run: llmserve profiles schema > profiles/schema.json"


def test_the_schema_is_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("goal", GOALS)
def test_each_profile_is_right_for_llmserve_and_for_an_editor(goal: str) -> None:
    assert profiles.load(goal).goal == goal
    assert list(EDITOR.iter_errors(data(goal))) == []
    first = (FOLDER / f"{goal}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=schema.json"


@pytest.mark.parametrize("goal", GOALS)
def test_each_line_says_why(goal: str) -> None:
    lines = (FOLDER / f"{goal}.yaml").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if " # " not in line and not line.startswith("# ")] == []


_TYPOS: list[tuple[tuple[str, ...], Any]] = [
    (("gaol",), "edge"),
    (("workload", "input_token"), 1),
    (("slo", "ttft"), 1),
    (("levers", "max_num_seq"), 1),
    (("engine_args", "vlm"), []),
    (("supervision", "drain"), 1),
    (("supervision", "restart"), {"backof_s": 1}),
    (("goal",), "edgy"),
    (("workload", "turns"), "3"),
    (("levers", "threads"), 0),
    (("lossless",), "yes"),
    (("env",), {"A": 1}),
    (("levers",), None),
]


@pytest.mark.parametrize(("loc", "value"), _TYPOS)
def test_a_mistake_is_seen_by_llmserve_and_by_an_editor(
    loc: tuple[str, ...], value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wrong = data("edge")
    inner = wrong
    for part in loc[:-1]:
        inner = inner[part]
    inner[loc[-1]] = value
    assert not EDITOR.is_valid(wrong)
    file = tmp_path_factory.mktemp("profiles") / "edge.yaml"
    file.write_text(json.dumps(wrong))  # JSON is YAML
    with pytest.raises(LlmserveError) as caught:
        profiles.load(str(file))
    assert loc[-1] in caught.value.message


def test_a_file_that_extends_may_leave_out_the_goal() -> None:
    assert EDITOR.is_valid({"profile": "a", "extends": "edge"})
    assert not EDITOR.is_valid({"profile": "a"})


def test_the_goals_differ_in_what_they_expect() -> None:
    seen = {g: profiles.load(g).workload for g in GOALS}
    assert {g: (w.input_tokens, w.output_tokens, w.concurrency, w.turns) for g, w in seen.items()} == {
        "throughput": (1024, 256, 32, 1),
        "latency": (1024, 256, 8, 1),
        "agent": (6000, 400, 4, 20),
        "edge": (512, 256, 1, 1),
    }
    slo = profiles.load("latency").slo
    assert (slo.ttft_ms, slo.tpot_ms, slo.itl_p99_ms) == (500, 30, 100)


def test_every_lever_of_a_profile_says_in_the_schema_what_it_means() -> None:
    levers = json_schema()["properties"]["levers"]
    assert levers["additionalProperties"] is False
    assert all(part["description"] for part in levers["properties"].values())
