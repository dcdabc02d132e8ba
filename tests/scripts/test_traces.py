"""The watch over what tests leave behind must itself see."""

import os
import socket
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "traces.py"
SLEEPER = "import sys; print('on', flush=True); sys.stdin.read()"


def traces(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, args)], capture_output=True, text=True, check=False
    )


def sleeper(env: dict[str, str], *more: str, code: str = SLEEPER) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *more],
        env=os.environ | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    return process


def test_nothing_left_is_exit_zero(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert traces("before", tmp_path / "b").returncode == 0
    done = traces("after", tmp_path / "b", tmp_path / "run", "SOME_MARKER=1")
    assert (done.returncode, done.stdout) == (0, "")


def test_marked_processes_and_those_in_the_folder_are_found_and_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    marker = f"LLMSERVE_TRACES={tmp_path}"
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); f = open(sys.argv[1], 'w');"
    found = [
        sleeper(dict([marker.split("=", 1)])),
        sleeper({}, str(run / "named")),
        sleeper({}, str(run / "opened"), code=SLEEPER.replace("print", f"{listen} print")),
    ]
    other = sleeper({})
    try:
        traces("before", tmp_path / "b")
        done = traces("after", tmp_path / "b", run, marker)
        assert done.returncode == 1
        for process in found:
            assert f"left running: {process.pid} " in done.stdout
            assert process.wait(10) < 0
        assert f" {other.pid} " not in done.stdout
        assert other.poll() is None
    finally:
        for process in (*found, other):
            process.kill()
            process.communicate()


def test_shared_memory_and_temporary_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "run" / "tmp").mkdir(parents=True)
    traces("before", tmp_path / "b")
    (tmp_path / "run" / "tmp" / "forgotten").write_text("")
    segment = shared_memory.SharedMemory(create=True, size=16)
    try:
        held = traces("after", tmp_path / "b", tmp_path / "run", "")
        assert segment.name not in held.stdout
        segment.close()
        left = traces("after", tmp_path / "b", tmp_path / "run", "")
        assert f"left in shared memory: /dev/shm/{segment.name}" in left.stdout
        assert "left in the temporary folder: forgotten" in left.stdout
        assert left.returncode == 1
    finally:
        segment.unlink()


def test_listening_ports_belong_to_their_process() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import traces as module
    finally:
        sys.path.remove(str(SCRIPT.parent))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port in module.listening(os.getpid())
        assert module.listened({port, 1}) == {port}
    assert module.listened({port}) == set()
