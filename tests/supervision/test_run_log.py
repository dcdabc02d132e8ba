"""What of an engine's log is read to find the first cause."""

import os

import pytest

from orchestrator.cli.tail import last_lines_of
from orchestrator.supervisor import run as module
from orchestrator.supervisor.run import Run
from orchestrator.supervisor.store import DeploymentFolder

CAUSE = b"the cause\n"
CHATTER = b"chatter chatter chatter\n"


@pytest.fixture
def run(tmp_path) -> Run:
    folder = DeploymentFolder("x", tmp_path)
    folder.process_dir("server").mkdir(parents=True)
    return Run(folder, "server", 1, "marker", "", 0, "boot", started_at=1.0)


def test_a_cause_in_the_middle_of_megabytes_is_read(run: Run) -> None:
    run.folder.log("server").write_bytes(CHATTER * 150_000 + CAUSE + CHATTER * 150_000)
    assert CAUSE.decode() in run.log_text()


def test_a_cause_that_was_rotated_away_is_read(run: Run) -> None:
    log = run.folder.log("server")
    log.with_name("engine.log.1").write_bytes(CHATTER + CAUSE + CHATTER * 1000)
    log.write_bytes(b"")
    assert CAUSE.decode() in run.log_text()


def test_what_an_earlier_run_wrote_is_not_read(run: Run) -> None:
    log = run.folder.log("server")
    log.write_bytes(CAUSE + b"ours\n")
    run.log_start = len(CAUSE)
    old = log.with_name("engine.log.1")
    old.write_bytes(CAUSE)
    os.utime(old, (0.5, 0.5))
    assert run.log_text() == "ours\n"


def test_of_a_flood_the_first_and_the_last_are_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOG_READ_BYTES", 2000)
    run.folder.log("server").write_bytes(CAUSE + CHATTER * 1000 + b"the end\n")
    text = run.log_text()
    assert text.startswith(CAUSE.decode())
    assert text.endswith("the end\n")
    assert len(text) < 2100


def test_logs_reach_back_over_a_rotation(run: Run) -> None:
    log = run.folder.log("server")
    log.with_name("engine.log.1").write_bytes(b"1\n2\n3\n")
    log.write_bytes(b"4\n")
    assert last_lines_of(log, 3)[0] == b"2\n3\n4\n"
    assert last_lines_of(log, 1)[0] == b"4\n"
    assert last_lines_of(log.with_name("none"), 3) == (b"", 0)
