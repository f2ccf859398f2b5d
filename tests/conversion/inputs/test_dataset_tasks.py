"""The task table of a data set is kept, and every column that points into it says the same text as before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock._src.conversion.report import NoProgress
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import DataSetCorrupt, Interrupted
from tests.conversion import bags, datasets, version21
from tests.conversion.version21 import ANNOTATION, set_tasks

GR00T = ["unused", "pick the apple", "valid", "place the apple", "unused", "pick the apple"]
OTHER = ["invalid", "pick the apple", "wipe", "unused"]


def gr00t(root: Path) -> Path:
    """Two episodes; a text stands twice in the table, and some stand in no row."""
    task, annotation = [[1, 1, 1, 3], [5, 5, 5]], [[2, 2, 2, 2], [2, -1, 2]]
    return set_tasks(version21.make(root, (4, 3), None), GR00T, task, annotation)


def other(root: Path) -> Path:
    return set_tasks(version21.make(root, (3, 2), None), OTHER, [[2, 2, 1], [1, 1]], [[0, 0, 0], [0, 1]])


def texts(out: Path, key: str) -> list[str | None]:
    """What a column of numbers says, by the table of the data set."""
    table = open_data_set(out).tasks
    return [None if number < 0 else table[number] for number in datasets.table(out).column(key).to_pylist()]


def meant(table: list[str], numbers: list[list[int]]) -> list[str | None]:
    return [None if number < 0 else table[number] for rows in numbers for number in rows]


def test_the_table_and_its_numbers_are_kept_used_or_not(tmp_path: Path) -> None:
    report = penstock.convert(gr00t(tmp_path / "old"), tmp_path / "new")
    assert open_data_set(tmp_path / "new").tasks == GR00T
    assert datasets.info(tmp_path / "new")["total_tasks"] == len(GR00T)
    rows = datasets.table(tmp_path / "new")
    assert rows.column("task_index").to_pylist() == [1, 1, 1, 3, 5, 5, 5]
    assert rows.column(ANNOTATION).to_pylist() == [2, 2, 2, 2, 2, -1, 2]
    named = [list(episode["tasks"]) for episode in datasets.episodes(tmp_path / "new")]
    assert named == [["pick the apple", "place the apple"], ["pick the apple"]]
    assert not any("numbers" in note for note in report.notes)
    assert datasets.problems(tmp_path / "new", full=True) == []
    penstock.convert(tmp_path / "new", tmp_path / "again")  # and from v3.0
    assert datasets.digests(tmp_path / "new") == datasets.digests(tmp_path / "again")


def test_merged_sets_share_one_table_and_every_column_follows(tmp_path: Path) -> None:
    sources = [gr00t(tmp_path / "a"), other(tmp_path / "b")]
    report = penstock.convert(sources, tmp_path / "new", jobs=1)
    assert open_data_set(tmp_path / "new").tasks == [*GR00T, "invalid", "wipe"]
    assert texts(tmp_path / "new", "task_index") == meant(GR00T, [[1, 1, 1, 3], [5, 5, 5]]) + meant(
        OTHER, [[2, 2, 1], [1, 1]]
    )
    assert texts(tmp_path / "new", ANNOTATION) == meant(GR00T, [[2, 2, 2, 2], [2, -1, 2]]) + meant(
        OTHER, [[0, 0, 0], [0, 1]]
    )
    (note,) = [note for note in report.notes if "other numbers" in note]
    assert note == (f"b: its tasks have other numbers in the merged table: 0→6, 2→7, 3→0 (task_index, {ANNOTATION})")
    assert datasets.problems(tmp_path / "new", full=True) == []
    stats = open_data_set(tmp_path / "new").stats
    assert stats is not None and stats[ANNOTATION]["max"] == [6] and stats["task_index"]["max"] == [7]


def test_merging_gives_the_same_in_two_processes_and_by_appending(tmp_path: Path) -> None:
    sources = [gr00t(tmp_path / "a"), other(tmp_path / "b")]
    penstock.convert(sources, tmp_path / "one", jobs=1)
    report = penstock.convert(sources, tmp_path / "two", jobs=2)
    assert any("0→6, 2→7, 3→0" in note for note in report.notes)
    penstock.convert(sources[0], tmp_path / "grown")
    report = penstock.convert(sources[1], tmp_path / "grown", append=True)
    assert any("0→6, 2→7, 3→0" in note for note in report.notes)
    for made in ("two", "grown"):
        assert datasets.digests(tmp_path / "one") == datasets.digests(tmp_path / made), made


class StopAfter(NoProgress):
    def __init__(self, calls: int) -> None:
        self.left = calls

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted("stopped")


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_a_stopped_conversion_goes_on_with_the_whole_table(tmp_path: Path, stop_at: int) -> None:
    sources = [gr00t(tmp_path / "a"), other(tmp_path / "b")]
    penstock.convert(sources, tmp_path / "whole", jobs=1)
    with pytest.raises(Interrupted):
        penstock.convert(sources, tmp_path / "halves", jobs=1, progress=StopAfter(stop_at))
    penstock.convert(sources, tmp_path / "halves", jobs=1, resume=True)
    assert datasets.digests(tmp_path / "whole") == datasets.digests(tmp_path / "halves")


def test_a_set_after_a_recording_keeps_its_texts(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "a.bag", bags.robot(0.4))
    penstock.convert(bag, tmp_path / "b", task="pour")
    report = penstock.convert([bag, tmp_path / "b"], tmp_path / "new", task="lift")
    assert open_data_set(tmp_path / "new").tasks == ["lift", "pour"]
    rows = datasets.table(tmp_path / "b").num_rows
    assert texts(tmp_path / "new", "task_index") == ["lift"] * rows + ["pour"] * rows
    assert any("b: its tasks have other numbers in the merged table: 0→1 (task_index)" in note for note in report.notes)


def test_a_number_beyond_the_table_is_refused_where_numbers_change(tmp_path: Path) -> None:
    set_tasks(version21.make(tmp_path / "b", (3,), None), OTHER, [[2, 2, 1]], [[0, 9, 0]])
    penstock.convert(tmp_path / "b", tmp_path / "kept")
    assert pq.ParquetFile(next((tmp_path / "kept/data").rglob("*.parquet"))).read().column(ANNOTATION)[1].as_py() == 9
    with pytest.raises(DataSetCorrupt, match=rf"episode 0, column '{ANNOTATION}': the value 9, the table has 4 texts"):
        penstock.convert([gr00t(tmp_path / "a"), tmp_path / "b"], tmp_path / "new", jobs=1)


def with_subtasks(tmp_path: Path, name: str, texts_of_table: list[str], numbers: list[int]) -> Path:
    """A v3.0 data set as LeRobot 0.5 annotates it: a column, and a table whose index are the texts."""
    penstock.convert(version21.make(tmp_path / f"{name}-old", (len(numbers),), None), tmp_path / name)
    root = tmp_path / name
    (path,) = (root / "data").rglob("*.parquet")
    rows = pq.ParquetFile(path).read().append_column("subtask_index", pa.array(numbers))
    pq.write_table(rows, path)
    table = {"subtask_index": pa.array(range(len(texts_of_table))), "subtask": pa.array(texts_of_table)}
    pq.write_table(pa.table(table), root / "meta/subtasks.parquet")
    features = datasets.info(root)["features"]
    version21.edit_info(root, features={**features, "subtask_index": {"dtype": "int64", "shape": [1], "names": None}})
    return root


def test_subtasks_keep_their_table_and_follow_a_merge(tmp_path: Path) -> None:
    sources = [
        with_subtasks(tmp_path, "a", ["unused", "reach", "grasp"], [1, 1, 2]),
        with_subtasks(tmp_path, "b", ["grasp", "lift"], [0, 1]),
    ]
    report = penstock.convert(sources, tmp_path / "new", jobs=1)
    assert any("b: its subtasks have other numbers in the merged table: 0→2, 1→3 (subtask_index)" in note
               for note in report.notes)  # fmt: skip
    assert open_data_set(tmp_path / "new").tables["subtasks"] == ["unused", "reach", "grasp", "lift"]
    assert datasets.table(tmp_path / "new").column("subtask_index").to_pylist() == [1, 1, 2, 2, 3]
    assert datasets.problems(tmp_path / "new", full=True) == []
    penstock.convert(sources, tmp_path / "two", jobs=2)
    penstock.convert(sources[0], tmp_path / "grown")
    penstock.convert(sources[1], tmp_path / "grown", append=True)
    for made in ("two", "grown"):
        assert datasets.digests(tmp_path / "new") == datasets.digests(tmp_path / made), made
