"""`frame_index` and the like that info.json or the data files lack: derived, and noted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.features import ROW_FEATURES
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.stores.opening import open_store
from penstock.errors import DataSetCorrupt
from tests.conversion import datasets, version21
from tests.lerobot import making, reading

KEYS = [feature.key for feature in ROW_FEATURES]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    version21.make(folder / "v2.1", (6, 5, 4), None)
    making.make(folder / "v3.0", (6, 5, 4), making.IMAGE_FEATURES, tasks=("lift", "drop"), data_file_bytes=1)
    return folder


def one_task(root: Path) -> None:
    """The last episode of v2.1 has two, which only the rows tell apart."""
    for path in (root / "data").rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        place = table.column_names.index("task_index")
        zeros = np.zeros(len(table), np.int64)
        pq.write_table(table.set_column(place, "task_index", [zeros]), path)
    lines = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
    version21.write_lines(root / "meta/episodes.jsonl", [{**line, "tasks": line["tasks"][:1]} for line in lines])


def drop(root: Path, undeclared: set[str], missing: set[str]) -> Path:
    tree = json.loads((root / "meta/info.json").read_text())
    tree["features"] = {key: entry for key, entry in tree["features"].items() if key not in undeclared}
    (root / "meta/info.json").write_text(json.dumps(tree))
    for path in (root / "data").rglob("*.parquet"):
        pq.write_table(pq.ParquetFile(path).read().drop_columns(sorted(missing)), path)
    return root


def prepared(made: Path, version: str, to: Path, undeclared: set[str], missing: set[str]) -> Path:
    root = Path(shutil.copytree(made / version, to))
    if version == "v2.1":
        one_task(root)
    return drop(root, undeclared, missing)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@given(undeclared=st.sets(st.sampled_from(KEYS)), missing=st.sets(st.sampled_from(KEYS)))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_of_them_may_be_missing(
    tmp_path_factory: pytest.TempPathFactory, made: Path, version: str, undeclared: set[str], missing: set[str]
) -> None:
    folder = tmp_path_factory.mktemp("case")
    whole = prepared(made, version, folder / "whole", set(), set())
    root = prepared(made, version, folder / "part", undeclared, missing)
    expected, store = open_store(whole), open_store(root)
    rows = np.array([14, 0, 6, 5, 9])
    for key in KEYS:
        assert np.array_equal(store.numbers(key, rows), expected.numbers(key, rows)), key
    assert store.texts("task", rows) == expected.texts("task", rows)
    blocks = [block for _, block in store.number_blocks(KEYS, 100)]
    assert np.array_equal(np.concatenate([block["frame_index"] for block in blocks]), [*range(6), *range(5), *range(4)])
    part = open_store(root, episodes=[2, 1], columns=["index"])
    assert part.numbers("index", np.arange(9)).tolist() == [11, 12, 13, 14, 6, 7, 8, 9, 10]
    assert any("derived from the episodes table" in note for note in store.notes) is bool(missing)
    assert any("does not declare it" in note for note in store.notes) is bool(undeclared - missing)
    shutil.rmtree(folder)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("how", ["info.json", "parquet", "both"])
def test_a_conversion_derives_them_with_a_note(tmp_path: Path, made: Path, version: str, how: str) -> None:
    keys = set(KEYS)
    root = prepared(
        made, version, tmp_path / "part", keys if how != "parquet" else set(), keys if how != "info.json" else set()
    )
    report = penstock.convert(root, tmp_path / "new")
    penstock.convert(prepared(made, version, tmp_path / "whole", set(), set()), tmp_path / "expected")
    first, second = (datasets.digests(tmp_path / name) for name in ("new", "expected"))
    assert first == second
    derived = [note for note in report.notes if "derived, data files have no such column" in note]
    assert len(derived) == (how != "info.json") and not any("does not declare" in note for note in report.notes)


def test_tasks_that_only_the_rows_could_report_apart_are_refused(tmp_path: Path, made: Path) -> None:
    root = drop(Path(shutil.copytree(made / "v2.1", tmp_path / "set")), set(), {"task_index"})
    store = open_store(root)
    assert store.numbers("frame_index", np.array([14])).tolist() == [3]
    with pytest.raises(DataSetCorrupt, match="the rows have no task_index, and episode 2 names 2 tasks"):
        store.texts("task", np.array([0]))


def test_other_columns_are_not_made_up(tmp_path: Path, made: Path) -> None:
    root = drop(Path(shutil.copytree(made / "v2.1", tmp_path / "set")), set(), {"counter"})
    with pytest.raises(DataSetCorrupt, match=r"columns \['counter'\] of info.json are missing") as caught:
        penstock.convert(root, tmp_path / "new")
    assert "'leave_out=[counter]' converts the data set without them" in str(caught.value.hint)
    penstock.convert(root, tmp_path / "new", overrides=["leave_out=[counter]"])
    assert "counter" not in datasets.info(tmp_path / "new")["features"]


def test_rows_of_a_file_without_index_are_refused_where_nothing_says_which_they_are(tmp_path: Path, made: Path) -> None:
    root = drop(Path(shutil.copytree(made / "v3.0", tmp_path / "set")), set(), {"index"})
    path = root / "data/chunk-000/file-001.parquet"
    pq.write_table(pq.ParquetFile(path).read().slice(1), path)
    wrong = r"file-001.parquet: 4 rows, the metadata says 5"
    with open_store(root) as store, pytest.raises(DataSetCorrupt, match=wrong):
        store.numbers("action", np.arange(store.rows))


@pytest.mark.parametrize(
    ("version", "undeclared", "missing", "severity"),
    [
        ("v2.1", {"frame_index"}, {"frame_index"}, "info"),
        ("v2.1", set(), {"timestamp", "index"}, "info"),
        ("v2.1", {"task_index"}, set(), "info"),
        ("v3.0", {"frame_index"}, {"frame_index"}, "info"),
        ("v3.0", set(), {"timestamp"}, "error"),
        ("v3.0", {"frame_index"}, set(), "error"),
    ],
)
def test_the_doctor_names_them_and_says_where_lerobot_needs_them(
    tmp_path: Path, made: Path, version: str, undeclared: set[str], missing: set[str], severity: str
) -> None:
    report = check(prepared(made, version, tmp_path / "set", undeclared, missing))
    found = [problem for problem in report.problems if "column '" in problem.message]
    assert {problem.severity for problem in found} == {severity}
    assert {key for key in KEYS if any(f"column {key!r}" in each.message for each in found)} == undeclared | missing
    assert report.is_clean is (severity == "info")
    assert report.counted["rows"] == 15


def test_the_reader_gives_them_too(tmp_path: Path, made: Path) -> None:
    root = prepared(made, "v3.0", tmp_path / "set", set(KEYS), set(KEYS))
    found = reading.rows(open_data_set(root), ["frame_index", "timestamp", "action"], 4, 8)
    assert np.asarray(found["frame_index"]).tolist() == [4, 5, 0, 1]
    assert np.allclose(found["timestamp"], np.array([4, 5, 0, 1]) / 30)
    episodes = reading.rows(open_data_set(root), ["episode_index"], 4, 8)["episode_index"]
    assert episodes.tolist() == [0, 0, 1, 1]
