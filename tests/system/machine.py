"""A machine built from files: /proc and /sys below a temporary root, with limits of every kind."""

from __future__ import annotations

from pathlib import Path

from penstock._src.system import limits
from penstock._src.system.units import MIB

V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"


class Machine:
    """A root directory with 64 GiB of memory (60 GiB available) and 8 cores, no control groups, no resource limits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {64 * MIB} kB\nMemFree: {2 * MIB} kB\nMemAvailable: {60 * MIB} kB\n")
        self.write("sys/devices/system/cpu/online", "0-7\n")
        self.status(cpus="0-7")
        self.rlimits()

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def status(self, cpus: str, size_kib: int = 0, data_kib: int = 0) -> None:
        text = f"Name:\tpython\nVmSize:\t{size_kib} kB\nVmData:\t{data_kib} kB\nCpus_allowed_list:\t{cpus}\n"
        self.write("proc/self/status", text)

    def rlimits(self, address_space: str = "unlimited", data: str = "unlimited") -> None:
        self.write(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            f"Max data size             {data}            unlimited            bytes     \n"
            "Max resident set          1                    unlimited            bytes     \n"
            f"Max address space         {address_space}            unlimited            bytes     \n",
        )

    def join_v2(self, group: str, mount_root: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{group}\n")
        self.write("proc/self/mountinfo", V2_MOUNT.format(root=mount_root))

    def join_v1(self, group: str, mount_root: str = "/") -> None:
        self.write("proc/self/cgroup", f"5:memory:{group}\n4:cpu,cpuacct:{group}\n0::/\n")
        names = "".join(V1_MOUNT.format(root=mount_root, name=name) for name in ("memory", "cpu"))
        self.write("proc/self/mountinfo", names)

    def memory(self) -> limits.MemoryLimit:
        return limits.read_memory_limit(self.root)

    def cpus(self) -> limits.CpuLimit:
        return limits.read_cpu_limit(self.root)
