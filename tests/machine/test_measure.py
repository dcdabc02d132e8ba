import os
from pathlib import Path

from orchestrator.machine import Machine, measure


def test_this_machine_agrees_with_the_kernel() -> None:
    found = measure({})
    allowed = os.sched_getaffinity(0)
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert found.source == "measured"
    assert found.memory_total_bytes == int(meminfo["MemTotal"].split()[0]) * 1024
    assert 0 < found.memory_available_bytes <= found.memory_limit_bytes <= found.memory_total_bytes
    assert 1 <= found.physical_cores <= found.logical_cpus <= len(allowed)
    assert 0 < found.cpus <= found.logical_cpus
    assert found.platform.startswith("linux-")
    assert found.gpus or found.notes


def test_json_of_a_machine_gives_the_machine_back() -> None:
    found = measure({})
    assert Machine.from_json(found.to_json()) == found


def test_a_folder_without_shm_and_devices_leaves_them_unknown(tmp_path: Path) -> None:
    found = measure({}, proc=tmp_path, sys=tmp_path, shm=tmp_path / "none")
    assert found.shm_total_bytes is None
    assert found.memory_total_bytes > 0


def test_amd_gpus_are_said_not_to_be_measured(tmp_path: Path) -> None:
    for node, gpu_id in (("0", "0"), ("1", "51234")):
        (tmp_path / "class/kfd/kfd/topology/nodes" / node).mkdir(parents=True)
        (tmp_path / "class/kfd/kfd/topology/nodes" / node / "gpu_id").write_text(gpu_id + "\n")
    assert any("AMD" in note for note in measure({}, sys=tmp_path).notes)
