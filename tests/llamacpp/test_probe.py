import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from process_groups import is_gone

from orchestrator.engines.llamacpp import probe
from orchestrator.errors import LlmserveError, refused

HELP = Path(__file__).parent / "llama-server-help.txt"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "home"))
    # the embedded server is asked for by the tests that are about it
    monkeypatch.setattr(probe, "probe_embedded", lambda name: None)
    return tmp_path / "home"


def stand_in(folder: Path, body: str = "", version: str = "0.6.0-dev") -> Path:
    """A small program in llama-server's place: prints the real help, counts how often it was asked."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llama-server"
    program.write_text(
        "#!/bin/sh\n"
        f"echo asked >> {shlex.quote(str(folder / 'asked'))}\n"
        f"{body}\n"
        f'if [ "$1" = --version ]; then echo "version: {version} (build 0)" >&2; exit 0; fi\n'
        f"cat {shlex.quote(str(HELP))}\n"
    )
    program.chmod(0o755)
    return program


def times_asked(folder: Path) -> int:
    return len((folder / "asked").read_text().splitlines())


def test_configured_ones_come_first_then_the_variable_then_path(tmp_path: Path) -> None:
    mine, other, path = (stand_in(tmp_path / n) for n in ("mine", "other", "path"))
    found = probe.installations(
        {"fast": {"kind": "llamacpp", "path": str(mine)}},
        {"LLAMA_SERVER": str(other.parent), "PATH": f"{path.parent}:{os.environ['PATH']}"},
    )
    assert [(i.name, i.argv[0]) for i in found] == [
        ("fast", str(mine)), ("llama-server", str(other)), ("llama-server-2", str(path)),
    ]  # fmt: skip
    assert {i.version for i in found} == {"0.6.0-dev"}
    assert found[0].flag("--ctx-size") is not None


def test_the_same_program_is_listed_once(tmp_path: Path) -> None:
    program = stand_in(tmp_path / "a")
    env = {"LLAMA_SERVER": str(program), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    assert [i.name for i in probe.installations({}, env)] == ["llama-server"]


def test_a_folder_may_hold_it_deeper(tmp_path: Path) -> None:
    program = stand_in(tmp_path / "llama.cpp" / "build" / "bin")
    found = probe.installations({"x": {"path": str(tmp_path / "llama.cpp")}}, os.environ)
    assert found[0].argv == (str(program),)


def test_libraries_beside_the_program_are_put_on_the_loaders_path(tmp_path: Path) -> None:
    program = stand_in(tmp_path / "a")
    (program.parent / "libggml.so.0").touch()
    env = {**os.environ, "LD_LIBRARY_PATH": "/elsewhere"}
    found = probe.installations({"x": {"path": str(program), "env": {"A": "1"}}}, env)
    assert found[0].env == {"A": "1", "LD_LIBRARY_PATH": f"{program.parent}:/elsewhere"}


def test_a_program_is_asked_once_and_again_when_it_changed(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    entry = {"x": {"path": str(stand_in(folder))}}
    first = probe.installations(entry, os.environ)
    assert probe.installations(entry, os.environ) == first
    assert times_asked(folder) == 2  # --version and --help
    stand_in(folder, version="0.7.0")
    assert probe.installations(entry, os.environ)[0].version == "0.7.0"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1, "flags": [{}]}', "\0"])
def test_a_damaged_memory_is_made_anew(tmp_path: Path, home: Path, damage: str) -> None:
    entry = {"x": {"path": str(stand_in(tmp_path / "a"))}}
    first = probe.installations(entry, os.environ)
    (kept,) = (home / "cache" / "probes").iterdir()
    kept.write_text(damage)
    assert probe.installations(entry, os.environ) == first
    assert json.loads(kept.read_text())["version"] == "0.6.0-dev"


def refusal(path: object) -> LlmserveError:
    with pytest.raises(LlmserveError) as error:
        probe.installations({"x": {"path": path}}, os.environ)
    assert error.value.remedy
    return error.value


def test_a_configured_path_that_is_wrong_says_what_is_wrong(tmp_path: Path) -> None:
    assert "no such file" in refusal(str(tmp_path / "nope")).message
    assert "no llama-server lies in that folder" in refusal(str(tmp_path)).message
    program = stand_in(tmp_path / "a")
    program.chmod(0o644)
    assert "not executable" in refusal(str(program)).message
    assert "has no `path`" in refusal(None).message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'libx.so: cannot open' >&2; exit 127", "ended with 127: libx.so: cannot open"),
        ("exit 0", "lists no --ctx-size"),
        ("kill -ILL $$", "ended with -4"),
        ("exec head -c 3000000 /dev/zero", "lists no --ctx-size"),
    ],
)
def test_a_configured_program_that_is_no_llama_server_is_refused(
    tmp_path: Path, body: str, said: str
) -> None:
    assert said in refusal(str(stand_in(tmp_path / "a", body))).message


def test_a_program_that_never_answers_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TIME_LIMIT_S", 0.2)
    program = stand_in(tmp_path / "a", f"echo $$ > {tmp_path / 'pid'}; sleep 1000 & wait")
    assert "did not answer within 0.2 s" in refusal(str(program)).message
    group = int((tmp_path / "pid").read_text())
    assert is_gone(group)


def test_a_broken_one_on_path_is_passed_over_and_a_broken_variable_is_not(tmp_path: Path) -> None:
    program = stand_in(tmp_path / "a", "exit 3")
    on_path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    assert probe.installations({}, on_path) == []
    (listed,) = probe.survey({}, on_path)
    assert "ended with 3" in listed.extras["broken"]
    (asked,) = probe.installations({}, {**os.environ, "LLAMA_SERVER": str(program)})
    assert asked.extras["broken"].startswith("the variable LLAMA_SERVER points to")
    assert asked.extras["remedy"] == "correct LLAMA_SERVER, or unset it"


def test_a_broken_one_names_a_working_one(tmp_path: Path) -> None:
    entry = {"mine": {"path": str(stand_in(tmp_path / "a"))}}
    found = probe.installations(entry, {**os.environ, "LLAMA_SERVER": "/nope"})
    assert [bool(i.extras.get("broken")) for i in found] == [False, True]
    assert found[1].extras["remedy"].endswith("or choose --engine mine")


def test_a_survey_has_every_entry_and_raises_nothing(tmp_path: Path) -> None:
    entries = {
        "mine": {"path": str(stand_in(tmp_path / "a"))},
        "gone": {"path": str(tmp_path / "nope")},
        "none": {},
    }
    found = probe.survey(entries, {"PATH": os.environ["PATH"]})
    assert [(i.name, bool(i.extras.get("broken"))) for i in found] == [
        ("mine", False), ("gone", True), ("none", True),
    ]  # fmt: skip
    with pytest.raises(LlmserveError):
        probe.installations(entries, {"PATH": os.environ["PATH"]})


def test_an_embedded_one_that_cannot_be_asked_is_listed_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(name: str) -> None:
        raise refused("engine_broken", "xllamacpp cannot be imported", "")

    monkeypatch.setattr(probe, "probe_embedded", fails)
    (found,) = probe.installations({}, {"PATH": ""})
    assert (found.name, found.extras["broken"]) == ("embedded", "xllamacpp cannot be imported")
    assert found.extras["embedded"] is True


def test_a_bad_variable_of_the_user_does_not_spoil_the_question(tmp_path: Path) -> None:
    program = stand_in(tmp_path / "a", '[ -z "$LLAMA_ARG_CTX_SIZE" ] || exit 1')
    env = {**os.environ, "LLAMA_ARG_CTX_SIZE": "abc"}
    assert probe.installations({"x": {"path": str(program)}}, env)[0].version == "0.6.0-dev"


def test_the_embedded_one_is_asked_in_a_child_and_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "home"))
    program = stand_in(tmp_path / "a")
    found = probe.installations({"x": {"path": str(program)}}, os.environ)
    embedded = found[-1]
    assert (embedded.name, embedded.extras["embedded"]) == ("embedded", True)
    assert embedded.argv == (sys.executable, "-P", "-m", "orchestrator.engines.llamacpp.embedded")
    assert embedded.flag("--kv-unified-per-slot") is not None
    assert embedded.flag("--device") is None
    assert "--draft-max" in embedded.extras["removed"]
    assert "xllamacpp" not in sys.modules
    # remembered
    monkeypatch.setattr(probe, "_ask", None)
    assert probe.installations({}, {"PATH": ""})[-1] == embedded


def test_without_xllamacpp_there_is_no_embedded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert probe.installations({}, {"PATH": ""}) == []
