"""How a loader splits its memory: slots, scratch of threads, tables of numbers, and what is left for views."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from penstock._src.system.budget import Budget
from penstock._src.system.units import MIB, format_bytes
from penstock.errors import BudgetExceeded

LEAST_SLOTS = 3  # one that the training step works on, one that its code still references, one under way
USUAL_SLOTS = 5
LIBRARIES_BYTES = 48 * MIB  # OpenCV, h5py or pyarrow where they were not imported before, and what the heap keeps back
ENGINE_BYTES = 96 * MIB  # an engine process: its interpreter, the same libraries, what its heap keeps back
DEVICE_ENGINE_BYTES = 512 * MIB  # … which decodes on a GPU: torch and CUDA as well
TABLE_SHARE = 4  # numbers may take a quarter


@dataclass(frozen=True)
class MemorySplit:
    """Who gets how much, in bytes."""

    limit_bytes: int
    threads: int
    slots: int
    slot_bytes: int
    thread_bytes: int
    table_bytes: int
    index_bytes: int
    encoded_bytes: int
    """Images in flight that stay encoded, of one batch."""
    engine_bytes: int
    """Libraries, or a whole process of its own."""
    remote_bytes: int = 0
    """Ranges of remote files: under way, not yet read, and ends of files that are held."""

    @property
    def fixed_bytes(self) -> int:
        """Everything but views."""
        return (
            self.engine_bytes + self.slots * (self.slot_bytes + self.encoded_bytes) + self.threads * self.thread_bytes
            + self.table_bytes + self.index_bytes + self.remote_bytes
        )  # fmt: skip

    @property
    def left_bytes(self) -> int:
        """For views in memory."""
        return self.limit_bytes - self.fixed_bytes

    def describe(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "left_bytes": self.left_bytes}


def engine_bytes(kind: str, *, decodes_on_device: bool) -> int:
    """What an engine takes, whatever it loads."""
    if kind == "thread":
        return LIBRARIES_BYTES
    return DEVICE_ENGINE_BYTES if decodes_on_device else ENGINE_BYTES


def split_memory(
    limit_bytes: int,
    *,
    threads: int,
    slots: int | None,
    slot_bytes: int,
    thread_bytes: int,
    table_bytes: int,
    index_bytes: int,
    encoded_bytes: int = 0,
    engine_bytes: int = LIBRARIES_BYTES,
    remote_bytes: int = 0,
    budget: Budget,
) -> MemorySplit:
    """The usual number of slots and all threads where they fit; fewer where they do not; an error where three slots
    and one thread do not. `budget`: what `limit_bytes` are left of."""

    def split_for(count: int, workers: int) -> MemorySplit:
        return MemorySplit(
            limit_bytes, workers, count, slot_bytes, thread_bytes, table_bytes, index_bytes, encoded_bytes,
            engine_bytes, remote_bytes,
        )  # fmt: skip

    for count in [slots] if slots is not None else range(USUAL_SLOTS, LEAST_SLOTS - 1, -1):
        fitting = split_for(count, threads)
        if fitting.left_bytes >= 0:
            return fitting
    least = slots or LEAST_SLOTS
    for workers in range(threads - 1, 0, -1):
        fitting = split_for(least, workers)
        if fitting.left_bytes >= 0:
            return fitting
    raise _refused(split_for(least, 1), budget)


def _refused(needed: MemorySplit, budget: Budget) -> BudgetExceeded:
    limit_bytes, fixed_bytes = needed.limit_bytes, needed.fixed_bytes
    engine = "libraries" if needed.engine_bytes == LIBRARIES_BYTES else "the engine process"
    remote = f", {format_bytes(needed.remote_bytes)} of remote reads" if needed.remote_bytes else ""
    have, hint = format_bytes(limit_bytes), "a smaller batch_size or a smaller image_size"
    if budget.used_bytes:
        held = ", ".join(f"{who} {format_bytes(size)}" for who, size in budget.by_name().items())
        have = f"{have} free of the Budget of {format_bytes(budget.limit_bytes)} (held by {held})"
        enough = -(-(budget.limit_bytes - limit_bytes + fixed_bytes) // MIB)
        smaller = (
            'view="off" for the loader that reserved memory for views first, or build_view(…, where="ram", limit=…)'
        )
        hint = f'Budget.parse("{enough}MiB"); {smaller}; {hint}'
    elif budget.source == "given":
        hint = f'memory="{-(-fixed_bytes // MIB)}MiB", {hint}'
    else:
        have = f"{have} ({budget.source})"
    return BudgetExceeded(
        f"{have} do not hold this loader: {needed.slots} batches of {format_bytes(needed.slot_bytes)}, "
        f"{format_bytes(needed.thread_bytes)} for one thread, {format_bytes(needed.table_bytes)} of numbers, "
        f"{format_bytes(needed.index_bytes)} of index{remote} and {format_bytes(needed.engine_bytes)} of {engine} "
        f"are {format_bytes(fixed_bytes)}",
        size=fixed_bytes,
        limit=limit_bytes,
        hint=hint,
    )
