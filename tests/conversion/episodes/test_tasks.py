"""What the robot was told to do: from the configuration, from a topic, from files beside the recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.commit.identity import differences, identity, sources
from penstock._src.conversion.episodes.cuts import Cuts
from penstock._src.conversion.inputs.input import InputRef
from penstock._src.conversion.inputs.recording import plan_recording
from penstock._src.conversion.settings import read_settings
from penstock.errors import ConfigError
from tests.conversion import bags, datasets, topics
from tests.conversion.topics import spoken

FPS = 20


def robot(path: Path, name: str = "run.bag", *said: list[topics.Note]) -> Path:
    return topics.write(path / name, bags.camera(bags.CAM_H, bags.times(FPS, 4.0)), *said)


def cuts(path: Path, *asked: str) -> Cuts:
    with recordings.open(path) as recording:
        return plan_recording(recording, read_settings(None, asked), 256 << 20)[0].cuts


def tasks(path: Path, *asked: str) -> list[str]:
    return [span.task for span in cuts(path, *asked).spans]


def spans(path: Path, *asked: str) -> list[tuple[int, int, str]]:
    return [(span.rows.start, span.rows.stop, span.task) for span in cuts(path, *asked).spans]


# ── a topic ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_names_the_task_of_each_episode(tmp_path: Path) -> None:
    texts = spoken("/task", {0.0: "reach", 1.9: "grasp"})
    path = robot(tmp_path, "run.bag", texts, spoken("/mark", {0.5: "", 2.0: "", 3.0: ""}))
    report = penstock.convert(path, tmp_path / "out", overrides=["episodes.topic=/mark", "episodes.task=/task"])
    assert report.exit_code == 0
    assert [episode["tasks"] for episode in datasets.episodes(tmp_path / "out")] == [["reach"], ["grasp"], ["grasp"]]


def test_a_task_that_is_named_after_the_start_counts_until_the_end(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag", spoken("/task", {2.5: "late"}), spoken("/mark", {0.0: "", 2.0: ""}))
    words = ("episodes.topic=/mark", "episodes.task=/task", "task=otherwise")
    assert tasks(path, *words) == ["otherwise", "late"]


def test_the_marker_itself_may_name_the_task(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag", spoken("/task", {0.5: "reach", 2.0: "grasp"}))
    assert tasks(path, "episodes.topic=/task", "episodes.task={topic: /task, field: data}") == ["reach", "grasp"]


# ── files beside the recording ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.txt", "stack the\n  cups\n"),
        ("run.yaml", "task: stack the cups\noperator: Ada\n"),
        ("run.yml", "stack the cups\n"),
        ("run.json", '{"task": "stack the cups"}'),
        ("tasks.csv", "file,task\nother.bag,nothing\nrun.bag,stack the cups\n"),
        ("tasks.csv", "file,task\nother.bag,nothing\nrun,stack the cups\n"),
        ("tasks.yaml", "other.bag: nothing\nrun.bag: stack the cups\n"),
        ("tasks.json", '{"run": {"task": "stack the cups"}}'),
    ],
)
def test_a_file_beside_the_recording_names_the_task(tmp_path: Path, name: str, text: str) -> None:
    path = robot(tmp_path)
    (tmp_path / name).write_text(text)
    found = cuts(path)
    assert [span.task for span in found.spans] == ["stack the cups"]
    assert any(name in note for note in found.notes)
    assert tasks(path, "episodes.sidecar=none") == ["unspecified"]


def test_a_bag_directory_has_its_file_beside_it(tmp_path: Path) -> None:
    path = bags.write(tmp_path / "run.mcapdir", bags.camera(bags.CAM_H, bags.times(FPS, 1.0)))
    (tmp_path / "run.mcapdir.txt").write_text("wipe")
    assert tasks(path) == ["wipe"]


def test_a_configuration_beside_a_recording_is_no_sidecar_even_with_a_key_of_its_name(tmp_path: Path) -> None:
    path = robot(tmp_path, "depth.bag")
    (tmp_path / "depth.yaml").write_text(f"depth: metric\nfeatures: {{observation.images.cam: {bags.CAM_H}}}\n")
    found = cuts(path)
    assert [span.task for span in found.spans] == ["unspecified"]
    assert any("depth.yaml is a configuration and was not read as a sidecar" in note for note in found.notes)


def test_what_the_configuration_says_beats_what_lies_around_but_not_what_it_points_at(tmp_path: Path) -> None:
    path = robot(tmp_path)
    (tmp_path / "run.txt").write_text("from the file")
    found = cuts(path, "task=from the configuration")
    assert [span.task for span in found.spans] == ["from the configuration"]
    assert any("run.txt names another task" in note for note in found.notes)
    pointed = ("task=from the configuration", f"episodes.sidecar={tmp_path / 'run.txt'}")
    assert tasks(path, *pointed) == ["from the file"]


def test_a_topic_says_more_than_a_file_for_the_whole_recording(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag", spoken("/task", {2.5: "said"}), spoken("/mark", {0.0: "", 2.0: ""}))
    (tmp_path / "run.txt").write_text("written")
    assert tasks(path, "episodes.topic=/mark", "episodes.task=/task") == ["written", "said"]


def test_episodes_of_a_file_are_cut_by_its_times(tmp_path: Path) -> None:
    path = robot(tmp_path)
    absolute = bags.START_NS / 1e9 + 3.0
    tree = {
        "task": "tidy up",
        "episodes": [
            {"start": absolute, "task": "push"},
            {"start": 0.5, "end": "1500ms", "task": "reach"},
            {"start": 2, "end": 2.5},
        ],
    }
    (tmp_path / "run.json").write_text(json.dumps(tree))
    assert spans(path) == [(10, 30, "reach"), (40, 50, "tidy up"), (60, 80, "push")]
    assert cuts(path).left_out == {"outside": 30}


def test_episodes_of_a_table(tmp_path: Path) -> None:
    path = robot(tmp_path)
    (tmp_path / "tasks.csv").write_text("task,start,end,file\nreach,0,1,run.bag\ngrasp,2 s,,run.bag\nx,0,9,b.bag\n")
    assert spans(path) == [(0, 20, "reach"), (40, 80, "grasp")]


def test_the_file_of_the_recording_comes_before_the_table_of_all(tmp_path: Path) -> None:
    path = robot(tmp_path)
    (tmp_path / "run.yaml").write_text("episodes:\n- {start: 1}\n")
    (tmp_path / "tasks.yaml").write_text("run.bag: {task: from the table, episodes: [{start: 2}]}\n")
    assert spans(path) == [(20, 80, "from the table")]


def test_a_marker_topic_is_stronger_than_the_episodes_of_a_file(tmp_path: Path) -> None:
    path = robot(tmp_path, "run.bag", spoken("/mark", {1.0: ""}))
    (tmp_path / "run.yaml").write_text("task: tidy\nepisodes:\n- {start: 2}\n")
    found = cuts(path, "episodes.topic=/mark")
    assert [(span.rows, span.task) for span in found.spans] == [(range(20, 80), "tidy")]
    assert any("the episodes of run.yaml are not used" in note for note in found.notes)


def test_files_that_are_something_else_are_left_alone(tmp_path: Path) -> None:
    path = robot(tmp_path)
    (tmp_path / "run.txt").write_text("log line\n" * 2000)
    (tmp_path / "tasks.yaml").write_text("other.bag: nothing\n")
    found = cuts(path)
    assert [span.task for span in found.spans] == ["unspecified"]
    assert any("was not taken as a task" in note for note in found.notes)
    (tmp_path / "run.yaml").write_text(f"fps: 20\nfeatures:\n  observation.images.cam_h: {bags.CAM_H}\ntask: x\n")
    found = cuts(path)
    assert [span.task for span in found.spans] == ["unspecified"]
    assert any("give it as --config" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.yaml", "tsak: x\n", "unknown key 'tsak'; did you mean 'task'"),
        ("run.yaml", "episodes: [{start: 1, ende: 2}]\n", "did you mean 'end'"),
        (
            "run.yaml",
            "episodes: [{start: 1, end: 2}, {start: 1.5}]\n",
            "begins at 1.5 s, but the one before ends at 2 s",
        ),
        ("run.yaml", "episodes: [{start: 2, end: 1}]\n", r"episodes\[0\] ends before it begins"),
        ("run.yaml", "episodes: [{start: -1}]\n", "lies before the recording"),
        ("run.yaml", "episodes: [{start: soon}]\n", "'soon' is not a duration"),
        ("run.yaml", "subtasks: [{start: 1}]\n", "missing key 'subtask'"),
        ("run.yaml", "task: 5\n", "task: expected text"),
        ("run.yaml", "task: !!python/object:os.system x\n", "run.yaml"),
        ("run.json", '{"task": ', "is not JSON"),
        ("run.json", "[1]", "expected a mapping"),
        ("run.txt", "\udcff", "is not UTF-8"),
        ("tasks.csv", "file,taks\nrun.bag,x\n", "unknown column 'taks'; did you mean 'task'"),
        ("tasks.csv", "a,b,c\n", "names no column `file`"),
        ("tasks.yaml", "run.bag: 7\n", "expected a task, or a mapping"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = robot(tmp_path)
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=says) as caught:
        cuts(path)
    assert name in caught.value.message


def test_a_file_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        cuts(robot(tmp_path), f"episodes.sidecar={tmp_path / 'nowhere.yaml'}")


def test_one_table_serves_all_recordings_of_a_data_set(tmp_path: Path) -> None:
    paths: list[Any] = [robot(tmp_path, name) for name in ("a.bag", "b.bag")]
    (tmp_path / "tasks.csv").write_text("file,task\na.bag,reach\nb.bag,grasp\n")
    penstock.convert(paths, tmp_path / "out")
    assert [episode["tasks"] for episode in datasets.episodes(tmp_path / "out")] == [["reach"], ["grasp"]]


def test_what_is_reported_of_a_recording_is_part_of_what_a_conversion_is(tmp_path: Path) -> None:
    """A table may get lines for other recordings; another task for this one makes another data set."""
    found = [InputRef("recording", robot(tmp_path))]
    (tmp_path / "tasks.csv").write_text("file,task\nrun.bag,reach\n")

    def now() -> dict[str, Any]:
        known, _ = sources(found, read_settings())
        return identity(read_settings(), known, strict=False)

    before = now()
    (tmp_path / "tasks.csv").write_text("file,task\nrun.bag,reach\nother.bag,grasp\n")
    assert differences(before, now()) == []
    (tmp_path / "tasks.csv").write_text("file,task\nrun.bag,grasp\n")
    changed = differences(before, now())
    assert changed == [f"the file beside input {found[0].path} says something else"]
