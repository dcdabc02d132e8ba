import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from process_groups import is_gone

import orchestrator.engines.sglang
from orchestrator.engines import interpreter
from orchestrator.engines.sglang import probe
from orchestrator.errors import LlmserveError

TABLE = Path(orchestrator.engines.sglang.__file__).parent / "flags" / "0.5.9.json"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def told(**changed: object) -> str:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    answer = {
        "version": "0.5.9", "distribution": "sglang", "device": "cuda", "dependencies": {"torch": "2.9.1"},
        "spec_methods": rows["spec_methods"], "flags": rows["flags"],
    }  # fmt: skip
    return json.dumps(answer | changed)


def environment(folder: Path, answer: str | None = None, body: str = "") -> Path:
    """A folder like a virtual environment's whose interpreter is a small program: it notes the question, does
    `body`, and prints an answer."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    package = folder / "lib" / "python3.11" / "site-packages" / "sglang"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (folder / "answer").write_text(told() if answer is None else answer)
    python = folder / "bin" / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'echo "$2" >> {shlex.quote(str(folder / "asked"))}\n'
        f"env > {shlex.quote(str(folder / 'env'))}\n"
        f"{body}\n"
        f"cat {shlex.quote(str(folder / 'answer'))}\n"
    )
    python.chmod(0o755)
    return folder


def times_asked(folder: Path) -> int:
    return len((folder / "asked").read_text().splitlines())


def test_a_configured_environment_is_asked_with_its_own_interpreter(tmp_path: Path) -> None:
    folder = environment(tmp_path / "venv")
    (found,) = probe.installations({"mine": {"path": str(folder)}}, os.environ)
    assert (found.name, found.kind, found.version) == ("mine", "sglang", "0.5.9")
    assert found.argv == (str(folder / "bin/python"), "-m", "sglang.launch_server")
    assert found.flag("--enable-dp-attention") is not None
    assert (found.captured, found.env) == (False, {})
    assert found.extras["device"] == "cuda"
    assert found.extras["dependencies"] == {"torch": "2.9.1"}
    assert found.extras["removed"]["--enable-deepep-moe"] == "use --moe-a2a-backend deepep"
    assert (folder / "asked").read_text().strip().endswith("sglang/dump_flags.py")


def test_path_may_be_the_interpreter_and_python_is_another_word_for_it(tmp_path: Path) -> None:
    python = str(environment(tmp_path / "venv") / "bin" / "python")
    for entry in ({"path": python}, {"python": python}):
        assert probe.installations({"x": entry}, os.environ)[0].argv[0] == python


def test_without_an_accelerator_the_cpu_engine_is_asked_for_when_it_starts(tmp_path: Path) -> None:
    folder = environment(tmp_path / "venv", told(device="cpu"))
    entry = {"x": {"path": str(folder), "env": {"SGLANG_LOG_MS": "1"}}}
    (found,) = probe.installations(entry, os.environ)
    assert found.env == {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_LOG_MS": "1"}


def test_the_question_has_the_entrys_variables_and_none_of_the_moment(tmp_path: Path) -> None:
    folder = environment(tmp_path / "venv")
    moment = {"CUDA_VISIBLE_DEVICES": "", "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": "/x", "HOME": "/h"}
    entry = {"x": {"path": str(folder), "env": {"SGLANG_LOG_MS": "1"}}}
    probe.installations(entry, os.environ | moment)
    seen = dict(line.partition("=")[::2] for line in (folder / "env").read_text().splitlines())
    assert seen["HOME"] == "/h"
    assert seen["SGLANG_LOG_MS"] == "1"
    assert not {"CUDA_VISIBLE_DEVICES", "SGLANG_USE_CPU_ENGINE", "PYTHONPATH"} & set(seen)


def test_it_is_asked_once_and_again_when_what_is_installed_changed(tmp_path: Path) -> None:
    folder = environment(tmp_path / "venv")
    entry = {"x": {"path": str(folder)}}
    first = probe.installations(entry, os.environ)
    assert probe.installations(entry, os.environ) == first
    assert times_asked(folder) == 1
    # as pip does
    (folder / "lib/python3.11/site-packages/sglang-0.5.23.dist-info").mkdir()
    os.utime(folder / "lib/python3.11/site-packages", (1, 1))
    (folder / "answer").write_text(told(version="0.5.23"))
    assert probe.installations(entry, os.environ)[0].version == "0.5.23"
    assert times_asked(folder) == 2
    entry["x"]["env"] = {"A": "1"}  # type: ignore[assignment]
    probe.installations(entry, os.environ)
    assert times_asked(folder) == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1, "flags": [{}]}', "\0"])
def test_a_damaged_memory_is_made_anew(tmp_path: Path, home: Path, damage: str) -> None:
    entry = {"x": {"path": str(environment(tmp_path / "venv"))}}
    first = probe.installations(entry, os.environ)
    (kept,) = (home / "cache" / "probes").iterdir()
    assert kept.name.startswith("sglang-")
    kept.write_text(damage)
    assert probe.installations(entry, os.environ) == first
    assert json.loads(kept.read_text())["version"] == "0.5.9"


def refusal(entry: dict[str, object]) -> LlmserveError:
    with pytest.raises(LlmserveError) as error:
        probe.installations({"x": entry}, os.environ)
    assert error.value.remedy
    return error.value


def test_a_configured_path_that_is_wrong_says_what_is_wrong(tmp_path: Path) -> None:
    assert "there is no such file" in refusal({"path": str(tmp_path / "nope")}).message
    assert "no Python lies in that folder" in refusal({"path": str(tmp_path)}).message
    assert "engines.yaml" in refusal({"path": str(tmp_path)}).remedy
    folder = environment(tmp_path / "venv")
    (folder / "bin" / "python").chmod(0o644)
    assert "not executable" in refusal({"path": str(folder)}).message
    assert "has no `path`" in refusal({}).message


@pytest.mark.parametrize(
    ("answer", "body", "said"),
    [
        ('{"error": "No module named \'sglang\'", "kind": "ModuleNotFoundError"}', "",
         "no SGLang is installed there"),
        ('{"error": "No module named \'sgl_kernel\'\\nmore", "kind": "ModuleNotFoundError"}', "",
         "SGLang cannot be imported: ModuleNotFoundError: No module named 'sgl_kernel'"),
        ("", "echo 'libcuda.so: cannot open' >&2; exit 127", "ended with 127: libcuda.so: cannot open"),
        ("", "kill -ILL $$", "ended with -4"),
        ("hello", "", "its answer cannot be read: it begins with 'hello'"),
        ('{"version": "1", "flags": []}', "",
         "its answer lacks device, distribution, dependencies, spec_methods"),
        (told(version=1), "", "holds what cannot be read"),
        (told(flags=[]), "", "lists no --model-path, so it is no SGLang"),
        ("", "exec cat /dev/zero", "it printed more than 8 MiB"),
    ],
)  # fmt: skip
def test_an_environment_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, answer: str, body: str, said: str
) -> None:
    folder = environment(tmp_path / "venv", answer, body)
    assert said in refusal({"path": str(folder)}).message


def test_what_an_interpreter_prints_beside_its_answer_is_passed_over(tmp_path: Path) -> None:
    folder = environment(tmp_path / "venv", body="echo Welcome")
    assert probe.installations({"x": {"path": str(folder)}}, os.environ)[0].version == "0.5.9"


def test_a_missing_sglang_comes_with_the_line_that_installs_it(tmp_path: Path) -> None:
    answer = json.dumps({"error": "No module named 'sglang'", "kind": "ModuleNotFoundError"})
    folder = environment(tmp_path / "venv", answer)
    remedy = refusal({"path": str(folder)}).remedy
    assert "llmserve engines install sglang, which needs an NVIDIA GPU" in remedy
    assert "engines install vllm" in remedy


def test_one_that_never_answers_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "TIME_LIMIT_S", 0.2)
    folder = environment(tmp_path / "venv", body=f"echo $$ > {tmp_path / 'pid'}; sleep 1000 & wait")
    assert "within 0.2 s" in refusal({"path": str(folder)}).message
    group = int((tmp_path / "pid").read_text())
    assert is_gone(group)


def test_a_survey_has_every_entry_raises_nothing_and_names_a_working_one(tmp_path: Path) -> None:
    entries = {
        "gone": {"path": str(tmp_path / "nope")},
        "mine": {"path": str(environment(tmp_path / "venv"))},
    }
    found = probe.survey(entries, os.environ)
    assert [(i.name, bool(i.extras.get("broken"))) for i in found] == [("gone", True), ("mine", False)]
    assert found[0].extras["remedy"].endswith("or choose --engine mine")


def test_one_beside_llmserve_is_found_too_and_listed_with_its_reason_where_it_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe.installations({}, os.environ) == []
    package = tmp_path / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setattr(sys, "executable", str(environment(tmp_path / "venv") / "bin" / "python"))
    (found,) = probe.installations({}, os.environ)
    assert (found.name, found.argv[0]) == ("sglang", sys.executable)
    # the same interpreter is not listed twice
    assert len(probe.installations({"mine": {"path": str(tmp_path / "venv")}}, os.environ)) == 1
    answer = json.dumps({"error": "no", "kind": "ImportError"})
    monkeypatch.setattr(sys, "executable", str(environment(tmp_path / "b", answer) / "bin" / "python"))
    (found,) = probe.installations({}, os.environ)
    assert "SGLang cannot be imported: ImportError: no" in found.extras["broken"]


def test_the_question_itself_says_why_there_is_no_answer() -> None:
    with pytest.raises(LlmserveError) as error:
        probe.probe("x", Path(sys.executable), os.environ, "this test", {})
    assert "no SGLang is installed there" in error.value.message


@pytest.mark.real_engine
@pytest.mark.full
def test_a_real_installation_is_what_the_projects_data_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.environ.get("LLMSERVE_TEST_SGLANG")
    assert folder, "set LLMSERVE_TEST_SGLANG to what scripts/sglang-cpu prints"
    entry = {"real": {"path": folder}}
    (found,) = probe.installations(entry, os.environ)
    from orchestrator.engines.sglang.captured import captured

    data = captured(found.version, "cpu")
    assert data.version == found.version
    assert (found.flags, found.env) == (data.flags, data.env)
    for key in ("device", "spec_methods", "kv_connectors", "kv_cache_dtypes", "removed", "deprecated"):
        assert found.extras[key] == data.extras[key]
    assert found.extras["dependencies"]["torch"]
    # remembered
    monkeypatch.setattr(interpreter, "ask", None)
    assert probe.installations(entry, os.environ) == [found]
