"""NVIDIA devices through NVML (pynvml of nvidia-ml-py, imported when first asked).

No driver is a normal case. What one device or one field refuses costs that field and leaves a note; nothing
raises. Meanings: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.machine.links import links_between
from orchestrator.machine.machine import Gpu, Holder, Link
from orchestrator.machine.visible import visible

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Devices:
    """What NVML says. `unified_memory` is True where a GPU has no memory of its own."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    unified_memory: bool = False
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Device:
    """A physical GPU while it is being read. `slices` is None where MIG is off."""

    index: int
    handle: Any
    gpu: Gpu
    bus_id: str
    slices: list[Gpu] | None = None


@dataclass(slots=True)
class _Reader:
    nvml: Any
    proc: Path
    sys: Path
    host_bytes: tuple[int, int]
    notes: list[str] = field(default_factory=list)
    unified: bool = False

    def ask(self, name: str, *args: Any) -> Any:
        """Call `name`; None where NVML, this driver or this device does not know."""
        try:
            return getattr(self.nvml, name)(*args)
        except Exception:
            # pynvml raises its own class per error code, AttributeError and ctypes errors too
            return None

    def attempt(self, what: str, call: Callable[[], T]) -> T | None:
        """Like `ask`, with a note on what was lost."""
        try:
            return call()
        except Exception as e:
            self.notes.append(f"{what}: {_said(e)}")
            return None

    def error(self, e: Exception, name: str) -> bool:
        kind = getattr(self.nvml, f"NVMLError_{name}", None)
        return isinstance(kind, type) and isinstance(e, kind)


def read_devices(
    env: Mapping[str, str],
    host_bytes: tuple[int, int],
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    nvml: Any = None,
) -> Devices:
    """Every GPU and MIG slice that a process with `env` would see, in the order CUDA_VISIBLE_DEVICES gives.

    `host_bytes` are the host memory's limit and available bytes: what a GPU without memory of its own shares.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Devices(notes=("GPUs not looked for: nvidia-ml-py is not installed",))
    reader = _Reader(nvml, proc, sys, host_bytes)
    try:
        nvml.nvmlInit()
    except Exception as e:
        return Devices(notes=(_no_nvml(reader, e),))
    try:
        return _read(reader, env)
    finally:
        reader.ask("nvmlShutdown")


def _no_nvml(reader: _Reader, e: Exception) -> str:
    if reader.error(e, "LibraryNotFound") or isinstance(e, OSError):
        return "no NVIDIA driver"
    if reader.error(e, "DriverNotLoaded"):
        return "no NVIDIA driver (its library is here, its kernel module is not loaded)"
    if reader.error(e, "LibRmVersionMismatch"):
        return f"NVIDIA driver unusable: {_said(e)}; reboot, or reload the kernel module"
    if reader.error(e, "NoPermission"):
        return "NVIDIA driver unusable: no permission for /dev/nvidia*; join the group that owns them"
    return f"NVIDIA driver unusable: {_said(e)}"


def _read(reader: _Reader, env: Mapping[str, str]) -> Devices:
    count = reader.attempt("GPUs could not be counted", reader.nvml.nvmlDeviceGetCount) or 0
    devices = [d for i in range(count) if (d := _device(reader, i)) is not None]
    gpus, hidden = visible(devices, env)
    shown = {g.uuid for g in gpus}
    links = links_between(
        reader.nvml, [d for d in devices if d.slices is None and d.gpu.uuid in shown], reader.ask
    )
    cuda = reader.ask("nvmlSystemGetCudaDriverVersion_v2") or reader.ask("nvmlSystemGetCudaDriverVersion")
    return Devices(
        gpus=tuple(gpus),
        links=tuple(links),
        driver_version=_text(reader.ask("nvmlSystemGetDriverVersion")),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else None,
        unified_memory=reader.unified,
        notes=tuple(reader.notes) + hidden,
    )


def _device(reader: _Reader, index: int) -> Device | None:
    nvml = reader.nvml
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    except Exception as e:
        lost = reader.error(e, "GpuIsLost")
        reader.notes.append(f"GPU {index} left out: {'fell off the bus; reboot' if lost else _said(e)}")
        return None
    bus_id = _text(getattr(reader.ask("nvmlDeviceGetPciInfo", handle), "busId", None)) or ""
    capability = reader.ask("nvmlDeviceGetCudaComputeCapability", handle)
    compute = f"{capability[0]}.{capability[1]}" if capability else None
    numa = _numa_node(reader.sys, bus_id)
    gpu = _gpu(reader, handle, index, uuid or f"GPU-{index}", compute, numa)
    return Device(index, handle, gpu, bus_id.lower(), _slices(reader, handle, gpu))


def _gpu(
    reader: _Reader,
    handle: Any,
    index: int,
    uuid: str,
    compute: str | None,
    numa: int | None,
    mig: bool = False,
) -> Gpu:
    name = _text(reader.ask("nvmlDeviceGetName", handle)) or "unknown"
    total, free = _memory(reader, handle, f"GPU {index} {name}")
    return Gpu(
        index=index,
        uuid=uuid,
        name=name,
        memory_bytes=total,
        free_bytes=free,
        compute_capability=compute,
        mig=mig,
        numa_node=numa,
        holders=_holders(reader, handle),
    )


def _memory(reader: _Reader, handle: Any, what: str) -> tuple[int, int]:
    try:
        info = reader.nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.total), int(info.free)
    except Exception as e:
        if reader.error(e, "NotSupported"):
            # GB10 and Tegra: the GPU allocates from host memory and NVML has no figure
            reader.unified = True
            reader.notes.append(f"{what} shares the host's memory")
            return reader.host_bytes
        reader.notes.append(f"{what}: memory unknown, counted as 0: {_said(e)}")
        return 0, 0


def _slices(reader: _Reader, handle: Any, parent: Gpu) -> list[Gpu] | None:
    mode = reader.ask("nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        return None
    slices = []
    for i in range(reader.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        mig = reader.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
        uuid = _text(reader.ask("nvmlDeviceGetUUID", mig)) if mig is not None else None
        if uuid:
            slices.append(
                _gpu(reader, mig, parent.index, uuid, parent.compute_capability, parent.numa_node, mig=True)
            )
    if not slices:
        reader.notes.append(f"GPU {parent.index} {parent.name}: MIG is on and has no instance; not usable")
    return slices


def _holders(reader: _Reader, handle: Any) -> tuple[Holder, ...]:
    held: dict[int, int | None] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in reader.ask(name, handle) or ():
            used = getattr(process, "usedGpuMemory", None)
            # a process may stand in both lists, with the same figure
            pid = int(process.pid)
            held[pid] = max(used, held.get(pid) or 0) if used else held.get(pid)
    return tuple(Holder(pid, used, _process_name(reader.proc, pid)) for pid, used in sorted(held.items()))


def _process_name(proc: Path, pid: int) -> str | None:
    """The name of the process, None where it cannot be seen.

    NVML numbers processes as the host does. In a container the same number may be another process, so
    there only one that holds an NVIDIA device open is believed.
    """
    try:
        name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
        if _in_a_container(proc):
            opened = [str(f.readlink()) for f in (proc / str(pid) / "fd").iterdir()]
            if not any(f.startswith("/dev/nvidia") for f in opened):
                return None
    except (OSError, ValueError):
        return None
    return name or None


def _in_a_container(proc: Path) -> bool:
    try:
        return (proc / "self" / "ns" / "pid").readlink().name != _FIRST_PID_NAMESPACE
    except OSError:
        return False


_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""


def _numa_node(sys: Path, bus_id: str) -> int | None:
    # NVML writes an eight-digit PCI domain, sysfs a four-digit one
    try:
        node = int((sys / "bus/pci/devices" / bus_id[4:].lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _text(value: Any) -> str | None:
    """pynvml gave bytes before version 11.5 and gives str since."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _said(e: Exception) -> str:
    return str(e).splitlines()[0] if str(e) else type(e).__name__
