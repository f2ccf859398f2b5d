"""A CUDA device without one: torch.cuda's counters and history over the rules of its allocator."""

from __future__ import annotations

from typing import Any

import pytest

from penstock._src.plan.probe.caching_allocator import CachingAllocator
from penstock._src.system.units import MIB


class FakeCuda:
    """One device. `allocate` raises what torch raises where the limit does not allow it."""

    def __init__(self, torch: Any, limit_bytes: int, total_bytes: int) -> None:
        self._torch, self.limit_bytes, self.total_bytes = torch, limit_bytes, total_bytes
        self.allocator = CachingAllocator(limit_bytes)
        self.events: list[dict[str, Any]] | None = None
        self.live: dict[int, Any] = {}
        self.raised = 0

    def allocate(self, n_bytes: int) -> int:
        block = self.allocator.allocate(n_bytes)
        if block is None:
            self.raised += 1
            raise self._torch.cuda.OutOfMemoryError("CUDA out of memory")
        self.live[block.address] = block
        if self.events is not None:
            self.events.append({"action": "alloc", "addr": block.address, "size": n_bytes})
        return block.address

    def free(self, address: int) -> None:
        self.allocator.free(self.live.pop(address))
        if self.events is not None:
            self.events += [{"action": action, "addr": address, "size": 0}
                            for action in ("free_requested", "free_completed")]  # fmt: skip

    def snapshot(self) -> dict[str, Any]:
        return {"segments": list(self._segments()), "device_traces": [list(self.events or [])]}

    def _segments(self) -> Any:
        for block in [*self.live.values(), *self.allocator._by_address.values()]:
            if block.before is not None:
                continue
            blocks, each = [], block
            while each is not None:
                state = "inactive" if each.is_free else "active_allocated"
                blocks.append({"size": each.n_bytes, "state": state})
                each = each.behind
            kind = "small" if block.is_small else "large"
            yield {"device": 0, "address": block.address, "segment_type": kind, "blocks": blocks}

    def _record(self, enabled: str | None, **_: object) -> None:
        self.events = None if enabled is None else []

    def _reset(self, device: object) -> None:
        self.allocator.peak_allocated_bytes = self.allocator.allocated_bytes
        self.allocator.peak_reserved_bytes = self.allocator.reserved_bytes

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In place of torch.cuda's own functions."""
        allocator, cuda = self.allocator, self._torch.cuda
        free = self.total_bytes - 500 * MIB
        for name, value in {
            "synchronize": lambda device=None: None,
            "current_device": lambda: 0,
            "empty_cache": allocator._release_cached,
            "reset_peak_memory_stats": self._reset,
            "memory_reserved": lambda device: allocator.reserved_bytes,
            "max_memory_reserved": lambda device: allocator.peak_reserved_bytes,
            "max_memory_allocated": lambda device: allocator.peak_allocated_bytes,
            "mem_get_info": lambda device: (free - allocator.reserved_bytes, self.total_bytes),
            "get_per_process_memory_fraction": lambda device: self.limit_bytes / self.total_bytes,
        }.items():
            monkeypatch.setattr(cuda, name, value)
        monkeypatch.setattr(cuda.memory, "_record_memory_history", self._record)
        monkeypatch.setattr(cuda.memory, "_snapshot", self.snapshot)


class FakeTraining:
    """A step that allocates as training does: activations forward, gradients backward, optimizer state once."""

    def __init__(self, cuda: FakeCuda, weights: list[int], activations: list[int]) -> None:
        self._cuda, self._weights, self._activations = cuda, weights, activations
        for size in weights:
            cuda.allocate(size)
        self.gradients: list[int] = []
        self.state: list[int] = []

    def start_over(self) -> None:
        for address in [*self.gradients, *self.state]:
            self._cuda.free(address)
        self.gradients, self.state = [], []

    def step(self, batch_size: int) -> None:
        cuda, held = self._cuda, list[int]()
        for address in self.gradients:
            cuda.free(address)
        self.gradients = []
        try:
            for size in self._activations:
                held.append(cuda.allocate(size * batch_size))
                cuda.free(cuda.allocate(size * batch_size // 3))  # a workspace
            for weight in reversed(self._weights):
                self.gradients.append(cuda.allocate(weight))
                for _ in range(len(self._activations) // len(self._weights)):
                    extra = cuda.allocate(self._activations[0] * batch_size)
                    cuda.free(held.pop())
                    cuda.free(extra)
        finally:
            while held:
                cuda.free(held.pop())
        if not self.state:
            self.state = [cuda.allocate(weight) for weight in self._weights for _ in range(2)]
