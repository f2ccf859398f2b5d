"""Fault 14: info.json that disagrees with the episodes table, gaps in the index, paths that lead out of the data set.

Expected: refused by `convert` and named by `doctor`; no file outside of the root is opened.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock._src.cli import main
from penstock.errors import DataSetCorrupt
from tests.conversion import datasets, version21
from tests.conversion.version21 import CAMERA

LENGTHS = (12, 9, 11)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return version21.make(tmp_path / "old", LENGTHS)


@pytest.fixture
def new(tmp_path: Path, old: Path) -> Path:
    penstock.convert(old, tmp_path / "set")
    return tmp_path / "set"


def assert_refused(
    source: Path, message: str, capsys: pytest.CaptureFixture[str], in_doctor: str | None = None
) -> None:
    out = source.parent / "out"
    with pytest.raises(DataSetCorrupt) as caught:
        penstock.convert(source, out)
    assert message in caught.value.message and not out.exists()
    assert main(["doctor", str(source)]) == 1
    assert (in_doctor or message) in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"total_episodes": 4}, "total_episodes is 4"), ({"total_frames": 33}, "total_frames is 33")],
)
def test_totals_that_disagree_are_refused_with_both_numbers(
    old: Path, new: Path, change: dict[str, int], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (old, new):
        version21.edit_info(source, **change)
        assert_refused(source, message, capsys)


def replace_column(path: Path, name: str, change: dict[int, int]) -> None:
    table = pq.ParquetFile(path).read()
    values = np.array(table.column(name).to_pylist())
    for place, value in change.items():
        values[place] = value
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(values)), path)


def test_a_gap_in_the_episodes_table_is_refused(new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = new / "meta/episodes/chunk-000/file-000.parquet"
    replace_column(path, "dataset_from_index", {1: 13})
    replace_column(path, "dataset_to_index", {1: 22})
    assert_refused(new, "episode 1 starts at row 13, the one before ends at 12: an index gap", capsys, "episode 1")


@pytest.mark.parametrize(
    ("column", "place", "message"),
    [("index", 14, "index is 99, not 14"), ("frame_index", 14, "frame_index is 99, not 2"),
     ("episode_index", 14, "episode_index is 99, not 1"), ("task_index", 14, "task_index 99")],
)  # fmt: skip
def test_rows_that_stand_elsewhere_than_they_say_are_refused(
    new: Path, column: str, place: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_column(new / "data/chunk-000/file-000.parquet", column, {place: 99})
    assert_refused(new, message, capsys, column)


@pytest.mark.parametrize("template", ["../{episode_index}.parquet", "/etc/{episode_index}", "data/{__class__}.parquet"])
def test_paths_that_lead_out_of_a_v21_data_set_are_refused(
    old: Path, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "unknown field" if "class" in template else "would leave the data set"
    version21.edit_info(old, data_path=template)
    assert_refused(old, message, capsys)
    version21.edit_info(old, data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet")
    version21.edit_info(old, video_path=template)
    assert_refused(old, message, capsys)


def test_symbolic_links_out_of_a_data_set_are_refused(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (version21.data_path(old, 1), version21.video_path(old, 1)):
        outside = tmp_path / f"outside{path.suffix}"
        path.rename(outside)
        path.symlink_to(outside)
        assert_refused(old, "a symbolic link leads out of the data set", capsys)
        path.unlink()
        outside.rename(path)
    assert penstock.convert(old, tmp_path / "out").episodes == 3


def test_times_in_a_shared_video_that_do_not_fit_the_rows_are_refused(
    new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = new / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.ParquetFile(path).read()
    name = f"videos/{CAMERA}/from_timestamp"
    starts = pa.array([0.0, 0.5, 0.7])
    pq.write_table(table.set_column(table.column_names.index(name), name, starts), path)
    assert_refused(new, f"episode 1, camera {CAMERA!r}: from 0.5 s to 0.7 s are 6.00 frames", capsys, "from_timestamp")
    assert datasets.problems(new)
