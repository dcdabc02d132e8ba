"""Trees of /proc and /sys as containers and hosts show them."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.machine.limits import cpu_list, read_limits

GIB = 1 << 30
MEMINFO = "MemTotal: 67108864 kB\nMemFree: 1048576 kB\nMemAvailable: 50331648 kB\nCached: 7 kB\n"
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
CPUS = frozenset(range(8))


def tree(base: Path, files: dict[str, str]) -> dict[str, Path]:
    for name, text in ({"proc/meminfo": MEMINFO} | files).items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    return {"proc": base / "proc", "sys": base / "sys"}


def v2(path: str, root: str = "/") -> dict[str, str]:
    return {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": V2_MOUNT.format(root=root)}


def v1(path: str, root: str = "/") -> dict[str, str]:
    return {
        "proc/self/cgroup": "".join(
            f"{n}:{controllers}:{path}\n"
            for n, controllers in enumerate(("name=systemd", "cpu,cpuacct", "cpuset", "memory"))
        ),
        "proc/self/mountinfo": "".join(
            f"{n} 31 0:{n} {root} /sys/fs/cgroup/{folder} rw - cgroup cgroup rw,{options}\n"
            for n, folder, options in (
                (32, "cpu,cpuacct", "cpu,cpuacct"),
                (33, "cpuset", "cpuset"),
                (34, "memory", "memory"),
                (35, "systemd", "name=systemd"),
            )
        ),
    }


def test_without_any_cgroup_the_host_is_the_limit(tmp_path: Path) -> None:
    found = read_limits(**tree(tmp_path, {}), affinity=CPUS)
    assert (found.cpus, found.logical_cpus) == (8.0, 8)
    assert found.memory_total_bytes == found.memory_limit_bytes == 64 * GIB
    assert found.memory_available_bytes == 48 * GIB


def test_v2_keeps_the_fraction_of_a_quota(tmp_path: Path) -> None:
    files = v2("/pod") | {"sys/fs/cgroup/pod/cpu.max": "150000 100000\n"}
    assert read_limits(**tree(tmp_path, files), affinity=CPUS).cpus == 1.5


def test_v2_takes_the_tightest_limit_of_all_levels(tmp_path: Path) -> None:
    files = v2("/kube/pod/main") | {
        "sys/fs/cgroup/kube/cpu.max": "600000 100000",
        "sys/fs/cgroup/kube/memory.max": str(8 * GIB),
        "sys/fs/cgroup/kube/memory.current": str(7 * GIB),
        "sys/fs/cgroup/kube/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
        "sys/fs/cgroup/kube/pod/cpu.max": "50000 25000",
        "sys/fs/cgroup/kube/pod/memory.max": str(16 * GIB),
        "sys/fs/cgroup/kube/pod/memory.current": "0",
        "sys/fs/cgroup/kube/pod/main/cpu.max": "max 100000",
        "sys/fs/cgroup/kube/pod/main/memory.max": "max",
    }
    found = read_limits(**tree(tmp_path, files), affinity=CPUS)
    assert found.cpus == 2.0
    assert found.memory_limit_bytes == 8 * GIB
    # 7 of 8 GiB used, half a GiB of that can be dropped
    assert found.memory_available_bytes == GIB + GIB // 2


def test_max_at_every_level_is_no_limit(tmp_path: Path) -> None:
    files = v2("/a") | {
        "sys/fs/cgroup/a/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.current": "123\n",
    }
    found = read_limits(**tree(tmp_path, files), affinity=CPUS)
    assert (found.cpus, found.memory_limit_bytes) == (8.0, 64 * GIB)


def test_in_a_cgroup_namespace_the_limit_stands_at_the_mounts_root(tmp_path: Path) -> None:
    files = v2("/") | {
        "sys/fs/cgroup/cpu.max": "300000 100000",
        "sys/fs/cgroup/memory.max": str(2 * GIB),
        "sys/fs/cgroup/memory.current": str(GIB),
        "sys/fs/cgroup/memory.stat": "inactive_file 0",
    }
    found = read_limits(**tree(tmp_path, files), affinity=CPUS)
    assert (found.cpus, found.memory_limit_bytes, found.memory_available_bytes) == (3.0, 2 * GIB, GIB)


@pytest.mark.parametrize("path", ["/docker/abc", "/../other", "/nowhere/at/all"])
def test_a_path_that_the_mount_does_not_show_falls_back_to_its_root(tmp_path: Path, path: str) -> None:
    files = v2(path) | {"sys/fs/cgroup/cpu.max": "100000 100000"}
    assert read_limits(**tree(tmp_path, files), affinity=CPUS).cpus == 1.0


def test_v1_in_docker_shows_its_own_group_as_the_mounts_root(tmp_path: Path) -> None:
    files = v1("/docker/abc", root="/docker/abc") | {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
        "sys/fs/cgroup/cpuset/cpuset.cpus": "0-3,6\n",
    }
    found = read_limits(**tree(tmp_path, files), affinity=CPUS)
    assert (found.cpus, found.logical_cpus) == (2.5, 5)
    assert (found.memory_limit_bytes, found.memory_available_bytes) == (4 * GIB, 2 * GIB)


def test_v1_nested_quotas_and_a_limit_above_the_mount(tmp_path: Path) -> None:
    files = v1("/a/b") | {
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "0",
        "sys/fs/cgroup/memory/a/b/memory.stat": f"hierarchical_memory_limit {GIB}\n",
    }
    found = read_limits(**tree(tmp_path, files), affinity=CPUS)
    assert (found.cpus, found.memory_limit_bytes) == (2.0, GIB)


def test_a_hybrid_machine_reads_both_versions(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/box\n1:cpu:/\n0::/\n",
        "proc/self/mountinfo": (
            "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
            "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
            "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
        ),
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(6 * GIB),
        "sys/fs/cgroup/unified/cpu.max": "350000 100000",
    }
    found = read_limits(**tree(tmp_path, files), affinity=CPUS)
    assert (found.cpus, found.memory_limit_bytes) == (3.5, 6 * GIB)


def test_a_quota_above_the_affinity_gives_no_more_cpus(tmp_path: Path) -> None:
    files = v2("/") | {"sys/fs/cgroup/cpu.max": "9900000 100000"}
    assert read_limits(**tree(tmp_path, files), affinity={2, 3}).cpus == 2.0


def test_cpuset_and_affinity_are_both_obeyed(tmp_path: Path) -> None:
    files = v2("/") | {"sys/fs/cgroup/cpuset.cpus.effective": "2-5"}
    assert read_limits(**tree(tmp_path, files), affinity={0, 1, 2, 3}).logical_cpus == 2


def test_physical_cores_count_a_core_once_and_only_where_a_thread_is_allowed(tmp_path: Path) -> None:
    topology = {
        f"sys/devices/system/cpu/cpu{n}/topology/{'core_cpus_list' if n < 4 else 'thread_siblings_list'}": (
            f"{n % 4},{n % 4 + 4}\n"
        )
        for n in range(8)
    }
    roots = tree(tmp_path, topology)
    assert read_limits(**roots, affinity=CPUS).physical_cores == 4
    assert read_limits(**roots, affinity={0, 4, 5}).physical_cores == 2


def test_mount_points_with_blanks_are_found(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": r"30 23 0:26 / /sys/fs/c\040group rw - cgroup2 cgroup2 rw" + "\n",
        "sys/fs/c group/cpu.max": "100000 100000",
    }
    assert read_limits(**tree(tmp_path, files), affinity=CPUS).cpus == 1.0


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("x,-1,5-2,7", {7}), ("1-999999999999", set())],
)
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert cpu_list(text) == cpus


LINE = st.one_of(
    st.text(max_size=80), st.from_regex(r"[0-9]{1,3}:[a-z,]{0,9}:/[a-z./]{0,20}", fullmatch=True)
)
GARBAGE = st.one_of(
    st.lists(LINE, max_size=6).map("\n".join),
    st.sampled_from(["max", "max 100000", "0 0", "-1", "1e9 5", "9" * 30, "100000 0", "\0", "0-0-0,,"]),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(GARBAGE, min_size=9, max_size=9), mounted=st.booleans())
def test_garbage_in_any_file_never_raises(tmp_path: Path, texts: list[str], mounted: bool) -> None:
    names = ("cpu.max", "memory.max", "memory.current", "memory.stat", "cpuset.cpus.effective")
    files = {f"sys/fs/cgroup/{name}": text for name, text in zip(names, texts, strict=False)}
    files |= {
        "sys/devices/system/cpu/cpu0/topology/core_cpus_list": texts[5],
        "proc/meminfo": texts[6],
        "proc/self/cgroup": "0::/\n" if mounted else texts[7],
        "proc/self/mountinfo": V2_MOUNT.format(root="/") if mounted else texts[8],
    }
    found = read_limits(**tree(tmp_path, files), affinity=CPUS)
    assert 0 < found.cpus <= 8
    assert 1 <= found.physical_cores <= found.logical_cpus <= 8
    assert 0 <= found.memory_available_bytes <= found.memory_limit_bytes <= found.memory_total_bytes
