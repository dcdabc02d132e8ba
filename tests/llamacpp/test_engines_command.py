import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HELP = Path(__file__).parent / "llama-server-help.txt"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    config = tmp_path / "config"
    config.mkdir()
    program = tmp_path / "llama-server"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "version: 42 (abc)"; exit; }}\ncat "{HELP}"\n'
    )
    program.chmod(0o755)
    (config / "engines.yaml").write_text(
        f"mine: {{kind: llamacpp, path: {program}}}\ngone: {{kind: llamacpp, path: /nope/llama-server}}\n"
    )
    return tmp_path


def llmserve(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "LLAMA_SERVER"}
    return subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli.main import main; main()", "engines", *args],
        capture_output=True, text=True, timeout=60, check=False, env=env | {"LLMSERVE_HOME": str(home)},
    )  # fmt: skip


def test_the_list_has_what_can_be_used_and_says_what_cannot(home: Path) -> None:
    done = llmserve(home, "list", "--json")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["schema_version"] == 1
    first = data["engines"][0]
    assert (first["name"], first["kind"], first["version"]) == ("mine", "llamacpp", "42")
    assert [b["name"] for b in data["broken"]] == ["gone"]
    shown = llmserve(home, "list")
    assert shown.returncode == 0
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert "/nope/llama-server" in shown.stderr


def test_a_probe_shows_the_flags_of_one(home: Path) -> None:
    data = json.loads(llmserve(home, "probe", "mine", "--json").stdout)
    (engine,) = data["engines"]
    assert any("--ctx-size" in f["spellings"] for f in engine["flags"])
    shown = llmserve(home, "probe", "mine").stdout
    assert "--ctx-size" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_probe_of_a_broken_or_unknown_one_says_so(home: Path) -> None:
    assert llmserve(home, "probe", "gone").returncode == 3
    unknown = llmserve(home, "probe", "nobody", "--json")
    assert unknown.returncode == 5
    assert json.loads(unknown.stdout)["error"]["code"] == "unknown_engine"
