"""Fault 24: the output exists and is not ours: nothing is deleted without --overwrite, and then only what is ours."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock._src.cli import main
from penstock.errors import UsageError
from tests.conversion.bags import robot, write


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    return write(tmp_path / "run.bag", robot(0.4, hz=50))


@pytest.mark.parametrize("flags", [[], ["--overwrite"], ["--resume"], ["--append"]])
def test_24_a_directory_of_somebody_else_is_left_alone(flags: list[str], bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("all of it")
    assert main(["convert", str(bag), str(out), *flags]) == 1
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    assert (out / "thesis.tex").read_text() == "all of it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.bag"]


def test_24_ours_is_replaced_only_when_asked(bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["convert", str(bag), str(out)]) == 0
    info = (out / "meta" / "info.json").stat().st_ino
    assert main(["convert", str(bag), str(out)]) == 1
    assert (out / "meta" / "info.json").stat().st_ino == info
    assert main(["convert", str(bag), str(out), "--overwrite"]) == 0
    assert (out / "meta" / "info.json").stat().st_ino != info


def test_24_a_file_in_the_way_is_left_alone(bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    assert main(["convert", str(bag), str(out), "--overwrite"]) == 1
    assert out.read_text() == "mine"


def test_24_nothing_is_written_into_a_data_set_that_is_the_input(bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(bag, out)
    before = sorted(out.rglob("*"))
    with pytest.raises(UsageError, match=r"out/again lies in the input .*out, which is only read"):
        penstock.convert(out, out / "again")
    with pytest.raises(UsageError, match=r"out is the input itself"):
        penstock.convert(out, out, overwrite=True)
    assert sorted(out.rglob("*")) == before
    assert penstock.convert(tmp_path, out, overwrite=True).sources == (str(bag),)  # found on the way, it is no input
