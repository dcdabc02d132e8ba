from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.base import Exit
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


def test_messages_name_what_the_line_names() -> None:
    line = "E srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18797"
    assert classify(line, Exit(code=1)).message == "port 18797 on 127.0.0.1 is taken"


def test_without_a_cause_the_generic_line_is_better_than_nothing() -> None:
    assert classify(START + GENERIC, Exit(code=1)).failure_class == "model_unreadable"
    log = START + "E srv    load_model: failed to create_context with model 'x'\n" + GENERIC
    assert classify(log, Exit(code=1)).failure_class == "context_failed"


@pytest.mark.parametrize(
    ("exit", "name"),
    [
        (Exit(signal=9), "killed"), (Exit(signal=15), "killed"), (Exit(signal=4), "illegal_instruction"),
        (Exit(signal=11), "crash"), (Exit(signal=6), "crash"), (Exit(signal=64), "crash"),
        (Exit(code=0), "exited"), (Exit(code=1), "exited"),
    ],
)  # fmt: skip
def test_a_log_that_says_nothing_leaves_the_exit_to_speak(exit: Exit, name: str) -> None:
    failure = classify(START, exit)
    assert failure.failure_class == name
    assert failure.evidence == "0.00.003.586 I srv          init: loading model"


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
