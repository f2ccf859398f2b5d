"""Which sample comes next: shuffled, in sequence, or shuffled within reach of the disk; computed, never stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._src.load.sampling.permutation import MOST, inverse, key_of, keys_of, permute
from penstock.errors import UsageError


class Order(ABC):
    """Samples 0…count-1, each once per epoch, in an order that epoch and position alone decide."""

    count: int

    @abstractmethod
    def at(self, epoch: int, positions: ArrayLike) -> NDArray[np.int64]:
        """The samples at these positions (0…count-1) of an epoch."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What decides the order, JSON-safe: equal descriptions give equal orders."""


@dataclass(frozen=True)
class Shuffled(Order):
    """Every order about equally likely, another one in every epoch."""

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        _validate(self, "count", "seed")

    def at(self, epoch: int, positions: ArrayLike) -> NDArray[np.int64]:
        return permute(positions, self.count, key_of(self.seed, epoch))

    def describe(self) -> dict[str, Any]:
        return {"kind": "shuffled", "count": self.count, "seed": self.seed}


@dataclass(frozen=True)
class Sequential(Order):
    """0, 1, 2, …: the same in every epoch."""

    count: int

    def __post_init__(self) -> None:
        _validate(self, "count")

    def at(self, epoch: int, positions: ArrayLike) -> NDArray[np.int64]:
        return np.array(check_positions(positions, self.count))

    def describe(self) -> dict[str, Any]:
        return {"kind": "sequential", "count": self.count}


@dataclass(frozen=True)
class Local(Order):
    """Blocks of `block` consecutive samples in shuffled order, `pool` of them at a time shuffled together.

    For disks and videos where neighbours are read cheaper than strangers. The price is randomness, see `randomness`.
    """

    count: int
    seed: int = 0
    block: int = 64
    pool: int = 64

    def __post_init__(self) -> None:
        _validate(self, "count", "seed", "block", "pool")
        for name, value in (("block", self.block), ("pool", self.pool)):
            if not 1 <= value <= MOST:
                raise UsageError(f"Local: {name} must be 1 or more, not {value:,}")
        # No block is larger than all there is: products stay within int64.
        self.__dict__.update(block=min(self.block, self.count))

    @property
    def n_blocks(self) -> int:
        return -(-self.count // self.block)

    @property
    def pool_blocks(self) -> int:
        """Blocks of one pool: at most `pool`, and about equally many in all, so that no epoch ends in a small one."""
        return -(-self.n_blocks // -(-self.n_blocks // self.pool))

    @property
    def pool_samples(self) -> int:
        """The samples of one pool: as far as shuffling reaches."""
        return min(self.pool_blocks * self.block, self.count)

    def at(self, epoch: int, positions: ArrayLike) -> NDArray[np.int64]:
        checked = check_positions(positions, self.count)
        places = checked.reshape(-1)
        order_key, pool_key = key_of(self.seed, epoch, 1), key_of(self.seed, epoch, 2)
        full = self.pool_blocks * self.block
        # The block of the last samples may be short; behind the pool that holds it, places count as if it were not.
        missing = self.n_blocks * self.block - self.count
        turn = int(inverse(self.n_blocks - 1, self.n_blocks, order_key))
        holder = turn // self.pool_blocks
        places = places + np.where(places >= (holder + 1) * full - missing, missing, 0)
        pools = places // full
        last = (self.n_blocks - 1) // self.pool_blocks
        sizes = np.where(pools == last, (self.n_blocks - last * self.pool_blocks) * self.block, full)
        sizes -= np.where(pools == holder, missing, 0)
        keys = keys_of(pool_key, pools)
        moved = places - pools * full
        for size in np.unique(sizes):
            here = sizes == size
            moved[here] = permute(moved[here], int(size), keys[here])
        moved += pools * full
        moved += np.where((pools == holder) & (moved >= (turn + 1) * self.block - missing), missing, 0)
        samples = permute(moved // self.block, self.n_blocks, order_key) * self.block + moved % self.block
        return samples.reshape(checked.shape)

    def randomness(self) -> tuple[float, str]:
        """The chance that two neighbours in the order come from one block, and what that costs, in words."""
        same = self._same_block(self.pool_samples)
        fully = self._same_block(self.count)
        reach = self.pool_samples / self.count
        batch = 256
        alike = 1 + (batch - 1) * same
        words = (
            f"shuffled within pools of {self.pool_samples:,} samples ({reach:.1%} of all): of the other samples in a "
            f"batch {same:.2%} come from the same {self.block:,} consecutive ones ({fully:.2%} when fully shuffled); "
            f"if those were all alike, a batch of {batch} would tell as much as {batch / alike:.0f} independent samples"
        )
        return same, words

    def _same_block(self, reach: int) -> float:
        return (self.block - 1) / (reach - 1) if reach > 1 else 0.0

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "local",
            "count": self.count,
            "seed": self.seed,
            "block": self.block,
            "pool": self.pool,
            "same_block": round(self.randomness()[0], 6),
        }


def check_positions(positions: ArrayLike, count: int) -> NDArray[np.int64]:
    """Positions as an array, refused where one lies outside 0…count-1."""
    places: NDArray[np.int64] = np.asarray(positions, np.int64)
    if places.size and int(places.view(np.uint64).max()) >= count:
        low, high = int(places.min()), int(places.max())
        raise UsageError(f"positions {low:,} to {high:,} do not all lie within 0…{count - 1:,}")
    return places


def whole_number(name: str, value: Any) -> int:
    """A plain int: one of numpy would overflow, and is nothing for JSON."""
    try:
        return index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, not {value!r}") from None


def _validate(order: Order, *names: str) -> None:
    order.__dict__.update({name: whole_number(name, getattr(order, name)) for name in names})
    if not 1 <= order.count <= MOST:
        raise UsageError(f"an order is of 1 to 2**62 samples, not of {order.count:,}")
