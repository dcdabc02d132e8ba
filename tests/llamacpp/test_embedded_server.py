import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from embedded_running import EMBEDDED, Running, Start

from orchestrator.engines.base import Exit
from orchestrator.engines.llamacpp.engine import LlamaCpp
from orchestrator.engines.llamacpp.failures import classify

ENGINE = LlamaCpp()


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*EMBEDDED, *args),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def open_stream(server: Running, tokens: int) -> socket.socket:
    """A raw streaming request whose first bytes of answer have come."""
    body = json.dumps({"prompt": "a", "n_predict": tokens, "ignore_eos": True, "stream": True}).encode()
    s = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    s.sendall(head.encode() + body)
    assert s.recv(4096).startswith(b"HTTP/1.1 200")
    return s


def rest(s: socket.socket) -> bytes:
    with s:
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := s.recv(65536):
                data += piece
        return data


def refused(server: Running) -> bool:
    """Wait for the listener to be gone: each attempt is a connection of its own."""
    for _ in range(2000):
        try:
            socket.create_connection(("127.0.0.1", server.port)).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            pass  # it was waiting in the old listener's queue
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.01)
    return False


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


@pytest.mark.real_engine
def test_help_version_and_refusals_need_no_model() -> None:
    helped = run("--help")
    assert helped.returncode == 0
    assert "-c, --ctx-size N" in helped.stdout
    assert run("--version").stderr.startswith("version: ")
    flags = json.loads(run("--list-flags").stdout)["flags"]
    assert any("--ctx-size" in f["spellings"] for f in flags)
    for args in (("--bogus",), ("-c", "x"), ("--draft-max", "3"), ()):
        wrong = run(*args)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert "Traceback" not in wrong.stderr
        assert wrong.stderr.startswith("error")


@pytest.mark.real_engine
def test_the_server_reports_what_its_line_asked_for(server: Running) -> None:
    slots = httpx.get(f"{server.url}/slots").json()
    assert [(s["n_ctx"], s["speculative"]) for s in slots] == [(1024, True)] * 2
    assert "n_slots = 2, n_ctx_slot = 1024, kv_unified = 'false'" in server.log()
    assert ENGINE.phase(server.log()) == "warm-up"


@pytest.mark.real_engine
async def test_the_engine_reads_health_token_counters_and_facts(server: Running) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await ENGINE.health(client, server.url)).state == "ok"
        before = await ENGINE.progress(client, server.url)
        assert await ENGINE.prove(client, server.url, "small") is not None
        after = await ENGINE.progress(client, server.url)
        assert before is not None
        assert after is not None
        assert after.tokens > before.tokens
        assert (after.running, after.waiting) == (0, 0)
        facts = await ENGINE.facts(client, server.url)
    assert (facts["slots"], facts["slot_context"], facts["speculative"]) == (2, 1024, True)
    assert facts["served_models"] == ["small"]
    assert facts["n_ctx_train"] == 8192


@pytest.mark.real_engine
def test_a_taken_port_ends_it_before_the_model_is_read(server: Running, start: Start) -> None:
    second = start("--port", str(server.port))
    assert second.process.wait(20) == 1
    assert "loading model" not in second.log()
    assert "Traceback" not in second.log()
    assert classify(second.log(), Exit(code=1)).failure_class == "port_taken"


@pytest.mark.real_engine
@pytest.mark.parametrize(
    ("content", "args", "name"),
    [
        (None, (), "model_missing"),
        (b"version https://git-lfs.github.com/spec/v1\n", (), "model_unreadable"),
        ("cut", (), "model_unreadable"),
        ("whole", ("-fa", "off", "-ctv", "q4_0"), "kv_type_needs_flash_attention"),
        ("whole", ("--spec-type", "draft-simple", "-md", "/nope.gguf"), "model_missing"),
    ],
)
def test_what_cannot_load_exits_1_with_its_cause_in_the_log(
    start: Start, model: str, tmp_path: Path, content: bytes | str | None, args: tuple[str, ...], name: str
) -> None:
    path = tmp_path / "m.gguf"
    if content == "cut":
        with open(model, "rb") as f:
            path.write_bytes(f.read(1_000_000))
    elif isinstance(content, bytes):
        path.write_bytes(content)
    failed = start(*args, model=model if content == "whole" else str(path))
    assert failed.process.wait(60) == 1
    assert "Traceback" not in failed.log()
    assert classify(failed.log(), Exit(code=1)).failure_class == name


@pytest.mark.real_engine
def test_keys_from_a_file_are_asked_for_and_never_logged(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("very-secret\n")
    running = start("--api-key-file", str(keys))
    running.wait_ready()
    assert httpx.get(f"{running.url}/v1/models").status_code == 401
    allowed = httpx.get(f"{running.url}/v1/models", headers={"Authorization": "Bearer very-secret"})
    assert allowed.status_code == 200
    assert "very-secret" not in running.log()
    assert "very-secret" not in " ".join(psutil.Process(running.process.pid).cmdline())


@pytest.mark.real_engine
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_with_0_although_a_client_keeps_its_connection(
    start: Start, number: signal.Signals
) -> None:
    running = start()
    running.wait_ready()
    with httpx.Client() as client:
        assert client.get(f"{running.url}/health").status_code == 200
        running.process.send_signal(number)
        # the stop recipe's first wait
        assert running.process.wait(2) == 0
    assert "main loop exited" in running.log()


@pytest.mark.real_engine
def test_it_serves_and_stops_with_every_standard_stream_closed(start: Start) -> None:
    running = start(program=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *EMBEDDED))
    running.wait_ready()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(5) == 0


def wait_for_status(server: Running, status: bytes) -> None:
    """Ask for /health without a pause until its first line begins with `status`."""
    answer = b""
    while not answer.startswith(b"HTTP/1.1 " + status):
        assert server.process.poll() is None, server.log()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            answer = s.recv(200)


@pytest.mark.real_engine
@pytest.mark.parametrize("attempt", range(3))
def test_a_signal_right_after_the_first_200_ends_it_with_0(start: Start, attempt: int) -> None:
    running = start()
    wait_for_status(running, b"200")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(5) == 0


@pytest.mark.real_engine
def test_a_signal_while_the_model_loads_ends_it_with_0_when_it_is_loaded(start: Start) -> None:
    running = start()
    wait_for_status(running, b"503")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(20) == 0
    assert "main loop exited" in running.log()


@pytest.mark.real_engine
def test_a_second_signal_while_the_model_loads_ends_it_at_once(start: Start) -> None:
    running = start()
    wait_for_status(running, b"503")
    running.process.send_signal(signal.SIGTERM)
    # until the first has been delivered: two at once would be one
    while "ShdPnd:\t0000000000000000" not in Path(f"/proc/{running.process.pid}/status").read_text():
        assert running.process.poll() is None
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(2) in (-signal.SIGTERM, 1)
    assert "model loaded" not in running.log()


@pytest.mark.real_engine
def test_speculation_by_mtp_on_a_model_without_such_layers_is_named(start: Start) -> None:
    failed = start("--spec-type", "draft-mtp")
    assert failed.process.wait(60) == 1
    failure = classify(failed.log(), Exit(code=1))
    assert (failure.failure_class, failure.retry) == ("speculation_unsupported", "never")
    assert "MTP" in failure.message


@pytest.mark.real_engine
def test_a_projector_that_is_no_gguf_is_named_and_not_the_model(start: Start, tmp_path: Path) -> None:
    other = tmp_path / "projector"
    other.write_text("root:x:0:0")
    failed = start("--mmproj", str(other))
    assert failed.process.wait(60) == 1
    failure = classify(failed.log(), Exit(code=1))
    assert failure.message.startswith(f"the projector {other} is not a GGUF file")
    assert "models pull" not in failure.remedy


@pytest.mark.real_engine
def test_a_context_too_small_to_begin_with_is_never_tried_again(start: Start) -> None:
    failed = start("--ctx-size", "1", GGML_NO_BACKTRACE="1")
    assert failed.process.wait(60) == -signal.SIGABRT
    failure = classify(failed.log(), Exit(signal=signal.SIGABRT))
    assert (failure.failure_class, failure.retry) == ("context_too_small", "never")
    assert "max_model_len" in failure.remedy


@pytest.mark.real_engine
def test_a_running_stream_is_finished_and_new_requests_are_refused(start: Start) -> None:
    running = start()
    running.wait_ready()
    stream = open_stream(running, 60)
    running.process.send_signal(signal.SIGTERM)
    assert refused(running)
    answer = rest(stream)
    assert b'"stop":true' in answer, running.log()
    assert running.process.wait(5) == 0


@pytest.mark.real_engine
def test_a_second_signal_ends_a_running_stream_at_once_with_1(start: Start) -> None:
    running = start()
    running.wait_ready()
    stream = open_stream(running, 8000)
    running.process.send_signal(signal.SIGTERM)
    assert refused(running)
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(2) == 1
    assert b'"stop":true' not in rest(stream)


@pytest.mark.real_engine
def test_a_client_that_leaves_lets_a_stopping_server_go(start: Start) -> None:
    running = start()
    running.wait_ready()
    stream = open_stream(running, 8000)
    running.process.send_signal(signal.SIGTERM)
    assert refused(running)
    stream.close()
    assert running.process.wait(10) == 0


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No child of ours, no shared memory and no temporary file may outlive the test."""
    children, shm = {p.pid for p in psutil.Process().children(recursive=True)}, shared_memory()
    yield
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= children
    assert shared_memory() <= shm


@pytest.mark.real_engine
def test_many_starts_and_stops_leave_nothing(nothing_left: None, start: Start, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for _ in range(int(os.environ.get("LLMSERVE_TEST_CYCLES", "3"))):
        running = start("--no-warmup", "--ctx-size", "512", TMPDIR=str(scratch))
        running.wait_ready()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", running.port))
        assert list(scratch.iterdir()) == []
