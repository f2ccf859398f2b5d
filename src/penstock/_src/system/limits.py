"""What this machine really grants to this process, and which limit rules.

In a container the kernel still shows the host's memory and cores. The truth is the minimum over the physical machine,
the control groups (v1 and v2) of the process and of every ancestor, and the process's own resource limits, each less
what is used there and cannot be reclaimed: file cache is given back under pressure, shared memory (/dev/shm) is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock._src.system.units import KIB, format_bytes

# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
_UNLIMITED_BYTES = 1 << 60


class MemoryCandidate(NamedTuple):
    """One limit on memory: all that it allows, and what is left of it."""

    name: str
    limit_bytes: int
    available_bytes: int


class MemoryLimit(NamedTuple):
    """The memory granted: `bytes` is the least limit, by `ruled_by`; `available_bytes` is the least that is left."""

    bytes: int
    available_bytes: int
    ruled_by: str
    available_ruled_by: str
    candidates: tuple[MemoryCandidate, ...]


class CpuCandidate(NamedTuple):
    """One limit on CPUs; a quota may grant a fraction."""

    name: str
    cpus: float


@dataclass(frozen=True)
class CpuLimit:
    """The CPUs granted: `count` whole ones that can be used, at least one; `granted` with the fraction of a quota."""

    count: int
    granted: float
    ruled_by: str
    candidates: tuple[CpuCandidate, ...]


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory is None where the driver does not report it (memory shared with the CPU)."""

    index: int
    name: str
    memory_bytes: int | None
    free_bytes: int | None
    driver: str
    visible: bool


class Limits(NamedTuple):
    """All that the machine grants; sizes of /dev/shm are None where there is none."""

    memory: MemoryLimit
    cpus: CpuLimit
    shm_bytes: int | None
    shm_free_bytes: int | None
    disk_path: str
    disk_free_bytes: int
    gpus: tuple[Gpu, ...]


def read_limits(root: Path = Path("/"), path: Path | None = None, *, gpus: bool = False) -> Limits:
    """Read every limit. `path`: whose disk is meant (default: the current directory). `root`: where /proc and /sys are.

    GPUs are listed only when asked for, because that may start a program (nvidia-smi) that takes seconds.
    """
    shm = _disk_bytes(root / "dev" / "shm")
    disk_path = _existing_parent(Path.cwd() if path is None else path)
    disk = _disk_bytes(disk_path)
    return Limits(
        memory=read_memory_limit(root),
        cpus=read_cpu_limit(root),
        shm_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        disk_path=str(disk_path),
        disk_free_bytes=disk[1] if disk else 0,
        gpus=read_gpus() if gpus else (),
    )


def read_memory_limit(root: Path = Path("/")) -> MemoryLimit:
    """The least memory limit over the machine, the control groups with their ancestors, and the resource limits."""
    candidates = [_physical_memory(root), *_cgroup_memory(root), *_rlimit_memory(root)]
    ruling = min(candidates, key=lambda each: each.limit_bytes)
    scarcest = min(candidates, key=lambda each: each.available_bytes)
    return MemoryLimit(
        bytes=ruling.limit_bytes,
        available_bytes=scarcest.available_bytes,
        ruled_by=ruling.name,
        available_ruled_by=scarcest.name,
        candidates=tuple(candidates),
    )


def read_cpu_limit(root: Path = Path("/")) -> CpuLimit:
    """The fewest CPUs over the cores, the affinity of this process, and the quotas of its control groups."""
    online = _cpu_set(_read(root / "sys/devices/system/cpu/online")) or set(range(os.cpu_count() or 1))
    candidates = [CpuCandidate("cores", float(len(online)))]
    allowed = _cpu_set(_status_field(root, "Cpus_allowed_list"))
    if allowed & online:  # the mask may name CPUs that are not plugged in
        candidates.append(CpuCandidate("affinity", float(len(allowed & online))))
    candidates += _cgroup_cpus(root)
    ruling = min(candidates, key=lambda each: each.cpus)
    return CpuLimit(max(1, int(ruling.cpus)), ruling.cpus, ruling.name, tuple(candidates))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _table(text: str) -> dict[str, int]:
    """`name value` lines, as in memory.stat."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _status_field(root: Path, name: str) -> str:
    match = re.search(rf"^{name}:\s*(.*)$", _read(root / "proc/self/status"), re.MULTILINE)
    return match[1].strip() if match else ""


def _cpu_set(text: str) -> set[int]:
    """CPU numbers from the kernel's list notation, e.g. "0-3,8"."""
    cpus: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


# Memory


def _physical_memory(root: Path) -> MemoryCandidate:
    lines = re.findall(r"^(\w+):\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    fields = {name: int(kib) * KIB for name, kib in lines}
    total = fields.get("MemTotal", _UNLIMITED_BYTES)
    # MemAvailable is the kernel's own estimate: free + reclaimable cache, shared memory left out.
    available = fields.get("MemAvailable", fields.get("MemFree", total))
    return MemoryCandidate("physical memory", total, min(total, available))


def _cgroup_memory(root: Path) -> Iterator[MemoryCandidate]:
    for version, group, directory in _groups(root, "memory"):
        stat = _table(_read(directory / "memory.stat"))
        if version == 2:
            used = _table("used " + _read(directory / "memory.current")).get("used", 0)
            reclaimable = stat.get("active_file", 0) + stat.get("inactive_file", 0) + stat.get("slab_reclaimable", 0)
            texts = {name: _read(directory / name) for name in ("memory.max", "memory.high")}
        else:
            used = _table("used " + _read(directory / "memory.usage_in_bytes")).get("used", 0)
            reclaimable = stat.get("total_active_file", stat.get("active_file", 0))
            reclaimable += stat.get("total_inactive_file", stat.get("inactive_file", 0))
            # The hierarchical limit also knows the ancestors that a container's mount hides.
            texts = {"memory.limit_in_bytes": _read(directory / "memory.limit_in_bytes")}
            texts["hierarchical_memory_limit"] = str(stat.get("hierarchical_memory_limit", ""))
            if texts["hierarchical_memory_limit"] == texts["memory.limit_in_bytes"]:
                del texts["hierarchical_memory_limit"]
        held = max(0, used - reclaimable)
        for name, text in texts.items():
            if text.isdecimal() and int(text) < _UNLIMITED_BYTES:
                limit = int(text)
                yield MemoryCandidate(f"cgroup v{version} {group} {name}", limit, max(0, limit - held))


def _rlimit_memory(root: Path) -> Iterator[MemoryCandidate]:
    # RLIMIT_RSS is left out: Linux has not enforced it since 2.4.30.
    text = _read(root / "proc/self/limits")
    for label, name, used_field in (
        ("Max address space", "rlimit address space (ulimit -v)", "VmSize"),
        ("Max data size", "rlimit data (ulimit -d)", "VmData"),
    ):
        match = re.search(rf"^{label}\s+(\d+)\s", text, re.MULTILINE)
        if match:
            used = re.match(r"\d+", _status_field(root, used_field))
            limit = int(match[1])
            yield MemoryCandidate(name, limit, max(0, limit - int(used[0]) * KIB) if used else limit)


# Control groups


def _groups(root: Path, controller: str) -> Iterator[tuple[int, str, Path]]:
    """(version, name, directory) of this process's control group for one controller and of every ancestor in sight."""
    memberships: dict[str, str] = {}  # controller ("" is v2's one hierarchy) → group
    for line in _read(root / "proc/self/cgroup").splitlines():
        words = line.split(":", 2)
        if len(words) == 3:
            memberships.update(dict.fromkeys(words[1].split(","), words[2]))
    for version, controllers_of_mount, mount_root, mount_point in _cgroup_mounts(root):
        if version == 1 and controller not in controllers_of_mount:
            continue
        group = memberships.get(controller if version == 1 else "")
        if group is None:
            continue
        top = root / mount_point.lstrip("/")
        inside = _below(group, mount_root)
        parts = [part for part in inside.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield version, "/" + "/".join(parts[:depth]), top.joinpath(*parts[:depth])


def _below(group: str, mount_root: str) -> str:
    """The group's path below what is mounted; "" (the mount itself) when it lies elsewhere, as in a container that
    sees only its own group."""
    if ".." in group.split("/"):
        return ""
    if mount_root == "/":
        return group
    return group[len(mount_root) :] if (group + "/").startswith(mount_root.rstrip("/") + "/") else ""


def _cgroup_mounts(root: Path) -> Iterator[tuple[int, set[str], str, str]]:
    for line in _read(root / "proc/self/mountinfo").splitlines():
        # id parent major:minor root mount-point options [tags…] - type source super-options
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not dash or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        yield 2 if kind[0] == "cgroup2" else 1, set(kind[2].split(",")), _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(text: str) -> str:
    """mountinfo writes a space as \\040, and so on."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _cgroup_cpus(root: Path) -> Iterator[CpuCandidate]:
    for version, group, directory in _groups(root, "cpu"):
        if version == 2:
            name, words = "cpu.max", _read(directory / "cpu.max").split()
        else:
            name = "cpu.cfs_quota_us"
            words = [_read(directory / name), _read(directory / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            yield CpuCandidate(f"cgroup v{version} {group} {name}", int(words[0]) / int(words[1]))


# Disks


def _existing_parent(path: Path) -> Path:
    """The nearest directory that exists: an output's disk is known before the output is."""
    path = path.absolute()
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))


def _disk_bytes(path: Path) -> tuple[int, int] | None:
    """(size, free for this user) of the file system that holds `path`."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


# GPUs


def read_gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of this machine, as nvidia-smi lists them."""
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = "--query-gpu=index,uuid,memory.total,memory.free,driver_version,name"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus: list[Gpu] = []
    for line in done.stdout.splitlines():
        index, uuid, *sizes, driver, name = (field.strip() for field in line.split(",", 5))
        total, free = (int(field) << 20 if field.isdecimal() else None for field in sizes)
        gpus.append(Gpu(int(index), name, total, free, driver, _visible(int(index), uuid)))
    return tuple(gpus)


def _visible(index: int, uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES lets programs see this GPU; CUDA stops at the first entry that it does not know."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return True
    for word in (word.strip() for word in wanted.split(",")):
        if word == str(index) or (word.startswith("GPU-") and uuid.startswith(word)):
            return True
        if not (word.isdecimal() or word.startswith(("GPU-", "MIG-"))):
            return False
    return False


def describe_memory(limit: MemoryLimit) -> str:
    """One line: "15.6 GiB free of 23.5 GiB (physical memory)"."""
    ruled = limit.ruled_by
    if limit.available_ruled_by != limit.ruled_by:
        ruled = f"{limit.ruled_by}; free by {limit.available_ruled_by}"
    return f"{format_bytes(limit.available_bytes)} free of {format_bytes(limit.bytes)} ({ruled})"
