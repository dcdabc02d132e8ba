"""pip and uv: which of them, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.engine_environments import recipes, tool

RECIPE = recipes.choose("vllm", "cpu")

WORDS = yaml.safe_load((Path(__file__).parent / "tool-words.yaml").read_text())


@pytest.mark.parametrize("row", WORDS, ids=[row["message"].replace(" ", "-") for row in WORDS])
def test_what_a_tool_says_becomes_one_message_that_names_the_log(row: dict[str, str]) -> None:
    e = tool.failure(RECIPE, row["said"], Path("/logs/x.log"))
    assert e.code == row["code"]
    assert row["message"] in e.message
    assert "/logs/x.log" in e.remedy
    assert "{" not in e.message + e.remedy


def test_the_newest_versions_there_are_are_named() -> None:
    e = tool.failure(RECIPE, WORDS[0]["said"], Path("x"))
    assert e.message.endswith("0.8.5, 0.30.0, 0.31.0, 0.32.0")


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with uv, and with no settings of pip that count."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    empty = tmp_path / "pip.conf"
    empty.write_text("[global]\ntimeout = 60\n# index-url = http://old\n")
    return {"PATH": str(uv.parent), "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(empty)}


def test_uv_is_taken_where_it_is(env: dict[str, str]) -> None:
    chosen = tool.choose(env)
    assert (chosen.name, chosen.uv) == ("uv", f"{env['PATH']}/uv")
    assert tool.choose(env | {"PATH": "/nowhere"}).name == "pip"
    assert tool.choose(env | {"LLMSERVE_NO_UV": "1"}).name == "pip"


def test_pip_is_taken_where_it_knows_an_index_that_uv_would_not_read(env: dict[str, str]) -> None:
    assert tool.choose(env | {"PIP_INDEX_URL": "http://mirror"}).name == "pip"
    assert tool.choose(env | {"PIP_FIND_LINKS": "/wheels"}).name == "pip"
    Path(env["PIP_CONFIG_FILE"]).write_text("[global]\nextra-index-url =\n  http://mirror\n")
    assert tool.choose(env).name == "pip"
