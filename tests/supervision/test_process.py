"""Identity, membership and the sweep, on real processes."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from shimmed import Telephone

from orchestrator.supervisor import process, shim_client
from orchestrator.supervisor.process import Identity


class Zoo:
    """Processes of a test, each ended and reaped by number at its end."""

    def __init__(self, folder):
        self.folder = folder
        self.marker = f"test-{uuid.uuid4().hex}"
        self.popen = []
        self.found = []

    def start(self, *kinds, marker=None, count=1, **more):
        telephone = Telephone(self.folder)
        env = {"PATH": os.environ["PATH"]} | ({"LLMSERVE_MARKER": marker} if marker else {})
        self.popen.append(subprocess.Popen(telephone.command(*kinds), env=env, **more))
        found = telephone.heard(count)
        telephone.close()
        self.found += found.values()
        return found

    def end(self):
        for identity in self.found:
            identity.signal(signal.SIGKILL)
        for one in self.popen:
            one.kill()
            one.wait()


@pytest.fixture
def zoo(tmp_path):
    one = Zoo(tmp_path)
    yield one
    one.end()


def test_an_identity_is_number_start_and_boot():
    me = Identity.of(os.getpid())
    assert me == Identity(os.getpid(), process.start_time(os.getpid()), process.boot_id())
    assert me.alive()
    assert len(process.boot_id()) == 36
    assert process.name(os.getpid()) != "unknown"
    assert process.rss_bytes(os.getpid()) > 1_000_000


def test_a_number_nobody_has_is_no_process():
    nobody = 2**22 + 1  # above the largest pid_max
    assert Identity.of(nobody) is None
    assert process.start_time(nobody) is None
    assert process.name(nobody) == "unknown"
    assert process.rss_bytes(nobody) is None


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot_id": "another"}])
def test_a_reused_number_is_never_signalled(zoo, change):
    living = zoo.start("stay")["leader"]
    past = dataclasses.replace(living, **change)
    assert not past.alive()
    assert past.pidfd() is None
    assert past.signal(signal.SIGKILL) is False
    assert living.alive()


def test_a_zombie_is_dead(zoo):
    leader = zoo.start("stay")["leader"]
    os.kill(leader.pid, signal.SIGKILL)
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert process.start_time(leader.pid) == leader.start_time
    assert not leader.alive()
    assert leader.pidfd() is None
    assert leader.signal(signal.SIGTERM) is False


def test_a_process_whose_first_thread_ended_is_alive(zoo):
    leader = zoo.start("threads")["leader"]
    end = time.monotonic() + 10
    while process.shim.read_stat(leader.pid).state != "Z":
        assert time.monotonic() < end
        os.sched_yield()
    assert leader.alive()
    assert leader.signal(signal.SIGKILL) is True


async def test_waiting_for_the_dead_returns_at_once(zoo):
    leader = zoo.start("stay")["leader"]
    async with asyncio.timeout(5):
        await shim_client.wait_dead(dataclasses.replace(leader, start_time=1))
        waiting = asyncio.ensure_future(shim_client.wait_dead(leader))
        await asyncio.sleep(0)
        assert not waiting.done()
        leader.signal(signal.SIGKILL)
        await waiting
        await shim_client.wait_dead(leader)


def test_members_are_those_with_the_marker_wherever_they_went(zoo):
    tree = zoo.start("setsid", "double-fork", "renamed", "stay", marker=zoo.marker, count=4)
    zoo.start("stay", marker=zoo.marker + "0")
    zoo.start("stay")
    assert set(process.members(zoo.marker)) == set(tree.values())


def test_members_are_those_of_the_session_without_a_marker(zoo):
    tree = zoo.start("plain", "stay", count=2, start_new_session=True)
    leader = tree["leader"]
    assert set(process.members(zoo.marker, leader.pid, leader)) == set(tree.values())
    leader.signal(signal.SIGKILL)
    zoo.popen[-1].wait()
    assert process.members(zoo.marker, leader.pid, leader) == [tree["plain"]]


def test_a_session_led_by_a_stranger_is_not_ours(zoo):
    stranger = zoo.start("plain", "stay", count=2, start_new_session=True)["leader"]
    past = dataclasses.replace(stranger, start_time=stranger.start_time - 1)
    assert process.members(zoo.marker, stranger.pid, past) == []
    assert process.members(zoo.marker, stranger.pid) == []


def test_members_are_the_descendants_of_the_root(zoo):
    tree = zoo.start("setsid", "plain", "stay", count=3)
    root = tree["leader"]
    below = {tree["setsid"], tree["plain"]}
    assert set(process.members(zoo.marker, root=root)) == below
    assert process.members(zoo.marker, root=dataclasses.replace(root, boot_id="another")) == []
    assert process.members(zoo.marker, root=dataclasses.replace(root, start_time=1)) == []


def test_a_caller_that_carries_the_marker_does_not_sweep_itself(zoo):
    program = (
        "import sys; from orchestrator.supervisor import process;"
        "print(process.members(sys.argv[1]), process.sweep(sys.argv[1]))"
    )
    env = {**os.environ, "LLMSERVE_MARKER": zoo.marker}
    argv = [sys.executable, "-c", program, zoo.marker]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "[] []\n"), done.stderr


def test_a_sweep_ends_all_but_the_spared_and_the_strangers(zoo):
    tree = zoo.start("ignores-term", "double-fork", "stay-ignoring-term", marker=zoo.marker, count=3)
    stranger = zoo.start("ignores-term", "stay-ignoring-term", count=2)
    assert process.sweep(zoo.marker, spare=[tree["leader"]]) == []
    assert tree["leader"].alive()
    assert not tree["double-fork"].alive()
    assert process.sweep(zoo.marker) == []
    assert not any(i.alive() for i in tree.values())
    assert all(i.alive() for i in stranger.values())


def test_a_sweep_of_nothing_returns_at_once():
    assert process.sweep(f"test-{uuid.uuid4().hex}") == []


def test_a_sweep_that_cannot_kill_names_the_survivors(zoo, monkeypatch):
    leader = zoo.start("stay", marker=zoo.marker)["leader"]
    monkeypatch.setattr(process.signal, "pidfd_send_signal", lambda *_: None)
    try:
        assert process.sweep(zoo.marker, cap_s=0.05) == [leader]
    finally:
        monkeypatch.undo()
