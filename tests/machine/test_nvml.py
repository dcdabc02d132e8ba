"""NVML is a stand-in here, with the shapes of pynvml's answers; machines with these GPUs are rare."""

import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

from orchestrator.machine.nvml import Devices, read_devices

GIB = 1 << 30
HOST = (64 * GIB, 50 * GIB)


class FakeNvml(types.SimpleNamespace):
    """pynvml's names over a list of GPUs, each a dict of what it answers; an exception is raised."""

    def __init__(self, gpus: list[dict[str, Any]], **changed: Any) -> None:
        errors = {n: getattr(pynvml, n) for n in dir(pynvml) if n.startswith("NVMLError")}
        super().__init__(**errors)
        self.gpus = gpus
        self.closed = False
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: len(gpus)
        self.nvmlDeviceGetHandleByIndex = lambda i: self._answer(gpus[i], "handle", gpus[i])
        self.nvmlSystemGetDriverVersion = lambda: "570.86.15"
        self.nvmlSystemGetCudaDriverVersion_v2 = lambda: 12080
        for name, key in {
            "nvmlDeviceGetUUID": "uuid",
            "nvmlDeviceGetName": "name",
            "nvmlDeviceGetMemoryInfo": "memory",
            "nvmlDeviceGetCudaComputeCapability": "cc",
            "nvmlDeviceGetPciInfo": "pci",
            "nvmlDeviceGetMigMode": "mig",
            "nvmlDeviceGetComputeRunningProcesses": "compute",
            "nvmlDeviceGetGraphicsRunningProcesses": "graphics",
            "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_generation",
            "nvmlDeviceGetMaxPcieLinkWidth": "pcie_width",
        }.items():
            setattr(self, name, lambda h, key=key: self._answer(h, key))
        self.nvmlDeviceGetMaxMigDeviceCount = lambda h: 7
        self.nvmlDeviceGetMigDeviceHandleByIndex = lambda h, i: self._item(h, "slices", i)
        self.nvmlDeviceGetNvLinkState = lambda h, i: 1 if self._item(h, "nvlinks", i) else 0
        self.nvmlDeviceGetNvLinkRemoteDeviceType = lambda h, i: 2 if h["nvlinks"][i] == "switch" else 0
        self.nvmlDeviceGetNvLinkRemotePciInfo = lambda h, i: types.SimpleNamespace(busId=h["nvlinks"][i])
        self.nvmlDeviceGetFieldValues = lambda h, ids: [
            types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(uiVal=26562))
        ]
        self.nvmlDeviceGetTopologyCommonAncestor = lambda a, b: self._answer(a, "ancestor")
        self.__dict__.update(changed)

    def nvmlShutdown(self) -> None:
        self.closed = True

    def _answer(self, device: dict[str, Any], key: str, default: Any = None) -> Any:
        answer = device.get(key, default)
        if answer is None:
            raise pynvml.NVMLError_NotSupported()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _item(self, device: dict[str, Any], key: str, i: int) -> Any:
        items = self._answer(device, key)
        if i >= len(items):
            raise pynvml.NVMLError_NotFound()
        return items[i]


def gpu(n: int, **changed: Any) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{n}{n}{n}{n}-aa",
        "name": "NVIDIA H100 80GB HBM3",
        "memory": types.SimpleNamespace(total=80 * GIB, free=79 * GIB, used=GIB),
        "cc": (9, 0),
        "pci": types.SimpleNamespace(busId=f"00000000:{n}A:00.0"),
    } | changed


def read(nvml: FakeNvml, tmp_path: Path, env: dict[str, str] | None = None) -> Devices:
    found = read_devices(env or {}, HOST, tmp_path / "proc", tmp_path / "sys", nvml)
    assert nvml.closed
    return found


def test_a_gpu_is_read_whole(tmp_path: Path) -> None:
    numa = tmp_path / "sys/bus/pci/devices/0000:0a:00.0/numa_node"
    numa.parent.mkdir(parents=True)
    numa.write_text("1\n")
    found = read(FakeNvml([gpu(0)]), tmp_path)
    (g,) = found.gpus
    assert (g.uuid, g.name, g.compute_capability) == ("GPU-0000-aa", "NVIDIA H100 80GB HBM3", "9.0")
    assert (g.memory_bytes, g.free_bytes, g.numa_node) == (80 * GIB, 79 * GIB, 1)
    assert (found.driver_version, found.cuda_version, found.notes) == ("570.86.15", "12.8", ())


def test_bytes_of_an_old_pynvml_are_text(tmp_path: Path) -> None:
    found = read(FakeNvml([gpu(0, uuid=b"GPU-old", name=b"Tesla T4")]), tmp_path)
    assert (found.gpus[0].uuid, found.gpus[0].name) == ("GPU-old", "Tesla T4")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pynvml.NVMLError_LibraryNotFound(), "no NVIDIA driver"),
        (pynvml.NVMLError_DriverNotLoaded(), "no NVIDIA driver (its library is here"),
        (pynvml.NVMLError_LibRmVersionMismatch(), "NVIDIA driver unusable"),
        (pynvml.NVMLError_NoPermission(), "no permission for /dev/nvidia*"),
        (OSError("libnvidia-ml.so.1: file too short"), "no NVIDIA driver"),
        (RuntimeError("odd"), "NVIDIA driver unusable: odd"),
    ],
)
def test_no_driver_and_a_broken_one_are_notes(tmp_path: Path, error: Exception, said: str) -> None:
    def broken() -> None:
        raise error

    found = read_devices({}, HOST, tmp_path, tmp_path, FakeNvml([], nvmlInit=broken))
    assert found.gpus == ()
    assert found.notes[0].startswith(said) or said in found.notes[0]


def test_a_lost_gpu_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    found = read(FakeNvml([gpu(0), gpu(1, handle=pynvml.NVMLError_GpuIsLost()), gpu(2)]), tmp_path)
    assert [g.index for g in found.gpus] == [0, 2]
    assert found.notes == ("GPU 1 left out: fell off the bus; reboot",)


def test_fields_that_a_device_refuses_cost_only_themselves(tmp_path: Path) -> None:
    bare = {"uuid": "GPU-bare", "memory": pynvml.NVMLError_Unknown()}
    found = read(FakeNvml([bare], nvmlSystemGetCudaDriverVersion_v2=None), tmp_path)
    (g,) = found.gpus
    assert (g.name, g.memory_bytes, g.compute_capability, g.numa_node) == ("unknown", 0, None, None)
    assert found.cuda_version is None
    assert "memory unknown" in found.notes[0]


def test_a_gpu_without_memory_of_its_own_shares_the_hosts(tmp_path: Path) -> None:
    found = read(FakeNvml([gpu(0, name="NVIDIA GB10", memory=None)]), tmp_path)
    assert found.unified_memory
    assert (found.gpus[0].memory_bytes, found.gpus[0].free_bytes) == HOST


def test_mig_slices_stand_in_for_their_gpu(tmp_path: Path) -> None:
    slices = [
        {
            "uuid": f"MIG-{n}",
            "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "memory": types.SimpleNamespace(total=10 * GIB, free=9 * GIB),
        }
        for n in range(2)
    ]
    found = read(FakeNvml([gpu(0, mig=[1, 1], slices=slices), gpu(1, mig=[0, 0])]), tmp_path)
    assert [(g.uuid, g.mig, g.index) for g in found.gpus] == [
        ("MIG-0", True, 0),
        ("MIG-1", True, 0),
        ("GPU-1111-aa", False, 1),
    ]
    assert found.gpus[0].compute_capability == "9.0"
    assert found.links == ()


def test_mig_without_instances_leaves_nothing_usable(tmp_path: Path) -> None:
    found = read(FakeNvml([gpu(0, mig=[1, 0], slices=[])]), tmp_path)
    assert found.gpus == ()
    assert "MIG is on and has no instance" in found.notes[0]


def test_who_holds_memory_is_named_where_it_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "proc/41").mkdir(parents=True)
    (tmp_path / "proc/41/comm").write_text("python3\n")
    process = types.SimpleNamespace
    one = gpu(
        0,
        compute=[process(pid=41, usedGpuMemory=3 * GIB), process(pid=99, usedGpuMemory=None)],
        graphics=[process(pid=41, usedGpuMemory=3 * GIB)],
    )
    holders = read(FakeNvml([one]), tmp_path).gpus[0].holders
    assert [(h.pid, h.memory_bytes, h.name) for h in holders] == [(41, 3 * GIB, "python3"), (99, None, None)]


def test_in_a_container_a_number_of_the_host_is_not_taken_for_our_process(tmp_path: Path) -> None:
    for pid, device in ((41, "/dev/null"), (42, "/dev/nvidia0")):
        (tmp_path / f"proc/{pid}/fd").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text("python3\n")
        (tmp_path / f"proc/{pid}/fd/3").symlink_to(device)
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532222]")
    processes = [types.SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in (41, 42)]
    holders = read(FakeNvml([gpu(0, compute=processes)]), tmp_path).gpus[0].holders
    assert [h.name for h in holders] == [None, "python3"]


def test_direct_nvlinks_are_counted_by_pair(tmp_path: Path) -> None:
    gpus = [
        gpu(0, nvlinks=["00000000:1A:00.0"] * 4 + [None], ancestor=50),
        gpu(1, nvlinks=["00000000:0A:00.0"] * 4, ancestor=50),
        gpu(2, ancestor=50, pcie_generation=5, pcie_width=16),
    ]
    links = read(FakeNvml(gpus), tmp_path).links
    assert [(link.kind, link.bandwidth_gbps) for link in links] == [
        ("nvlink", 106.2),
        ("cross-socket", None),
        ("cross-socket", None),
    ]


def test_gpus_on_nvswitch_reach_each_other(tmp_path: Path) -> None:
    found = read(FakeNvml([gpu(n, nvlinks=["switch"] * 18) for n in range(4)]), tmp_path)
    assert {(link.kind, link.bandwidth_gbps) for link in found.links} == {("nvlink", 478.1)}
    assert len(found.links) == 6


@pytest.mark.parametrize(
    ("ancestor", "kind"),
    [(10, "pcie-switch"), (20, "pcie-switch"), (30, "pcie-host"), (40, "pcie-host"), (None, "unknown")],
)
def test_without_nvlink_the_common_ancestor_says_how_far(
    tmp_path: Path, ancestor: int | None, kind: str
) -> None:
    gpus = [gpu(n, ancestor=ancestor, pcie_generation=4, pcie_width=16) for n in range(2)]
    (link,) = read(FakeNvml(gpus), tmp_path).links
    assert (link.kind, link.bandwidth_gbps) == (kind, 31.5)


@pytest.mark.parametrize(
    ("listed", "indexes"),
    [
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 0 ", [0]),
        ("GPU-1111-aa", [1]),
        ("GPU-22", [2]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
        ("none", []),
        ("0,9,1", [0]),
        ("00001", [1]),
        ("9" * 5000, []),
        ("²", []),
    ],
)
def test_the_visible_gpus_are_those_cuda_would_see(tmp_path: Path, listed: str, indexes: list[int]) -> None:
    nvml = FakeNvml([gpu(0), gpu(1), gpu(2)])
    found = read(nvml, tmp_path, {"CUDA_VISIBLE_DEVICES": listed})
    assert [g.index for g in found.gpus] == indexes
    assert any("hidden by CUDA_VISIBLE_DEVICES" in note for note in found.notes)


def test_a_slice_is_named_by_its_uuid_or_by_the_index_of_its_gpu(tmp_path: Path) -> None:
    slices = [{"uuid": f"MIG-{n}", "memory": types.SimpleNamespace(total=1, free=1)} for n in ("aa", "bb")]
    nvml = FakeNvml([gpu(0, mig=[1, 1], slices=slices)])
    assert [g.uuid for g in read(nvml, tmp_path, {"CUDA_VISIBLE_DEVICES": "MIG-bb"}).gpus] == ["MIG-bb"]
    assert [g.uuid for g in read(nvml, tmp_path, {"CUDA_VISIBLE_DEVICES": "0"}).gpus] == ["MIG-aa"]


def test_a_wrong_entry_and_a_mixed_order_are_said(tmp_path: Path) -> None:
    nvml = FakeNvml([gpu(0), gpu(1, name="NVIDIA L4")])
    notes = read(nvml, tmp_path, {"CUDA_VISIBLE_DEVICES": "1,GPU-zz"}).notes
    assert any("'GPU-zz'" in n for n in notes)
    assert any("CUDA_DEVICE_ORDER" in n for n in notes)


def test_a_hidden_gpu_is_no_end_of_a_link(tmp_path: Path) -> None:
    nvml = FakeNvml([gpu(n, nvlinks=["switch"]) for n in range(3)])
    found = read(nvml, tmp_path, {"CUDA_VISIBLE_DEVICES": "0,2"})
    assert [(link.a, link.b) for link in found.links] == [("GPU-0000-aa", "GPU-2222-aa")]
