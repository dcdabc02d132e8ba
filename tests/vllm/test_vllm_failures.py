import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.base import Exit
from orchestrator.engines.vllm.failures import classify, fatal_line, phase

HERE = Path(__file__).parent
LOGS = yaml.safe_load((HERE / "failure-logs.yaml").read_text(encoding="utf-8"))
LINES = yaml.safe_load((HERE / "failure-lines.yaml").read_text(encoding="utf-8"))
READY = (HERE / "logs" / "ready.log").read_text(encoding="utf-8")
START = READY[: READY.index("INFO:     Application startup complete.")]
UP = START + "INFO:     Application startup complete.\n"
CORE = "(EngineCore pid=9) ERROR 11-30 03:00:00 [core.py:1510] "
GENERIC = f"""{CORE}EngineCore failed to start.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
DEAD = """(APIServer pid=1) ERROR 11-30 03:00:05 [async_llm.py:899] AsyncLLM output_handler failed.
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).
"""


def log_of(case: dict[str, Any]) -> str:
    return (HERE / "logs" / f"{case['log']}.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", LOGS, ids=[c["log"] for c in LOGS])
def test_a_real_failed_start_names_its_cause(case: dict[str, Any]) -> None:
    failure = classify(log_of(case), Exit(code=case["exit"]))
    assert (failure.failure_class, failure.retry) == (case["class"], case["retry"])
    assert case["message"] in failure.message
    assert case["remedy"] in failure.remedy
    assert "See root cause above" not in failure.evidence


@pytest.mark.parametrize(("name", "retry", "line"), LINES, ids=[f"{n}: {t[:40]}" for n, _, t in LINES])
def test_the_first_cause_wins_over_the_generic_last_line(name: str, retry: str, line: str) -> None:
    failure = classify(f"{START}{CORE}{line}\n{GENERIC}", Exit(code=1))
    assert (failure.failure_class, failure.retry) == (name, retry)
    assert line[:60] in failure.evidence
    assert failure.remedy
    for hole in ("{what}", "{name}", "{model}", "{port}", "{have}", "{most}", "{why}"):
        assert hole not in failure.message + failure.remedy


def test_of_two_causes_the_earlier_is_named() -> None:
    log = f"{CORE}torch.OutOfMemoryError: CUDA out of memory.\n{CORE}RuntimeError: NCCL error: unhandled\n"
    assert classify(START + log, Exit(code=1)).failure_class == "out_of_memory"


def test_an_unknown_exception_of_a_start_comes_again_and_one_of_a_running_server_may_not() -> None:
    line = f"{CORE}AssertionError: odd\n"
    assert classify(START + line + GENERIC, Exit(code=1)).retry == "never"
    running = classify(UP + line + DEAD, Exit(code=0))
    assert (running.failure_class, running.retry) == ("crash", "backoff")
    assert "AssertionError: odd" in running.message


def test_the_end_of_an_engine_core_is_a_crash_although_vllm_leaves_with_0() -> None:
    failure = classify(UP + DEAD, Exit(code=0))
    assert (failure.failure_class, failure.retry) == ("crash", "backoff")


def test_an_engine_core_that_was_killed_says_nothing_and_is_looked_for_in_the_kernels_log() -> None:
    # vLLM 0.32.0 after kill -9 of its engine core
    gone = (
        "(APIServer pid=1) WARNING 11-30 03:00:04 [core_client.py:817] [shutdown] MPClient: engine core"
        " exited unexpectedly; starting cleanup\n"
    )
    killed = classify(UP + gone + DEAD, Exit(code=0))
    assert (killed.failure_class, killed.retry) == ("crash", "backoff")
    assert "for want of memory" in killed.message
    assert "kernel's log" in killed.remedy
    raised = classify(f"{UP}{CORE}AssertionError: odd\n{gone}{DEAD}", Exit(code=0))
    assert "AssertionError: odd" in raised.message


def test_an_announced_traceback_says_more_than_its_announcement() -> None:
    log = f"{UP}{CORE}EngineCore encountered a fatal error.\n{CORE}AssertionError: odd\n"
    assert "AssertionError: odd" in classify(log + DEAD, Exit(code=0)).message


def test_a_killed_worker_is_named() -> None:
    log = (
        f"{UP}(EngineCore pid=9) ERROR [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)\n"
    )
    assert "VllmWorker-0" in classify(log + DEAD, Exit(code=0)).message


def test_what_follows_a_wanted_stop_is_noise() -> None:
    asked = (
        "(APIServer pid=1) INFO 11-30 03:00:04 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    )
    failure = classify(UP + asked + DEAD, Exit(code=0))
    assert (failure.failure_class, failure.retry) == ("killed", "backoff")
    assert "shutdown triggered" in failure.evidence
    assert (
        classify(UP + f"{CORE}CUDA out of memory\n" + asked + DEAD, Exit(code=0)).failure_class
        == "out_of_memory"
    )


def test_what_a_client_wrote_is_no_cause() -> None:
    quoted = "(APIServer pid=1) INFO Received request cmpl-1: prompt: 'CUDA out of memory', params: x\n"
    assert classify(UP + quoted, Exit(signal=9)).failure_class == "killed"


def test_what_was_logged_before_readiness_is_no_cause_of_a_later_end() -> None:
    log = f"{CORE}NCCL error in passing\n{UP}"
    assert classify(log, Exit(code=1)).failure_class == "exited"


@pytest.mark.parametrize(
    ("exit", "name"),
    [
        (Exit(signal=9), "killed"),
        (Exit(signal=15), "killed"),
        (Exit(signal=11), "crash"),
        (Exit(signal=6), "crash"),
        (Exit(signal=4), "illegal_instruction"),
        (Exit(signal=70), "crash"),
        (Exit(code=0), "exited"),
        (Exit(code=3), "exited"),
        (Exit(), "exited"),
    ],
)
def test_a_log_that_says_nothing_leaves_the_exit_to_speak(exit: Exit, name: str) -> None:
    assert classify(START, exit).failure_class == name


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("", "load"),
        ("INFO Fetching 12 files: 10%\n", "fetch"),
        (READY[: READY.index("Loading weights took")], "load"),
        ("INFO [backends.py:655] Dynamo bytecode transform time: 3.5 s\n", "compile"),
        ("WARNING [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs\n", "load"),
        ("INFO [monitor.py:53] torch.compile took 14.2 s in total\n", "compile"),
        (READY[: READY.index("Application startup")], "warm-up"),
        (READY, "warm-up"),
    ],
)
def test_the_phase_is_what_the_log_spoke_of_last(log: str, name: str) -> None:
    assert phase(log) == name


def test_a_start_whose_engine_core_failed_can_no_longer_become_ready() -> None:
    failed = [c for c in LOGS if "Engine core initialization failed" in log_of(c)]
    assert len(failed) >= 5
    assert all("initialization failed" in (fatal_line(log_of(c)) or "") for c in failed)
    assert fatal_line(READY) is None


@given(st.text(max_size=200), st.integers(0, 70))
def test_any_text_is_classified(log: str, number: int) -> None:
    failure = classify(log, Exit(signal=number) if number else Exit(code=1))
    assert failure.failure_class
    assert phase(log) in ("fetch", "load", "compile", "warm-up")


@pytest.mark.parametrize(
    "text",
    [
        "A" * 300_000,
        "(" * 300_000,
        "a.b" * 100_000,
        "Capturing CUDA graphs: 10%\n" * 20_000,
        "ERROR x\n" * 50_000,
    ],
    ids=["letters", "brackets", "dots", "graphs", "errors"],
)
def test_no_text_is_read_for_long(text: str) -> None:
    began = time.process_time()
    classify(text, Exit(code=1))
    assert time.process_time() - began < 5


def test_memory_that_runs_out_while_graphs_are_recorded_is_told_apart() -> None:
    spent = f"{CORE}torch.OutOfMemoryError: CUDA out of memory.\n"
    recording = "(Worker) Capturing CUDA graphs (mixed prefill-decode): 40%\n"
    assert classify(START + recording + spent, Exit(code=1)).failure_class == "graph_memory"
    assert classify(START + spent + recording, Exit(code=1)).failure_class == "out_of_memory"
