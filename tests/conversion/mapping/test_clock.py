"""The clock of a data set is the recording's, or the conversion is refused with the words that make it right."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.inputs.recording import plan_recording
from penstock._src.conversion.settings import read_settings
from penstock.errors import AlignError
from tests.conversion import bags, datasets, topics
from tests.conversion.bags import CAM_H, START_NS, STATE
from tests.conversion.topics import notes

SECOND = 1_000_000_000


def bursty(hz: float, size: int, count: int) -> list[int]:
    begins = np.arange(count) * size / hz
    return [START_NS + round(t * SECOND) for t in (begins[:, np.newaxis] + np.arange(size) * 6e-6).ravel().tolist()]


def status(path: Path, times_ns: list[int]) -> Path:
    return topics.write(path, [], notes("/status", "std_msgs/msg/Float64", times_ns, lambda n: {"data": float(n)}))


def with_pauses(hz: float, seconds: float, pauses: tuple[tuple[float, float], ...]) -> list[int]:
    """Times without those in (begin, end)."""
    times = bags.times(hz, seconds)
    return [t for t in times if not any(a <= (t - START_NS) / SECOND < b for a, b in pauses)]


def words_of(error: AlignError) -> list[list[str]]:
    """The proposals of a hint, as words to add to the command."""
    return [re.findall(r"[a-z_.]+=\S+", part) for part in (error.hint or "").split("; or ")]


def refused(path: Path, tmp_path: Path, *words: str) -> AlignError:
    with pytest.raises(AlignError, match=r"timestamps that differ|the rate of the rows changes") as caught:
        penstock.convert(path, tmp_path / "refused", overrides=words)
    assert not (tmp_path / "refused").exists()
    return caught.value


def lasts(path: Path) -> float:
    """Seconds that the episodes of a data set last by their timestamps."""
    table = datasets.table(path).to_pydict()
    last: dict[int, float] = {}
    for episode, timestamp in zip(table["episode_index"], table["timestamp"], strict=True):
        last[episode] = max(last.get(episode, 0.0), timestamp)
    return sum(last.values())


def test_a_bursty_timeline_gives_a_data_set_that_lasts_as_long(tmp_path: Path) -> None:
    path = status(tmp_path / "run.bag", bursty(400, 16, 50))
    report = penstock.convert(path, tmp_path / "out", timeline="/status")
    assert report.frames == 800 and report.fps == pytest.approx(400, rel=0.03)
    assert lasts(tmp_path / "out") == pytest.approx(2.0, rel=0.05)
    assert not any("timestamps" in note for note in report.notes)


def test_a_camera_with_long_holes_is_refused_and_each_proposal_converts_it(tmp_path: Path) -> None:
    pauses = ((2.0, 4.5), (6.0, 9.0))
    tape = bags.camera(CAM_H, with_pauses(20, 11.0, pauses)) + bags.joints(STATE, with_pauses(50, 11.0, pauses))
    path = bags.write(tmp_path / "run.bag", tape)
    error = refused(path, tmp_path)
    assert "10.950 s of the recording would become 5.450 s at 20 fps" in error.message and "50.2%" in error.message
    assert "2 holes, the longest of 3.050 s" in error.message
    cut, fixed, as_it_is = words_of(error)
    assert cut == ["episodes.gap=1s"] and fixed == ["timeline=fixed", "fps=20", "missing=hold"]
    report = penstock.convert(path, tmp_path / "cut", overrides=cut)
    assert (report.episodes, report.frames, report.exit_code) == (3, 110, 0)
    assert not any("timestamps" in note for note in report.notes)
    penstock.convert(path, tmp_path / "fixed", overrides=fixed)
    assert lasts(tmp_path / "fixed") == pytest.approx(10.95, rel=0.01)
    report = penstock.convert(path, tmp_path / "as it is", overrides=as_it_is)
    message = "10.950 s become 5.450 s, its timestamps differ from the recording's by 50.2%"
    assert any(message in note for note in report.notes)


def test_a_topic_slower_than_any_fps_is_refused_and_the_proposal_converts_it(tmp_path: Path) -> None:
    path = status(tmp_path / "run.bag", bags.times(0.25, 60))
    error = refused(path, tmp_path, "timeline=/status")
    fixed = words_of(error)[0]
    assert fixed == ["timeline=fixed", "fps=1"]
    penstock.convert(path, tmp_path / "out", overrides=fixed)
    assert lasts(tmp_path / "out") == pytest.approx(56, rel=0.05)


def test_a_rate_between_two_whole_numbers_is_refused_where_rounding_bends_time(tmp_path: Path) -> None:
    path = status(tmp_path / "run.bag", bags.times(4.4, 20))
    assert words_of(refused(path, tmp_path, "timeline=/status"))[0] == ["timeline=fixed", "fps=5"]


def test_jitter_and_single_lost_frames_are_no_alarm(tmp_path: Path) -> None:
    times = bags.times(20, 10.0, jitter_s=0.02)
    times = [t for n, t in enumerate(times) if n % 60 != 30]
    tape = bags.camera(CAM_H, times, distinct=4) + bags.joints(STATE, bags.times(50, 10.0))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert report.fps == 20 and not any("timestamps" in note for note in report.notes)


def test_rows_that_are_lost_are_counted_and_the_note_gives_the_true_difference(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(20, 10.0), distinct=4)
    tape += bags.joints(STATE, with_pauses(50, 10.0, ((4.0, 6.0),)))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    lost = report.lost["gap:observation.state"]
    assert report.exit_code == 3 and 36 <= lost <= 40
    assert any(f"differ from the recording's by {lost / 199:.1%}" in note for note in report.notes)


def test_only_what_lies_in_episodes_is_judged(tmp_path: Path) -> None:
    times = with_pauses(20, 20.0, ((5.0, 15.0),))
    switch = topics.spoken("/recording", {0.0: True, 4.9: False, 15.0: True, 19.9: False}, "std_msgs/msg/Bool")
    tape = bags.camera(CAM_H, times, distinct=4) + bags.joints(STATE, times)
    path = topics.write(tmp_path / "run.bag", tape, switch)
    report = penstock.convert(path, tmp_path / "out", overrides=["episodes.topic=/recording"])
    assert report.episodes == 2 and not any("timestamps" in note for note in report.notes)


def test_images_that_turn_out_broken_are_lost_and_the_note_gives_the_true_difference(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(20, 4.0), distinct=4)
    tape = [replace(each, content=bags.Jpeg(b"no image")) if 30 <= n < 50 else each for n, each in enumerate(tape)]
    path = bags.write(tmp_path / "run.bag", tape + bags.joints(STATE, bags.times(50, 4.0)))
    report = penstock.convert(path, tmp_path / "out")
    assert (report.frames, report.exit_code) == (60, 3)
    assert any(f"differ from the recording's by {20 / 79:.1%}" in note for note in report.notes)


def a_timeline(kind: str) -> list[float]:
    random = np.random.default_rng(3)
    steady = np.arange(400) / 30
    made: dict[str, list[np.ndarray]] = {
        "one hole": [steady[:150], steady[150:] + 3.0],
        "many holes": [steady[n * 50 : n * 50 + 50] + n * 2.0 for n in range(8)],
        "stalls": [np.cumsum(np.where(random.random(400) < 0.04, 0.3, 1 / 30))],
        "a jump of the clock": [steady[:5] - 1e6, steady[5:]],
        "slow": [np.arange(20) * 7.0],
        "between whole rates": [np.arange(60) / 1.5],
        "events": [np.sort(random.uniform(0, 60, 30))],
        "three messages": [np.array([0.0, 0.1, 5.0])],
    }
    return [float(each) for each in np.concatenate(made[kind])]


@pytest.mark.parametrize(
    "kind",
    [
        "one hole",
        "many holes",
        "stalls",
        "a jump of the clock",
        "slow",
        "between whole rates",
        "events",
        "three messages",
    ],
)
def test_every_proposal_of_a_refusal_gives_a_clock_that_is_right(tmp_path: Path, kind: str) -> None:
    path = status(tmp_path / "run.bag", [START_NS + round(each * SECOND) for each in a_timeline(kind)])
    proposals = words_of(refused(path, tmp_path, "timeline=/status"))
    assert len(proposals) >= 2 and proposals[-1][0] == "stride=1"
    with recordings.open(path) as recording:
        for words in proposals:
            asked = read_settings(overrides=["timeline=/status", *words])
            plan, _ = plan_recording(recording, asked, 256 << 20)
            times_ns = plan.paired.alignment.row_times_ns
            recorded_s = sum(int(times_ns[r.stop - 1] - times_ns[r.start]) for r in plan.cuts.ranges) / SECOND
            stated_s = sum(len(r) - 1 for r in plan.cuts.ranges) / plan.paired.fps
            is_right = abs(stated_s - recorded_s) <= 0.05 * recorded_s
            assert not plan.cuts.lost and is_right == (words[0] != "stride=1")


@pytest.mark.parametrize("kind", ["jitter", "lost frames", "no rhythm", "bursts", "twice"])
def test_timelines_that_keep_time_are_neither_refused_nor_noted(tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(5)
    steady = np.arange(600) / 30
    made = {
        "jitter": np.sort(steady + random.uniform(-0.02, 0.02, 600)),
        "lost frames": steady[random.random(600) > 0.1],
        "no rhythm": np.cumsum(random.exponential(1 / 200, 2000)),
        "bursts": (np.arange(60)[:, np.newaxis] * 0.05 + np.arange(10) * 1e-4).ravel(),
        "twice": np.sort(np.concatenate((steady, steady[::3]))),
    }
    path = status(tmp_path / "run.bag", [START_NS + round(float(each) * SECOND) for each in made[kind]])
    with recordings.open(path) as recording:
        plan, _ = plan_recording(recording, read_settings(overrides=["timeline=/status"]), 256 << 20)
    assert plan.paired.rows == made[kind].size
    assert not [note for note in (*plan.cuts.notes, *plan.aligned_notes) if "at the time of another" not in note]


@pytest.mark.parametrize("kind", ["two rates", "a buffer at the start"])
def test_a_rate_that_changes_is_refused_though_the_length_is_right(tmp_path: Path, kind: str) -> None:
    made = {
        "two rates": np.concatenate((np.arange(600) / 100, 6.0 + np.arange(300) / 50)),
        "a buffer at the start": np.concatenate((np.arange(60) * 1e-3, 0.1 + np.arange(300) / 30)),
    }
    path = status(tmp_path / "run.bag", [START_NS + round(float(each) * SECOND) for each in made[kind]])
    error = refused(path, tmp_path, "timeline=/status")
    assert "the rate of the rows changes" in error.message
    fixed, written = words_of(error)
    with recordings.open(path) as recording:
        plan, _ = plan_recording(recording, read_settings(overrides=["timeline=/status", *fixed]), 256 << 20)
        times_ns = plan.paired.alignment.row_times_ns
        stated_s = np.arange(times_ns.size) / plan.paired.fps
        assert np.abs((times_ns - times_ns[0]) / SECOND - stated_s).max() < 0.05
        plan, _ = plan_recording(recording, read_settings(overrides=["timeline=/status", *written]), 256 << 20)
    assert [note for note in plan.aligned_notes if "the rate of the rows changes" in note]
