"""Fault 9: a missing topic, a camera that starts late or stops early, gaps, mixed rates: by policy, and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.conversion.report import Report
from penstock.errors import AlignError, RecordingError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, STATE

FPS = 20
H, L, JOINTS = "observation.images.cam_h", "observation.images.cam_l", "observation.state"
FEATURES = {H: CAM_H, L: CAM_L, JOINTS: STATE}


def record(path: Path, *, low: tuple[float, float] = (0.0, 3.0), holes: tuple[tuple[float, float], ...] = ()) -> Path:
    """Three seconds at 20 fps: the second camera from `low[0]` to `low[1]`, the joints with holes."""
    times = bags.times(FPS, 3.0)
    second = [time_ns for time_ns in times if _at(low[0]) <= time_ns < _at(low[1])]
    moving = [time_ns for time_ns in times if not any(_at(a) <= time_ns < _at(b) for a, b in holes)]
    tape = bags.camera(CAM_H, times) + bags.camera(CAM_L, second, seed=1)
    return bags.write(path / "run.bag", tape + bags.joints(STATE, moving))


def _at(seconds: float) -> int:
    return bags.START_NS + round(seconds * bags.SECOND)


def convert(path: Path, out: Path, **settings: Any) -> Report:
    return penstock.convert(path, out, **{"features": FEATURES, "tolerance": "10ms", **settings})


def stream(report: Report, name: str) -> dict[str, Any]:
    return report.alignment[0]["streams"][name]


def test_09_a_topic_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = record(tmp_path)
    with pytest.raises(RecordingError, match="no topic '/joint_state'") as caught:
        convert(path, tmp_path / "out", features={**FEATURES, JOINTS: "/joint_state"})
    assert "/joint_states" in (caught.value.hint or "")
    assert not (tmp_path / "out").exists()


def test_09_a_camera_that_starts_late_and_stops_early_trims_the_rows(tmp_path: Path) -> None:
    report = convert(record(tmp_path, low=(0.5, 2.5)), tmp_path / "out")
    assert (report.frames, report.lost, report.exit_code) == (40, {}, 0)
    found = stream(report, L)
    assert (found["trimmed_head"], found["trimmed_tail"], found["lost"], found["held"]) == (10, 10, 0, 0)
    assert datasets.samples(tmp_path / "out", H) == [bags.jpeg(n) for n in range(10, 50)]
    assert datasets.samples(tmp_path / "out", L) == [bags.jpeg(n, seed=1) for n in range(40)]
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_09_a_camera_that_stops_early_may_be_held(tmp_path: Path) -> None:
    report = convert(record(tmp_path, low=(0.5, 2.5)), tmp_path / "out", missing="hold")
    assert (report.frames, report.lost, report.exit_code) == (50, {}, 0)
    found = stream(report, L)
    assert (found["trimmed_head"], found["trimmed_tail"], found["held"]) == (10, 0, 10)
    held = [bags.jpeg(n, seed=1) for n in (*range(40), *[39] * 10)]
    assert datasets.samples(tmp_path / "out", L) == held


def test_09_a_gap_loses_rows_and_says_so(tmp_path: Path) -> None:
    report = convert(record(tmp_path, holes=((1.0, 1.5), (2.0, 2.1))), tmp_path / "out")
    assert (report.frames, report.lost, report.exit_code) == (48, {f"gap:{JOINTS}": 12}, 3)
    found = stream(report, JOINTS)
    assert (found["gap_count"], found["lost"]) == (2, 12)
    assert [(gap["rows"], round(gap["from_s"], 3)) for gap in found["gaps"]] == [(10, 1.0), (2, 2.0)]
    assert any("no message within 10 ms for 12 rows" in note for note in report.notes)
    rows = [n for n in range(60) if n not in (*range(20, 30), 40, 41)]
    assert datasets.samples(tmp_path / "out", H) == [bags.jpeg(n) for n in rows]


def test_09_a_gap_that_is_held_repeats_the_last_value(tmp_path: Path) -> None:
    sources: dict[str, Any] = {**FEATURES, JOINTS: {"topic": STATE, "missing": "hold"}}
    report = convert(record(tmp_path, holes=((1.0, 1.5),)), tmp_path / "out", features=sources)
    assert (report.frames, report.lost, stream(report, JOINTS)["held"]) == (60, {}, 10)
    values = datasets.values(tmp_path / "out", JOINTS)
    assert np.array_equal(values[20:30], np.repeat(values[19:20], 10, axis=0))


@pytest.mark.parametrize("broken", [{"low": (0.5, 3.0)}, {"low": (0.0, 2.5)}, {"holes": ((1.0, 1.5),)}])
def test_09_a_recording_may_be_refused_instead(tmp_path: Path, broken: dict[str, Any]) -> None:
    with pytest.raises(AlignError, match=r"run\.bag"):
        convert(record(tmp_path, **broken), tmp_path / "out", missing="reject")
    assert not (tmp_path / "out").exists()


def test_09_streams_that_never_meet_are_refused_with_their_times(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(FPS, 1.0)) + bags.joints(STATE, bags.times(FPS, 1.0, offset_s=2.0))
    path = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(AlignError, match=r"no row of 20 finds a message of every stream.*2\.000 … 2\.950 s"):
        penstock.convert(path, tmp_path / "out", features={H: CAM_H, JOINTS: STATE})


def test_09_mixed_rates_repeat_what_is_slow_and_thin_out_what_is_fast(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 2.0)) + bags.camera(CAM_L, bags.times(15, 2.0), seed=1)
    path = bags.write(tmp_path / "run.bag", tape + bags.joints(STATE, bags.times(200, 2.0)))
    report = penstock.convert(path, tmp_path / "out", features=FEATURES)
    assert (report.frames, report.lost) == (60, {})
    slow, fast = stream(report, L), stream(report, JOINTS)
    assert (slow["messages"], slow["used"], slow["repeats"]) == (30, 30, 30)
    assert (fast["messages"], fast["used"], fast["unused"]) == (400, 60, 340)
    # Every second row lies half way between two images, where rounding decides; the others show their own.
    shown = datasets.samples(tmp_path / "out", L)
    assert shown[::2] == [bags.jpeg(n, seed=1) for n in range(30)]
