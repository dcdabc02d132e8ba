"""scripts/environment.sh chooses the Python that quickstart and test work with."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "cat", "cksum", "cut", "date", "head", "mktemp", "rm", "sleep", "uname")
REAL = sys.executable
VERSION = "{}.{}".format(*sys.version_info)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with the usual tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def program(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


def choose(path: Path, *version: str) -> subprocess.CompletedProcess[str]:
    command = '. "$ROOT/scripts/environment.sh"; need_python "$@"'
    return subprocess.run(
        [str(path / "bash"), "-c", command, "bash", *version],
        env={
            "ROOT": str(ROOT),
            "PATH": str(path),
            "HOME": str(path),
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_shim_that_fails_is_passed_over(path: Path) -> None:
    program(path / "python3", "echo 'pyenv: python3: command not found' >&2; exit 127")
    program(path / f"python{VERSION}", f'exec {REAL} "$@"')
    assert choose(path).stdout.strip() == str(path / f"python{VERSION}")


def test_an_old_python_is_passed_over_and_named_where_there_is_no_other(path: Path) -> None:
    program(path / "python3", 'case "$*" in *platform*) echo 3.9.2 ;; *) exit 1 ;; esac')
    done = choose(path)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed; python3 here is 3.9.2" in done.stderr
    assert "apt install" in done.stderr


def test_a_machine_without_python_is_told_so(path: Path) -> None:
    assert "python3 here is missing" in choose(path).stderr


def test_a_missing_venv_module_is_named_with_its_package(path: Path) -> None:
    program(path / "python3", f'case "$*" in *ensurepip*) exit 1 ;; *) exec {REAL} "$@" ;; esac')
    done = choose(path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"sudo apt install python{VERSION}-venv" in done.stderr


def test_a_python_of_pyenv_is_found_behind_its_shim(path: Path) -> None:
    program(path / f"python{VERSION}", "exit 127")
    folder = path / ".pyenv" / "versions" / f"{VERSION}.9" / "bin"
    folder.mkdir(parents=True)
    (folder / f"python{VERSION}").symlink_to(REAL)
    assert choose(path, VERSION).stdout.strip() == str(folder / f"python{VERSION}")


def test_the_version_that_is_asked_for_is_taken(path: Path) -> None:
    program(path / "python3", f'exec {REAL} "$@"')
    assert choose(path, VERSION).stdout.strip() == str(path / "python3")
    assert choose(path, "3.99").returncode == 1


def test_with_uv_no_venv_module_is_needed(path: Path) -> None:
    program(path / "python3", f'case "$*" in *ensurepip*) exit 1 ;; *) exec {REAL} "$@" ;; esac')
    program(path / "uv", "exit 1")
    assert choose(path).stdout.strip() == str(path / "python3")


@pytest.mark.parametrize(("code", "shown"), [("exit 0", False), ("exit 3", True)])
def test_a_quiet_step_shows_its_output_only_where_it_fails(path: Path, code: str, shown: bool) -> None:
    command = f'. "$ROOT/scripts/environment.sh"; quietly waiting bash -c "echo chatter; {code}"'
    done = subprocess.run(
        [str(path / "bash"), "-c", command],
        env={"ROOT": str(ROOT), "PATH": str(path), "HOME": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == int(code[-1])
    assert "waiting" in done.stdout
    assert ("chatter" in done.stderr) == shown


@pytest.mark.parametrize("script", ["test", "quickstart", "bench-help", "bench-plan", "cycles"])
def test_every_script_explains_itself(script: str) -> None:
    argv = [str(ROOT / "scripts" / script), "--help"]
    if script in ("bench-help", "bench-plan", "cycles"):
        argv.insert(0, REAL)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert script in done.stdout
