"""Groups of inputs: in order, by size alone, and shared evenly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock._src.conversion.commit.groups import MOST_INPUTS, divide, owners

MIB = 2**20
SOURCES = st.lists(
    st.tuples(st.sampled_from(["recording", "hdf5", "recording", "lerobot"]), st.integers(0, 3 * MIB)), max_size=40
)


def known(batch: list[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"kind": kind, "bytes": size} for kind, size in batch]


@given(st.lists(SOURCES, max_size=3), st.integers(1, 4))
def test_groups_follow_each_other_and_hold_every_input_once(batches: list[list[tuple[str, int]]], limit: int) -> None:
    groups = divide([known(batch) for batch in batches], limit)
    every = [each for batch in batches for each in batch]
    assert [number for group in groups for number in group.inputs] == list(range(len(every)))
    assert [group.number for group in groups] == list(range(len(groups)))
    for group in groups:
        inside = [every[number] for number in group.inputs]
        assert group.size_bytes == sum(size for _, size in inside)
        assert len(inside) == 1 or (group.size_bytes <= limit * MIB and "lerobot" not in {kind for kind, _ in inside})


@given(SOURCES, SOURCES, st.integers(1, 4))
def test_more_inputs_do_not_change_the_groups_before(
    first: list[tuple[str, int]], later: list[tuple[str, int]], limit: int
) -> None:
    before = divide([known(first)], limit)
    assert divide([known(first), known(later)], limit)[: len(before)] == before


def test_a_group_of_tiny_inputs_ends_too() -> None:
    groups = divide([known([("recording", 1)] * (2 * MOST_INPUTS + 1))], None)
    assert [len(group.inputs) for group in groups] == [MOST_INPUTS, MOST_INPUTS, 1]


@given(SOURCES, st.integers(1, 9))
def test_every_group_has_one_owner_and_owners_share_evenly(sources: list[tuple[str, int]], shards: int) -> None:
    groups = divide([known(sources)], 1)
    owner = owners(groups, shards)
    assert sorted(owner) == [group.number for group in groups] and set(owner.values()) <= set(range(shards))
    loads = [sum(group.size_bytes for group in groups if owner[group.number] == number) for number in range(shards)]
    largest = max((group.size_bytes for group in groups), default=0)
    assert max(loads) - min(loads) <= largest + len(groups)
