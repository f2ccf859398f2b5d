"""`MemoryMonitor`: the memory that is granted, what this process and its workers hold, and each GPU."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from typing import Any

from penstock._src.system.limits import MemoryLimit, read_gpus, read_memory_limit
from penstock._src.system.memory import descendants, give_back_freed
from penstock._src.system.units import GIB
from penstock.errors import UsageError

_WIDTH = 60
_WORDS = {
    "zh": {
        "title": "内存使用情况",
        "total": "系统总内存",
        "available": "系统可用内存",
        "used": "系统已用内存",
        "ruled": "限制来自",
        "rss": "进程RSS内存",
        "workers": "工作进程",
        "allocated": "已分配",
        "reserved": "已保留",
        "capacity": "总容量",
    },
    "en": {
        "title": "Memory",
        "total": "Granted",
        "available": "Available",
        "used": "Used",
        "ruled": "Limited by",
        "rss": "Process RSS",
        "workers": "Workers",
        "allocated": "allocated",
        "reserved": "reserved",
        "capacity": "total",
    },
}


class MemoryMonitor:
    """What there is and what is used, in GB of 1024³ bytes.

    >>> if not MemoryMonitor.check_memory_available(required_gb=10.0):              # doctest: +SKIP
    ...     print("stream it")
    """

    @staticmethod
    def get_memory_info() -> dict[str, Any]:
        """The system as it is granted to this process, the process, its workers and the GPUs.

        `system_*`: the least over the machine, the control groups and the resource limits; `ruled_by` and
        `available_ruled_by` name them. `process_*`: RSS, VMS, PSS (shared pages in parts) and USS (own pages alone).
        `workers`: PSS and USS of each process that this one started. `gpus`: allocated and reserved by torch in this
        process, total and free of the device.
        """
        limit = read_memory_limit()
        workers = [each for pid in descendants(os.getpid()) if (each := _worker(pid)) is not None]
        return {
            **_system(limit),
            **{f"process_{name}_gb": size / GIB for name, size in _sizes(os.getpid()).items()},
            "workers": workers,
            "workers_pss_gb": sum(each["pss_gb"] for each in workers),
            "gpus": _gpus(),
        }

    @staticmethod
    def print_memory_info(lang: str = "zh") -> None:
        """Print it; `lang` is "zh" or "en"."""
        words = _words(lang)
        info = MemoryMonitor.get_memory_info()
        print("=" * _WIDTH)
        print(words["title"])
        print("=" * _WIDTH)
        print(f"{words['total']}: {info['system_total_gb']:.2f} GB")
        print(f"{words['available']}: {info['system_available_gb']:.2f} GB")
        print(f"{words['used']}: {info['system_used_gb']:.2f} GB ({info['system_percent']:.1f}%)")
        if info["ruled_by"] != "physical memory":
            print(f"{words['ruled']}: {info['ruled_by']}")
        print(f"{words['rss']}: {info['process_rss_gb']:.2f} GB")
        if info["workers"]:
            print(f"{words['workers']}: {len(info['workers'])}, PSS {info['workers_pss_gb']:.2f} GB")
        for gpu in info["gpus"]:
            print("-" * _WIDTH)
            print(f"GPU {gpu['index']}:")
            for name, key in (("allocated", "allocated_gb"), ("reserved", "reserved_gb"), ("capacity", "total_gb")):
                size = gpu[key]
                print(f"  {words[name]}: {'-' if size is None else f'{size:.2f} GB'}")
        print("=" * _WIDTH)

    @staticmethod
    def check_memory_available(required_gb: float) -> bool:
        """Whether so much memory is free as granted; a warning names the limit where it is not."""
        limit = read_memory_limit()
        available_gb = limit.available_bytes / GIB
        if required_gb <= available_gb:
            return True
        warnings.warn(
            f"{required_gb:.2f} GB are needed, {available_gb:.2f} GB are available ({limit.available_ruled_by})",
            stacklevel=2,
        )
        return False

    @staticmethod
    def clear_memory() -> None:
        """Collect garbage, hand freed heap to the system, and empty the CUDA cache.

        Not for every step: emptying the CUDA cache makes the next step allocate from the driver again, which waits for
        the GPU. It frees nothing that a tensor still holds.
        """
        gc.collect()
        give_back_freed()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _words(lang: str) -> dict[str, str]:
    if lang not in _WORDS:
        raise UsageError(f"lang={lang!r}: one of {', '.join(_WORDS)}")
    return _WORDS[lang]


def _system(limit: MemoryLimit) -> dict[str, Any]:
    available = min(limit.available_bytes, limit.bytes)
    used = limit.bytes - available
    return {
        "system_total_gb": limit.bytes / GIB,
        "system_available_gb": available / GIB,
        "system_used_gb": used / GIB,
        "system_percent": 100 * used / limit.bytes,
        "ruled_by": limit.ruled_by,
        "available_ruled_by": limit.available_ruled_by,
    }


def _sizes(pid: int) -> dict[str, int]:
    """RSS, VMS, PSS and USS of a process; PSS is RSS where the system does not tell."""
    import psutil

    info = psutil.Process(pid).memory_full_info()
    pss = getattr(info, "pss", info.rss)
    return {"rss": info.rss, "vms": info.vms, "pss": pss, "uss": info.uss}


def _worker(pid: int) -> dict[str, Any] | None:
    import psutil

    try:
        sizes = _sizes(pid)
    except psutil.Error:  # it has just ended
        return None
    return {"pid": pid, "pss_gb": sizes["pss"] / GIB, "uss_gb": sizes["uss"] / GIB}


def _gpus() -> list[dict[str, Any]]:
    """By torch where this process uses CUDA, else by the driver: asking torch would open a context of 500 MB."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return [_gpu_by_torch(torch, index) for index in range(torch.cuda.device_count())]
    visible = [gpu for gpu in read_gpus() if gpu.visible]
    return [
        {
            "index": index,
            "name": gpu.name,
            "allocated_gb": 0.0,
            "reserved_gb": 0.0,
            "total_gb": None if gpu.memory_bytes is None else gpu.memory_bytes / GIB,
            "free_gb": None if gpu.free_bytes is None else gpu.free_bytes / GIB,
        }
        for index, gpu in enumerate(visible)
    ]


def _gpu_by_torch(torch: Any, index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    return {
        "index": index,
        "name": torch.cuda.get_device_name(index),
        "allocated_gb": torch.cuda.memory_allocated(index) / GIB,
        "reserved_gb": torch.cuda.memory_reserved(index) / GIB,
        "total_gb": total / GIB,
        "free_gb": free / GIB,
    }
