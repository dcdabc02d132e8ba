"""`llmserve plan` as a person and as a program uses it."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from planning_inputs import EMBEDDED, GOALS, SERVER, card, gpu, machine, plan
from rich.console import Console

from orchestrator.cli import main, output, plan_view
from orchestrator.model_store import ResolvedModel
from orchestrator.plan import Plan
from orchestrator.planning import inputs

MACHINE = """
name: shelf
cpus: 4
physical_cores: 4
memory: 16GiB
memory_available: 15GiB
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command with a machine file, a card and a stand-in installation; (code, out, err)."""
    file = tmp_path / "shelf.yaml"
    file.write_text(MACHINE)
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(inputs, "installed", lambda asked, env, kinds=None: [SERVER, EMBEDDED])

    def resolve(name: str, **_: Any) -> ResolvedModel:
        return ResolvedModel(name, name, "/models/small.gguf", card(name=name, source=name))

    monkeypatch.setattr("orchestrator.model_store.resolve", resolve)

    def command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(output, "_json_mode", False)
        monkeypatch.setattr("sys.argv", ["llmserve", "plan", "--machine", str(file), *args])
        with pytest.raises(SystemExit) as e:
            main.main()
        out, err = capsys.readouterr()
        return int(e.value.code or 0), out, err

    return command


def test_a_plan_is_shown_within_80_columns_with_the_next_command(run: Any) -> None:
    code, out, _ = run("--goal", "agent", "--model", "small")
    assert code == 0
    shown, _, rest = out.partition("\nnext:")
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "can change answers" in shown
    assert "q8_0 (lossy)" in shown
    assert "weights" in shown
    assert "--port PORT" in shown
    assert "this plan is for shelf" in rest.splitlines()[0]
    assert rest.splitlines()[1].strip() == "llmserve launch --goal agent --model small"


def test_a_plan_that_cannot_be_launched_says_what_is_lacking(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str, **_: Any) -> ResolvedModel:
        return ResolvedModel(name, name, None, card(name=name, source=name, format="config", path=None))

    monkeypatch.setattr("orchestrator.model_store.resolve", resolve)
    code, out, _ = run(
        "--goal", "latency", "--model", "small", "--machine", "8xh100", "--engine", "vllm@0.27.1"
    )
    said = " ".join(out.split())
    assert code == 0
    assert "llmserve launch" not in said
    assert "the model's weights" in said
    assert "vllm on that machine: llmserve engines install vllm --version 0.27.1" in said


def test_diff_and_explain_together_are_a_usage_error(run: Any) -> None:
    code, _, err = run("--goal", "latency", "--model", "small", "--diff", "stock", "--explain")
    assert code == 2
    assert "--diff" in err
    assert "--explain" in err


def test_explain_tells_rule_reason_and_what_was_rejected(run: Any) -> None:
    code, out, _ = run("--goal", "edge", "--explain")
    assert code == 0
    for text in ("edge_small_model", "gguf_llamacpp", "not embedded", "threads_leave_a_core", "left out"):
        assert text in out, text


def test_explain_tells_why_each_variable_is_set(run: Any) -> None:
    code, out, _ = run("--goal", "edge", "--explain")
    assert code == 0
    shown = " ".join(out.split())
    assert "GGML_NO_BACKTRACE = 1 a crash starts no debugger on itself" in shown
    for goal in GOALS:
        made = plan(goal, on=machine(gpus=[gpu(0, 24)]))
        assert set(made.layout["environment"]) == {n for p in made.processes for n in p.env}
        assert "llmserve starts this engine so" not in made.layout["environment"].values()


def test_json_is_the_plan_and_nothing_else(run: Any) -> None:
    code, out, _ = run("--goal", "latency", "--model", "small", "--json")
    assert code == 0
    data = json.loads(out)
    made = Plan.from_json(data)
    assert made.to_json() == data
    assert set(data) == {f.name for f in dataclasses.fields(Plan)}
    assert {"levers", "predictions", "processes", "not_expressible", "steps_down", "fallback"} < set(data)
    assert made.layout["name"] == "latency-small"
    assert made.supervision["drain_s"] == 30


def test_a_refusal_in_json_has_error_violations_and_plan(run: Any) -> None:
    code, out, _ = run("--goal", "edge", "--host", "0.0.0.0", "--set", "max_num_seqs=999", "--json")
    assert code == 3
    data = json.loads(out)
    assert data["error"]["code"] == "plan_refused"
    assert [v["code"] for v in data["violations"]] == ["public_bind", "too_many_slots"]
    assert data["plan"]["violations"] == data["violations"]


def test_a_refusal_for_a_person_lists_every_remedy(run: Any) -> None:
    code, out, err = run("--goal", "edge", "--host", "0.0.0.0", "--port", "0")
    assert code == 3
    assert out == ""
    assert err.count("→") >= 3
    assert "ssh -L" in err


def test_an_unknown_engine_is_exit_5_and_a_typo_exit_2(run: Any) -> None:
    assert run("--goal", "edge", "--engine", "mine")[0] == 5
    assert run("--goal", "edge", "--name", "../x")[0] == 2
    code, _, err = run("--goal", "edge", "--set", "max_num_seq=1")
    assert code == 2
    assert "max_num_seqs" in err


@pytest.mark.parametrize("goal", GOALS)
def test_the_command_line_to_copy_is_whole(goal: str) -> None:
    made = plan(goal)
    text = plan_view.command(made.processes[0].argv)
    words = text.replace("\\\n", " ").split()
    assert words == ["PORT" if w == "{port:http}" else w for w in made.processes[0].argv]
    assert max(len(line) for line in text.splitlines()) <= 80


def test_markup_in_a_name_is_shown_as_it_is() -> None:
    sink = io.StringIO()
    plan_view.show(Console(width=100, file=sink), plan("edge", of=card(name="a[bold]b[/]")))
    assert "a[bold]b[/]" in sink.getvalue()


def test_the_short_form_fits_a_few_lines() -> None:
    sink = io.StringIO()
    plan_view.show_short(Console(width=80, file=sink), plan("edge"))
    assert "max_model_len=2048" in sink.getvalue()
    assert len(sink.getvalue().splitlines()) < 12


@pytest.mark.parametrize("host", ["evil host", "", "a_b!", "127.0.0.1,0.0.0.0", "x" * 300, "[::1"])
def test_what_is_no_address_is_a_usage_error(run: Any, host: str) -> None:
    code, _, err = run("--goal", "edge", "--host", host)
    assert code == 2
    assert "is not an address" in err


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "my-host.example.org", "0.0.0.0"])
def test_addresses_and_names_are_addresses(host: str) -> None:
    assert inputs.is_address(host)


def test_an_explained_refusal_does_not_send_to_the_command_just_typed(run: Any) -> None:
    _, _, err = run("--goal", "edge", "--set", "max_num_seqs=999", "--explain")
    assert "--explain" not in err
    assert "1 violation" in err
    assert "1 violations" not in err
    _, _, err = run("--goal", "edge", "--set", "max_num_seqs=999")
    assert "llmserve plan --explain" in err


def test_one_request_is_one_and_the_models_context_is_named_so(run: Any) -> None:
    _, out, _ = run("--goal", "edge", "--model", "small")
    assert "1 request of the workload" in out
    assert "model context 8192" in out


def test_all_wrong_settings_are_told_at_once_in_json_too(run: Any) -> None:
    sets = ["max_model_len=16k", "bogus=1", "threads=0", "flash_attention=onn", "slo=["]
    args = [word for s in sets for word in ("--set", s)]
    code, out, _ = run("--goal", "edge", *args, "--json")
    assert code == 2
    violations = json.loads(out)["violations"]
    assert len(violations) == 5
    assert all(v["remedy"] for v in violations)
    remedies = " ".join(v["remedy"] for v in violations)
    for text in ("write 16384", "llmserve levers", "for example --set threads=", "auto, on or off"):
        assert text in remedies, text


def test_a_port_that_was_given_stands_in_the_command_to_copy() -> None:
    argv = ("serve", "--port", "{port:http}", "--nccl-port", "{port:nccl}")
    assert plan_view.command(argv, None, {"http": 2024, "nccl": None}).endswith(
        "--port 2024 --nccl-port NCCL_PORT"
    )
