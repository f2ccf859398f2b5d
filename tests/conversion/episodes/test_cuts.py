"""Episodes out of one recording: by a marker, by start and stop, by a gap; what lies between them is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import recordings
from penstock._src.conversion.episodes.cuts import Cuts, cut, read_marks
from penstock._src.conversion.episodes.events import EpisodeWindow, TopicTexts
from penstock._src.conversion.inputs.pairing import PairedRows
from penstock._src.conversion.inputs.recording import plan_recording
from penstock._src.conversion.settings import read_settings
from penstock.errors import AlignError, ConfigError, RecordingError
from tests.conversion import bags, datasets, topics
from tests.conversion.topics import Note, at, spoken

FPS = 20
BUDGET = 256 << 20
EMPTY = "std_msgs/msg/Empty"


def robot(seconds: float = 4.0, pauses: tuple[tuple[float, float], ...] = ()) -> list[bags.Message]:
    """A camera and its joints on one beat: row n is at n/20 s; nothing is recorded during the pauses."""
    tape = bags.camera(bags.CAM_H, bags.times(FPS, seconds)) + bags.joints(bags.STATE, bags.times(FPS, seconds))
    return [each for each in tape if not any(at(begin) <= each.time_ns < at(end) for begin, end in pauses)]


def cuts(path: Path, *asked: str) -> Cuts:
    with recordings.open(path) as recording:
        return plan_recording(recording, read_settings(None, asked), BUDGET)[0].cuts


def spans(path: Path, *asked: str) -> list[tuple[int, int]]:
    return [(span.rows.start, span.rows.stop) for span in cuts(path, *asked).spans]


def test_a_recording_is_one_episode_when_nobody_says_otherwise(tmp_path: Path) -> None:
    found = cuts(topics.write(tmp_path / "run.bag", robot()))
    assert [(span.rows, span.task) for span in found.spans] == [(range(80), "unspecified")]
    assert (found.left_out, found.lost, found.notes) == ({}, {}, ())


def test_every_message_of_a_marker_begins_an_episode(tmp_path: Path) -> None:
    marks = [Note("/mark", EMPTY, at(seconds)) for seconds in (0.51, 2.0)]
    found = cuts(topics.write(tmp_path / "run.bag", robot(), marks), "episodes.topic=/mark")
    assert [span.rows for span in found.spans] == [range(11, 40), range(40, 80)]
    assert found.left_out == {"outside": 11}


def test_words_start_and_stop_whatever_their_case(tmp_path: Path) -> None:
    texts = spoken("/rec", {0.5: "START", 1.0: "pause?", 1.5: "stop", 2.0: "start", 3.0: "start", 3.5: " Stop "})
    path = topics.write(tmp_path / "run.bag", robot(), texts)
    found = cuts(path, "episodes.topic=/rec", "episodes.start=start", "episodes.stop=[stop, abort]")
    assert [span.rows for span in found.spans] == [range(10, 30), range(40, 70)]


@pytest.mark.parametrize(
    ("type_name", "on", "off", "words"),
    [
        ("std_msgs/msg/Bool", True, False, ()),
        ("std_msgs/msg/Bool", True, False, ("episodes.start=1", "episodes.stop=0")),
        ("std_msgs/msg/Int32", 7, 0, ("episodes.start=7", "episodes.stop=0")),
        ("std_msgs/msg/Int32", 1, 0, ("episodes.start=true", "episodes.stop=false")),
        ("std_msgs/msg/Float32", 2.0, 1.0, ("episodes.start=2", "episodes.stop=1")),
    ],
)
def test_a_switch_that_is_repeated_all_the_time(
    tmp_path: Path, type_name: str, on: Any, off: Any, words: tuple[str, ...]
) -> None:
    state = {n / 10: on if 0.5 <= n / 10 < 1.5 or n / 10 >= 3 else off for n in range(40)}
    path = topics.write(tmp_path / "run.bag", robot(), spoken("/is_recording", state, type_name))
    assert spans(path, "episodes.topic=/is_recording", *words) == [(10, 30), (60, 80)]
    with recordings.open(path) as recording:  # what marks episodes is no part of what the robot saw
        plan, _ = plan_recording(recording, read_settings(None, ["episodes.topic=/is_recording"]), BUDGET)
    assert set(plan.settings.features) == {"observation.images.cam_h", "observation.state"}


def test_one_topic_starts_and_another_one_stops(tmp_path: Path) -> None:
    begin = [Note("/start", EMPTY, at(seconds)) for seconds in (0.5, 2.0)]
    end = [Note("/stop", EMPTY, at(seconds)) for seconds in (0.1, 1.0, 3.0)]
    path = topics.write(tmp_path / "run.bag", robot(), begin, end)
    assert spans(path, "episodes.topic=/start", "episodes.stop_topic=/stop") == [(10, 20), (40, 60)]


def test_words_of_the_second_topic(tmp_path: Path) -> None:
    end = spoken("/result", {0.8: "progress", 1.0: "done", 3.0: "failed"})
    path = topics.write(tmp_path / "run.bag", robot(), spoken("/goal_name", {0.5: "a", 2.0: "b"}), end)
    asked = ("episodes.topic=/goal_name", "episodes.stop_topic=/result", "episodes.stop=[done, failed]")
    assert spans(path, *asked) == [(10, 20), (40, 60)]


def test_a_discarded_episode_is_left_out_and_counted(tmp_path: Path) -> None:
    texts = spoken("/rec", {0.5: "start", 1.0: "discard", 2.0: "start", 3.0: "stop"})
    path = topics.write(tmp_path / "run.bag", robot(), texts)
    found = cuts(path, "episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop", "episodes.discard=discard")
    assert [span.rows for span in found.spans] == [range(40, 60)]
    assert found.left_out == {"discarded": 10, "outside": 50}


def test_a_gap_begins_an_episode_and_is_no_loss(tmp_path: Path) -> None:
    tape = robot(6.0, pauses=((2.0, 4.5),))
    path = topics.write(tmp_path / "run.bag", tape)
    assert spans(path, "episodes.gap=2s") == [(0, 40), (40, 70)]
    assert spans(path, "episodes.gap=3s", "stride=1", "fps=20") == [(0, 70)]


def test_rows_that_are_missing_in_a_gap_are_no_loss_where_it_is_cut(tmp_path: Path) -> None:
    """The camera runs on while the joints pause: 1.5 s of images find no joints."""
    hole = [each for each in robot() if each.topic == bags.CAM_H or not at(1.0) <= each.time_ns < at(2.5)]
    hole = [each for each in hole if each.topic == bags.CAM_H or each.time_ns != at(3.5)]
    path = topics.write(tmp_path / "run.bag", hole)
    fields = ["features[observation.images.cam_h]=" + bags.CAM_H, "features[observation.state]=" + bags.STATE]
    asked = (*fields, "tolerance=10ms")
    whole = penstock.convert(path, tmp_path / "whole", overrides=asked)
    assert (whole.episodes, whole.frames, whole.lost, whole.exit_code) == (1, 49, {"gap:observation.state": 31}, 3)
    cut_ = penstock.convert(path, tmp_path / "cut", overrides=[*asked, "episodes.gap=1s"])
    assert (cut_.episodes, cut_.frames, cut_.lost) == (2, 49, {"gap:observation.state": 1})
    asked = (*asked, "episodes.gap=60ms", "episodes.min_length=100ms")
    every = penstock.convert(path, tmp_path / "every", overrides=asked)
    assert (every.episodes, every.lost, every.exit_code) == (3, {}, 0)
    assert not any("no message within" in note for note in every.notes)


def test_rows_that_are_missing_outside_of_episodes_are_no_loss(tmp_path: Path) -> None:
    holes = ((1.0, 1.5), (2.0, 2.2))
    tape = [
        each
        for each in robot()
        if each.topic == bags.CAM_H or not any(at(begin) <= each.time_ns < at(end) for begin, end in holes)
    ]
    texts = spoken("/rec", {1.9: "start", 3.0: "stop", 0.0: "start", 0.5: "stop"})
    path = topics.write(tmp_path / "run.bag", tape, texts)
    fields = ["features[observation.images.cam_h]=" + bags.CAM_H, "features[observation.state]=" + bags.STATE]
    words = ["episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop", "tolerance=10ms"]
    report = penstock.convert(path, tmp_path / "out", overrides=[*fields, *words])
    assert report.lost == {"gap:observation.state": 4}
    assert report.alignment[0]["episodes"] == {
        "count": 2,
        "rows": 10 + 18,
        "left_out": {"outside": 80 - 14 - 28},
        "lost": {"gap:observation.state": 4},
    }


def test_lengths_are_limited_on_both_sides(tmp_path: Path) -> None:
    marks = [Note("/mark", EMPTY, at(seconds)) for seconds in (0.0, 0.2, 2.0)]
    path = topics.write(tmp_path / "run.bag", robot(), marks)
    found = cuts(path, "episodes.topic=/mark", "episodes.min_length=300ms", "episodes.max_length=1s")
    assert [(span.rows.start, span.rows.stop) for span in found.spans] == [(4, 24), (24, 40), (40, 60), (60, 80)]
    assert found.left_out == {"too_short": 4}
    assert spans(path, "split_episodes=true", "rosbag.chunk_size=50", "episodes.max_length=1min") == [(0, 50), (50, 80)]


def test_a_whole_conversion_has_the_rows_of_each_episode(tmp_path: Path) -> None:
    texts = spoken("/rec", {0.5: "start", 1.5: "stop", 2.0: "start"})
    path = topics.write(tmp_path / "run.bag", robot(), texts)
    words = ["episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop"]
    report = penstock.convert(path, tmp_path / "out", overrides=words)
    assert (report.episodes, report.frames, report.exit_code) == (2, 60, 0)
    assert any("20 rows are outside episodes" in note for note in report.notes)
    expected = [bags.angles(n, 4) for n in (*range(10, 30), *range(40, 80))]
    assert np.allclose(datasets.values(tmp_path / "out", "observation.state"), expected, atol=1e-6)
    frames = datasets.samples(tmp_path / "out", "observation.images.cam_h")
    assert frames == [bags.jpeg(n) for n in (*range(10, 30), *range(40, 80))]
    assert [episode["length"] for episode in datasets.episodes(tmp_path / "out")] == [20, 40]
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_an_unusable_message_moves_no_episode_before_it(tmp_path: Path) -> None:
    texts = spoken("/rec", {0.0: "start", 1.0: "stop", 1.5: "start", 2.5: "stop", 3.0: "start"})
    tape = bags.change(robot(), bags.CAM_H, 40, bags.with_content(bags.Jpeg(b"rubbish")))
    path = topics.write(tmp_path / "run.bag", tape, texts)
    words = ["episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop"]
    report = penstock.convert(path, tmp_path / "out", overrides=words)
    assert report.lost == {f"unusable message: {bags.CAM_H}": 1}
    rows = [*range(20), *range(30, 40), *range(41, 50), *range(60, 80)]
    assert datasets.samples(tmp_path / "out", "observation.images.cam_h") == [bags.jpeg(n) for n in rows]
    assert [episode["length"] for episode in datasets.episodes(tmp_path / "out")] == [20, 19, 20]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_that_vanish_leave_the_episodes_before_them_as_they_were(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.sampled_from((1, 1, 1, 2, 9)), min_size=2, max_size=60))
    times_ns = np.cumsum(np.array(steps, np.int64)) * 50_000_000
    edges = sorted(data.draw(st.sets(st.integers(0, int(times_ns[-1])), max_size=8)))
    windows = tuple(EpisodeWindow(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)) or (EpisodeWindow(),)
    asked = ["episodes.gap=300ms", "episodes.min_length=100ms", f"episodes.max_length={data.draw(st.integers(2, 9))}s"]
    chosen = read_settings(None, asked)
    marks = _whole_marks()._replace(windows=windows)
    whole = _cut(marks, chosen, times_ns)
    if whole is None:
        return
    committed = data.draw(st.integers(0, len(whole.spans)))
    keep = whole.spans[committed - 1].rows.stop if committed else 0
    gone = data.draw(st.sets(st.integers(keep, max(len(times_ns) - 1, keep)), max_size=10))
    left = np.delete(times_ns, [row for row in gone if row < len(times_ns)])
    again = _cut(marks, chosen, left) if left.size else None
    if again is not None:
        assert again.spans[:committed] == whole.spans[:committed]
        covered = sum(len(span.rows) for span in again.spans) + sum(again.left_out.values())
        assert covered == len(left)


def _whole_marks() -> Any:
    from penstock._src.conversion.episodes.cuts import Marks

    texts = TopicTexts("/task", np.array([0, 10**9], np.int64), np.array([0, 1], np.int32), ("a", "b"))
    return Marks("run.bag", 0, (EpisodeWindow(),), "task", tasks=texts, subtasks=texts)


def _cut(marks: Any, chosen: Any, times_ns: np.ndarray) -> Cuts | None:
    from penstock._src.align import TopicStream, TopicTimeline, align

    alignment = align([TopicStream("/cam", times_ns)], TopicTimeline("/cam", fps=20, stride=1))
    try:
        return cut(marks, chosen, PairedRows(20, len(times_ns), alignment.picks, alignment, {}), 1000)
    except AlignError:
        return None


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["episodes.topic=/rek"], RecordingError, "no topic '/rek'"),
        (["episodes.tpoic=/rec"], ConfigError, "did you mean 'topic'"),
        (["episodes.start=go"], ConfigError, "without episodes.topic"),
        (["episodes.gap=0"], ConfigError, "episodes.gap"),
        (["episodes.min_length=2s", "episodes.max_length=1s"], ConfigError, "no episode could be both"),
        (["episodes.topic=/rec", "episodes.start=go"], AlignError, "no episode begins: /rec has 2 messages .'start'"),
        (["episodes.topic=/rec", "episodes.field=dta"], ConfigError, "no field 'dta'"),
        (["episodes.topic=" + bags.CAM_H, "episodes.start=go"], AlignError, "no episode begins"),
        (["episodes.min_length=1min"], AlignError, "no episode has a row: 80 rows, 80 too short"),
        (["episodes.task={topic: /rec, filed: data}"], ConfigError, "did you mean 'field'"),
    ],
)
def test_what_is_asked_wrongly_is_reported_plainly(tmp_path: Path, words: list[str], error: type, text: str) -> None:
    path = topics.write(tmp_path / "run.bag", robot(), spoken("/rec", {0.5: "start", 1.5: "stop"}))
    with pytest.raises(error, match=text):
        cuts(path, *words)


def test_a_marker_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    texts = spoken("/rec", {0.5: "start", 1.5: "stop"})
    broken = replace(spoken("/rec", {1.0: "stop"})[0], cut=3)
    path = topics.write(tmp_path / "run.bag", robot(), [*texts, broken])
    report = penstock.convert(
        path, tmp_path / "out", overrides=["episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop"]
    )
    assert (report.frames, report.lost, report.exit_code) == (20, {"unusable message: /rec": 1}, 3)
    assert any("/rec: 1 messages cannot be read" in note for note in report.notes)


def test_the_marks_are_read_by_the_clock_of_the_rows(tmp_path: Path) -> None:
    """Header stamps are half a second before the log times; a std_msgs/String has none, so it keeps its log time."""
    tape = bags.camera(bags.CAM_H, bags.times(FPS, 4.0), stamp_late_ns=bags.SECOND // 2)
    stamped = [
        Note("/mark", "geometry_msgs/msg/PointStamped", at(2.0), {"header": {"stamp": _stamp(at(1.5))}}),
    ]
    path = topics.write(tmp_path / "run.bag", tape, stamped)
    with recordings.open(path) as recording:
        asked = read_settings(None, ["episodes.topic=/mark", "time=header"])
        marks = read_marks(recording, asked)
    assert [window.begin_ns for window in marks.windows] == [at(1.5)]


def _stamp(time_ns: int) -> dict[str, int]:
    return {"sec": time_ns // bags.SECOND, "nanosec": time_ns % bags.SECOND}
