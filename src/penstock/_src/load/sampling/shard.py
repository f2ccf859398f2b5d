"""Which positions of an order make a batch, and which of them one process of several takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.sampling.order import whole_number
from penstock.errors import UsageError


@dataclass(frozen=True)
class Batches:
    """Positions `start`…`total`-1 in global batches of `batch_size`; `rank` of `world` takes a slice of each.

    The slices of all ranks, in order, are the global batch: the order does not depend on `world`. A run may go on at
    any position with another batch size or world. Without `drop_last` the last batch may be short; where it has fewer
    positions than there are ranks, some slices are empty.
    """

    total: int
    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    start: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool):
            raise UsageError(f"batch_size must be a whole number, not {self.batch_size!r}")
        names = ("total", "batch_size", "rank", "world", "start")
        self.__dict__.update({name: whole_number(name, getattr(self, name)) for name in names})
        _check_rank(self.rank, self.world)
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be 1 or more, not {self.batch_size}")
        if self.batch_size % self.world:
            below = self.batch_size - self.batch_size % self.world
            choices = [str(size) for size in (below, below + self.world) if size]
            raise UsageError(
                f"a global batch of {self.batch_size} cannot be split evenly over {self.world} processes",
                hint=f"batch_size={' or '.join(choices)} (it is that of all processes together)",
            )
        if not 0 <= self.start <= self.total:
            raise UsageError(f"start at position {self.start:,} of {self.total:,}: it must lie within 0…{self.total:,}")

    @property
    def n_batches(self) -> int:
        left = self.total - self.start
        return left // self.batch_size if self.drop_last else -(-left // self.batch_size)

    def span(self, batch: int) -> tuple[int, int]:
        """First position of a global batch, and the one behind its last."""
        if not 0 <= batch < self.n_batches:
            raise UsageError(f"batch {batch:,} of {self.n_batches:,}: it must lie within 0…{self.n_batches - 1:,}")
        first = self.start + batch * self.batch_size
        return first, min(first + self.batch_size, self.total)

    def own_span(self, batch: int) -> tuple[int, int]:
        """As `span`, of this rank's slice."""
        first, stop = self.span(batch)
        n = stop - first
        return first + n * self.rank // self.world, first + n * (self.rank + 1) // self.world

    def positions(self, batch: int) -> NDArray[np.int64]:
        """The positions of this rank's slice of a batch."""
        return np.arange(*self.own_span(batch), dtype=np.int64)

    def __len__(self) -> int:
        return self.n_batches


def _check_rank(rank: int, world: int) -> None:
    if world < 1 or not 0 <= rank < world:
        raise UsageError(f"shard ({rank}, {world}): the rank must lie within 0…world-1, and world be 1 or more")
