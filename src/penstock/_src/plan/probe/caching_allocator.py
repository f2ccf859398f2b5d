"""PyTorch's caching allocator, replayed: do these training steps fit below a limit, without trying them?

The peak of a step's tensors is less than what a step needs, and the memory that a free-running allocator reserves is
more. Replaying the allocations of a recorded step, scaled to another batch size, under the allocator's own rules
(rounding, best fit, splitting, merging, giving back what is cached when the limit is reached) gives what it needs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_ROUND_BYTES = 512
_SMALL_BYTES = 1 << 20  # requests up to here come out of segments of 2 MiB
_SMALL_SEGMENT_BYTES = 2 << 20
_MIDDLE_BYTES = 10 << 20  # requests below come out of segments of 20 MiB
_MIDDLE_SEGMENT_BYTES = 20 << 20
_LARGE_ROUND_BYTES = 2 << 20
_LOOK_AHEAD = 12  # allocations that one of two traces may have and the other not, in one place
_SAME_SIZE = 0.01


@dataclass(frozen=True)
class Segment:
    """Memory that the allocator holds when a trace starts: blocks as (bytes, address), the address None where free."""

    is_small: bool
    blocks: tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class Trace:
    """What some training steps allocate at one batch size.

    `events` are (address, bytes), bytes 0 where the address is freed. `reserved_bytes` is the peak that was measured.
    """

    batch_size: int
    segments: tuple[Segment, ...]
    events: tuple[tuple[int, int], ...]
    reserved_bytes: int


@dataclass(frozen=True)
class ReplayResult:
    """How a replay ended: whether it fits, and the peak of the memory reserved."""

    fits: bool
    reserved_bytes: int


class _Block:
    __slots__ = ("address", "before", "behind", "is_free", "is_small", "n_bytes")

    def __init__(self, n_bytes: int, address: int, is_small: bool) -> None:
        self.n_bytes, self.address, self.is_small = n_bytes, address, is_small
        self.is_free = False
        self.before: _Block | None = None
        self.behind: _Block | None = None


class CachingAllocator:
    """The rules of the allocator over numbers instead of memory."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # small or not → (bytes, address)
        self._by_address: dict[int, _Block] = {}  # free ones
        self._next_address = 0

    def hold(self, segment: Segment) -> list[_Block | None]:
        """Start with a segment; the blocks in use are returned in place of their addresses."""
        blocks: list[_Block | None] = []
        before: _Block | None = None
        for n_bytes, address in segment.blocks:
            block = self._make(n_bytes, segment.is_small)
            block.before = before
            if before is not None:
                before.behind = block
            before = block
            self.reserved_bytes += n_bytes
            if address is None:
                self._put(block)
            else:
                self.allocated_bytes += n_bytes
            blocks.append(None if address is None else block)
        self._next_address += 1
        self._note()
        return blocks

    def allocate(self, n_bytes: int) -> _Block | None:
        """A block of at least so many bytes, or None where the limit forbids it."""
        size = max(_ROUND_BYTES, -(-n_bytes // _ROUND_BYTES) * _ROUND_BYTES)
        is_small = size <= _SMALL_BYTES
        block = self._best_fit(size, is_small) or self._segment(_segment_bytes(size), is_small)
        if block is None:
            return None
        rest = block.n_bytes - size
        if rest >= _ROUND_BYTES if is_small else rest > _SMALL_BYTES:
            self._split(block, size)
        self.allocated_bytes += block.n_bytes
        self._note()
        return block

    def free(self, block: _Block) -> None:
        """Give a block back to the cache; free neighbours become one."""
        self.allocated_bytes -= block.n_bytes
        before, behind = block.before, block.behind
        if before is not None and before.is_free:
            self._take(before)
            before.n_bytes += block.n_bytes
            before.behind = behind
            if behind is not None:
                behind.before = before
            block = before
        if behind is not None and behind.is_free:
            self._take(behind)
            block.n_bytes += behind.n_bytes
            block.behind = behind.behind
            if behind.behind is not None:
                behind.behind.before = block
        self._put(block)

    def _make(self, n_bytes: int, is_small: bool) -> _Block:
        block = _Block(n_bytes, self._next_address, is_small)
        self._next_address += n_bytes
        return block

    def _put(self, block: _Block) -> None:
        block.is_free = True
        insort(self._free[block.is_small], (block.n_bytes, block.address))
        self._by_address[block.address] = block

    def _take(self, block: _Block) -> None:
        block.is_free = False
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.n_bytes, block.address))]
        del self._by_address[block.address]

    def _best_fit(self, size: int, is_small: bool) -> _Block | None:
        free = self._free[is_small]
        place = bisect_left(free, (size, -1))
        if place == len(free):
            return None
        block = self._by_address[free[place][1]]
        self._take(block)
        return block

    def _segment(self, n_bytes: int, is_small: bool) -> _Block | None:
        limit = self._limit_bytes
        if limit is not None and self.reserved_bytes + n_bytes > limit:
            self._release_cached()
            if self.reserved_bytes + n_bytes > limit:
                return None
        self.reserved_bytes += n_bytes
        block = self._make(n_bytes, is_small)
        self._next_address += 1  # segments are no neighbours
        return block

    def _release_cached(self) -> None:
        for block in list(self._by_address.values()):
            if block.before is None and block.behind is None:
                self._take(block)
                self.reserved_bytes -= block.n_bytes

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.n_bytes - size, block.address + size, block.is_small)
        rest.before, rest.behind = block, block.behind
        if block.behind is not None:
            block.behind.before = rest
        block.n_bytes, block.behind = size, rest
        self._put(rest)

    def _note(self) -> None:
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)


def _segment_bytes(size: int) -> int:
    if size <= _SMALL_BYTES:
        return _SMALL_SEGMENT_BYTES
    if size < _MIDDLE_BYTES:
        return _MIDDLE_SEGMENT_BYTES
    return -(-size // _LARGE_ROUND_BYTES) * _LARGE_ROUND_BYTES


def replay(
    segments: Iterable[Segment], events: Iterable[tuple[int, int]], limit_bytes: int | None = None
) -> ReplayResult:
    """Run the events of a trace from its first segments on."""
    allocator = CachingAllocator(limit_bytes)
    blocks: dict[int, _Block] = {}
    for segment in segments:
        held = allocator.hold(segment)
        blocks.update(
            (address, block)
            for block, (_, address) in zip(held, segment.blocks, strict=True)
            if block is not None and address is not None
        )
    if limit_bytes is not None and allocator.reserved_bytes > limit_bytes:
        return ReplayResult(False, allocator.peak_reserved_bytes)
    for address, n_bytes in events:
        if not n_bytes:
            if (freed := blocks.pop(address, None)) is not None:
                allocator.free(freed)
            continue
        block = allocator.allocate(n_bytes)
        if block is None:
            return ReplayResult(False, allocator.peak_reserved_bytes)
        blocks[address] = block
    return ReplayResult(True, allocator.peak_reserved_bytes)


class ScaledTrace:
    """A trace at any batch size, from two that were recorded at two.

    Each allocation of the larger trace is paired with its own of the smaller one. Those of equal size are constant,
    those in proportion to the batch grow with it. One that the smaller trace does not have is taken to grow.
    """

    def __init__(self, small: Trace, large: Trace) -> None:
        self._small, self._large = small, large
        sizes = [n_bytes for _, n_bytes in large.events if n_bytes]
        smaller = [n_bytes for _, n_bytes in small.events if n_bytes]
        span = large.batch_size - small.batch_size
        slopes: list[float] = []
        pairs = _pairs(smaller, sizes, small.batch_size, large.batch_size)
        for n_bytes, other in zip(sizes, pairs, strict=True):
            slopes.append(n_bytes / large.batch_size if other is None else max(0.0, (n_bytes - other) / span))
        self._slopes = slopes

    def events(self, batch_size: int) -> list[tuple[int, int]]:
        """The events of the larger trace with the sizes of this batch."""
        more = batch_size - self._large.batch_size
        slopes = iter(self._slopes)
        return [
            (address, max(1, round(n_bytes + next(slopes) * more)) if n_bytes else 0)
            for address, n_bytes in self._large.events
        ]

    def replay(self, batch_size: int, limit_bytes: int | None = None) -> ReplayResult:
        """Steps at this batch size, as a process takes them that starts with it."""
        return replay(self._large.segments, self.events(batch_size), limit_bytes)

    def error(self) -> float:
        """How far replays at the two batches are from what was measured, relative: the larger of the two."""
        pairs = (
            (self.replay(each.batch_size).reserved_bytes, each.reserved_bytes) for each in (self._small, self._large)
        )
        return max(abs(predicted - measured) / max(measured, 1) for predicted, measured in pairs)


def _pairs(small: Sequence[int], large: Sequence[int], small_batch: int, large_batch: int) -> list[int | None]:
    """For each allocation of the larger trace, the size of its own in the smaller one; None where it has none."""
    ratio = large_batch / small_batch

    def are_alike(position: int, other: int) -> bool:
        if position >= len(large) or other >= len(small):
            return False
        one, two = large[position], small[other]
        slack = _ROUND_BYTES * ratio + _SAME_SIZE * one
        return one == two or abs(one - two * ratio) <= slack

    pairs: list[int | None] = []
    other = 0
    position = 0
    while position < len(large):
        if are_alike(position, other):
            pairs.append(small[other])
            position, other = position + 1, other + 1
            continue
        skip_large, skip_small = _resume(are_alike, position, other)
        if skip_large == skip_small:  # as many in both: other sizes, in the same places
            pairs += [small[other + n] if other + n < len(small) else None for n in range(skip_large)]
        else:
            pairs += [None] * skip_large
        position, other = position + skip_large, other + skip_small
    return pairs[: len(large)]


def _resume(are_alike: Callable[[int, int], bool], position: int, other: int) -> tuple[int, int]:
    """How many allocations to pass in both traces until two follow each other that are alike."""
    for passed in range(1, 2 * _LOOK_AHEAD):
        for skip_large in range(passed + 1):
            skip_small = passed - skip_large
            here, there = position + skip_large, other + skip_small
            if are_alike(here, there) and are_alike(here + 1, there + 1):
                return skip_large, skip_small
    return 1, 1
