"""Segments below /dev/shm, made by real processes that live on or are dead."""

import json
import mmap
import os
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.engines import registry
from orchestrator.plan import EngineRef, Plan, ProcessPlan
from orchestrator.supervisor import shared_memory
from orchestrator.supervisor.deployment import Deployment
from orchestrator.supervisor.run import Ending
from orchestrator.supervisor.shared_memory import Segment, removable
from orchestrator.supervisor.store import DeploymentFolder

MINE = os.getuid()
MAKER = """
import mmap, os, sys
how, path = sys.argv[1:]
fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(fd, 4096)
if how == "maps":
    kept = mmap.mmap(fd, 4096)
    os.closerange(3, 64)  # Python keeps a descriptor of its own
if how == "renamed":
    # as sem_open does: mapped under one name, found by another
    kept = mmap.mmap(fd, 4096)
    os.closerange(3, 64)
    os.link(path, path + ".linked")
    os.unlink(path)
print("made", flush=True)
if how != "leaves":
    sys.stdin.read()
"""


@pytest.fixture
def prefix():
    name = f"llmserve-test-{uuid.uuid4().hex}-"
    yield name
    for left in Path("/dev/shm").glob(f"{name}*"):
        left.unlink()


@contextmanager
def maker(how: str, name: str):
    """A process that made a segment; it is dead, or ends with the block."""
    argv = [sys.executable, "-I", "-S", "-c", MAKER, how, f"/dev/shm/{name}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "made\n"
        if how == "leaves":
            child.wait(timeout=10)
        yield child
        child.stdin.close()


def there(prefix: str) -> list[str]:
    return sorted(p.name for p in Path("/dev/shm").glob(f"{prefix}*"))


@pytest.mark.parametrize("how", ["maps", "opens", "renamed"])
def test_what_the_dead_left_goes_and_what_the_living_hold_stays(prefix, how):
    began = time.time()
    with maker("leaves", prefix + "dead"), maker(how, prefix + "living"):
        left = there(prefix)
        assert shared_memory.sweep([prefix + "*"], began) == (prefix + "dead",)
        assert there(prefix) == [n for n in left if not n.endswith("dead")]
    (living,) = there(prefix)
    assert shared_memory.sweep([prefix + "*"], began) == (living,)
    assert there(prefix) == []


def test_a_killed_process_holds_nothing(prefix):
    began = time.time()
    with maker("maps", prefix + "killed") as child:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        assert shared_memory.sweep([prefix + "*"], began) == (prefix + "killed",)


def test_older_segments_and_other_names_stay(prefix):
    with maker("leaves", prefix + "old"):
        time.sleep(0.25)
    began = time.time()
    with maker("leaves", prefix + "new"), maker("leaves", prefix + "other"):
        assert shared_memory.sweep([prefix + "old", prefix + "new"], began) == (prefix + "new",)
    assert there(prefix) == [prefix + "old", prefix + "other"]


def test_without_a_kind_or_a_start_nothing_goes(prefix):
    with maker("leaves", prefix + "dead"):
        assert shared_memory.sweep([], 0.0) == ()
        assert shared_memory.sweep([prefix + "*"], None) == ()
    assert there(prefix) == [prefix + "dead"]


def test_nothing_is_raised_where_there_is_no_such_folder_or_no_right(prefix, tmp_path, monkeypatch):
    assert shared_memory.sweep(["*"], 0.0, str(tmp_path / "absent")) == ()

    def refuse(path):
        raise PermissionError(path)

    with maker("leaves", prefix + "dead"):
        monkeypatch.setattr(shared_memory.os, "unlink", refuse)
        assert shared_memory.sweep([prefix + "*"], 0.0) == ()


def test_where_a_process_of_ours_cannot_be_asked_nothing_goes(prefix, monkeypatch):
    real = shared_memory.shim.processes
    stuck = next(p for p in real() if p.pid == os.getpid())
    stuck.state, stuck.alive = "D", True
    monkeypatch.setattr(shared_memory, "_BETWEEN_S", 0.0)
    monkeypatch.setattr(shared_memory.shim, "processes", lambda: [stuck, *real()])
    with maker("leaves", prefix + "dead"):
        assert shared_memory.sweep([prefix + "*"], 0.0) == ()
        looks = iter([[stuck], [stuck], list(real())])
        monkeypatch.setattr(shared_memory.shim, "processes", lambda: next(looks))
        assert shared_memory.sweep([prefix + "*"], 0.0) == (prefix + "dead",)


def test_a_process_with_other_rights_keeps_nothing(prefix, monkeypatch):
    def hidden(pid, folder):
        raise PermissionError(pid)

    monkeypatch.setattr(shared_memory, "_mapped", hidden)
    with maker("leaves", prefix + "dead"):
        assert shared_memory.sweep([prefix + "*"], 0.0) == (prefix + "dead",)


def test_what_this_process_maps_is_held(prefix):
    path = f"/dev/shm/{prefix}mine"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, 4096)
    with mmap.mmap(fd, 4096):
        os.close(fd)
        assert shared_memory.sweep([prefix + "*"], 0.0) == ()
    assert shared_memory.sweep([prefix + "*"], 0.0) == (prefix + "mine",)


@pytest.mark.parametrize(
    ("change", "goes"),
    [
        ({}, True),
        ({"uid": MINE + 1}, False),
        ({"changed_at": 99.0}, False),
        ({"changed_at": 99.95}, True),
        ({"key": (1, 8)}, False),
        ({"name": "PSM_1"}, False),
        ({"name": "xpsm_1"}, False),
    ],
)
def test_a_segment_goes_where_all_is_so(change, goes):
    segment = Segment(**{"name": "psm_1", "uid": MINE, "changed_at": 100.0, "key": (1, 7)} | change)
    assert bool(removable([segment], ["psm_*"], MINE, 100.0, {(1, 8)})) is goes


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        # seen of vLLM 0.32.0 and SGLang 0.5.23 after SIGKILL; the last ones by their sources
        ("vllm", ["psm_097360e7", "sem.mp-2lbjho11", "vllm_offload_ab12.mmap", "nccl-Xy12Ab"]),
        ("sglang", ["sglang_loads_9ddfbb06a903_3ba7ebcd.shm", "sem.mp-u0slthni", "sgl_shm_mq_812_1f2e3d4c"]),
        ("llamacpp", []),
    ],
)
def test_each_engine_names_what_it_leaves_and_nothing_else(kind, names):
    segments = [Segment(n, MINE, 1.0, (1, i)) for i, n in enumerate([*names, "torch_7", "sem.other", "x"])]
    gone = removable(segments, registry.engine(kind).shared_memory, MINE, 0.0, ())
    assert [s.name for s in gone] == names


class Ended:
    """A run whose tree is gone, but for `survivors`."""

    def __init__(self, *survivors: str) -> None:
        self.started_at = time.time() - 5
        self.survivors = survivors

    async def end(self, on_shim_lost, on_leader_dead):
        return Ending(None, 9, None, (), self.survivors)

    def log_text(self) -> str:
        return ""


class Leaving(type(registry.engine("sglang"))):
    """SGLang, leaving what a test made."""

    def __init__(self, pattern: str) -> None:
        self.shared_memory = (pattern,)


@pytest.mark.parametrize("survivors", [(), ("python (pid 9)",)])
async def test_a_deployment_sweeps_once_its_tree_is_proved_empty_and_says_so(prefix, tmp_path, survivors):
    plan = Plan(
        goal="latency",
        profile="latency",
        model={"name": "m"},
        machine={},
        engine=EngineRef("sglang", "sglang", "0.5.23"),
        levers={},
        predictions={},
        processes=(ProcessPlan("server", ("sglang",)),),
    )
    deployment = Deployment(DeploymentFolder("swept", tmp_path), plan, {})
    deployment.engine = Leaving(prefix + "*")
    deployment.folder.path.mkdir()
    with maker("leaves", prefix + "dead"), maker("maps", prefix + "living"):
        await deployment._watch_end(Ended(*survivors))
        lines = deployment.folder.events_file.read_text() if deployment.folder.events_file.exists() else ""
        notes = [n for n in map(json.loads, lines.splitlines()) if "shared_memory_removed" in n.values()]
        if survivors:
            assert (notes, len(there(prefix))) == ([], 2)
        else:
            assert [n["names"] for n in notes] == [[prefix + "dead"]]
            assert there(prefix) == [prefix + "living"]
    await deployment.close()
