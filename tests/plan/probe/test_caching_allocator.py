"""The allocator's rules over numbers: rounding, reuse, splitting, giving back; and traces scaled to other batches."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.plan.probe.caching_allocator import CachingAllocator, ScaledTrace, Segment, Trace, replay
from penstock._src.plan.probe.fit import scaled_trace
from penstock._src.system.units import MIB


def _trace(batch: int, sizes: list[int], segments: tuple[Segment, ...] = ()) -> Trace:
    """Allocations one after the other, freed in reverse: the shape of forward and backward."""
    events = [(place, size) for place, size in enumerate(sizes)]
    events += [(place, 0) for place in reversed(range(len(sizes)))]
    return Trace(batch, segments, tuple(events), replay(segments, events).reserved_bytes)


@pytest.mark.parametrize(
    ("request_bytes", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (9 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_segments_have_the_sizes_that_pytorch_takes(request_bytes: int, reserved: int) -> None:
    allocator = CachingAllocator()
    assert allocator.allocate(request_bytes) is not None
    assert allocator.reserved_bytes == reserved


def test_a_freed_block_is_used_again_and_the_best_fit_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(64 * MIB), allocator.allocate(32 * MIB)
    assert large is not None and small is not None
    allocator.free(large)
    allocator.free(small)
    again = allocator.allocate(30 * MIB)
    assert again is small
    assert allocator.reserved_bytes == 96 * MIB


def test_neighbours_become_one_again() -> None:
    allocator = CachingAllocator(limit_bytes=64 * MIB)
    whole = allocator.allocate(64 * MIB)
    assert whole is not None
    allocator.free(whole)
    parts = [allocator.allocate(16 * MIB) for _ in range(4)]
    assert allocator.allocate(16 * MIB) is None
    for place in (1, 3, 2, 0):
        part = parts[place]
        assert part is not None
        allocator.free(part)
    assert allocator.allocate(64 * MIB) is not None


def test_at_the_limit_what_is_cached_is_given_back_but_not_a_block_that_is_split() -> None:
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    first = allocator.allocate(60 * MIB)
    assert first is not None
    allocator.free(first)
    assert allocator.allocate(80 * MIB) is not None  # the 60 MiB went back
    assert allocator.reserved_bytes == 80 * MIB

    pinned = CachingAllocator(limit_bytes=100 * MIB)
    first = pinned.allocate(60 * MIB)
    assert first is not None
    pinned.free(first)
    assert pinned.allocate(10 * MIB) is not None  # a part of the 60 MiB is in use: they stay
    assert pinned.allocate(80 * MIB) is None


@given(
    st.lists(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 30)), min_size=1, max_size=60),
    st.one_of(st.none(), st.integers(30 * MIB, 400 * MIB)),
)
def test_whatever_is_allocated_and_freed_the_sums_hold(requests: list[tuple[int, int]], limit: int | None) -> None:
    allocator = CachingAllocator(limit)
    held = []
    for size, place in requests:
        block = allocator.allocate(size)
        if block is None:
            assert limit is not None
        else:
            assert size <= block.n_bytes
            held.append(block)
        if held and place < len(held):
            allocator.free(held.pop(place))
        assert sum(each.n_bytes for each in held) == allocator.allocated_bytes <= allocator.reserved_bytes
        assert limit is None or allocator.reserved_bytes <= limit
    for block in held:
        allocator.free(block)
    allocator._release_cached()
    assert allocator.reserved_bytes == allocator.allocated_bytes == 0


def test_a_replay_starts_with_the_segments_that_were_held() -> None:
    held = Segment(False, ((40 * MIB, 7), (24 * MIB, None)))
    events = [(1, 20 * MIB), (7, 0), (2, 40 * MIB)]
    assert replay([held], events).reserved_bytes == 64 * MIB  # the free part, then what was freed
    assert replay([held], events, 50 * MIB).fits is False
    assert replay([held], [(1, 30 * MIB)]).reserved_bytes == 94 * MIB


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 64)), min_size=1, max_size=40),
    st.integers(2, 9),
    st.integers(1, 40),
)
def test_a_trace_scaled_to_another_batch_is_the_trace_of_that_batch(
    parts: list[tuple[bool, int]], small_batch: int, more: int
) -> None:
    def sizes(batch: int) -> list[int]:
        return [units * 512 * (batch if grows else 1000) for grows, units in parts]

    small, large = (_trace(batch, sizes(batch)) for batch in (small_batch, small_batch + 3))
    scaled = ScaledTrace(small, large)
    wanted = _trace(small_batch + 3 + more, sizes(small_batch + 3 + more))
    assert tuple(scaled.events(small_batch + 3 + more)) == wanted.events
    assert scaled.error() == 0


def test_a_model_that_allocates_more_often_with_the_batch_is_not_replayed() -> None:
    """A loop over the samples: sizes stay, their number grows."""
    small, large = (_trace(batch, [10 * MIB] * batch) for batch in (4, 10))
    assert ScaledTrace(small, large).error() > 0.3
    assert scaled_trace([small, large]) == (None, ScaledTrace(small, large).error())
    assert scaled_trace([small, None]) == (None, math.inf)
    alike = [_trace(batch, [batch * MIB] * 10) for batch in (40, 100)]
    found, error = scaled_trace(alike)
    assert found is not None and error == 0


def test_an_allocation_that_only_one_trace_has_does_not_confuse_the_others() -> None:
    per_sample = [3, 5, 7, 11, 13, 17, 19, 23]
    small = _trace(4, [each * 4 * MIB for each in per_sample])
    sizes = [each * 10 * MIB for each in per_sample]
    sizes[4:4] = [999 * MIB]  # a workspace that the larger batch alone takes
    scaled = ScaledTrace(small, _trace(10, sizes))
    found = [size // MIB for _, size in scaled.events(20) if size]
    assert found == [60, 100, 140, 220, 1998, 260, 340, 380, 460]
