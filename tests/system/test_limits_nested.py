"""Whatever limits there are, the smallest wins and is named: nested groups of both versions, rlimits, quotas."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.plan import monitor
from penstock._src.system.units import GIB, MIB
from penstock.plan import MemoryMonitor
from tests.system.machine import V1_MOUNT, V2_MOUNT, Machine

UNLIMITED_V1 = "9223372036854771712"
GROUPS = ("", "/slice", "/slice/pod", "/slice/pod/container")

sizes = st.integers(64 * MIB, 128 * GIB)
limits_of_groups = st.lists(st.none() | sizes, min_size=4, max_size=4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


def _machine(directory: Path) -> Machine:
    found = Machine(directory / str(len(list(directory.iterdir()))))
    found.root.mkdir(exist_ok=True)
    return found


def _join(machine: Machine, version: int) -> tuple[str, str, str]:
    """The place of the groups, and the names of the files with the limit and the usage."""
    if version == 2:
        machine.join_v2(GROUPS[-1])
        return "sys/fs/cgroup", "memory.max", "memory.current"
    machine.join_v1(GROUPS[-1])
    return "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"


@settings(max_examples=25)
@given(
    st.sampled_from([1, 2]), limits_of_groups, st.lists(sizes, min_size=4, max_size=4), st.none() | sizes,
    st.none() | sizes, st.integers(0, 2**20),
)  # fmt: skip
def test_the_smallest_memory_limit_wins_and_is_named(
    directory: Path,
    version: int,
    groups: list[int | None],
    used: list[int],
    address_space: int | None,
    data: int | None,
    held_kib: int,
) -> None:
    machine = _machine(directory)
    place, limit_name, usage_name = _join(machine, version)
    candidates = {"physical memory": (64 * GIB, 60 * GIB)}
    for group, limit, usage in zip(GROUPS, groups, used, strict=True):
        unlimited = "max" if version == 2 else UNLIMITED_V1
        machine.write(f"{place}{group}/{limit_name}", unlimited if limit is None else str(limit))
        machine.write(f"{place}{group}/{usage_name}", str(usage))
        if limit is not None:
            candidates[f"cgroup v{version} {group or '/'} {limit_name}"] = (limit, max(0, limit - usage))
    machine.status(cpus="0-7", size_kib=held_kib, data_kib=held_kib)
    machine.rlimits(*("unlimited" if each is None else str(each) for each in (address_space, data)))
    for name, limit in (("address space (ulimit -v)", address_space), ("data (ulimit -d)", data)):
        if limit is not None:
            candidates[f"rlimit {name}"] = (limit, max(0, limit - held_kib * 1024))

    found = machine.memory()
    assert {each.name: (each.limit_bytes, each.available_bytes) for each in found.candidates} == candidates
    assert found.bytes == candidates[found.ruled_by][0] == min(limit for limit, _ in candidates.values())
    assert (
        found.available_bytes == candidates[found.available_ruled_by][1] == min(left for _, left in candidates.values())
    )


@settings(max_examples=25)
@given(st.sampled_from([1, 2]), st.lists(st.none() | st.integers(5, 2000), min_size=4, max_size=4), st.integers(1, 8))
def test_the_smallest_quota_wins_and_is_named(
    directory: Path, version: int, percents: list[int | None], allowed: int
) -> None:
    machine = _machine(directory)
    _join(machine, version)
    candidates = {"cores": 8.0, "affinity": float(allowed)}
    machine.status(cpus=f"0-{allowed - 1}")
    for group, percent in zip(GROUPS, percents, strict=True):
        quota = None if percent is None else percent * 1000
        if version == 2:
            machine.write(f"sys/fs/cgroup{group}/cpu.max", f"{quota or 'max'} 100000")
        else:
            machine.write(f"sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us", str(quota or -1))
            machine.write(f"sys/fs/cgroup/cpu{group}/cpu.cfs_period_us", "100000")
        if quota is not None:
            name = "cpu.max" if version == 2 else "cpu.cfs_quota_us"
            candidates[f"cgroup v{version} {group or '/'} {name}"] = quota / 100000
    found = machine.cpus()
    assert {each.name: each.cpus for each in found.candidates} == candidates
    assert found.granted == candidates[found.ruled_by] == min(candidates.values())
    assert found.count == max(1, int(found.granted))


def test_both_versions_at_once(tmp_path: Path) -> None:
    """A machine that still has memory in version 1 and the rest in version 2."""
    machine = Machine(tmp_path)
    machine.write("proc/self/cgroup", "5:memory:/job\n0::/user\n")
    v1 = V1_MOUNT.format(root="/", name="memory")
    machine.write("proc/self/mountinfo", v1 + V2_MOUNT.format(root="/").replace("/sys/fs/cgroup", "/sys/fs/unified", 1))
    machine.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{5 * GIB}")
    machine.write("sys/fs/unified/user/memory.max", f"{7 * GIB}")
    machine.write("sys/fs/unified/user/cpu.max", "300000 100000")
    assert machine.memory().ruled_by == "cgroup v1 /job memory.limit_in_bytes"
    assert [each.limit_bytes // GIB for each in machine.memory().candidates] == [64, 5, 7]
    assert (machine.cpus().count, machine.cpus().ruled_by) == (3, "cgroup v2 /user cpu.max")


def test_the_monitor_reports_what_is_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    machine.join_v2("/slice/pod")
    machine.write("sys/fs/cgroup/slice/memory.max", f"{6 * GIB}")
    machine.write("sys/fs/cgroup/slice/pod/memory.max", f"{8 * GIB}")
    machine.rlimits(address_space=str(3 * GIB))
    machine.status(cpus="0-7", size_kib=1 << 20)
    monkeypatch.setattr(monitor, "read_memory_limit", machine.memory)
    info = MemoryMonitor.get_memory_info()
    assert (info["system_total_gb"], info["system_available_gb"]) == (3, 2)
    assert info["ruled_by"] == info["available_ruled_by"] == "rlimit address space (ulimit -v)"
    with pytest.warns(UserWarning, match="rlimit address space"):
        assert not MemoryMonitor.check_memory_available(2.5)
