"""The shim's parts that need no shim: removing a folder, reading processes."""

import os
import signal
import time

import pytest

from orchestrator.supervisor import shim


def test_a_folder_is_removed_however_deep_and_locked(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    fd = os.open(root, os.O_PATH)
    for _ in range(3000):  # deeper than any recursion or path
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    (root / "locked" / "inner").mkdir(parents=True)
    (root / "locked" / "inner" / "f").write_text("")
    (root / "locked" / "inner").chmod(0)
    (root / "locked").chmod(0)
    assert shim.remove_tree(str(root)) is True
    assert not root.exists()


def test_removing_never_follows_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("stays")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    for link in (root / "l", root / "a" / "l"):
        link.symlink_to(outside)
    assert shim.remove_tree(str(root)) is True
    top = tmp_path / "top"
    top.symlink_to(outside)
    assert shim.remove_tree(str(top)) is False
    assert (outside / "f").read_text() == "stays"


def test_a_folder_that_is_not_there_counts_as_removed(tmp_path):
    assert shim.remove_tree(str(tmp_path / "none")) is True


def test_removing_gives_up_at_its_deadline(tmp_path):
    (tmp_path / "root" / "a").mkdir(parents=True)
    assert shim.remove_tree(str(tmp_path / "root"), cap_s=-1) is False


@pytest.mark.parametrize("name", [b"a) R 1 1 (b", b"x y", b"\xff\n"])
def test_a_process_name_cannot_forge_its_stat(name):
    raw = b"7 (" + name + b") S 3 4 5 " + b"0 " * 13 + b"2 0 99 1 1\n"
    stat = shim.Stat(7, raw)
    assert (stat.ppid, stat.session, stat.start_time, stat.alive) == (3, 5, 99, True)
    assert stat.name == name.decode("utf-8", "replace")


@pytest.mark.parametrize(("state", "threads", "alive"), [("Z", 1, False), ("Z", 2, True), ("X", 1, False)])
def test_a_zombie_is_dead_unless_other_threads_run(state, threads, alive):
    raw = f"7 (x) {state} 3 4 5 {'0 ' * 13}{threads} 0 99 1 1".encode()
    assert shim.Stat(7, raw).alive is alive


def test_descent_goes_through_the_dead_and_stops_at_loops():
    def one(pid, ppid, state="S"):
        return shim.Stat(pid, f"{pid} (x) {state} {ppid} 0 0 {'0 ' * 13}1 0 {pid} 1 1".encode())

    table = {
        p.pid: p for p in (one(1, 0), one(2, 1), one(3, 2, "Z"), one(4, 3), one(5, 1), one(8, 9), one(9, 8))
    }
    assert [p.pid for p in shim.closure(table, lambda p: p.pid == 2)] == [2, 4]


def test_a_signal_goes_to_the_process_meant_or_to_none():
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        signal.pause()
    stat = shim.read_stat(pid)
    try:
        assert shim.send(pid, stat.start_time - 1, signal.SIGKILL) is False
        assert shim.read_stat(pid).alive
        assert shim.send(pid, stat.start_time, signal.SIGKILL) is True
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert shim.send(pid, stat.start_time, signal.SIGKILL) is False


def test_looking_at_all_processes_is_cheap():
    began = time.process_time()
    for _ in range(5):
        count = len(list(shim.processes()))
    assert (time.process_time() - began) / 5 < 0.0005 * count
