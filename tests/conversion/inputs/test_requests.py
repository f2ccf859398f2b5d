"""Requests: every row gets exactly its message, each message is asked for once a run, in the order of the rows."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.align import RowPick
from penstock._src.conversion.inputs.pairing import camera_runs, merge, vector_needs

numbers = st.lists(st.integers(0, 12), min_size=1, max_size=40)


def pick(left: list[int], right: list[int] | None = None) -> RowPick:
    if right is None:
        return RowPick(np.array(left, np.int32))
    weight = np.full(len(left), 0.5, np.float32)
    return RowPick(np.array(left, np.int32), np.array(right, np.int32), weight)


def cut(rows: int, sizes: list[int]) -> list[tuple[int, int]]:
    """Chunks over the rows."""
    found, start, turn = [], 0, 0
    while start < rows:
        stop = min(start + sizes[turn % len(sizes)], rows)
        found.append((start, stop))
        start, turn = stop, turn + 1
    return found


@given(numbers, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_a_camera_shows_in_every_row_the_message_that_the_row_picked(left: list[int], sizes: list[int]) -> None:
    """Played back as a sink would: append a message, repeat it, and hold it over the end of a chunk."""
    shown: list[int] = []
    appended = 0
    last: int | None = None
    for start, stop in cut(len(left), sizes):
        runs = camera_runs(pick(left), start, stop, last)
        assert runs.held_rows == 0 or shown
        shown += [shown[-1]] * runs.held_rows if runs.held_rows else []
        for number, length in zip(runs.numbers.tolist(), runs.lengths, strict=True):
            assert length >= 1
            shown += [number] * length
            appended += 1
            last = number
    assert shown == left
    # An image is appended only where it changes: no byte is written twice for a repeat.
    assert appended == 1 + sum(a != b for a, b in itertools.pairwise(left))


@given(st.data(), numbers)
def test_a_vector_finds_both_of_its_messages_in_every_row(data: st.DataObject, left: list[int]) -> None:
    two = data.draw(st.booleans())
    right = data.draw(st.lists(st.integers(0, 12), min_size=len(left), max_size=len(left))) if two else None
    start = data.draw(st.integers(0, len(left) - 1))
    stop = data.draw(st.integers(start + 1, len(left)))
    needs = vector_needs(pick(left, right), start, stop)
    assert len(set(needs.numbers.tolist())) == len(needs.numbers)
    assert needs.numbers[needs.left].tolist() == left[start:stop]
    assert (needs.right is None) == (right is None)
    if right is not None and needs.right is not None:
        assert needs.numbers[needs.right].tolist() == right[start:stop]
    for number, row in zip(needs.numbers.tolist(), needs.first_rows.tolist(), strict=True):
        users = [r for r in range(stop - start) if left[start + r] == number or (right and right[start + r] == number)]
        assert row == users[0]


@given(st.lists(numbers, min_size=1, max_size=3), st.lists(numbers, max_size=3))
def test_merged_requests_hold_every_share_once_in_the_order_of_rows(
    cameras: list[list[int]], vectors: list[list[int]]
) -> None:
    rows = min(len(each) for each in [*cameras, *vectors])
    shares = [camera_runs(pick(each), 0, rows, None) for each in cameras]
    shares += [vector_needs(pick(each), 0, rows) for each in vectors]
    topics = [10 + n for n in range(len(shares))]
    requests = merge(shares, topics)
    assert len(requests) == sum(len(share.numbers) for share in shares)
    seen = set()
    before = -1
    for position in range(len(requests)):
        owner, slot = requests.owners[position], requests.slots[position]
        assert requests.topic_ids[position] == topics[owner]
        assert requests.numbers[position] == shares[owner].numbers[slot]
        row = int(shares[owner].first_rows[slot])
        assert row >= before
        before = row
        seen.add((owner, slot))
    assert len(seen) == len(requests)
    assert requests.topic_ids.dtype == np.int32 and requests.numbers.dtype == np.int64
