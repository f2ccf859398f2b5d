"""Peak memory of training steps on a device: by PyTorch's allocator on CUDA, by resident memory on the CPU."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock._src.plan.probe.caching_allocator import Segment, Trace
from penstock._src.system.limits import read_memory_limit
from penstock._src.system.memory import PeakMeter, give_back_freed, rss_bytes

_MOST_EVENTS = 2_000_000
# A convolution that finds no memory for any of its algorithms says that there is no engine for it.
_LACKS_MEMORY = ("out of memory", "unable to find an engine", "status_alloc_failed", "not enough memory")


@dataclass(frozen=True)
class Peak:
    """The most that some steps held: tensors alone, and all that the allocator took for them."""

    allocated_bytes: int
    reserved_bytes: int
    trace: Trace | None = None


class DeviceMemory(ABC):
    """The memory in which a model trains."""

    name: str
    is_host: bool

    @abstractmethod
    def limit_bytes(self) -> int:
        """What this process may hold there in all, as far as others leave it now."""

    @abstractmethod
    def held_bytes(self) -> int:
        """What this process holds there now."""

    @abstractmethod
    def give_back(self) -> None:
        """Hand what is freed to the system: each probe, and the training after it, starts with an empty cache."""

    @abstractmethod
    def measure(self, steps: Callable[[], None], batch_size: int) -> Peak:
        """Run the steps from an empty cache on, and return the peak."""


class HostMemory(DeviceMemory):
    """Resident memory of this process, by the kernel's high-water mark."""

    name, is_host = "host memory", True

    def limit_bytes(self) -> int:
        return rss_bytes() + read_memory_limit().available_bytes

    def held_bytes(self) -> int:
        return rss_bytes()

    def give_back(self) -> None:
        gc.collect()
        give_back_freed()

    def measure(self, steps: Callable[[], None], batch_size: int) -> Peak:
        self.give_back()
        with PeakMeter() as meter:
            steps()
        return Peak(meter.peak_bytes, meter.peak_bytes)


class CudaMemory(DeviceMemory):
    """One CUDA device, by the counters and the history of PyTorch's allocator."""

    is_host = False

    def __init__(self, device: Any) -> None:
        import torch

        self._device = torch.device(device)
        if self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self.name = f"GPU {self._device.index}"

    def limit_bytes(self) -> int:
        import torch

        self.give_back()
        free, total = torch.cuda.mem_get_info(self._device)
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)(self._device)
        return min(int(share * total), int(free) + self.held_bytes())

    def held_bytes(self) -> int:
        import torch

        return int(torch.cuda.memory_reserved(self._device))

    def give_back(self) -> None:
        import torch

        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def measure(self, steps: Callable[[], None], batch_size: int) -> Peak:
        import torch

        self.give_back()
        torch.cuda.reset_peak_memory_stats(self._device)
        with _History(self._device) as history:
            steps()
            torch.cuda.synchronize(self._device)
        reserved = torch.cuda.max_memory_reserved(self._device)
        return Peak(torch.cuda.max_memory_allocated(self._device), reserved, history.trace(batch_size, reserved))


class _History:
    """The allocations between entering and leaving; nothing where this PyTorch records none."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._segments: tuple[Segment, ...] | None = None
        self._events: tuple[tuple[int, int], ...] = ()

    def __enter__(self) -> _History:
        import torch

        try:
            torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_MOST_EVENTS)
            self._segments = _segments(torch.cuda.memory._snapshot()["segments"], self._device.index)
        except (AttributeError, KeyError, RuntimeError, TypeError):
            self._segments = None
        return self

    def __exit__(self, *_: object) -> None:
        import torch

        if self._segments is None:
            return
        try:
            self._events = _events(torch.cuda.memory._snapshot()["device_traces"][self._device.index])
        except (AttributeError, KeyError, IndexError, RuntimeError):
            self._segments = None
        finally:
            torch.cuda.memory._record_memory_history(None)

    def trace(self, batch_size: int, reserved_bytes: int) -> Trace | None:
        if self._segments is None or not self._events or len(self._events) >= _MOST_EVENTS:
            return None
        return Trace(batch_size, self._segments, self._events, reserved_bytes)


def _segments(entries: list[dict[str, Any]], device_index: int) -> tuple[Segment, ...]:
    """Segments of a snapshot; a block's address follows from where its segment starts."""
    segments = []
    for each in entries:
        if each.get("device", device_index) != device_index:
            continue
        blocks, address = [], int(each["address"])
        for block in each["blocks"]:
            blocks.append((int(block["size"]), None if block["state"] == "inactive" else address))
            address += int(block["size"])
        segments.append(Segment(each["segment_type"] == "small", tuple(blocks)))
    return tuple(segments)


def _events(entries: list[dict[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Allocations and frees of a history, in their order."""
    return tuple(
        (int(entry["addr"]), int(entry["size"]) if entry["action"] == "alloc" else 0)
        for entry in entries
        if entry["action"] in ("alloc", "free_completed")
    )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory is what a step lacked: libraries under PyTorch say so in words of their own."""
    import torch

    return isinstance(error, torch.cuda.OutOfMemoryError) or any(text in str(error).lower() for text in _LACKS_MEMORY)


def memory_of(device: Any) -> DeviceMemory:
    """The memory of a torch device."""
    return CudaMemory(device) if getattr(device, "type", "cpu") == "cuda" else HostMemory()
