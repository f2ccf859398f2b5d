"""Host memory that a loader's batches take, so that a batch size is planned for GPU and host together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock._src.plan.probe.training_state import tensors_of
from penstock._src.system.limits import read_memory_limit
from penstock._src.system.units import parse_bytes


@dataclass(frozen=True)
class HostPlan:
    """The batches that a loader holds at once, tensor by tensor."""

    sample_bytes: tuple[float, ...]
    """One sample in each tensor of a batch."""
    batches: int
    pinned: bool
    limit_bytes: int

    @classmethod
    def of_batch(
        cls, batch: Any, batch_size: int, limit: str | int | None, margin: float, batches: int, pinned: bool
    ) -> HostPlan:
        """From one batch and the memory that is granted now, less a margin."""
        sizes = tuple(each.numel() * each.element_size() / batch_size for each in tensors_of(batch))
        granted = read_memory_limit().available_bytes
        least = granted if limit is None else min(granted, parse_bytes(limit))
        return cls(sizes, batches, pinned, int(least * (1 - margin)))

    def bytes(self, batch_size: int) -> int:
        """What the batches of a loader take."""
        sizes = (round(each * batch_size) for each in self.sample_bytes)
        return self.batches * sum(pinned_bytes(each) if self.pinned else each for each in sizes)

    def fits(self, batch_size: int) -> bool:
        """Whether that is within the limit."""
        return self.bytes(batch_size) <= self.limit_bytes


def pinned_bytes(n_bytes: int) -> int:
    """What PyTorch's pinned allocator takes for so many bytes: the next power of two."""
    return 1 << max(n_bytes - 1, 0).bit_length() if n_bytes else 0
