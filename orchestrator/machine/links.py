"""The best path between two GPUs: NVLink, or how far apart they sit on PCIe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from orchestrator.machine.machine import Link, LinkKind

if TYPE_CHECKING:
    from orchestrator.machine.nvml import Device

_Ask = Callable[..., Any]

_SWITCH = "switch"

_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s one way of one PCIe lane by generation, after line coding (PCI-SIG base specifications)."""


def links_between(nvml: Any, devices: Sequence[Device], ask: _Ask) -> list[Link]:
    """One `Link` for every pair. MIG slices have none: NVML and CUDA give them no peer access."""
    if len(devices) < 2:
        return []
    wires = {d.gpu.uuid: _nvlinks(nvml, d, ask) for d in devices}
    return [_link(nvml, a, b, wires[a.gpu.uuid], wires[b.gpu.uuid], ask) for a, b in combinations(devices, 2)]


def _nvlinks(nvml: Any, device: Device, ask: _Ask) -> dict[str, tuple[int, float | None]]:
    """Active NVLinks by what they lead to: a PCI bus id, or "switch". Values: (links, GB/s of one)."""
    ends: Counter[str] = Counter()
    speed: float | None = None
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = ask("nvmlDeviceGetNvLinkState", device.handle, link)
        if state is None and link == 0:
            # no NVLink on this GPU at all
            break
        if state != 1:
            continue
        speed = speed or _nvlink_speed(nvml, device, link, ask)
        kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", device.handle, link)
        remote = getattr(ask("nvmlDeviceGetNvLinkRemotePciInfo", device.handle, link), "busId", None)
        if isinstance(remote, bytes):
            remote = remote.decode("ascii", "replace")
        if kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2) or not remote:
            # behind a fabric manager the far end has no PCI address
            ends[_SWITCH] += 1
        else:
            ends[remote.lower()] += 1
    return {end: (count, speed) for end, count in ends.items()}


def _nvlink_speed(nvml: Any, device: Device, link: int, ask: _Ask) -> float | None:
    """GB/s one way of one link, as the driver reports it."""
    which = getattr(nvml, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", 90)
    values = ask("nvmlDeviceGetFieldValues", device.handle, [which])
    try:
        mbps = int(values[0].value.uiVal) if values[0].nvmlReturn == 0 else 0
    except (TypeError, IndexError, AttributeError, ValueError):
        return None
    return mbps / 1000 if mbps else None


def _link(
    nvml: Any,
    a: Device,
    b: Device,
    from_a: dict[str, tuple[int, float | None]],
    from_b: dict[str, tuple[int, float | None]],
    ask: _Ask,
) -> Link:
    direct = from_a.get(b.bus_id) if b.bus_id else None
    if direct:
        return Link(a.gpu.uuid, b.gpu.uuid, "nvlink", _times(direct))
    if _SWITCH in from_a and _SWITCH in from_b:
        each = [_times(from_a[_SWITCH]), _times(from_b[_SWITCH])]
        known = [x for x in each if x is not None]
        return Link(a.gpu.uuid, b.gpu.uuid, "nvlink", min(known, default=None))
    kind = _pcie_kind(nvml, ask("nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle))
    speeds = [_pcie_speed(d, ask) for d in (a, b)]
    both = [s for s in speeds if s is not None]
    return Link(a.gpu.uuid, b.gpu.uuid, kind, min(both) if len(both) == 2 else None)


def _times(wires: tuple[int, float | None]) -> float | None:
    count, speed = wires
    return None if speed is None else round(count * speed, 1)


def _pcie_kind(nvml: Any, ancestor: Any) -> LinkKind:
    if not isinstance(ancestor, int):
        return "unknown"
    if ancestor <= getattr(nvml, "NVML_TOPOLOGY_MULTIPLE", 20):
        return "pcie-switch"
    if ancestor <= getattr(nvml, "NVML_TOPOLOGY_NODE", 40):
        return "pcie-host"
    return "cross-socket"


def _pcie_speed(device: Device, ask: _Ask) -> float | None:
    generation = ask("nvmlDeviceGetMaxPcieLinkGeneration", device.handle)
    width = ask("nvmlDeviceGetMaxPcieLinkWidth", device.handle)
    lane = _LANE_GBPS.get(generation)
    return round(lane * width, 1) if lane and isinstance(width, int) else None
