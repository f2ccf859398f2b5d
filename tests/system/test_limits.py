"""Which limit rules, on machines built from files: /proc and /sys below a temporary root."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock._src.system import limits
from penstock._src.system.units import GIB, KIB, MIB
from tests.system.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_other_limits_the_machine_itself_rules(machine: Machine) -> None:
    memory = machine.memory()
    assert (memory.bytes, memory.available_bytes, memory.ruled_by) == (64 * GIB, 60 * GIB, "physical memory")
    assert (machine.cpus().count, machine.cpus().ruled_by) == (8, "cores")


def test_a_container_limit_below_host_memory_rules(machine: Machine) -> None:
    machine.join_v2("/")
    machine.write("sys/fs/cgroup/memory.max", f"{4 * GIB}\n")
    machine.write("sys/fs/cgroup/memory.current", f"{1 * GIB}\n")
    memory = machine.memory()
    assert (memory.bytes, memory.available_bytes) == (4 * GIB, 3 * GIB)
    assert memory.ruled_by == memory.available_ruled_by == "cgroup v2 / memory.max"


def test_file_cache_is_reclaimable_but_shared_memory_is_not(machine: Machine) -> None:
    machine.join_v2("/job")
    machine.write("sys/fs/cgroup/job/memory.max", f"{4 * GIB}\n")
    machine.write("sys/fs/cgroup/job/memory.current", f"{3 * GIB}\n")
    # `file` includes shmem: taking it for reclaimable would promise 1.5 GiB that nobody can free.
    machine.write(
        "sys/fs/cgroup/job/memory.stat",
        f"anon 0\nfile {5 * GIB // 2}\nshmem {3 * GIB // 2}\nactive_file {GIB // 4}\ninactive_file {GIB // 2}\n"
        f"slab_reclaimable {GIB // 4}\n",
    )
    assert machine.memory().available_bytes == 4 * GIB - (3 * GIB - GIB)


def test_the_strictest_ancestor_rules_and_is_named(machine: Machine) -> None:
    machine.join_v2("/slice/pod/container")
    for group, text in (("", "max"), ("slice/", 8 * GIB), ("slice/pod/", 2 * GIB), ("slice/pod/container/", "max")):
        machine.write(f"sys/fs/cgroup/{group}memory.max", f"{text}\n")
    memory = machine.memory()
    assert (memory.bytes, memory.ruled_by) == (2 * GIB, "cgroup v2 /slice/pod memory.max")
    assert [each.name for each in memory.candidates] == [
        "physical memory",
        "cgroup v2 /slice/pod memory.max",
        "cgroup v2 /slice memory.max",
    ]


def test_what_siblings_hold_in_an_ancestor_counts(machine: Machine) -> None:
    machine.join_v2("/pod/me")
    machine.write("sys/fs/cgroup/pod/memory.max", f"{8 * GIB}")
    machine.write("sys/fs/cgroup/pod/memory.current", f"{7 * GIB}")
    machine.write("sys/fs/cgroup/pod/me/memory.max", f"{4 * GIB}")
    machine.write("sys/fs/cgroup/pod/me/memory.current", "0")
    memory = machine.memory()
    assert (memory.bytes, memory.ruled_by) == (4 * GIB, "cgroup v2 /pod/me memory.max")
    assert (memory.available_bytes, memory.available_ruled_by) == (1 * GIB, "cgroup v2 /pod memory.max")
    assert "free by cgroup v2 /pod memory.max" in limits.describe_memory(memory)


def test_memory_high_throttles_and_therefore_counts(machine: Machine) -> None:
    machine.join_v2("/job")
    machine.write("sys/fs/cgroup/job/memory.max", "max")
    machine.write("sys/fs/cgroup/job/memory.high", f"{3 * GIB}")
    assert machine.memory().ruled_by == "cgroup v2 /job memory.high"


def test_a_group_used_beyond_its_limit_leaves_nothing_not_less(machine: Machine) -> None:
    machine.join_v2("/job")
    machine.write("sys/fs/cgroup/job/memory.max", f"{1 * GIB}")
    machine.write("sys/fs/cgroup/job/memory.current", f"{2 * GIB}")
    assert machine.memory().available_bytes == 0


@pytest.mark.parametrize(
    ("group", "mount_root"),
    [
        ("/docker/abc", "/docker/abc"),  # the host's path, the container's own mount
        ("/../other", "/"),  # moved out of the namespace's root
        ("/somewhere/else", "/docker/abc"),
    ],
)
def test_a_container_that_sees_only_its_own_group_reads_it_at_the_mount(
    machine: Machine, group: str, mount_root: str
) -> None:
    machine.join_v2(group, mount_root)
    machine.write("sys/fs/cgroup/memory.max", f"{2 * GIB}")
    machine.write("sys/fs/other/memory.max", f"{1 * GIB}")  # outside the mount: not a control group
    assert machine.memory().bytes == 2 * GIB


def test_version_1_groups_and_their_reclaimable_cache(machine: Machine) -> None:
    machine.join_v1("/docker/abc")
    base = "sys/fs/cgroup/memory"
    machine.write(f"{base}/memory.limit_in_bytes", "9223372036854771712")
    machine.write(f"{base}/docker/memory.limit_in_bytes", "9223372036854771712")
    machine.write(f"{base}/docker/abc/memory.limit_in_bytes", f"{2 * GIB}")
    machine.write(f"{base}/docker/abc/memory.usage_in_bytes", f"{GIB}")
    machine.write(f"{base}/docker/abc/memory.stat", f"total_active_file {GIB // 4}\ntotal_inactive_file {GIB // 4}\n")
    memory = machine.memory()
    assert (memory.bytes, memory.available_bytes) == (2 * GIB, 3 * GIB // 2)
    assert memory.ruled_by == "cgroup v1 /docker/abc memory.limit_in_bytes"
    assert len(memory.candidates) == 2


def test_version_1_reports_of_ancestors_that_the_mount_hides(machine: Machine) -> None:
    machine.join_v1("/docker/abc", mount_root="/docker/abc")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    machine.write("sys/fs/cgroup/memory/memory.stat", f"hierarchical_memory_limit {3 * GIB}\n")
    assert machine.memory().ruled_by == "cgroup v1 / hierarchical_memory_limit"


def test_resource_limits_count_less_what_is_used(machine: Machine) -> None:
    machine.rlimits(address_space=str(2 * GIB))
    machine.status(cpus="0-7", size_kib=512 * KIB)
    memory = machine.memory()
    assert (memory.bytes, memory.available_bytes) == (2 * GIB, 3 * GIB // 2)
    assert memory.ruled_by == "rlimit address space (ulimit -v)"
    machine.rlimits(data=str(1 * GIB))
    assert machine.memory().ruled_by == "rlimit data (ulimit -d)"


def test_a_real_address_space_limit_is_seen() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from penstock._src.system.limits import read_memory_limit as read\n"
        "limit = read(); print(limit.bytes, 0 < limit.available_bytes < limit.bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(1 << 30), "True"]


@pytest.mark.parametrize(
    ("quota", "count", "granted"), [("150000 100000", 1, 1.5), ("50000 100000", 1, 0.5), ("400000 100000", 4, 4.0)]
)
def test_a_cpu_quota_rules_below_the_cores(machine: Machine, quota: str, count: int, granted: float) -> None:
    machine.join_v2("/pod/me")
    machine.write("sys/fs/cgroup/pod/cpu.max", quota)
    machine.write("sys/fs/cgroup/pod/me/cpu.max", "max 100000")
    cpus = machine.cpus()
    assert (cpus.count, cpus.granted, cpus.ruled_by) == (count, granted, "cgroup v2 /pod cpu.max")


def test_a_version_1_cpu_quota_rules(machine: Machine) -> None:
    machine.join_v1("/job")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    machine.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000")
    machine.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    assert (machine.cpus().count, machine.cpus().ruled_by) == (2, "cgroup v1 /job cpu.cfs_quota_us")


def test_affinity_rules_and_cpus_that_are_not_there_do_not_count(machine: Machine) -> None:
    machine.status(cpus="0-1,4")
    assert (machine.cpus().count, machine.cpus().ruled_by) == (3, "affinity")
    machine.status(cpus="0-127")
    assert machine.cpus().count == 8
    machine.status(cpus="64")
    assert (machine.cpus().count, machine.cpus().ruled_by) == (8, "cores")


def test_broken_and_missing_files_never_raise(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("proc/self/cgroup", "nonsense\n0::\n::\n")
    machine.write("proc/self/mountinfo", "short - cgroup2\n1 2 3 / /m rw - cgroup2 x rw\nno dash here\n")
    machine.write("m/memory.max", "many")
    machine.write("m/cpu.max", "1 0")
    assert machine.memory().bytes == 64 * GIB
    assert machine.cpus().count == 8
    empty = tmp_path / "empty"
    empty.mkdir()
    found = limits.read_limits(empty)
    assert found.memory.bytes > 0
    assert found.cpus.count >= 1
    assert found.shm_bytes is None


def test_this_machine_grants_something(tmp_path: Path) -> None:
    found = limits.read_limits(path=tmp_path / "not" / "yet" / "there")
    assert 0 < found.memory.available_bytes <= found.memory.bytes
    assert 1 <= found.cpus.count <= len(os.sched_getaffinity(0))
    assert found.disk_path == str(tmp_path)
    assert found.disk_free_bytes > 0
    assert found.gpus == ()


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def say(text: str, status: int = 0) -> None:
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    say("0, GPU-aa, 143771, 143300, 570.1, NVIDIA H200\n1, GPU-bb, [N/A], [N/A], 570.1, NVIDIA GB10, rev 2")
    return program


def test_gpus_come_from_nvidia_smi(fake_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = limits.read_limits(gpus=True).gpus
    assert (first.name, first.memory_bytes, first.free_bytes) == ("NVIDIA H200", 143771 * MIB, 143300 * MIB)
    assert (second.name, second.memory_bytes, second.visible) == ("NVIDIA GB10, rev 2", None, True)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert [gpu.visible for gpu in limits.read_gpus()] == [False, True]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,-1,1")
    assert [gpu.visible for gpu in limits.read_gpus()] == [True, False]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [gpu.visible for gpu in limits.read_gpus()] == [False, False]


def test_a_failing_nvidia_smi_means_no_gpus(fake_smi: Path) -> None:
    fake_smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert limits.read_gpus() == ()
