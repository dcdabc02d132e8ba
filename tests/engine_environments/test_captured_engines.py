"""Engines that are not here are shown by what llmserve knows of them, and marked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.engines import registry


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """No engine of vLLM's or SGLang's kind is found in this home or on PATH."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "engines.yaml").write_text("mine: {kind: vllm, path: /nope}\n")
    return os.environ | {"LLMSERVE_HOME": str(tmp_path), "PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}


def engines(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from orchestrator.cli.entry import main; main()", "engines", *args]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_kind_of_which_nothing_usable_is_here_is_listed_as_captured(env: dict[str, str]) -> None:
    rows = json.loads(engines(env, "list", "--json").stdout)["engines"]
    state = {e["name"]: e["state"] for e in rows}
    assert state["mine"] == "broken"
    captured = {e["kind"]: e for e in rows if e["captured"]}
    assert list(captured) == ["vllm"], "no build of SGLang for CPUs is published"
    for kind, row in captured.items():
        assert row["state"] == "captured"
        assert row["version"] == registry.engine(kind).captured_versions()[-1]
    told = engines(env | {"COLUMNS": "80"}, "list")
    assert "captured" in told.stdout
    assert all(len(line) <= 80 for line in told.stdout.splitlines())
    newest = registry.engine("sglang").captured_versions()[-1]
    assert f"to {newest}" in told.stderr, "what can be planned with is told for every kind"


def test_in_a_pipe_a_flag_and_a_program_stand_whole(env: dict[str, str]) -> None:
    flags = engines(env, "probe", "vllm").stdout
    assert "--no-allow-deprecated-quantization" in flags
    assert sys.prefix in engines(env, "list").stdout


def test_a_probe_of_what_is_not_here_shows_the_flags_of_its_version(env: dict[str, str]) -> None:
    newest = json.loads(engines(env, "probe", "vllm", "--json").stdout)["engines"]
    older = json.loads(engines(env, "probe", "vllm@0.10.0", "--json").stdout)["engines"]
    assert [e["captured"] for e in [*newest, *older]] == [True, True]
    assert older[0]["version"] == "0.10.0"
    assert older[0]["flags"] != newest[0]["flags"]
    unknown = engines(env, "probe", "vllm@0.1", "--json")
    assert unknown.returncode == 5
    assert "0.10.0" in json.loads(unknown.stdout)["error"]["remedy"]
