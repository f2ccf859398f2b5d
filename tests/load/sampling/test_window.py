"""Windows and clips against a brute-force reference, and what they refuse."""

from __future__ import annotations

import json
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.sampling.bound import BoundWindow
from penstock._src.load.sampling.window import Clip, Output, Window
from penstock.errors import StoreError, UsageError
from tests.load.brute import Sample, clip_samples, window_samples
from tests.load.memory_store import MemoryStore

_LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=6)
_OFFSETS = st.one_of(st.integers(-4, 4), st.lists(st.integers(-15, 15), min_size=1, max_size=5))


def _given_by(bound: BoundWindow, samples: list[int]) -> list[Sample]:
    needs = bound.needs(np.array(samples, np.int64))
    found: list[Sample] = []
    for place in range(len(samples)):
        sample = {"anchor": [int(needs.anchors[place])]}
        for output in bound.outputs:
            rows = needs.rows[output.name]
            assert rows.dtype == np.int64 and rows.shape == (len(samples), output.steps or 1)
            sample[output.name] = rows[place].tolist()
            if output.mask:
                assert output.mask == f"{output.column}_is_pad" and needs.pads[output.name].dtype == bool
                sample[f"{output.name} pad"] = [int(each) for each in needs.pads[output.name][place]]
        found.append(sample)
    return found


@settings(max_examples=200, deadline=None)
@given(
    lengths=_LENGTHS,
    by_column=st.fixed_dictionaries({}, optional={"state": _OFFSETS, "action": _OFFSETS, "a.b": _OFFSETS}),
    pad=st.booleans(),
    data=st.data(),
)
def test_windows_are_those_of_the_reference(
    lengths: list[int], by_column: dict[str, int | list[int]], pad: bool, data: st.DataObject
) -> None:
    store = MemoryStore(lengths, numbers=("state", "action", "a.b", "reward"), texts=("task",))
    window = Window(by_column, pad=pad)
    expected = window_samples(lengths, {name: by_column.get(name, 0) for name in store.columns}, pad)
    if not expected:
        with pytest.raises(UsageError, match=f"longest of {len(lengths)} episodes has {max(lengths)}"):
            window.bind(store)
        return
    bound = window.bind(store)
    assert bound.count == len(bound) == len(expected)
    assert _given_by(bound, list(range(bound.count))) == expected
    some = data.draw(st.lists(st.integers(0, bound.count - 1), max_size=6))  # any order, with repeats
    assert _given_by(bound, some) == [expected[each] for each in some]
    assert _given_by(pickle.loads(pickle.dumps(bound)), some) == [expected[each] for each in some]


@settings(max_examples=150, deadline=None)
@given(lengths=_LENGTHS, frames=st.integers(1, 5), stride=st.integers(1, 4), step=st.integers(1, 15))
def test_clips_are_those_of_the_reference(lengths: list[int], frames: int, stride: int, step: int) -> None:
    store = MemoryStore(lengths, texts=("task",))
    expected = clip_samples(lengths, frames, stride, step)
    clip = Clip(frames, stride, step)
    if not expected:
        with pytest.raises(UsageError, match=rf"spans {clip.span} rows, and the longest of .* has {max(lengths)}"):
            clip.bind(store)
        return
    bound = clip.bind(store)
    assert bound.outputs == (
        Output("state", "state", frames),
        Output("action", "action", frames),
        Output("task", "task"),
    )
    needs = bound.needs(range(bound.count))
    assert needs.rows["state"].tolist() == expected and needs.rows["action"] is needs.rows["state"]
    assert needs.rows["task"].tolist() == [[rows[0]] for rows in expected] and not needs.pads
    assert needs.anchors.tolist() == bound.rows_of(range(bound.count)).tolist() == [rows[0] for rows in expected]


def test_the_window_without_words_is_the_row_itself() -> None:
    store = MemoryStore([3, 2], images=("camera",), texts=("task",))
    bound = Window().bind(store)
    assert bound.outputs == tuple(Output(name, name) for name in ("camera", "state", "action", "task"))
    assert bound.needs([4, 0]).rows["task"].tolist() == [[4], [0]]


def test_offsets_may_be_unsorted_repeated_and_negative() -> None:
    bound = Window(state=[2, -9, 0, 0]).bind(MemoryStore([3, 4]))
    needs = bound.needs([3])
    assert needs.rows["state"].tolist() == [[5, 3, 3, 3]]
    assert needs.pads["state"].tolist() == [[False, True, False, False]]


def test_columns_limit_what_is_loaded_and_keep_their_order() -> None:
    store = MemoryStore([5], numbers=("state", "action", "reward"))
    bound = Window(action=range(3), columns=["reward", "action", "reward"]).bind(store)
    assert bound.outputs == (Output("reward", "reward"), Output("action", "action", 3, "action_is_pad"))
    with pytest.raises(UsageError, match=r"'state' has offsets but is not among columns=\['action'\]"):
        Window(state=[0], columns=["action"])


def test_rows_are_computed_once_per_distinct_offsets() -> None:
    store = MemoryStore([50] * 4, numbers=[f"n{number}" for number in range(20)])
    needs = Window({f"n{number}": range(5) for number in range(10)}).bind(store).needs(np.arange(100))
    assert len({id(rows) for rows in needs.rows.values()}) == 2
    assert len({id(pads) for pads in needs.pads.values()}) == 1 and len(needs.pads) == 10


def test_a_million_rows_cost_memory_by_episode_only() -> None:
    store = MemoryStore([10_000] * 100)
    Window(action=range(20), pad=False).bind(store).needs(np.arange(64))
    tracemalloc.start()
    try:
        bounds = [
            Window(action=range(20), pad=False).bind(store),
            Window(action=range(20)).bind(store),
            Clip(16, step=3).bind(store),
        ]
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [bound.count for bound in bounds] == [998_100, 1_000_000, 332_900]
    assert held < 100_000


# LeRobot's seconds ------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    fps=st.sampled_from([10.0, 15.0, 24.0, 29.97, 30.0, 50.0]),
    offsets=st.lists(st.integers(-40, 40), min_size=1, max_size=6),
    wrong=st.floats(-9e-5, 9e-5),
)
def test_seconds_become_the_rows_they_mean(fps: float, offsets: list[int], wrong: float) -> None:
    store = MemoryStore([60, 30], fps=fps)
    window = Window.from_delta_timestamps({"action": [each / fps + wrong for each in offsets]})
    by_rows = Window(action=offsets).bind(store)
    assert window.bind(store).offsets == by_rows.offsets
    assert _given_by(window.bind(store), [0, 59, 70]) == _given_by(by_rows, [0, 59, 70])


def test_seconds_between_rows_are_refused_with_the_nearest() -> None:
    window = Window.from_delta_timestamps({"action": [0.0, 0.033, 0.05]})
    with pytest.raises(
        UsageError, match=r"0\.05 s in the delta_timestamps of 'action' .* 30 fps .* 0\.0001 s are allowed"
    ):
        window.bind(MemoryStore([9], fps=30))
    Window.from_delta_timestamps({"action": [0.0, 0.033]}, tolerance_s=1e-3).bind(MemoryStore([9], fps=30))
    with pytest.raises(UsageError, match="no frame rate"):
        window.bind(MemoryStore([9]))
    with pytest.raises(UsageError, match="are empty"):
        Window.from_delta_timestamps({"action": []})
    with pytest.raises(UsageError, match="not all finite"):
        Window.from_delta_timestamps({"action": [float("nan")]})
    with pytest.raises(UsageError, match="sequence of seconds, not 3"):
        Window.from_delta_timestamps({"action": 3})  # type: ignore[dict-item]


# What is refused --------------------------------------------------------------------------------------------------


def test_an_unknown_column_asks_did_you_mean() -> None:
    store = MemoryStore([5])
    for window in (Window(acton=[0]), Window(columns=["acton"]), Clip(2, columns=["acton"])):
        with pytest.raises(StoreError, match=r"no column 'acton'\n.*did you mean 'action'"):
            window.bind(store)


def test_offsets_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="'action' are empty"):
        Window(action=[])
    with pytest.raises(UsageError, match=r"whole number or a sequence(.|\n)*from_delta_timestamps"):
        Window(action=[0.5])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="whole number"):
        Window(action=0.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="whole number"):
        Window(action="0")
    with pytest.raises(UsageError, match="given by column"):
        Window([0, 1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'action' has offsets twice"):
        Window({"action": [0]}, action=[1])
    with pytest.raises(UsageError, match="beyond any episode"):
        Window(action=[2**62])
    with pytest.raises(UsageError, match="at least one"):
        Window(columns=[])
    for words in ((0,), (2, 0), (2, 1, 0), (2.5,), ("2",)):
        with pytest.raises(UsageError, match="whole number, 1 or more"):
            Clip(*words)


def test_texts_come_from_the_row_itself() -> None:
    store = MemoryStore([5], texts=("task",))
    Window(task=0).bind(store)
    for offsets in (1, [0], [0, 1]):
        with pytest.raises(UsageError, match="'task' is text"):
            Window(task=offsets).bind(store)


def test_names_that_would_collide_are_refused() -> None:
    store = MemoryStore([5], numbers=("action", "action_is_pad"))
    with pytest.raises(UsageError, match="two entries of the batch would be called 'action_is_pad'"):
        Window(action=[0]).bind(store)
    Window(action=[0], columns=["action"]).bind(store)


def test_samples_that_are_not_there_are_refused() -> None:
    bound = Window().bind(MemoryStore([5]))
    with pytest.raises(UsageError, match=r"samples 0 to 5 .* 0…4"):
        bound.needs([0, 5])
    with pytest.raises(UsageError, match=r"samples -1 to 0"):
        bound.rows_of([0, -1])
    empty = bound.needs([])
    assert empty.rows["state"].shape == (0, 1) and empty.anchors.shape == (0,)


def test_a_store_without_rows_says_so() -> None:
    with pytest.raises(UsageError, match="longest of 2 episodes has 0"):
        Window().bind(MemoryStore([0, 0]))


# Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "shown"),
    [
        (Window(), "Window()"),
        (Window(action=range(20)), "Window(action=range(20))"),
        (Window({"a.b": [-1, 0]}, pad=False), "Window({'a.b': [-1, 0]}, pad=False)"),
        (Window(a=range(4, -1, -2), b=3, columns=["a", "b"]), "Window(a=range(4, -1, -2), b=3, columns=['a', 'b'])"),
        (Window(a=[0, 3, 6]), "Window(a=range(0, 7, 3))"),
        (Window(a=[1, 1, 1]), "Window(a=[1, 1, 1])"),
        (Window({"pad": [0]}), "Window({'pad': [0]})"),
        (Window.from_delta_timestamps({"a": [0, 0.1]}), "Window.from_delta_timestamps({'a': [0.0, 0.1]})"),
        (Clip(4), "Clip(frames=4)"),
        (Clip(4, 2, 3, columns=["a"]), "Clip(frames=4, stride=2, step=3, columns=['a'])"),
    ],
)
def test_windows_are_values_that_show_how_they_were_made(window: Window | Clip, shown: str) -> None:
    assert repr(window) == shown
    again = eval(shown, {"Window": Window, "Clip": Clip})
    assert again == window and hash(again) == hash(window) and again.describe() == window.describe()
    assert pickle.loads(pickle.dumps(window)) == window
    assert json.loads(json.dumps(window.describe())) == window.describe()
    with pytest.raises(AttributeError):
        window.columns = None  # type: ignore[misc]


def test_numpy_offsets_are_plain_numbers() -> None:
    window = Window(action=np.arange(3), state=np.int64(1))
    assert window == Window(action=range(3), state=1)
    json.dumps(window.describe())


def test_a_bound_window_shows_its_samples() -> None:
    assert repr(Window(action=range(3)).bind(MemoryStore([5]))) == (
        "<5 samples of <rows in memory 'memory': 5 rows, 1 episode>: state, action ×3>"
    )
