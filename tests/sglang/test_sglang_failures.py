from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.base import Exit
from orchestrator.engines.sglang.failures import classify, fatal_line, phase

HERE = Path(__file__).parent
LOGS = yaml.safe_load((HERE / "failure-logs.yaml").read_text(encoding="utf-8"))
LINES = [r.split("\t") for r in (HERE / "failure-lines.txt").read_text(encoding="utf-8").splitlines()[1:]]
START = "[2026-11-30 02:45:58] Load weight begin. avail mem=21.21 GB\n"
TRACEBACK = "[2026-11-30 02:45:58 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
GENERIC = """
[2026-11-30 02:45:59] Received sigquit from a child process. It usually means the child failed.
[2026-11-30 02:45:59] kill_process_tree called: parent_pid=1, include_parent=True, pid=1
"""
READY = "[2026-11-30 02:46:58] The server is fired up and ready to roll!\n"


def log(name: str) -> str:
    return (HERE / "logs" / f"{name}.log").read_text(encoding="utf-8")


def ended(number: int) -> Exit:
    return Exit(code=number) if number >= 0 else Exit(signal=-number)


@pytest.mark.parametrize("case", LOGS, ids=[c["log"] for c in LOGS])
def test_a_real_log_names_its_cause(case: dict[str, Any]) -> None:
    failure = classify(log(case["log"]), ended(case["exit"]))
    assert (failure.failure_class, failure.retry) == (case["class"], case["retry"])
    assert case["message"] in failure.message
    assert case["evidence"] in failure.evidence
    assert failure.remedy
    assert "{" not in failure.message + failure.remedy


def test_every_real_failure_is_in_the_table() -> None:
    assert {p.stem for p in (HERE / "logs").glob("*.log")} - {"ready-stopped"} == {c["log"] for c in LOGS}


@pytest.mark.parametrize(("name", "retry", "line"), LINES, ids=[f"{r[0]}-{r[2][:24]}" for r in LINES])
def test_the_cause_wins_over_the_exception_and_the_kill_below_it(name: str, retry: str, line: str) -> None:
    whole = f"{START}{TRACEBACK}{line}\nSomeError: below\n{GENERIC}"
    failure = classify(whole, Exit(signal=9))
    assert (failure.failure_class, failure.retry, failure.evidence) == (name, retry, line.strip())
    assert "{" not in failure.message + failure.remedy


def test_a_kill_is_memory_only_where_nothing_says_otherwise() -> None:
    assert classify(START, Exit(signal=9)).failure_class == "killed"
    own = classify(START + GENERIC, Exit(signal=9))
    assert (own.failure_class, own.retry) == ("crash", "never")


def test_an_interrupt_is_no_crash() -> None:
    failure = classify(log("ready-stopped"), Exit(signal=2))
    assert (failure.failure_class, failure.evidence) == ("killed", "killed by SIGINT")


def test_an_unknown_exception_is_named_and_at_the_start_not_tried_again() -> None:
    text = TRACEBACK + "lib.Odd: no\nlib.OddError: why\n"
    failure = classify(text, Exit(signal=9))
    assert (failure.failure_class, failure.retry, failure.evidence) == ("crash", "never", "lib.OddError: why")
    assert "why" in failure.message
    assert classify(READY + text, Exit(signal=9)).retry == "backoff"


def test_an_exception_that_was_survived_before_is_not_the_cause() -> None:
    text = f"EarlyError: harmless\n{TRACEBACK}RealError: it\n"
    assert classify(text, Exit(signal=9)).evidence == "RealError: it"


def test_what_users_wrote_is_no_cause() -> None:
    quoted = (
        "[t] server_args={'served_model_name': 'CUDA out of memory'}\n"
        "[t] Receive: obj=GenerateReqInput(text='CUDA out of memory')\n"
        '[t] INFO:     127.0.0.1:5 - "GET /CUDA out of memory HTTP/1.1" 404 Not Found\n'
    )
    assert classify(quoted, Exit(code=1)).failure_class == "exited"


def test_what_was_said_before_ready_is_no_cause_of_a_later_end() -> None:
    assert classify("[t] CUDA out of memory, retrying\n" + READY, Exit(signal=9)).failure_class == "killed"


def test_a_taken_port_and_a_dead_child_are_fatal_although_the_process_lives() -> None:
    assert "[Errno 98]" in (fatal_line(log("port-in-use")) or "")
    assert "crashed with exit code -9" in (fatal_line(log("kill-scheduler")) or "")


def test_a_process_that_is_about_to_end_is_left_to_write_its_last_words() -> None:
    assert fatal_line(log("mem-fraction")) is None


def test_a_good_start_has_no_fatal_line() -> None:
    assert fatal_line(log("ready-stopped")) is None
    assert fatal_line("") is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("", "load"),
        ("usage: sglang serve [--flashinfer-autotune-skip-ops X]\n", "load"),
        ("Fetching 12 files:  50%\n", "fetch"),
        (START, "load"),
        ("[t TP0] Capture decode CUDA graph begin. backend=full\n", "compile"),
        ("[t] INFO:     Uvicorn running on http://127.0.0.1:1\n", "warm-up"),
    ],
)
def test_the_phase_is_what_the_log_spoke_of_last(line: str, name: str) -> None:
    assert phase(line) == name
    assert phase(line + "[t] something else\n") == name


@given(st.text(max_size=400), st.one_of(st.none(), st.integers(0, 255)), st.integers(1, 64))
def test_any_log_and_end_have_a_class(text: str, code: int | None, number: int) -> None:
    failure = classify(text, Exit(code=code) if code is not None else Exit(signal=number))
    assert failure.failure_class
    assert failure.remedy
    assert failure.retry in ("never", "backoff", "once", "step_down", "wait_memory")
