"""Measure the machine this process runs on."""

from __future__ import annotations

import os
import platform
import sys as interpreter
from collections.abc import Mapping
from pathlib import Path

from orchestrator.machine.limits import read_limits
from orchestrator.machine.machine import Machine
from orchestrator.machine.nvml import read_devices


def measure(
    env: Mapping[str, str] | None = None,
    *,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    shm: Path = Path("/dev/shm"),
) -> Machine:
    """The machine as a process with `env` (None: this one's) may use it. Never raises for what it finds.

    `proc`, `sys` and `shm` are the roots that are read.
    """
    env = os.environ if env is None else env
    limits = read_limits(proc, sys)
    devices = read_devices(env, (limits.memory_limit_bytes, limits.memory_available_bytes), proc, sys)
    notes = list(devices.notes)
    if _has_amd(sys):
        notes.append("AMD GPUs are here and are not measured: plan for them with --machine FILE")
    shm_total, shm_free = _room(shm)
    return Machine(
        name=platform.node() or "localhost",
        source="measured",
        platform=f"{interpreter.platform}-{platform.machine()}",
        cpus=limits.cpus,
        logical_cpus=limits.logical_cpus,
        physical_cores=limits.physical_cores,
        memory_total_bytes=limits.memory_total_bytes,
        memory_limit_bytes=limits.memory_limit_bytes,
        memory_available_bytes=limits.memory_available_bytes,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        unified_memory=devices.unified_memory,
        gpus=devices.gpus,
        links=devices.links,
        driver_version=devices.driver_version,
        cuda_version=devices.cuda_version,
        notes=tuple(notes),
    )


def _room(folder: Path) -> tuple[int | None, int | None]:
    try:
        v = os.statvfs(folder)
    except (OSError, AttributeError):
        return None, None
    return v.f_frsize * v.f_blocks, v.f_frsize * v.f_bavail


def _has_amd(sys: Path) -> bool:
    """The kernel's compute driver lists CPUs too, with gpu_id 0."""
    try:
        ids = [p.read_text().strip() for p in (sys / "class/kfd/kfd/topology/nodes").glob("*/gpu_id")]
    except (OSError, ValueError):
        return False
    return any(i not in ("", "0") for i in ids)
