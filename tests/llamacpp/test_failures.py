from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.base import Exit
from orchestrator.engines.llamacpp.embedded_args import EMBEDDED_MARK
from orchestrator.engines.llamacpp.failures import classify, phase

START = """0.00.000.761 I srv  llama_server: initializing ...
0.00.003.586 I srv          init: loading model
"""
GENERIC = """0.00.271.401 E srv    load_model: failed to load model, '/m/x.gguf'
0.00.271.930 E srv          init: exiting due to model loading error
"""

LINES = Path(__file__).parent / "failure-lines.txt"
SEEN = [line.split("\t") for line in LINES.read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.parametrize(("name", "retry", "line"), SEEN, ids=[s[0] for s in SEEN])
def test_the_first_cause_wins_over_the_generic_last_line(name: str, retry: str, line: str) -> None:
    failure = classify(f"{START}{line}\n{GENERIC}", Exit(code=1))
    assert (failure.failure_class, failure.retry, failure.evidence) == (name, retry, line)
    assert failure.remedy
    assert "{" not in failure.message


def test_of_two_causes_the_earlier_is_named() -> None:
    log = "E gguf_init_from_file: failed to open GGUF file '/a.gguf' (No)\nstd::bad_alloc\n"
    assert classify(log, Exit(code=1)).failure_class == "model_missing"


LOGS = yaml.safe_load((Path(__file__).parent / "failure-logs.yaml").read_text(encoding="utf-8"))


def ended(number: int) -> Exit:
    return Exit(code=number) if number >= 0 else Exit(signal=-number)


@pytest.mark.parametrize("case", LOGS, ids=[c["about"] for c in LOGS])
def test_lines_that_belong_together_name_cause_and_file(case: dict[str, Any]) -> None:
    failure = classify(START + case["log"] + (GENERIC if case["exit"] == 1 else ""), ended(case["exit"]))
    assert (failure.failure_class, failure.retry) == (case["class"], case["retry"])
    assert failure.evidence == case["evidence"]
    assert case["message"] in failure.message
    assert case["remedy"] in failure.remedy


@pytest.mark.parametrize(
    ("port", "said"),
    [("18797", "port 18797 on 127.0.0.1 is held by another process"), ("80", "not this user's to take")],
)
def test_a_taken_port_is_named_with_what_can_be_done(port: str, said: str) -> None:
    line = f"E srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}"
    failure = classify(line, Exit(code=1))
    assert said in failure.message
    assert failure.remedy.startswith(
        f"free port {port}, then `llmserve restart`; or launch again with another --port"
    )


def test_an_illegal_instruction_names_what_works_instead() -> None:
    failure = classify(START, Exit(signal=4))
    assert (failure.failure_class, failure.retry) == ("illegal_instruction", "never")
    assert failure.evidence == "killed by SIGILL"
    assert "--engine embedded" in failure.remedy
    assert "--set 'engine_args.llamacpp=[--no-repack]'" in failure.remedy
    own = classify(f"{EMBEDDED_MARK} 2026.10\n{START}", Exit(signal=4))
    assert "--engine embedded" not in own.remedy
    assert "--no-repack" in own.remedy


def test_an_abort_at_the_start_would_come_again_and_one_of_a_running_server_may_not() -> None:
    assert classify(START, Exit(signal=6)).retry == "never"
    running = classify(START + "0.1 I srv          init: model loaded\n", Exit(signal=6))
    assert (running.failure_class, running.retry) == ("crash", "backoff")


def test_without_a_cause_the_generic_line_is_better_than_nothing() -> None:
    assert classify(START + GENERIC, Exit(code=1)).failure_class == "model_unreadable"
    log = START + "E srv    load_model: failed to create_context with model 'x'\n" + GENERIC
    assert classify(log, Exit(code=1)).failure_class == "context_failed"


@pytest.mark.parametrize(
    ("exit", "name"),
    [
        (Exit(signal=9), "killed by SIGKILL"), (Exit(signal=15), "killed by SIGTERM"),
        (Exit(signal=11), "crash by SIGSEGV"), (Exit(signal=6), "crash by SIGABRT"),
        (Exit(signal=4), "illegal_instruction by SIGILL"), (Exit(signal=70), "crash by signal 70"),
        (Exit(code=0), "exited with 0"), (Exit(code=1), "exited with 1"),
    ],
)  # fmt: skip
def test_a_log_that_says_nothing_leaves_the_exit_to_speak(exit: Exit, name: str) -> None:
    failure = classify(START, exit)
    failure_class, *rest = name.split(" ", 1)
    assert failure.failure_class == failure_class
    how = "exited " if exit.signal is None else "killed "
    assert failure.evidence == how + rest[0]


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("", "load"),
        ("common_download_file_single_online: downloading from https://x\n", "fetch"),
        (START, "load"),
        (START + "0.1 I common_init_: warming up the model with an empty run\n", "warm-up"),
        (START + "0.1 I srv          init: model loaded\n", "warm-up"),
    ],
)
def test_the_phase_is_what_the_log_spoke_of_last(log: str, name: str) -> None:
    assert phase(log) == name


@given(st.text(max_size=200), st.integers(0, 70))
def test_any_log_is_classified(log: str, number: int) -> None:
    assert classify(log, Exit(signal=number)).failure_class
    assert phase(log) in ("fetch", "load", "warm-up")
