"""The order of clips over ranks: each once per epoch, ranks in step, and any state goes on with the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock._src.load.clips.passes import ClipPasses, Repeat

COUNTS = st.integers(1, 60)


def _ranks(count: int, batch_size: int, world: int, *, shuffle: bool = True, seed: int = 0) -> list[ClipPasses]:
    words = {"kind": "clip"}
    return [
        ClipPasses(count, words, batch_size, shuffle=shuffle, seed=seed, rank=rank, world=world)
        for rank in range(world)
    ]


def _clips(batches: list[list[int]]) -> list[int]:
    return [clip for batch in batches for clip in batch if not isinstance(clip, Repeat)]


@given(COUNTS, st.integers(1, 5), st.integers(1, 6), st.booleans(), st.integers(0, 2**40))
def test_every_clip_once_per_epoch_and_ranks_in_step(
    count: int, batch_size: int, world: int, shuffle: bool, seed: int
) -> None:
    ranks = _ranks(count, batch_size, world, shuffle=shuffle, seed=seed)
    for epoch in range(2):
        passes = [list(each) for each in ranks]
        assert {len(each) for each in passes} == {len(ranks[0])}
        assert all(1 <= len(batch) <= batch_size for each in passes for batch in each)
        assert sorted(clip for each in passes for clip in _clips(each)) == list(
            range(epoch * count, (epoch + 1) * count)
        )
        short = [batch for each in passes for batch in each[:-1] if len(batch) < batch_size]
        assert short == []  # only the last batch may be short


@given(COUNTS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_any_state_goes_on_with_the_rest_whatever_the_ranks(
    count: int, batch_size: int, world: int, other_size: int, other_world: int, data: st.DataObject
) -> None:
    first = _ranks(count, batch_size, world)
    taken = data.draw(st.integers(0, len(first[0])))
    passes = [iter(each) for each in first]
    seen = [clip for each in passes for clip in _clips([next(each) for _ in range(taken)])]
    states = [each.state_dict(taken) for each in first]
    assert all(state == states[0] for state in states)
    others = _ranks(count, other_size, other_world)
    for each in others:
        each.load_state_dict(states[0])
    if taken < len(first[0]):
        rest = [clip for each in others for clip in _clips(list(each))]
        assert sorted(seen + rest) == list(range(count))
    else:  # the epoch was over: the next one begins
        assert (states[0]["epoch"], states[0]["position"]) == (1, 0)
