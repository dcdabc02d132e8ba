"""`llmserve levers`, and the shell's completion of options that name engines, models and levers."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import profiles
from orchestrator.cli import main, output, plan_options
from orchestrator.lever_words import example, words
from orchestrator.levers import LEVERS


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))

    def command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(output, "_json_mode", False)
        monkeypatch.setattr("sys.argv", ["llmserve", "levers", *args])
        with pytest.raises(SystemExit) as e:
            main.main()
        out, err = capsys.readouterr()
        return int(e.value.code or 0), out, err

    return command


def test_every_lever_is_listed_within_80_columns(run: Any) -> None:
    code, out, _ = run()
    assert code == 0
    assert all(f"{name} " in out for name in LEVERS)
    assert max(len(line) for line in out.splitlines()) <= 80


def test_one_lever_tells_values_unit_and_whether_answers_change(run: Any) -> None:
    _, out, _ = run("kv_cache_dtype")
    assert "q8_0" in out
    assert "some values can change" in out
    assert "agent: " in out
    _, out, _ = run("speculative")
    assert "p_min" in out
    _, out, _ = run("threads")
    assert "no value changes" in out


def test_json_has_a_row_a_lever(run: Any) -> None:
    data = json.loads(run("--json")[1])
    assert [row["name"] for row in data["levers"]] == list(LEVERS)
    assert {"unit", "meaning", "accepted", "example", "lossless"} <= set(data["levers"][0])


def test_an_unknown_lever_names_the_nearest(run: Any) -> None:
    code, _, err = run("max_num_seq")
    assert code == 2
    assert "did you mean `max_num_seqs`?" in err


@pytest.mark.parametrize("name", LEVERS)
def test_every_example_and_every_completed_value_can_be_typed(name: str) -> None:
    (typed,) = shlex.split(example(LEVERS[name]))
    assert profiles.resolve(goal="edge", sets=[typed]).user_set(name)
    for word in words(LEVERS[name]):
        assert name in profiles.resolve(goal="edge", sets=[f"{name}={word}"]).profile.levers


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("max_num_s", "max_num_seqs="),
        ("kv_cache_dtype=q8", "kv_cache_dtype=q8_0"),
        ("speculative=", "speculative={method: ngram}"),
        ("flash_attention=o", "flash_attention=off"),
        ("chunked_prefill=", "chunked_prefill=false"),
    ],
)
def test_settings_are_completed_with_their_values(begun: str, offered: str) -> None:
    assert offered in plan_options.complete_lever(begun)


def test_no_value_is_offered_for_an_unknown_lever() -> None:
    assert plan_options.complete_lever("bogus=") == []


def test_engines_are_completed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    monkeypatch.setenv("LLAMA_SERVER", "/nowhere/llama-server")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "engines.yaml").write_text("mine: {kind: llamacpp, path: /x}\n# no: 1\n")
    assert plan_options.complete_engine("") == ["auto", "mine", "llama-server", "embedded", "vllm", "sglang"]
    assert plan_options.complete_engine("m") == ["mine"]


def test_diff_is_completed_with_stock_and_profiles() -> None:
    assert plan_options.complete_diff("s") == ["stock"]
    assert {"stock", "latency", "edge"} <= set(plan_options.complete_diff(""))


def test_models_are_completed_by_name_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("smooth.gguf", "smooth.txt", "models/a.gguf"):
        (tmp_path / name).touch()
    assert plan_options.complete_model("smo") == ["smollm2-135m", "smooth.gguf"]
    assert plan_options.complete_model("mod") == ["models/"]
    assert plan_options.complete_model("models/") == ["models/a.gguf"]
    assert plan_options.complete_model("nowhere/") == []


@pytest.mark.parametrize("call", ["engine('')", "lever('speculative=')", "model('')"])
def test_completion_imports_nothing_that_probes_or_serves(call: str, tmp_path: Path) -> None:
    code = f"""
import sys
from orchestrator.cli import plan_options
assert plan_options.complete_{call}
heavy = ("httpx", "pydantic", "uvicorn", "psutil", "pynvml", "huggingface_hub", "xllamacpp")
print([m for m in heavy if m in sys.modules])
"""
    env = {"LLMSERVE_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
