"""Subtasks, one for each row: from a topic, from files beside the recording; what is not said is an empty text."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.episodes import cuts
from penstock._src.conversion.episodes.cuts import EpisodeCut
from penstock._src.conversion.inputs.recording import plan_recording
from penstock._src.conversion.mapping.suggest import suggest_yaml
from penstock._src.conversion.settings import read_settings
from penstock.errors import ConfigError, DataSetError
from tests.conversion import bags, datasets, topics
from tests.conversion.topics import spoken

FPS = 20


def robot(path: Path, name: str, *said: list[topics.Note]) -> Path:
    tape = bags.camera(bags.CAM_H, bags.times(FPS, 4.0)) + bags.joints(bags.STATE, bags.times(FPS, 4.0))
    return topics.write(path / name, tape, *said)


def runs(out: Path) -> list[tuple[int, str, int]]:
    """(episode, subtask, rows), in the order of the rows."""
    table = datasets.table(out)
    pairs = zip(table["episode_index"].to_pylist(), table["subtask"].to_pylist(), strict=True)
    return [(*key, len(list(rows))) for key, rows in groupby(pairs)]


def test_rows_have_the_subtask_that_was_reported_last_in_their_episode(tmp_path: Path) -> None:
    texts = spoken("/subtask", {0.3: "too early", 0.7: "reach", 1.0: " grasp ", 2.6: "lift", 2.8: "", 2.9: "place"})
    marks = spoken("/rec", {0.5: "start", 1.5: "stop", 2.5: "start"})
    path = robot(tmp_path, "run.bag", texts, marks)
    words = ["episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop", "episodes.subtask=/subtask"]
    penstock.convert(path, tmp_path / "out", overrides=[*words, "rosbag.chunk_size=7"])
    assert runs(tmp_path / "out") == [
        (0, "", 4),
        (0, "reach", 6),
        (0, "grasp", 10),
        (1, "", 2),
        (1, "lift", 4),
        (1, "", 2),
        (1, "place", 22),
    ]
    assert datasets.info(tmp_path / "out")["features"]["subtask"] == {"dtype": "string", "shape": [1], "names": None}
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_what_was_reported_before_a_recording_without_marks_began_still_holds(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag", spoken("/subtask", {-0.5: "reach", 3.0: "grasp"}))
    penstock.convert(path, tmp_path / "out", overrides=["episodes.subtask=/subtask", "episodes.max_length=2s"])
    assert runs(tmp_path / "out") == [(0, "reach", 40), (1, "reach", 20), (1, "grasp", 20)]


def test_subtasks_of_a_file_and_of_its_episodes(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag")
    start = (bags.START_NS / 1e9) - 0.0
    tree = {
        "episodes": [
            {"start": 0, "end": 1, "subtasks": [{"start": 0.5, "subtask": "grasp"}, {"start": 0, "subtask": "reach"}]},
            {"start": 2},
        ],
        "subtasks": [{"start": start + 2.5, "end": start + 3, "subtask": "lift"}],
    }
    (tmp_path / "run.json").write_text(json.dumps(tree))
    penstock.convert(path, tmp_path / "out")
    expected = [(0, "reach", 10), (0, "grasp", 10), (1, "", 10), (1, "lift", 10), (1, "", 20)]
    assert runs(tmp_path / "out") == expected


def test_subtasks_of_a_table(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag")
    (tmp_path / "tasks.csv").write_text("file,start,end,subtask\nrun.bag,0,,reach\nrun.bag,1.5,2,grasp\n")
    penstock.convert(path, tmp_path / "out")
    assert runs(tmp_path / "out") == [(0, "reach", 30), (0, "grasp", 10), (0, "", 40)]


@pytest.mark.parametrize("first_has_some", [True, False])
def test_the_first_recording_settles_whether_there_are_subtasks(tmp_path: Path, first_has_some: bool) -> None:
    paths = [robot(tmp_path, name) for name in ("a.bag", "b.bag")]
    (tmp_path / ("a.yaml" if first_has_some else "b.yaml")).write_text("subtasks: [{start: 0, subtask: reach}]\n")
    report = penstock.convert(paths, tmp_path / "out")
    if first_has_some:
        assert runs(tmp_path / "out") == [(0, "reach", 80), (1, "", 80)]
    else:
        assert "subtask" not in datasets.table(tmp_path / "out").column_names
        assert any(note.startswith("b.bag: subtasks are left out") for note in report.notes)
        penstock.convert(paths, tmp_path / "both", overrides=["episodes.subtasks=true"])
        assert runs(tmp_path / "both") == [(0, "", 80), (1, "reach", 80)]


def test_subtasks_can_be_left_out(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag", spoken("/subtask", {0.0: "reach"}))
    (tmp_path / "run.yaml").write_text("task: tidy\nsubtasks: [{start: 0, subtask: reach}]\n")
    penstock.convert(path, tmp_path / "out", overrides=["episodes.subtasks=false"])
    assert "subtask" not in datasets.table(tmp_path / "out").column_names
    with pytest.raises(ConfigError, match="leaves out the subtasks"):
        penstock.convert(path, tmp_path / "no", overrides=["episodes.subtasks=false", "episodes.subtask=/subtask"])


def test_a_span_gives_the_subtasks_of_any_stretch_of_its_rows() -> None:
    span = EpisodeCut(range(10, 20), "task", ((12, "a"), (15, "b")))
    assert span.subtasks_of(10, 20) == ["", "", "a", "a", "a", "b", "b", "b", "b", "b"]
    assert span.subtasks_of(14, 16) == ["a", "b"]
    assert EpisodeCut(range(3), "task").subtasks_of(0, 3) == ["", "", ""]


def test_the_language_column_of_lerobot_holds_all_subtasks_of_the_episode_in_every_row(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag", spoken("/subtask", {1.0: "reach", 2.0: "", 3.0: "grasp"}))
    words = ["episodes.subtask=/subtask", "episodes.language=true", "rosbag.chunk_size=30"]
    for out, jobs in (("one", 1), ("two", 2)):
        penstock.convert(path, tmp_path / out, overrides=words, jobs=jobs)
    column = datasets.table(tmp_path / "one")["language_persistent"].to_pylist()
    assert len(column) == 80 and all(row == column[0] for row in column)
    shown = [(entry["timestamp"], entry["content"], entry["style"], entry["role"]) for entry in column[0]]
    assert shown == [
        (1.0, "reach", "subtask", "assistant"),
        (2.0, None, "subtask", "assistant"),
        (3.0, "grasp", "subtask", "assistant"),
    ]
    assert datasets.problems(tmp_path / "one", full=True) == []
    assert datasets.table(tmp_path / "two").equals(datasets.table(tmp_path / "one"))
    copied = penstock.convert(tmp_path / "one", tmp_path / "copied")
    assert copied.frames == 80
    assert datasets.table(tmp_path / "copied")["language_persistent"].to_pylist() == column


def test_more_subtasks_than_every_row_should_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "_MOST_ENTRIES", 2)
    path = robot(tmp_path, "run.bag", spoken("/subtask", {1.0: "a", 2.0: "b", 3.0: "c"}))
    with pytest.raises(DataSetError, match="has 3 subtasks"):
        penstock.convert(path, tmp_path / "out", overrides=["episodes.subtask=/subtask", "episodes.language=true"])
    assert penstock.convert(path, tmp_path / "out", overrides=["episodes.subtask=/subtask"]).frames == 80


def test_a_suggested_configuration_does_not_settle_for_others_what_one_recording_has(tmp_path: Path) -> None:
    with recordings.open(robot(tmp_path, "run.bag")) as recording:
        plan, _ = plan_recording(recording, read_settings(None, ["episodes.gap=2s"]), 256 << 20)
        text = suggest_yaml(plan)
    assert "  gap: 2s\n" in text and "  subtasks: null\n" in text
