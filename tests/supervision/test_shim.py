"""One shim, one engine, its end. With real processes."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from shimmed import Shimmed, eventually

from orchestrator.errors import LlmserveError
from orchestrator.supervisor import process, shim_client


@pytest.fixture
def shimmed(tmp_path):
    one = Shimmed(tmp_path)
    yield one
    one.end()


async def test_an_exit_code_is_recorded_and_nothing_is_left(shimmed):
    await shimmed.start("exit=7")
    end = await shimmed.ended()
    assert (end["code"], end["signal"], end["exec_error"]) == (7, None, None)
    assert end["emptied"] is True
    assert end["emptied_at"] >= end["at"]
    assert (end["leftovers"], end["survivors"], end["generation"]) == ([], [], 1)
    assert not shimmed.tmpdir.exists()
    assert not (shimmed.folder / "shim.sock").exists()


async def test_a_death_by_signal_is_recorded_as_one(shimmed):
    await shimmed.start("die=9")
    end = await shimmed.ended()
    assert (end["code"], end["signal"]) == (None, 9)


async def test_the_record_of_a_running_engine_says_who_is_who(shimmed):
    await shimmed.start("stay")
    leader = shimmed.telephone.heard(1)["leader"]
    record = shimmed.record("shim.json")
    assert shimmed.engine == leader
    assert shimmed.shim.alive()
    assert process.name(record["shim_pid"]) == "llmserve-shim"
    assert record["marker"] == shimmed.marker
    for name in ("shim.json", "spec.json", "shim.log", "shim.sock"):
        assert stat.S_IMODE((shimmed.folder / name).stat().st_mode) == 0o600, name
    await shimmed.ask("kill")
    await shimmed.ended()


async def test_the_engine_starts_clean(shimmed):
    look = (
        "import json,os,signal,sys;"
        "fds={f:os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{f}')};"
        "status=dict(l.split(':',1) for l in open('/proc/self/status') if ':' in l);"
        "print(json.dumps({'env':dict(os.environ),'fds':fds,'sid':os.getsid(0),'pid':os.getpid(),"
        "'cwd':os.getcwd(),'blocked':status['SigBlk'].strip(),"
        "'hup':signal.getsignal(signal.SIGHUP)==signal.SIG_DFL}))"
    )
    argv = [sys.executable, "-I", "-S", "-c", look]
    await shim_client.start(shimmed.folder, shimmed.spec(argv, env={"A": "b", "PATH": "/usr/bin"}))
    await shimmed.ended()
    seen = json.loads(shimmed.log.read_text())
    own = {k: v for k, v in seen["env"].items() if k != "LC_CTYPE"}  # the interpreter's own doing
    assert own == {"A": "b", "PATH": "/usr/bin", "LLMSERVE_MARKER": shimmed.marker, "SPT_NOENV": "1"}
    assert seen["sid"] == seen["pid"]
    assert seen["cwd"] == str(shimmed.folder)
    assert seen["blocked"].strip("0") == ""
    assert seen["hup"] is True
    log = str(shimmed.log)
    assert {f: t for f, t in seen["fds"].items() if int(f) < 3} == {"0": "/dev/null", "1": log, "2": log}
    assert len(seen["fds"]) <= 4  # the fourth is the look itself
    assert stat.S_IMODE(shimmed.log.stat().st_mode) == 0o600


HIDING = ("setsid", "double-fork", "ignores-term", "renamed", "bare")


async def test_a_kill_reaches_every_descendant_however_it_hides_and_no_look_alike(shimmed):
    innocent = shimmed.innocent("stay")
    await shimmed.start(*HIDING, "stay-ignoring-term")
    tree = shimmed.telephone.heard(len(HIDING) + 1)
    assert len(tree) == len(HIDING) + 1
    status = await shimmed.ask("status")
    assert {m["pid"] for m in status["members"]} >= {i.pid for i in tree.values()}
    assert "VLLM::EngineCor" in {m["name"] for m in status["members"]}
    reply = await shimmed.ask("kill")
    assert reply["ok"] is True
    assert reply["survivors"] == []
    assert {k["pid"] for k in reply["killed"]} >= {i.pid for i in tree.values()}
    assert not any(i.alive() for i in tree.values())
    end = await shimmed.ended()
    assert (end["signal"], end["emptied"]) == (9, True)
    assert innocent.alive()


async def test_what_outlives_its_leader_is_cleared_and_named(shimmed):
    innocent = shimmed.innocent("stay")
    await shimmed.start(*HIDING, "stay")
    tree = shimmed.telephone.heard(len(HIDING) + 1)
    assert tree["leader"].signal(signal.SIGKILL)
    await eventually(lambda: (shimmed.folder / "exit.json").exists(), 1)
    first = shimmed.record("exit.json")
    assert (first["signal"], first["emptied"]) == (9, False)  # the stubborn have a second of grace
    end = await shimmed.ended()
    assert not any(i.alive() for i in tree.values())
    assert end["emptied"] is True
    killed = {k["pid"] for k in end["leftovers"]}
    assert killed == {tree[k].pid for k in ("double-fork", "ignores-term", "bare")}
    assert innocent.alive()


async def test_a_tree_that_ends_on_sigterm_leaves_no_leftovers(shimmed):
    await shimmed.start("setsid", "stay")
    tree = shimmed.telephone.heard(2)
    assert (await shimmed.ask("signal", signal=15))["ok"] is True
    end = await shimmed.ended()
    assert (end["signal"], end["leftovers"], end["emptied"]) == (15, [], True)
    assert not tree["setsid"].alive()


async def test_sigterm_to_the_shim_stops_the_engine_then_kills_it(shimmed):
    await shimmed.start("ignores-term", "stay-ignoring-term", term_grace_s=0.2)
    tree = shimmed.telephone.heard(2)
    shimmed.shim.signal(signal.SIGTERM)
    end = await shimmed.ended()
    assert (end["signal"], end["emptied"]) == (9, True)
    assert not any(i.alive() for i in tree.values())


async def test_sighup_and_a_lost_terminal_do_not_touch_the_shim(shimmed):
    await shimmed.start("stay")
    shimmed.shim.signal(signal.SIGHUP)
    assert (await shimmed.ask("status"))["exit"] is None
    await shimmed.ask("kill")
    await shimmed.ended()


async def test_the_tree_of_a_dead_shim_is_swept_by_its_marker_and_no_look_alike(shimmed):
    innocent = shimmed.innocent("stay")
    await shimmed.start("setsid", "double-fork", "ignores-term", "renamed", "stay-ignoring-term")
    tree = shimmed.telephone.heard(5)
    shim = shimmed.shim
    shim.signal(signal.SIGKILL)
    await shim_client.wait_dead(shim)
    assert all(i.alive() for i in tree.values())
    assert set(process.members(shimmed.marker)) == set(tree.values())
    assert await asyncio.to_thread(process.sweep, shimmed.marker) == []
    assert not any(i.alive() for i in tree.values())
    assert innocent.alive()


@pytest.mark.parametrize(
    ("argv", "more", "error"),
    [
        (["/no/such/program"], {}, "cannot run /no/such/program: No such file or directory"),
        (["no-such-program-on-path"], {}, "cannot run no-such-program-on-path: No such file or directory"),
        (["/dev/null"], {}, "cannot run /dev/null: Permission denied"),
        (
            [sys.executable],
            {"cwd": "/no/such/place"},
            "cannot enter the working directory /no/such/place: No such file or directory",
        ),
        (
            [sys.executable],
            {"log": "/no/such/log"},
            "cannot open the log /no/such/log: No such file or directory",
        ),
        ([sys.executable, "a\0b"], {}, f"cannot run {sys.executable}: embedded null byte"),
    ],
)
async def test_what_cannot_be_started_is_an_exit_record_that_says_why(shimmed, argv, more, error):
    await shim_client.start(shimmed.folder, shimmed.spec(argv, **more))
    await eventually(lambda: shimmed.record("exit.json")["emptied"])
    end = shimmed.record("exit.json")
    assert end["exec_error"] == error
    assert (end["code"], end["signal"]) == (None, None)
    assert not (shimmed.folder / "shim.json").exists()


async def test_a_spec_that_is_none_is_an_error_with_the_reason(shimmed):
    spec = shimmed.spec(["true"]) | {"argv": "true", "marker": ""}
    with pytest.raises(LlmserveError) as e:
        await shim_client.start(shimmed.folder, spec)
    assert "argv, marker" in e.value.message


async def test_a_process_folder_deeper_than_a_socket_path_works(tmp_path):
    one = Shimmed(tmp_path / ("x" * 90) / ("y" * 90))
    try:
        await one.start("stay")
        assert len(str(one.folder)) > 180
        assert (await one.ask("status"))["engine_pid"] == one.engine.pid
        await one.ask("kill")
        await one.ended()
    finally:
        one.end()


async def test_rotation_keeps_every_line(shimmed):
    flood = (
        "import sys,time\n"
        "for i in range(4000):\n"
        "    sys.stdout.write(f'line {i:06}\\n'); sys.stdout.flush()\n"
        "sys.stdin.read()\n"
        "import signal; signal.alarm(60); signal.pause()\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", flood]
    await shim_client.start(shimmed.folder, shimmed.spec(argv, log_max_bytes=30_000))
    old = Path(f"{shimmed.log}.1")
    lines = [f"line {i:06}" for i in range(4000)]

    def kept():
        return (old.read_text() if old.exists() else "") + shimmed.log.read_text()

    await eventually(lambda: old.exists() and kept().splitlines() == lines)
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    await shimmed.ask("kill")
    await shimmed.ended()


async def test_a_log_flood_is_cut_to_its_limit(shimmed):
    argv = [sys.executable, "-I", "-S", "-c", "import os\nfor _ in range(400): os.write(1, b'x'*9999+b'\\n')"]
    argv[-1] += "\nimport signal; signal.alarm(60); signal.pause()"
    await shim_client.start(shimmed.folder, shimmed.spec(argv, log_max_bytes=50_000))
    old = Path(f"{shimmed.log}.1")
    await eventually(lambda: old.exists() and shimmed.log.stat().st_size <= 50_000)
    await eventually(lambda: old.stat().st_size + shimmed.log.stat().st_size <= 4 * 50_000)
    await shimmed.ask("kill")
    await shimmed.ended()


async def test_a_record_that_cannot_be_written_is_answered_by_the_socket_and_written_later(shimmed):
    await shimmed.start("stay")
    tree = shimmed.telephone.heard(1)
    (shimmed.folder / "exit.json").mkdir()  # a rename onto it fails, as on a full disk
    tree["leader"].signal(signal.SIGKILL)
    await shim_client.wait_dead(tree["leader"])
    async with asyncio.timeout(5):
        while not ((await shimmed.ask("status"))["exit"] or {}).get("emptied"):
            await asyncio.sleep(0.01)
    assert shimmed.shim.alive()
    (shimmed.folder / "exit.json").rmdir()
    end = await shimmed.ended()
    assert (end["signal"], end["emptied"]) == (9, True)


async def test_a_shim_that_waits_for_its_record_yields_to_the_next_start(shimmed):
    await shimmed.start("stay")
    shimmed.telephone.heard(1)
    first = shimmed.shim
    (shimmed.folder / "shim.json").rename(shimmed.folder / "kept.json")
    (shimmed.folder / "exit.json").mkdir()
    await shimmed.ask("kill")
    assert first.alive()
    (shimmed.folder / "exit.json").rmdir()
    await shimmed.start("exit=3")
    assert not first.alive()
    assert (await shimmed.ended())["generation"] == 2


async def test_a_folder_has_one_shim(shimmed, monkeypatch):
    await shimmed.start("stay")
    shimmed.telephone.heard(1)
    monkeypatch.setattr(shim_client, "FOLDER_CAP_S", 0.2)
    with pytest.raises(LlmserveError) as e:
        await shimmed.start("stay")
    assert e.value.code == "shim_running"
    assert (await shimmed.ask("status"))["engine_pid"] == shimmed.engine.pid
    await shimmed.ask("kill")
    await shimmed.ended()


async def test_a_cancelled_start_leaves_nothing(shimmed):
    for delay_s in (0, 0.02, 0.05, 0.1):
        start = asyncio.ensure_future(shimmed.start("setsid", "stay", term_grace_s=0.1))
        await asyncio.wait({start}, timeout=delay_s)
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        if (shimmed.folder / "shim.json").exists():
            shimmed.shim.signal(signal.SIGTERM)
        await eventually(lambda: not shim_client._held(shimmed.folder))
        await eventually(lambda: process.members(shimmed.marker) == [])


async def test_the_daemon_keeps_no_zombie_of_a_shim(shimmed):
    await shimmed.start("exit=0")
    shim = shimmed.shim
    await shimmed.ended()
    await eventually(lambda: process.start_time(shim.pid) != shim.start_time)


async def test_a_new_generation_replaces_the_records_of_the_old(shimmed):
    await shimmed.start("exit=1")
    await shimmed.ended()
    await shimmed.start("stay")
    assert shimmed.record("shim.json")["generation"] == 2
    assert not (shimmed.folder / "exit.json").exists()
    await shimmed.ask("kill")
    assert (await shimmed.ended())["generation"] == 2


async def test_a_shim_is_small(shimmed):
    await shimmed.start("stay")
    await shimmed.ask("status")
    rollup = Path(f"/proc/{shimmed.shim.pid}/smaps_rollup").read_text()
    pss_kib = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss_kib < 12 * 1024
    await shimmed.ask("kill")
    await shimmed.ended()


async def test_the_temporary_folder_goes_and_what_its_links_point_to_stays(shimmed, tmp_path):
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    (outside / "d" / "f").write_text("stays")
    shimmed.tmpdir.mkdir()
    (shimmed.tmpdir / "link").symlink_to(outside)
    (shimmed.tmpdir / "sub").mkdir()
    (shimmed.tmpdir / "sub" / "link").symlink_to(outside / "d")
    await shimmed.start("exit=0")
    assert (await shimmed.ended())["tmpdir_removed"] is True
    assert not shimmed.tmpdir.exists()
    assert (outside / "d" / "f").read_text() == "stays"


async def test_a_temporary_folder_that_holds_the_records_is_not_removed(shimmed):
    await shimmed.start("exit=0", tmpdir=str(shimmed.folder.parent))
    assert (await shimmed.ended())["tmpdir_removed"] is False
    assert shimmed.log.exists()


async def test_the_shim_needs_no_parent(shimmed):
    """The one that started it ends at once; shim and engine go on and answer."""
    spec = json.dumps(shimmed.spec(shimmed.telephone.command("stay")))
    program = (
        "import asyncio,json,sys;from pathlib import Path;from orchestrator.supervisor import shim_client;"
        "asyncio.run(shim_client.start(Path(sys.argv[1]),json.loads(sys.argv[2])))"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, str(shimmed.folder), spec], timeout=20
    )
    assert done.returncode == 0
    leader = shimmed.telephone.heard(1)["leader"]
    assert (await shimmed.ask("status"))["engine_pid"] == leader.pid
    assert os.getpgid(shimmed.shim.pid) == shimmed.shim.pid
    await shimmed.ask("kill")
    await shimmed.ended()
