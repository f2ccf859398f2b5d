"""The output directory: never half there, never someone else's deleted, one converter at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock._src.conversion.commit import output
from penstock._src.conversion.job import NoProgress
from penstock.errors import DataSetError, OutputExists, OutputFailed, PenstockError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, STATE
from tests.threads import penstock_threads


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tape = bags.camera(CAM_H, bags.times(30, 0.5)) + bags.joints(STATE, bags.times(60, 0.5))
    return bags.write(tmp_path_factory.mktemp("output") / "run.bag", tape)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_conversion_leaves_nothing_but_its_output(bag: Path, tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "deep/er/out")
    assert names(tmp_path / "deep/er") == ["out"]
    assert names(tmp_path / "deep/er/out") == ["data", "meta", "penstock", "videos"]


def test_an_existing_output_is_refused_and_untouched(bag: Path, tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "out", task="first")
    before = datasets.digests(tmp_path / "out")
    with pytest.raises(OutputExists, match="exists already"):
        penstock.convert(bag, tmp_path / "out", task="second")
    assert datasets.digests(tmp_path / "out") == before


def test_overwrite_replaces_what_penstock_wrote(bag: Path, tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "out", task="first")
    (tmp_path / "out/old-file").write_text("of the first")
    penstock.convert(bag, tmp_path / "out", task="second", overwrite=True)
    assert not (tmp_path / "out/old-file").exists()
    assert datasets.episodes(tmp_path / "out")[0]["tasks"] == ["second"]
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_directory_is_never_deleted(overwrite: bool, bag: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    with pytest.raises(OutputExists, match="not written by penstock"):
        penstock.convert(bag, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out/thesis.tex").read_text() == "years of work"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_lerobot_data_set_is_never_deleted(overwrite: bool, bag: Path, tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "out")
    (tmp_path / "out/penstock/report.json").unlink()
    with pytest.raises(OutputExists):
        penstock.convert(bag, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out/meta/info.json").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_in_the_place_of_the_output_is_left_alone(overwrite: bool, bag: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputExists):
        penstock.convert(bag, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out").read_text() == "mine"


def test_an_empty_directory_may_become_the_output(bag: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    penstock.convert(bag, tmp_path / "out")
    assert datasets.info(tmp_path / "out")["total_episodes"] == 1
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    penstock.convert(bag, ".")
    assert datasets.info(tmp_path / "here")["total_episodes"] == 1


def test_overwrite_through_a_link_replaces_what_lies_behind_it(bag: Path, tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "disk/out", task="first")
    (tmp_path / "link").symlink_to(tmp_path / "disk/out")
    with pytest.raises(OutputExists):
        penstock.convert(bag, tmp_path / "link")
    penstock.convert(bag, tmp_path / "link", task="second", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert datasets.episodes(tmp_path / "disk/out")[0]["tasks"] == ["second"]
    assert names(tmp_path) == ["disk", "link"] and names(tmp_path / "disk") == ["out"]


def test_a_link_into_nowhere_is_refused(bag: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputExists):
        penstock.convert(bag, tmp_path / "link", overwrite=True)


def test_an_output_below_a_file_is_a_clear_error(bag: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataSetError, match="cannot be written"):
        penstock.convert(bag, tmp_path / "file/out")


def building(out: Path) -> contextlib.AbstractContextManager[output.OutputDirectory]:
    """A new data set, nothing of which is committed."""
    return output.building(out, "new", overwrite=False)


class Trouble(Exception):
    """Anything that goes wrong in the middle."""


@pytest.mark.parametrize(("where", "call"), [("plan", 0), ("moved", 0), ("stage", 0), ("stage", 2)])
@pytest.mark.parametrize("kind", [Trouble, KeyboardInterrupt, OSError])
def test_a_failure_leaves_nothing_under_the_name_nor_beside_it(
    where: str, call: int, kind: type[BaseException], bag: Path, tmp_path: Path
) -> None:
    calls = []

    def fail(*_: object) -> None:
        calls.append(where)
        if len(calls) > call:
            raise kind("now")

    before = penstock_threads()
    progress = type("Fails", (NoProgress,), {where: fail})()
    with pytest.raises((kind, PenstockError)):
        penstock.convert(bag, tmp_path / "out", progress=progress, rosbag={"chunk_size": 4})
    assert len(calls) == call + 1
    assert names(tmp_path) == []
    assert not penstock_threads() - before


def test_a_failed_overwrite_keeps_the_old_data_set(bag: Path, tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "out")
    before = datasets.digests(tmp_path / "out")
    with pytest.raises(PenstockError):
        penstock.convert(bag, tmp_path / "out", overwrite=True, timeline="/no_such_topic")
    assert datasets.digests(tmp_path / "out") == before
    assert names(tmp_path) == ["out"]


def test_an_output_that_appears_meanwhile_is_not_replaced(bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OutputExists), building(out) as work:
        (work.root / "x").write_text("")
        work.finished = True
        out.mkdir()
        (out / "someone-else").write_text("")
    assert names(tmp_path) == ["out"] and names(out) == ["someone-else"]


def test_what_a_killed_run_left_is_cleaned_up(bag: Path, tmp_path: Path) -> None:
    left = tmp_path / ("out" + output.PARTIAL_SUFFIX)
    (left / "videos").mkdir(parents=True)
    (left / "videos/half.mp4").write_bytes(b"half")
    left.with_name(left.name + ".lock").write_text("4194304")
    penstock.convert(bag, tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert not (tmp_path / "out/videos/half.mp4").exists()


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_run_killed_while_it_replaces_a_data_set_is_finished_by_the_next(
    moment: str, bag: Path, tmp_path: Path
) -> None:
    """Where the system cannot exchange two names, there are steps between which a process may end."""
    out, partial, aside = (tmp_path / f"out{suffix}" for suffix in ("", output.PARTIAL_SUFFIX, ".penstock-old"))
    penstock.convert(bag, out, task="first")
    penstock.convert(bag, partial, task="second")
    (partial / "penstock/replaces").touch()
    if moment != "before":
        os.rename(out, aside)
    if moment == "after":
        os.rename(partial, out)
    penstock.convert(bag, out, task="third", overwrite=True)
    assert datasets.episodes(out)[0]["tasks"] == ["third"]
    assert names(tmp_path) == ["out"]


def test_what_is_left_of_a_replaced_data_set_is_never_taken_for_an_unfinished_conversion(
    bag: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report goes last: without it, a journal that is still there would be resumed."""
    out, partial = tmp_path / "out", tmp_path / f"out{output.PARTIAL_SUFFIX}"
    penstock.convert(bag, out, task="first")
    real = shutil.rmtree

    def ends_at_the_last_step(path: Path, ignore_errors: bool = False) -> None:
        if path != partial:
            real(path, ignore_errors)
        elif not ignore_errors:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shutil, "rmtree", ends_at_the_last_step)
    with pytest.raises(OutputFailed):
        penstock.convert(bag, out, task="second", overwrite=True)
    monkeypatch.undo()
    assert [path.name for path in partial.rglob("*") if path.is_file()] == ["report.json"]
    penstock.convert(bag, out, task="third", overwrite=True)
    assert datasets.episodes(out)[0]["tasks"] == ["third"] and names(tmp_path) == ["out"]


def test_a_second_converter_on_one_output_is_refused_and_reported_who_holds_it(bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with building(out) as work:
        partial = work.root
        (partial / "mine").write_text("kept")
        command = [sys.executable, "-m", "penstock", "convert", str(bag), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert f"another conversion is writing {out}" in done.stderr
        assert str(os.getpid()) in done.stderr and os.uname().nodename in done.stderr
        assert (partial / "mine").read_text() == "kept"
        (partial / "penstock").mkdir()
        (partial / "penstock/report.json").write_text("{}")
        work.finished = True
    assert (out / "mine").exists() and names(tmp_path) == ["out"]


def test_a_lock_that_its_holder_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder unlinks the file between our open and our flock: locking the dead file would exclude nobody."""
    real, calls = output.fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        if not calls:
            (tmp_path / ("out" + output.PARTIAL_SUFFIX + ".lock")).unlink()
        calls.append(handle)
        real(handle, how)

    monkeypatch.setattr(output.fcntl, "flock", flock)
    with building(tmp_path / "out"):
        assert len(calls) == 2
        assert (tmp_path / ("out" + output.PARTIAL_SUFFIX + ".lock")).exists()
