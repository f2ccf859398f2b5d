"""The memory that loading clips will take, predicted before anything starts; what cannot fit is refused with what can.

The model, for each GPU's process and its two DataLoaders:

- The process itself grows (`PROCESS_BYTES`, measured), by queues, threads and what Python writes beside its objects.
- Every worker holds memory of its own (`WORKER_BYTES`, measured), an image as stored and decoded, and a spike file.
- A worker builds batches in slots of its own, which it keeps: `prefetch` of them under way, and one that the training
  loop holds. The loop holds two, the last one and the next, so that a single worker has one more.
- Where batches are pinned, torch copies each, and a worker has its slot back at once: two are enough. Copies are under
  way and held as slots are without. A pinned tensor takes the next power of two in torch's allocator, which keeps it.

The RAM cache counts once for the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock._src.load.clips.frames import Shapes, shape_bytes
from penstock._src.system.limits import MemoryLimit, describe_memory
from penstock._src.system.units import MIB, format_bytes
from penstock.errors import BudgetExceeded

PROCESS_BYTES = 24 * MIB
WORKER_BYTES = {"fork": 10 * MIB, "spawn": 280 * MIB, "forkserver": 280 * MIB}
"""What the training process and each worker hold beside data, by the way workers start; fitted to the PSS of 1 to 8
workers with Python 3.12 and torch 2.11 (benchmarks/clip_memory.py). A fork shares the libraries with its parent.
Others, the default from Python 3.14 on, load torch again, each for itself."""

_HELD_BATCHES = 2
_PINNED_SLOTS = 2  # of each worker: one that is built, one that is copied


@dataclass(frozen=True)
class LoaderMemory:
    """What one DataLoader of one process takes."""

    name: str
    workers: int
    prefetch: int
    batch: tuple[tuple[int, int], ...]
    """(bytes, bytes with DTYPE: uint8) of every tensor of a batch."""
    worker_bytes: int
    """What one worker holds, batches left out."""
    is_pinned: bool
    is_uint8: bool = False

    @property
    def _sizes(self) -> list[int]:
        return [each[1] if self.is_uint8 else each[0] for each in self.batch]

    @property
    def batch_bytes(self) -> int:
        return sum(_power_of_two(size) if self.is_pinned else size for size in self._sizes)

    @property
    def n_batches(self) -> int:
        """At most, under way and in the loop."""
        if self.is_pinned:
            return self.workers * self.prefetch + _HELD_BATCHES
        return self.workers * (self.prefetch + 1) + max(_HELD_BATCHES - self.workers, 0)

    @property
    def slots_bytes(self) -> int:
        """What pinned batches are copied from; others lie in their slots."""
        return self.workers * min(self.prefetch, _PINNED_SLOTS) * sum(self._sizes) if self.is_pinned else 0

    @property
    def workers_bytes(self) -> int:
        return self.workers * self.worker_bytes

    @property
    def n_bytes(self) -> int:
        return self.workers_bytes + self.slots_bytes + self.n_batches * self.batch_bytes


@dataclass(frozen=True)
class ClipMemory:
    """What loading takes on the whole machine."""

    gpus: int
    train: LoaderMemory
    val: LoaderMemory | None
    cache_bytes: int

    @property
    def loaders(self) -> tuple[LoaderMemory, ...]:
        return (self.train,) if self.val is None else (self.train, self.val)

    @property
    def n_bytes(self) -> int:
        return self.cache_bytes + self.gpus * (PROCESS_BYTES + sum(each.n_bytes for each in self.loaders))

    def describe(self) -> str:
        """One line: the total, and what it is made of."""
        parts = [f"cache {format_bytes(self.cache_bytes)}"] if self.cache_bytes else []
        processes = "process" if self.gpus == 1 else f"{self.gpus} processes"
        parts.append(f"{processes} {format_bytes(self.gpus * PROCESS_BYTES)}")
        for each in self.loaders:
            slots = f" pinned, from slots of {format_bytes(self.gpus * each.slots_bytes)}" if each.is_pinned else ""
            parts.append(
                f"{each.name}: {self.gpus * each.workers} workers {format_bytes(self.gpus * each.workers_bytes)}, "
                f"{self.gpus * each.n_batches} batches × {format_bytes(each.batch_bytes)}{slots}"
            )
        return f"{format_bytes(self.n_bytes)} ({'; '.join(parts)})"

    def check(self, limit: MemoryLimit, held_bytes: int = 0) -> None:
        """Refuse what the machine cannot hold; `held_bytes` of the cache are there already."""
        needed_bytes = self.n_bytes - held_bytes
        if needed_bytes <= limit.available_bytes:
            return
        raise BudgetExceeded(
            f"loading would take {self.describe()}, and there are {describe_memory(limit)}",
            size=needed_bytes,
            limit=limit.available_bytes,
            hint=_advice(self, limit.available_bytes + held_bytes),
        )


def loader_memory(
    name: str, shapes: Shapes, *, batch_size: int, workers: int, prefetch: int, worker_bytes: int, is_pinned: bool
) -> LoaderMemory:
    """By the shapes of the largest clip of a data set."""
    sizes = [(batch_size * shape_bytes(shape, dtype), dtype) for shape, dtype in shapes.values()]
    batch = tuple((size, size // 4 if dtype == "float32" else size) for size, dtype in sizes)
    return LoaderMemory(name, workers, prefetch, batch, worker_bytes, is_pinned)


def _power_of_two(n_bytes: int) -> int:
    return 1 << max(n_bytes - 1, 0).bit_length()


def _advice(requested: ClipMemory, available_bytes: int) -> str:
    """The setting that fits: changes are added up, the least painful first, until they are enough."""
    few = _with_workers(requested, prefetch=1)
    small = _with_workers(few, is_uint8=True)
    bare = replace(small, cache_bytes=0)
    words = "DATALOADER.TRAIN_PREFETCH_FACTOR: 1 and VAL_PREFETCH_FACTOR: 1"
    choices = [(words, few), (words := f"{words}, DATA.DTYPE: uint8", small)]
    if requested.cache_bytes:
        choices.append((words := f"{words}, DATA.USE_RAM_CACHE: false", bare))
    for workers in range(requested.train.workers - 1, 0, -1):
        fewer = _with_workers(bare, workers=workers)
        keys = " and ".join(f"{each.name.upper()}_WORKERS: {each.workers}" for each in fewer.loaders)
        choices.append((f"{words}, DATALOADER.{keys}", fewer))
    for words, memory in choices:
        if memory.n_bytes <= available_bytes:
            return f"{words} fits: {memory.describe()}"
    return "a smaller DATA.CROP_SIZE, DATA.CLIP_LEN or TRAIN.BATCH_SIZE: one worker without a cache takes too much"


def _with_workers(
    requested: ClipMemory, *, prefetch: int | None = None, workers: int | None = None, is_uint8: bool = False
) -> ClipMemory:
    """With at most so many in both loaders."""
    parts = [
        replace(
            each,
            prefetch=min(each.prefetch, prefetch or each.prefetch),
            workers=min(each.workers, workers or each.workers),
            is_uint8=each.is_uint8 or is_uint8,
        )
        for each in requested.loaders
    ]
    return replace(requested, train=parts[0], val=parts[1] if len(parts) > 1 else None)
