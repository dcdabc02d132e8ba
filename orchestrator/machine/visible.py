"""Which GPUs a process sees through CUDA_VISIBLE_DEVICES.

Rules: CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Visible Devices".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.machine.machine import Gpu

if TYPE_CHECKING:
    from orchestrator.machine.nvml import Device


def visible(devices: Sequence[Device], env: Mapping[str, str]) -> tuple[list[Gpu], tuple[str, ...]]:
    """(GPUs and MIG slices in the order the variable lists them, notes on what it hides).

    An entry is an index, a UUID or the beginning of one ("GPU-…", "MIG-…"). CUDA stops at the first entry
    that names nothing, so "-1", "" and "none" hide everything. A GPU in MIG mode named by
    its index is its first slice.
    """
    everything = [g for d in devices for g in _usable(d)]
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not everything:
        return everything, ()
    chosen: list[Gpu] = []
    wrong = ""
    for entry in listed.split(",") if listed.strip() else ():
        found = _named(entry.strip(), devices)
        if found is None:
            wrong = entry.strip()
            break
        if found not in chosen:
            chosen.append(found)
    notes = []
    if len(chosen) < len(everything):
        hidden = len(everything) - len(chosen)
        notes.append(f"{hidden} of {len(everything)} GPUs hidden by CUDA_VISIBLE_DEVICES={listed}")
    if wrong not in ("", "-1", "none", "NoDevFiles"):
        notes.append(f"CUDA_VISIBLE_DEVICES names no GPU by {wrong!r}: CUDA ignores it and all after it")
    if _order_matters(listed, devices, env):
        notes.append(
            "GPUs of several kinds and indexes in CUDA_VISIBLE_DEVICES: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID, or CUDA counts the fastest first"
        )
    return chosen, tuple(notes)


def _named(entry: str, devices: Sequence[Device]) -> Gpu | None:
    if entry.isascii() and entry.isdigit():
        here = (d for d in devices if entry.lstrip("0") == str(d.index or ""))
        return next((g for d in here for g in _usable(d)), None)
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) <= len("GPU-"):
        return None
    matching = [g for d in devices for g in _usable(d) if g.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _usable(device: Device) -> list[Gpu]:
    return [device.gpu] if device.slices is None else device.slices


def _order_matters(listed: str, devices: Sequence[Device], env: Mapping[str, str]) -> bool:
    by_index = any(e.strip().isdigit() for e in listed.split(","))
    kinds = {d.gpu.name for d in devices}
    return by_index and len(kinds) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
