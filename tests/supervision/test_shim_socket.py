"""The shim's socket against clients that are slow, dead, wrong or many."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time

import pytest
from shimmed import Shimmed, eventually

from orchestrator.supervisor import shim, shim_client


@pytest.fixture
async def shimmed(tmp_path):
    one = Shimmed(tmp_path)
    await one.start("stay-ignoring-term")
    one.telephone.heard(1)
    yield one
    one.end()


def dial(shimmed) -> socket.socket:
    folder = os.open(shimmed.folder, os.O_PATH)
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(5)
    try:
        line.connect(f"/proc/self/fd/{folder}/shim.sock")
    finally:
        os.close(folder)
    return line


def say(line: socket.socket, raw: bytes) -> list[dict[str, object]]:
    """Send, close this side, read to the end."""
    line.sendall(raw)
    line.shutdown(socket.SHUT_WR)
    got = b""
    while part := line.recv(65536):
        got += part
    line.close()
    return [json.loads(reply) for reply in got.splitlines()]


STATUS = b'{"protocol":1,"op":"status"}\n'


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"\n", "a request is one JSON object on one line"),
        (b"\xff\xfe\n", "a request is one JSON object on one line"),
        (b"[1]\n", "a request is one JSON object on one line"),
        (b"[" * 16000 + b"\n", "a request is one JSON object on one line"),
        (b"1" * 16000 + b"\n", "a request is one JSON object on one line"),
        (b'{"op":"status"}\n', "this shim speaks protocol 1"),
        (b'{"protocol":2,"op":"status"}\n', "this shim speaks protocol 1"),
        (b'{"protocol":1,"op":"dance"}\n', "unknown op: dance"),
        (b'{"protocol":1,"op":["x"]}\n', "unknown op: ['x']"),
        (b'{"protocol":1,"op":"signal"}\n', "no such signal: None"),
        (b'{"protocol":1,"op":"signal","signal":true}\n', "no such signal: True"),
        (b'{"protocol":1,"op":"signal","signal":999}\n', "no such signal: 999"),
    ],
)
async def test_a_wrong_request_gets_an_error_and_harms_nothing(shimmed, raw, error):
    replies = await asyncio.to_thread(say, dial(shimmed), raw)
    assert [(r["ok"], r["error"]) for r in replies] == [(False, error)]
    assert (await shimmed.ask("status"))["engine_pid"] == shimmed.engine.pid


async def test_requests_may_come_together_and_in_pieces(shimmed):
    assert [r["ok"] for r in await asyncio.to_thread(say, dial(shimmed), STATUS * 3)] == [True] * 3
    with dial(shimmed) as line:
        line.sendall(STATUS[:9])
        assert (await shimmed.ask("status"))["ok"] is True
        replies = await asyncio.to_thread(say, line, STATUS[9:])
    assert [r["ok"] for r in replies] == [True]


async def test_a_line_without_end_costs_its_sender_the_connection(shimmed):
    with dial(shimmed) as line:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(b"x" * 1_000_000)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(line.recv, 10) == b""
    assert (await shimmed.ask("status"))["ok"] is True


async def test_one_who_asks_and_never_reads_is_dropped(shimmed):
    with dial(shimmed) as line:
        line.setblocking(False)
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            async with asyncio.timeout(10):
                while True:
                    try:
                        sent += line.send(STATUS * 100)
                    except BlockingIOError:
                        assert (await shimmed.ask("status", timeout_s=2))["ok"] is True
    assert sent > 0
    assert (await shimmed.ask("status"))["ok"] is True


async def test_silent_connections_do_not_lock_others_out(shimmed):
    lines = [dial(shimmed) for _ in range(3 * shim.CLIENTS)]
    try:
        began = time.monotonic()
        assert (await shimmed.ask("status", timeout_s=2))["ok"] is True
        assert time.monotonic() - began < 1
        # beside clients: three standard streams, lock, wake pipe, listener, poll, log, leader
        assert len(os.listdir(f"/proc/{shimmed.shim.pid}/fd")) <= shim.CLIENTS + 12
    finally:
        for line in lines:
            line.close()


async def test_a_kill_by_one_who_hangs_up_is_done(shimmed):
    line = dial(shimmed)
    line.sendall(b'{"protocol":1,"op":"kill"}\n')
    line.close()
    assert (await shimmed.ended())["signal"] == signal.SIGKILL


async def test_every_asker_of_a_kill_is_answered(shimmed):
    shimmed.shim.signal(signal.SIGSTOP)
    lines = [dial(shimmed) for _ in range(3)]
    for line in lines:
        line.sendall(b'{"protocol":1,"op":"kill"}\n')
    shimmed.shim.signal(signal.SIGCONT)
    for line in lines:
        with line, line.makefile() as answers:
            reply = json.loads(await asyncio.to_thread(answers.readline))
        assert (reply["ok"], reply["survivors"]) == (True, [])
        assert [k["pid"] for k in reply["killed"]] == [shimmed.engine.pid]
        assert reply["seconds"] < 5
    await shimmed.ended()


async def test_after_the_end_nobody_answers(shimmed):
    await shimmed.ask("kill")
    await shimmed.ended()
    with pytest.raises(ConnectionError, match="no shim answers"):
        await shimmed.ask("status")


async def test_a_frozen_shim_is_a_connection_error_in_time(shimmed):
    shimmed.shim.signal(signal.SIGSTOP)
    try:
        with pytest.raises(ConnectionError):
            await shimmed.ask("status", timeout_s=0.2)
    finally:
        shimmed.shim.signal(signal.SIGCONT)
    assert (await shimmed.ask("status"))["ok"] is True


@pytest.mark.parametrize("text", ["", "{", "[]", "\0" * 100, "[" * 5000, '"x"'])
async def test_a_record_that_is_garbage_reads_as_none(tmp_path, text):
    (tmp_path / "exit.json").write_text(text)
    assert shim_client.read_record(tmp_path, "exit.json") is None
    assert shim_client.read_record(tmp_path, "shim.json") is None


async def test_the_death_of_the_leader_is_noticed_at_once(shimmed):
    leader = shimmed.engine
    waiting = asyncio.ensure_future(shim_client.wait_dead(leader))
    await asyncio.sleep(0)
    began = time.monotonic()
    leader.signal(signal.SIGKILL)
    await asyncio.wait_for(waiting, 5)
    await eventually(lambda: (shimmed.folder / "exit.json").exists(), 1)
    assert time.monotonic() - began < 0.5  # by an event, not by the shim's tick of a second
    await shim_client.wait_dead(leader)
