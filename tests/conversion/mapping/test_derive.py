"""Relative values: right in every row, at the borders of episodes, and whatever the size of a flush."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock
from penstock._src.conversion.inputs.columns import Relations, VectorColumn, VectorPart, check_relations, thresholded
from penstock._src.conversion.settings import FeatureSettings, TopicSource
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import ConfigError
from tests.conversion.bags import camera, joints, times, write
from tests.lerobot import reading

STATE, ACTION = "observation.state", "action"


def _vector(key: str, *parts: tuple[int, TopicSource]) -> VectorColumn:
    made = tuple(VectorPart(key, source, None, None, size) for size, source in parts)  # type: ignore[arg-type]
    return VectorColumn(key, "float32", made, tuple(str(i) for i in range(sum(size for size, _ in parts))))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_rows_do_not_depend_on_the_flushes(flushes: list[int], delta: bool, start: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state, action = rng.normal(size=(sum(flushes), 4)), rng.normal(size=(sum(flushes), 5))
    still = TopicSource("/hand", absolute=True)
    vectors = [
        _vector(STATE, (3, TopicSource("/arm")), (1, still)),
        _vector(ACTION, (3, TopicSource("/arm")), (1, still), (1, still)),
    ]
    features = {
        STATE: FeatureSettings((), relative_start=start),
        ACTION: FeatureSettings((), relative_start=start, relative_to=STATE if delta else None),
    }
    check_relations(features, vectors)
    relations = Relations(features, vectors)
    pieces: dict[str, list[NDArray[np.float64]]] = {STATE: [], ACTION: []}
    row = 0
    for rows in flushes:
        values = {STATE: state[row : row + rows].copy(), ACTION: action[row : row + rows].copy()}
        relations.apply(values)
        for key, piece in values.items():
            pieces[key].append(piece)
        row += rows
    wanted_state, wanted_action = state.copy(), action.copy()
    if start:
        wanted_state[:, :3] -= state[0, :3]
        wanted_action[:, :3] -= action[0, :3]
    if delta:
        wanted_action[:, :3] -= wanted_state[:, :3]
    np.testing.assert_array_equal(np.concatenate(pieces[STATE]), wanted_state)
    np.testing.assert_array_equal(np.concatenate(pieces[ACTION]), wanted_action)


def test_a_threshold_keeps_what_is_no_number() -> None:
    part = _vector(STATE, (3, TopicSource("/hand", threshold=50))).parts[0]
    np.testing.assert_array_equal(thresholded(part, np.array([[50.0, 50.1, np.nan]])), [[0.0, 1.0, np.nan]])
    unchanged = np.array([[1.0, 2.0, 3.0]])
    assert thresholded(part._replace(source=TopicSource("/hand")), unchanged) is unchanged


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({ACTION: {"relative_to": "observation.pose"}}, "'observation.pose' is not another feature of numbers"),
        ({ACTION: {"relative_to": ACTION}}, "'action' is not another feature of numbers"),
        ({ACTION: {"relative_to": "short"}}, "action has 3 values and short has 2"),
        ({"short": {"relative_to": ACTION}}, "short has 2 values and action has 3"),
        ({ACTION: {"relative_to": STATE}, STATE: {"relative_to": ACTION}}, "is itself relative to"),
        ({"cam": {"relative_start": True}}, "features.cam is a camera"),
    ],
)
def test_what_cannot_be_subtracted_is_refused(features: dict[str, Any], message: str) -> None:
    vectors = [_vector(key, (size, TopicSource("/s"))) for key, size in ((ACTION, 3), (STATE, 3), ("short", 2))]
    asked = {key: FeatureSettings((), **values) for key, values in features.items()}
    every = {vector.key: FeatureSettings(()) for vector in vectors}
    with pytest.raises(ConfigError, match=message):
        check_relations({**every, **asked}, vectors)


# Through a conversion, without Kuavo


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("derive") / "run.bag"
    tape = camera("/cam/image/compressed", times(30, 1.0))
    tape += joints("/joint_states", times(100, 1.0)) + joints("/joint_cmd", times(100, 1.0, offset_s=0.002), seed=3)
    write(path, tape)
    return path


def _convert(bags: list[Path], out: Path, **values: Any) -> dict[str, NDArray[np.float64]]:
    features: dict[str, Any] = {
        "observation.images.cam": "/cam/image/compressed",
        STATE: {"topic": "/joint_states", "dtype": "float64", **values.pop("state", {})},
        ACTION: {"topic": "/joint_cmd", "dtype": "float64", **values.pop("action", {})},
    }
    penstock.convert([str(bag) for bag in bags], out, features=features, **values)
    data = open_data_set(out)
    rows = reading.rows(data, [STATE, ACTION, "episode_index"], 0, data.info.total_frames)
    return {key: np.asarray(value) for key, value in rows.items()}


@pytest.mark.parametrize("chunk_size", [0, 1, 7, 1000])
def test_a_conversion_subtracts_the_same_with_every_chunk_size(bag: Path, tmp_path: Path, chunk_size: int) -> None:
    plain = _convert([bag], tmp_path / "plain")
    relative = _convert(
        [bag],
        tmp_path / "relative",
        rosbag={"chunk_size": chunk_size},
        state={"relative_start": True},
        action={"relative_to": STATE},
    )
    start = plain[STATE] - plain[STATE][0]
    np.testing.assert_allclose(relative[STATE], start, rtol=0, atol=1e-12)
    np.testing.assert_allclose(relative[ACTION], plain[ACTION] - start, rtol=0, atol=1e-12)
    assert np.abs(relative[STATE]).max() > 0.01


@pytest.mark.parametrize("split", [False, True])
def test_every_episode_has_its_own_first_row(bag: Path, tmp_path: Path, split: bool) -> None:
    twin = tmp_path / "twin.bag"
    twin.hardlink_to(bag)
    common: dict[str, Any] = {"split_episodes": split, "rosbag": {"chunk_size": 8}}
    plain = _convert([bag, twin], tmp_path / "plain", **dict(common))
    relative = _convert([bag, twin], tmp_path / "relative", state={"relative_start": True}, **dict(common))
    episodes = plain["episode_index"].reshape(-1)
    assert len(np.unique(episodes)) == (8 if split else 2)
    for episode in np.unique(episodes):
        rows = episodes == episode
        wanted = plain[STATE][rows] - plain[STATE][rows][0]
        np.testing.assert_allclose(relative[STATE][rows], wanted, rtol=0, atol=1e-12)
