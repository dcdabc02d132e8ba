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


def llmserve(home: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "LLAMA_SERVER"}
    return subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli.main import main; main()", "engines", *args],
        capture_output=True, text=True, timeout=60, check=False,
        env=env | more | {"LLMSERVE_HOME": str(home)},
    )  # fmt: skip


def test_the_list_has_what_can_be_used_and_says_what_cannot(home: Path) -> None:
    done = llmserve(home, "list", "--json")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["schema_version"] == 1
    first = data["engines"][0]
    assert (first["name"], first["kind"], first["version"]) == ("mine", "llamacpp", "42")
    gone = next(e for e in data["engines"] if e["name"] == "gone")
    assert (first["state"], gone["state"]) == ("ok", "broken")
    assert "there is no such file" in gone["problem"]
    shown = llmserve(home, "list", COLUMNS="80")
    assert shown.returncode == 0
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert "broken: there" in shown.stdout
    assert f"gone → correct `path` of gone in {home}/config/engines.yaml" in shown.stderr


def test_a_broken_variable_spoils_neither_list_nor_another_engine(home: Path) -> None:
    listed = llmserve(home, "list", "--json", LLAMA_SERVER="/nope")
    assert listed.returncode == 0
    states = {e["name"]: e["state"] for e in json.loads(listed.stdout)["engines"]}
    assert (states["mine"], states["llama-server"]) == ("ok", "broken")
    assert llmserve(home, "probe", "mine", LLAMA_SERVER="/nope").returncode == 0
    asked = llmserve(home, "probe", "llama-server", "--json", LLAMA_SERVER="/nope")
    assert asked.returncode == 3
    problem = json.loads(asked.stdout)["error"]
    assert "the variable LLAMA_SERVER points to /nope" in problem["message"]
    assert problem["remedy"] == "correct LLAMA_SERVER, or unset it; or choose --engine mine"


def test_an_xllamacpp_that_does_not_import_is_a_row_with_its_reason(home: Path) -> None:
    package = home / "packages" / "xllamacpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libstdc++ is too old')\n")
    shadow = {"PYTHONPATH": str(home / "packages")}
    listed = llmserve(home, "list", "--json", **shadow)
    assert listed.returncode == 0
    embedded = next(e for e in json.loads(listed.stdout)["engines"] if e["name"] == "embedded")
    assert embedded["state"] == "broken"
    assert "libstdc++ is too old" in embedded["problem"]
    asked = llmserve(home, "probe", "embedded", "--json", **shadow)
    assert asked.returncode == 3
    assert "pip install --force-reinstall" in json.loads(asked.stdout)["error"]["remedy"]


def test_a_probe_shows_the_flags_of_one(home: Path) -> None:
    data = json.loads(llmserve(home, "probe", "mine", "--json").stdout)
    (engine,) = data["engines"]
    assert any("--ctx-size" in f["spellings"] for f in engine["flags"])
    shown = llmserve(home, "probe", "mine", COLUMNS="80").stdout
    assert "--ctx-size" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_probe_of_a_broken_or_unknown_one_says_so(home: Path) -> None:
    gone = llmserve(home, "probe", "gone", "--json")
    assert gone.returncode == 3
    assert "remove the entry" in json.loads(gone.stdout)["error"]["remedy"]
    unknown = llmserve(home, "probe", "nobody", "--json")
    assert unknown.returncode == 5
    assert json.loads(unknown.stdout)["error"]["code"] == "unknown_engine"
