"""Transitions against a brute-force reference: never across an episode's end."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.sampling.transition import own_next
from penstock._src.load.sampling.window import Output, Transition
from penstock.errors import StoreError, UsageError
from tests.load.brute import transition_samples
from tests.load.memory_store import MemoryStore

_ROLES = {"state": "joint"}
_NAMES = ("joint", "action", "reward")


@settings(max_examples=150, deadline=None)
@given(
    episodes=st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=8),
    knows_ends=st.booleans(),
    data=st.data(),
)
def test_transitions_are_those_of_the_reference(
    episodes: list[tuple[int, bool]], knows_ends: bool, data: st.DataObject
) -> None:
    lengths = [length for length, _ in episodes]
    terminal = [ends for _, ends in episodes] if knows_ends else None
    store = MemoryStore(lengths, numbers=_NAMES, images=("camera",), roles=_ROLES, ends_terminal=terminal)
    expected = transition_samples(lengths, terminal)
    if not expected:
        with pytest.raises(UsageError, match=f"spans 2 rows, and the longest of .* has {max(lengths)}"):
            Transition().bind(store)
        return
    bound = Transition().bind(store)
    assert bound.count == len(expected)
    samples = data.draw(st.permutations(range(bound.count)))
    needs = bound.needs(np.array(samples))
    for here, following in (("camera", "next.camera"), ("joint", "next.joint"), ("action", "next.camera")):
        pairs = zip(needs.rows[here][:, 0].tolist(), needs.rows[following][:, 0].tolist(), strict=True)
        assert list(pairs) == [expected[sample] for sample in samples]
    assert needs.anchors.tolist() == [expected[sample][0] for sample in samples] and not needs.pads


def test_images_and_the_state_have_a_next_row() -> None:
    store = MemoryStore([5], numbers=_NAMES, images=("left", "right"), texts=("task",), roles=_ROLES)
    names = [output.name for output in Transition().bind(store).outputs]
    assert names == ["left", "right", *_NAMES, "task", "next.left", "next.right", "next.joint"]
    few = Transition(columns=["left", "action"], next_columns=["right", "reward"]).bind(store)
    assert few.outputs == (
        Output("left", "left"),
        Output("action", "action"),
        Output("next.right", "right"),
        Output("next.reward", "reward"),
    )


def test_next_columns_of_the_store_are_used_and_every_row_is_a_sample() -> None:
    store = MemoryStore(
        [3, 2], numbers=("observations", "actions", "next_observations"), roles={"state": "observations"}
    )
    bound = Transition().bind(store)
    assert bound.outputs == (
        Output("observations", "observations"),
        Output("actions", "actions"),
        Output("next.observations", "next_observations"),
    )
    assert bound.count == 5
    assert bound.needs(range(5)).rows["next.observations"][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_next_columns_by_group_as_robomimic_has_them() -> None:
    store = MemoryStore(
        [4],
        numbers=("obs/joint", "next_obs/joint", "actions"),
        images=("obs/view", "next_obs/view"),
        roles={"state": "obs/joint"},
    )
    assert own_next(store) == {"obs/view": "next_obs/view", "obs/joint": "next_obs/joint"}
    bound = Transition().bind(store)
    assert [(output.name, output.column) for output in bound.outputs] == [
        ("obs/view", "obs/view"),
        ("obs/joint", "obs/joint"),
        ("actions", "actions"),
        ("next.obs/view", "next_obs/view"),
        ("next.obs/joint", "next_obs/joint"),
    ]
    assert bound.count == 4


def test_where_only_some_have_next_columns_the_last_row_is_left_out() -> None:
    store = MemoryStore([4, 3], numbers=("joint", "next_joint"), images=("camera",), roles=_ROLES)
    bound = Transition().bind(store)
    assert bound.count == 5
    needs = bound.needs([2, 3])
    assert needs.rows["next.joint"].tolist() == [[2], [4]]  # the stored next row lies in the row itself
    assert needs.rows["next.camera"].tolist() == [[3], [5]]


def test_a_next_image_of_its_own_leaves_the_state_its_next_row() -> None:
    store = MemoryStore([4, 3], numbers=("joint",), images=("camera", "next_camera"), roles=_ROLES)
    needs = Transition().bind(store).needs([0])
    assert needs.rows["next.camera"].tolist() == [[0]] and needs.rows["next.joint"].tolist() == [[1]]


def test_what_cannot_follow_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no images and no state among action: .*\n.*next_columns"):
        Transition().bind(MemoryStore([5], numbers=("action",)))
    with pytest.raises(UsageError, match="'task' is text"):
        Transition(next_columns=["task"]).bind(MemoryStore([5], texts=("task",)))
    with pytest.raises(StoreError, match="did you mean 'action'"):
        Transition(next_columns=["acton"]).bind(MemoryStore([5]))
    with pytest.raises(UsageError, match=r"would be called 'next.reward'"):
        store = MemoryStore([5], numbers=("reward", "next.reward"))
        Transition(next_columns=["reward"]).bind(store)


def test_transitions_are_values() -> None:
    made = Transition(columns=["a", "b"], next_columns="b")
    assert repr(made) == "Transition(columns=['a', 'b'], next_columns=['b'])" and repr(Transition()) == "Transition()"
    assert pickle.loads(pickle.dumps(made)) == made == Transition(["a", "b"], ["b"]) != Transition()
    assert hash(made) == hash(Transition(["a", "b"], ["b"]))
    assert json.loads(json.dumps(made.describe())) == made.describe()
