"""Fault 13: a parquet file whose writer was stopped before it wrote the footer.

Expected: the file is named, and `doctor` says how to repair the data set.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock._src.cli import main
from penstock.errors import DataSetCorrupt
from tests.conversion import datasets, version21

LENGTHS = (12, 9, 11)


def without_footer(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-16])


def assert_named(source: Path, path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataSetCorrupt) as caught:
        penstock.convert(source, out)
    assert str(path) in caught.value.message and "not a whole parquet file" in caught.value.message
    assert "fetch the file again" in (caught.value.hint or "") and not out.exists()
    assert main(["doctor", str(source)]) == 1
    printed = capsys.readouterr().out
    assert path.name in printed and "not a whole parquet file" in printed and "fetch the file again" in printed


def test_a_file_of_a_v21_episode_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, None)
    without_footer(version21.data_path(source, 1))
    assert_named(source, version21.data_path(source, 1), tmp_path / "new", capsys)
    report = penstock.convert(source, tmp_path / "rest", bad_episodes="drop")
    assert report.episodes == 2 and sum(report.lost.values()) == 1
    assert any(str(version21.data_path(source, 1)) in note for note in report.notes)


@pytest.mark.parametrize("relative", ["data/chunk-000/file-000.parquet", "meta/tasks.parquet",
                                      "meta/episodes/chunk-000/file-000.parquet"])  # fmt: skip
def test_a_file_of_a_v30_data_set_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], relative: str) -> None:
    penstock.convert(version21.make(tmp_path / "old", LENGTHS, None), tmp_path / "set")
    without_footer(tmp_path / "set" / relative)
    assert_named(tmp_path / "set", tmp_path / "set" / relative, tmp_path / "new", capsys)


def test_pages_that_break_only_when_read_are_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    penstock.convert(version21.make(tmp_path / "old", LENGTHS, None), tmp_path / "set")
    path = tmp_path / "set/data/chunk-000/file-000.parquet"
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(DataSetCorrupt, match=r"file-000\.parquet: cannot read rows"):
        penstock.convert(tmp_path / "set", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert datasets.problems(tmp_path / "set")
