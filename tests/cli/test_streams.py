"""What the command does with streams that are closed, full, narrow or gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LLMSERVE = str(Path(sys.executable).parent / "llmserve")


def run(tmp_path: Path, *args: str, **options) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LLMSERVE_HOME": str(tmp_path), **options.pop("env", {})}
    options = {"stdout": subprocess.PIPE} | options
    done = subprocess.run(
        [LLMSERVE, *args], env=env, stderr=subprocess.PIPE, text=True, check=False, timeout=60, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_no_arguments_is_the_help_and_a_usage_error_without_a_message(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert "Usage" in done.stdout
    assert "error" not in done.stderr


def test_an_unknown_command_is_a_usage_error_that_names_the_help(tmp_path: Path) -> None:
    done = run(tmp_path, "profiles", "validat")
    assert done.returncode == 2
    assert "llmserve profiles --help" in done.stderr


def test_an_unknown_option_is_told_in_json_where_json_is_asked(tmp_path: Path) -> None:
    done = run(tmp_path, "ps", "--json", "--nope")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "usage"


@pytest.mark.parametrize("args", [["goals"], ["goals", "--json"], ["profiles", "show", "nobody", "--json"]])
def test_a_full_stdout_is_an_exit_code_and_no_traceback(tmp_path: Path, args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        assert run(tmp_path, *args, stdout=full).returncode != 0


def test_a_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{LLMSERVE}' goals --json >&-"],
        env={**os.environ, "LLMSERVE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [["goals", "--long"], ["goals", "--json"]])
def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path, args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(tmp_path, *args, stdout=write).returncode == 0
    finally:
        os.close(write)


def test_a_terminal_that_knows_ascii_only_gets_question_marks(tmp_path: Path) -> None:
    done = run(tmp_path, "goals", "edge", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_piped_output_has_no_colour_and_fits_80_columns(tmp_path: Path) -> None:
    done = run(tmp_path, "goals", env={"TERM": "xterm-256color"})
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_home_that_is_a_file_is_one_message_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run(tmp_path, "daemon", "start", "--json", env={"LLMSERVE_HOME": str(file)})
    assert done.returncode in (2, 3)
    assert json.loads(done.stdout)["error"]["remedy"]


def test_a_state_folder_too_deep_for_a_socket_is_refused_with_a_remedy(tmp_path: Path) -> None:
    done = run(tmp_path, "ps", "--json", env={"LLMSERVE_HOME": str(tmp_path / ("d" * 120))})
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (3, "socket_path_too_long")
    assert "LLMSERVE_HOME" in error["remedy"]


def test_ps_and_status_of_what_has_ended_start_no_daemon(tmp_path: Path) -> None:
    assert json.loads(run(tmp_path, "ps", "--json").stdout)["deployments"] == []
    assert run(tmp_path, "daemon", "status", "--json").returncode == 6
    assert not (tmp_path / "state" / "daemon.lock").exists()


def test_a_bad_certificate_file_in_the_environment_does_not_matter(tmp_path: Path) -> None:
    env = {"SSL_CERT_FILE": "/nonexistent", "HTTP_PROXY": "garbage://"}
    try:
        assert run(tmp_path, "daemon", "start", env=env).returncode == 0
    finally:
        assert run(tmp_path, "daemon", "stop").returncode == 0
