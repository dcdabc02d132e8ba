"""CPUs and memory as this process may use them: affinity, cpusets, quotas and limits of cgroups v1 and v2.

Every reader takes the roots of /proc and /sys. What is missing or unreadable counts as "no limit there";
nothing here raises. Files: Linux Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpuset.cpus.effective,
memory.max, memory.current, memory.stat), cgroup-v1/memory.rst and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_MOST_CPUS = 1 << 16
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """See `Machine` for the fields of the same names."""

    cpus: float
    logical_cpus: int
    physical_cores: int
    memory_total_bytes: int
    memory_limit_bytes: int
    memory_available_bytes: int


def read_limits(
    proc: Path = Path("/proc"), sys: Path = Path("/sys"), affinity: Collection[int] | None = None
) -> Limits:
    """What this process may use. `affinity` are its logical CPUs (None: asked of the kernel)."""
    groups = cgroup_folders(proc, sys)
    allowed = set(_affinity() if affinity is None else affinity) or {0}
    allowed = (allowed & _cpuset(groups)) or allowed
    quota = cpu_quota(groups)
    meminfo = _keyed(proc / "meminfo", scale=1024)
    total = meminfo.get("MemTotal") or _memory_of_the_host()
    free = meminfo.get("MemAvailable", meminfo.get("MemFree", 0) + meminfo.get("Cached", 0)) or total
    limit, room = memory_limit(groups, total)
    return Limits(
        cpus=float(len(allowed)) if quota is None else min(float(len(allowed)), quota),
        logical_cpus=len(allowed),
        physical_cores=_physical_cores(sys, allowed),
        memory_total_bytes=total,
        memory_limit_bytes=limit,
        memory_available_bytes=max(0, min(free, limit, total if room is None else room)),
    )


# --- cgroups ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CgroupPath:
    """The folders from this process's cgroup up to the root of the mount, leaf first.

    `controllers` of a v1 mount ("cpu", "memory", ...); empty for v2, where every controller is in one tree.
    """

    version: int
    controllers: frozenset[str]
    folders: tuple[Path, ...]


def cgroup_folders(proc: Path, sys: Path) -> list[CgroupPath]:
    """One entry for every cgroup mount that this process is in; on a hybrid machine v1 and v2 both.

    /proc/self/cgroup gives paths as seen from the cgroup namespace, mountinfo the part of the tree that each
    mount shows. A path that is not below the mount (another namespace, a container's view) means that
    the mount's root is the nearest group that can be seen.
    """
    memberships: list[tuple[frozenset[str], str]] = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            memberships.append((frozenset(filter(None, parts[1].split(","))), parts[2]))
    found: list[CgroupPath] = []
    seen: set[frozenset[str]] = set()
    for mount, root, kind, options in _cgroup_mounts(proc, sys):
        version = 2 if kind == "cgroup2" else 1
        for names, path in memberships:
            # a v1 hierarchy is known by its controllers; v2's line has none
            if (version == 2) != (not names) or not names <= options or names in seen:
                continue
            seen.add(names)
            found.append(CgroupPath(version, names, _up(mount, root, path)))
    return found


def _cgroup_mounts(proc: Path, sys: Path) -> list[tuple[Path, str, str, frozenset[str]]]:
    """(mount point, root inside the hierarchy, file system, controllers) of each cgroup mount."""
    mounts = []
    for line in _text(proc / "self" / "mountinfo").splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        point = _unescape(fields[4])
        # /sys may be a fixture's; mounts elsewhere are taken as they are
        path = sys / point[len("/sys/") :] if point.startswith("/sys/") else Path(point)
        mounts.append((path, _unescape(fields[3]), kind[0], frozenset(kind[2].split(","))))
    return mounts


def _up(mount: Path, root: str, path: str) -> tuple[Path, ...]:
    parts = [p for p in path.split("/") if p]
    above = [p for p in root.split("/") if p]
    if ".." in parts or ".." in above or parts[: len(above)] != above:
        return (mount,)
    below = parts[len(above) :][:64]
    folders = [mount.joinpath(*below[:n]) for n in range(len(below), 0, -1)]
    return (*(f for f in folders if _is_dir(f)), mount)


def cpu_quota(groups: list[CgroupPath]) -> float | None:
    """The tightest CPU quota on the way up, in cores, fractions kept; None where there is none."""
    found: list[float] = []
    for group in groups:
        for folder in group.folders:
            if group.version == 2:
                quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
            elif "cpu" in group.controllers:
                quota = _text(folder / "cpu.cfs_quota_us").strip()
                period = _text(folder / "cpu.cfs_period_us").strip()
            else:
                continue
            q, p = _int(quota), _int(period or "100000")
            if q and p:
                found.append(q / p)
    return min(found, default=None)


def memory_limit(groups: list[CgroupPath], total: int) -> tuple[int, int | None]:
    """(limit, room below the tightest limit now) in bytes; room is None where no limit is below `total`.

    Room counts inactive file pages as free: the kernel drops them before it kills.
    """
    limit, room = total, None
    for group in groups:
        v2 = group.version == 2
        if not v2 and "memory" not in group.controllers:
            continue
        names = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        for folder in group.folders:
            stat = _keyed(folder / "memory.stat")
            ceilings = [_int(_text(folder / names[0]).strip(), zero=True)]
            if not v2:
                # groups above the mount can only be seen through this line
                ceilings.append(stat.get("hierarchical_memory_limit"))
            ceiling = min((c for c in ceilings if c is not None), default=total)
            if ceiling >= total:
                continue
            limit = min(limit, ceiling)
            used = _int(_text(folder / names[1]).strip()) or 0
            reclaimable = stat.get("inactive_file" if v2 else "total_inactive_file", 0)
            here = max(0, min(ceiling, ceiling - used + reclaimable))
            room = here if room is None else min(room, here)
    return limit, room


def _cpuset(groups: list[CgroupPath]) -> set[int]:
    """The CPUs of the leaf's cpuset; every number where no file says."""
    for group in groups:
        if group.version == 2 or "cpuset" in group.controllers:
            for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
                cpus = cpu_list(_text(group.folders[0] / name))
                if cpus:
                    return cpus
    return set(range(_MOST_CPUS))


# --- CPUs and memory -------------------------------------------------------------------------------------


def cpu_list(text: str) -> set[int]:
    """The kernel's list format, "0-3,8"; what cannot be read is left out."""
    cpus: set[int] = set()
    for part in text.strip().split(",")[:_MOST_CPUS]:
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            cpus.update(range(first, min(last + 1, _MOST_CPUS)))
    return cpus


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _physical_cores(sys: Path, allowed: set[int]) -> int:
    """Cores with at least one allowed thread; a CPU whose topology is hidden counts as its own core."""
    cores: set[frozenset[int]] = set()
    for cpu in allowed:
        topology = sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        threads = cpu_list(_text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list"))
        cores.add(frozenset(threads | {cpu}))
    return len(cores)


def _memory_of_the_host() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


# --- text ------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    """A small file's text, "" where it cannot be read."""
    try:
        with path.open("rb") as f:
            return f.read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _int(text: str, zero: bool = False) -> int | None:
    """A positive number (or 0 where `zero`), else None: "max", "-1" and garbage are no limit."""
    if not re.fullmatch(r"[0-9]{1,20}", text, re.ASCII):
        return None
    value = int(text)
    return value if value or zero else None


def _keyed(path: Path, scale: int = 1) -> dict[str, int]:
    """`name value` or `name: value kB` lines as numbers."""
    values: dict[str, int] = {}
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and (number := _int(words[1], zero=True)) is not None:
            values[words[0].rstrip(":")] = number * scale
    return values


def _unescape(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)
