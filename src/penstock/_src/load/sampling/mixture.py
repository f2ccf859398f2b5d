"""Samples of several stores in given proportions: exact in every block of positions, and any place computed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._src.load.sampling.order import Order, check_positions, whole_number
from penstock._src.load.sampling.permutation import MOST, key_of, keys_of, permute
from penstock.errors import UsageError

_MOST_PARTS = 1 << 31  # of the whole; positions within a whole times parts stay within int64
_BLOCK = 64
_LARGEST_BLOCK = 1024
_AT_A_TIME = 256  # blocks: tables of 2 MiB at most
_VERSION = 2  # of the rule by which positions get samples; a state from another one would go on with wrong samples


class Mixture:
    """Which source comes next, and which of its samples: `Mixture([Shuffled(900), Shuffled(100)], [0.7, 0.3], seed=0)`.

    Positions are cut into blocks. In every block each source has its share to within rounding, and exactly where simple
    fractions allow it (0.7 and 0.3, three times 1/3); over many blocks the rounding evens out. Which places of a block
    a source gets is pseudo-random. Each source goes through its own order, every sample once, then through its next
    pass, and goes on where the epoch before left it. `length` is what one epoch has: by default as many positions as
    all sources have samples. Without `weights` they are the sizes: then an epoch has every sample once.
    """

    def __init__(
        self, orders: Sequence[Order], weights: Sequence[Any] | None = None, seed: int = 0, length: int | None = None
    ) -> None:
        self.orders = tuple(orders)
        if not self.orders:
            raise UsageError("a mixture needs one source or more")
        self.parts = _parts([order.count for order in self.orders] if weights is None else weights, len(self.orders))
        self.seed = whole_number("seed", seed)
        self.length = sum(order.count for order in self.orders) if length is None else whole_number("length", length)
        if not 1 <= self.length <= MOST:
            raise UsageError(f"the length of a mixture must be 1 or more, not {self.length:,}")
        whole = sum(self.parts)
        # A block that holds the whole a number of times has exact shares; where the whole is too large, rounded ones.
        self.block = -(-_BLOCK // whole) * whole if whole <= _LARGEST_BLOCK else _BLOCK

    @property
    def count(self) -> int:
        """Positions of one epoch."""
        return self.length

    def at(self, epoch: int, positions: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each position (0…length-1) of an epoch the number of its source, and a sample of that source."""
        places = check_positions(positions, self.length).reshape(-1)
        if not 0 <= epoch * self.length <= MOST - self.length:
            raise UsageError(f"epoch {epoch:,} of a mixture of {self.length:,} positions lies outside 0…2**62")
        blocks, which, counts = np.unique(places // self.block, return_inverse=True, return_counts=True)
        sizes = np.minimum(self.block, self.length - blocks * self.block)
        in_block_order, ends = np.argsort(which, kind="stable"), np.cumsum(counts)
        sources, turns = np.empty_like(places), np.empty_like(places)
        for size in np.unique(sizes).tolist():  # two at most: the last block of an epoch may be short
            alike = np.flatnonzero(sizes == size)
            for first in range(0, len(alike), _AT_A_TIME):
                some = alike[first : first + _AT_A_TIME]
                here = in_block_order[ends[some[0]] - counts[some[0]] : ends[some[-1]]]
                cells = which[here] - some[0], places[here] % self.block
                dealt = self._source_of_positions(epoch, blocks[some], size)
                sources[here], turns[here] = dealt[0][cells], dealt[1][cells]
        return sources, self._samples(sources, turns)

    def _source_of_positions(
        self, epoch: int, blocks: NDArray[np.int64], size: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of whole blocks, each of `size` positions, the source of every position and which turn of it that is."""
        starts = epoch * self.length + blocks * self.block
        before = _counts_before(starts, self.parts).T
        gains = _counts_before(starts + size, self.parts).T - before
        # Of a block's slots the first belong to source 0, the next to source 1, …: as many as it gains in this block.
        numbers = np.tile(np.arange(len(self.parts)), len(blocks))
        slot_sources = np.repeat(numbers, gains.reshape(-1)).reshape(-1, size)
        first_slots = np.cumsum(gains, axis=1) - gains
        slot_turns = np.repeat((before - first_slots).reshape(-1), gains.reshape(-1)).reshape(-1, size)
        slot_turns += np.arange(size)
        keys = keys_of(key_of(self.seed, epoch), blocks)
        slots = permute(np.broadcast_to(np.arange(size), slot_sources.shape), size, keys[:, None])
        sources = np.take_along_axis(slot_sources, slots, axis=1)
        # The permutation says whose a position is, and no more: a source has its turns in the order of its positions.
        turns = np.empty_like(sources)
        np.put_along_axis(turns, np.argsort(sources, axis=1, kind="stable"), slot_turns, axis=1)
        return sources, turns

    def _samples(self, sources: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample at each turn of its source; turns go on over the passes."""
        samples = np.empty_like(turns)
        for number, order in enumerate(self.orders):
            chosen = np.flatnonzero(sources == number)
            passes, positions = np.divmod(turns[chosen], order.count)
            for each in np.unique(passes):  # a batch sees one or two, unless the source is smaller than the batch
                here = passes == each
                samples[chosen[here]] = order.at(int(each), positions[here])
        return samples

    def describe(self) -> dict[str, Any]:
        """What decides the order, JSON-safe: equal descriptions give equal mixtures."""
        return {
            "kind": "mixture",
            "version": _VERSION,
            "sources": [order.describe() for order in self.orders],
            "parts": list(self.parts),
            "seed": self.seed,
            "length": self.length,
        }


def seed_of(seed: int, number: int) -> int:
    """The seed of the order of source `number` of a loader's mix: the first has the loader's, the others one made of
    both. With one seed for all, stores of equal size would be walked in the same permutation."""
    return key_of(seed, number) >> 11 if number else seed  # 53 bits: every reader of JSON keeps them


def _counts_before(ends: NDArray[np.int64], parts: Sequence[int]) -> NDArray[np.int64]:
    """How many of the first `ends` positions each source has: (sources, len(ends)).

    The sources are halved again and again, and each half gets its share of what both have, rounded. So counts never
    fall from one position to the next, sum up exactly, and are exact at every multiple of the whole.
    """
    counts = np.empty((len(parts), len(ends)), np.int64)

    def share_out(first: int, stop: int, have: NDArray[np.int64]) -> None:
        if stop - first == 1:
            counts[first] = have
            return
        middle = (first + stop) // 2
        left, whole = sum(parts[first:middle]), max(1, sum(parts[first:stop]))
        rounds, rest = np.divmod(have, whole)
        share = rounds * left + (rest * left + whole // 2) // whole
        share_out(first, middle, share)
        share_out(middle, stop, have - share)

    share_out(0, len(parts), ends)
    return counts


def _parts(weights: Sequence[Any], n_sources: int) -> tuple[int, ...]:
    """Weights as whole parts of a whole: 0.7 and 0.3 are 7 and 3, three times 0.333… are 1, 1, 1."""
    values = list(weights)
    if len(values) != n_sources:
        raise UsageError(f"{n_sources} sources, but {len(values)} weights: {values}")
    try:
        exact = [Fraction(each) if isinstance(each, int | Fraction) else Fraction(repr(float(each))) for each in values]
    except (TypeError, ValueError):
        raise UsageError(f"weights must be finite numbers: {values}") from None
    if min(exact) < 0 or not sum(exact):
        raise UsageError(f"weights must be 0 or more, and not all of them 0: {values}")
    shares = [each / sum(exact) for each in exact]
    simple = [each.limit_denominator(100_000) for each in shares]
    near = sum(simple) == 1 and all(abs(a - b) < Fraction(1, 10**12) for a, b in zip(shares, simple, strict=True))
    if near:
        shares = simple
    whole = lcm(*(each.denominator for each in shares))
    if whole <= _MOST_PARTS:
        return tuple(int(each * whole) for each in shares)
    return _largest_remainders(shares, _MOST_PARTS)


def _largest_remainders(shares: Sequence[Fraction], whole: int) -> tuple[int, ...]:
    parts = [int(each * whole) for each in shares]
    short = whole - sum(parts)
    for number in sorted(range(len(parts)), key=lambda each: (parts[each] - shares[each] * whole, each))[:short]:
        parts[number] += 1
    return tuple(parts)
