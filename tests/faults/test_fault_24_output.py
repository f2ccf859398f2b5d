"""Fault 24: the output exists and is not ours: nothing is deleted without --overwrite, and then only what is ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import main
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
