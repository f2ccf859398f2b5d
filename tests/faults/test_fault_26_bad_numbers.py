"""Fault 26: NaN, Inf, values too large for float32, dimensions that never move: counted; statistics are never NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.conversion.report import Report
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, COMMAND, STATE

ROWS = 40
NAMES = ("fine", "still", "lost", "huge", "endless", "all_nan")
NAN, INF, HUGE = math.nan, math.inf, 1e300


def state(row: int) -> tuple[float, ...]:
    lost = NAN if row % 10 == 3 else row / 10
    huge = HUGE if row % 20 == 5 else 1e30 * row
    endless = (INF, -INF)[row % 2] if row < 4 else float(row)
    return (float(row), 0.25, lost, huge, endless, NAN)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    directory = tmp_path_factory.mktemp("bad_numbers")
    times = bags.times(20, ROWS / 20)
    tape = bags.camera(CAM_H, times) + bags.messages(STATE, times, lambda n: bags.Joints(NAMES, state(n)))
    tape += bags.messages(COMMAND, times, lambda n: bags.Array((HUGE * (-1) ** n, 1.0)))
    path = bags.write(directory / "run.bag", tape)
    words = ["rosbag.chunk_size=7", f"features[action]={COMMAND}", f"features[observation.state]={STATE}"]
    words.append(f"features[observation.images.cam_h]={CAM_H}")
    return penstock.convert(path, directory / "out", overrides=words), directory / "out"


def numbers(tree: Any) -> Iterator[float]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from numbers(each)
    elif isinstance(tree, float):
        yield tree


def test_26_bad_values_are_counted_for_each_dimension(converted: tuple[Report, Path]) -> None:
    report, _ = converted
    notes = [note for note in report.notes if "left out of the statistics" in note]
    assert [note.split(" (")[0] for note in notes] == [
        "action data.0: 40 inf",
        "observation.state lost: 4 nan, huge: 2 inf, endless: 4 inf, all_nan: 40 nan",
    ]


def test_26_what_became_inf_only_here_is_a_loss(converted: tuple[Report, Path]) -> None:
    report, _ = converted
    assert report.lost == {
        "too large for float32: action data.0": 40,
        "too large for float32: observation.state huge": 2,
    }
    assert report.exit_code == 3
    assert sum("set its dtype: float64" in note for note in report.notes) == 2


def test_26_float64_keeps_what_is_too_large_for_float32(tmp_path: Path) -> None:
    times = bags.times(20, 0.5)
    tape = bags.camera(CAM_H, times) + bags.messages(COMMAND, times, lambda n: bags.Array((HUGE, 3.5e38)))
    path = bags.write(tmp_path / "run.bag", tape)
    features = {"observation.images.cam_h": CAM_H, "action": {"topic": COMMAND, "dtype": "float64"}}
    report = penstock.convert(path, tmp_path / "out", features=features)
    assert report.lost == {}
    assert any("action data.0: 10 overflow" in note for note in report.notes)
    assert datasets.values(tmp_path / "out", "action").tolist() == [[HUGE, 3.5e38]] * 10
    assert all(math.isfinite(each) for each in numbers(json.loads((tmp_path / "out/meta/stats.json").read_text())))


def test_26_no_row_is_lost_and_values_are_stored_as_recorded(converted: tuple[Report, Path]) -> None:
    report, out = converted
    assert report.frames == ROWS
    with np.errstate(over="ignore"):
        expected = np.array([state(row) for row in range(ROWS)]).astype(np.float32)
    assert np.array_equal(datasets.values(out, "observation.state").astype(np.float32), expected, equal_nan=True)


def test_26_statistics_are_finite_and_those_of_the_good_values(converted: tuple[Report, Path]) -> None:
    _, out = converted
    text = (out / "meta/stats.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    stats = json.loads(text)
    assert all(math.isfinite(each) for each in numbers(stats))
    found = {
        name: {key: stats["observation.state"][key][n] for key in ("min", "max", "mean", "std")}
        for n, name in enumerate(NAMES)
    }
    assert found["fine"] == pytest.approx({"min": 0, "max": 39, "mean": 19.5, "std": np.std(np.arange(40))})
    assert found["still"] == {"min": 0.25, "max": 0.25, "mean": 0.25, "std": 0}
    good = [row / 10 for row in range(ROWS) if row % 10 != 3]
    expected = {"min": 0, "max": 3.9, "mean": np.mean(good), "std": np.std(good)}
    assert found["lost"] == pytest.approx(expected, rel=1e-5)
    assert found["endless"]["max"] == 39 and found["endless"]["min"] == 4


def test_26_the_statistics_of_each_episode_are_finite_too(converted: tuple[Report, Path]) -> None:
    _, out = converted
    for episode in datasets.episodes(out):
        of_stats = {key: value for key, value in episode.items() if key.startswith("stats/")}
        assert of_stats and all(math.isfinite(each) for each in numbers(of_stats))


def test_26_doctor_counts_them_too_and_finds_nothing_else(converted: tuple[Report, Path]) -> None:
    found = [problem.split(": ", 1)[1] for problem in datasets.problems(converted[1], full=True)]
    assert found == [
        "'action' holds unusable values: data.0: 40 inf",
        "'observation.state' holds unusable values: lost: 4 nan, huge: 2 inf, endless: 4 inf, all_nan: 40 nan",
    ]


def test_26_whole_numbers_beyond_what_they_can_hold_are_refused(tmp_path: Path) -> None:
    times = bags.times(20, 0.5)
    tape = bags.camera(CAM_H, times) + bags.messages(COMMAND, times, lambda n: bags.Array((HUGE, NAN)))
    path = bags.write(tmp_path / "run.bag", tape)
    features = {"observation.images.cam_h": CAM_H, "action": {"topic": COMMAND, "dtype": "int64"}}
    with pytest.raises(penstock.errors.DataSetError, match=r"20 values are not whole numbers within ±2\^53"):
        penstock.convert(path, tmp_path / "out", features=features)
