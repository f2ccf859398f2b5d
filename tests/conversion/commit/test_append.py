"""Episodes appended later give the bytes of a single run over all of them, and the source is never touched."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from penstock._src.conversion.commit.output import copy_for_append
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot import layout
from penstock._src.lerobot.check.dataset import check
from penstock.errors import DataSetError, OutputExists
from tests.lerobot.faults import BreakingDisk
from tests.lerobot.making import CAMERA, digests, make, tree, write_episode
from tests.lerobot.stories import begin, can_resume, undisturbed, write_all

LENGTHS = (5, 3, 9, 4, 6, 1, 7)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digests(undisturbed(tmp_path_factory.mktemp("whole") / "set", LENGTHS))


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("first", [1, 2, 3, 6])
def test_appended_equals_single_run(
    tmp_path: Path, whole: dict[str, str], first: int, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    source = undisturbed(tmp_path / "source", LENGTHS[:first])
    (source / "README.md").write_text("mine")
    before = digests(source)
    copy_for_append(source, tmp_path / "set")
    writer = DataSetWriter.resume(tmp_path / "set", fsync=False)
    write_all(writer, LENGTHS[first:], first)
    writer.close()
    assert digests(source) == before
    found = digests(tmp_path / "set")
    assert found.pop("README.md") and found == whole


def _no_links(*_: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_appended_three_times_in_place(tmp_path: Path, whole: dict[str, str]) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:2])
    for first, stop in ((2, 3), (3, 6), (6, 7)):
        writer = DataSetWriter.resume(root, fsync=False)
        write_all(writer, LENGTHS[first:stop], first)
        writer.close()
    assert digests(root) == whole
    writer.journal.close()
    kinds = [record["type"] for record in writer.journal.records()]
    assert kinds.count("closed") == 4 and kinds.count("reopened") == 3 and kinds[-1] == "closed"


def test_an_appended_data_set_is_whole(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(6, 4))
    writer = DataSetWriter.resume(tmp_path / "set", fsync=False)
    write_episode(writer, 5, 2, task="another")
    writer.close()
    assert check(tmp_path / "set", full=True).is_clean
    make(tmp_path / "whole", lengths=(6, 4, 5), tasks=("lift the cup", "lift the cup", "another"))
    assert digests(tmp_path / "set") == digests(tmp_path / "whole")


def test_an_unfinished_data_set_can_be_copied_too(tmp_path: Path, whole: dict[str, str]) -> None:
    writer = begin(tmp_path / "left")
    write_all(writer, LENGTHS[:4])
    writer.leave()
    before = digests(tmp_path / "left")
    copy_for_append(tmp_path / "left", tmp_path / "set")
    writer = DataSetWriter.resume(tmp_path / "set", fsync=False)
    write_all(writer, LENGTHS[4:], 4)
    writer.close()
    assert digests(tmp_path / "set") == whole and digests(tmp_path / "left") == before


def test_a_copy_that_was_interrupted_is_nothing_to_continue(tmp_path: Path) -> None:
    source = undisturbed(tmp_path / "source", LENGTHS[:3])
    before = digests(source)
    counting = BreakingDisk()
    with pytest.MonkeyPatch.context() as patch:
        counting.install(patch)
        copy_for_append(source, tmp_path / "counted")
    for at in range(counting.calls):
        target = tmp_path / f"at{at}"
        with pytest.MonkeyPatch.context() as patch:
            BreakingDisk(at, for_good=True).install(patch)
            with pytest.raises(DataSetError):
                copy_for_append(source, target)
        if can_resume(target):
            DataSetWriter.resume(target, fsync=False).close()
            assert digests(target) == before
        shutil.rmtree(target, ignore_errors=True)
    assert digests(source) == before


def test_what_is_in_the_way_is_refused(tmp_path: Path) -> None:
    source = undisturbed(tmp_path / "source", (2,))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/letter.txt").write_text("dear")
    with pytest.raises(OutputExists, match="not empty"):
        copy_for_append(source, tmp_path / "set")
    with pytest.raises(DataSetError, match="no journal"):
        copy_for_append(tmp_path / "set", tmp_path / "other")
    begin(tmp_path / "worker_output", is_worker_output=True).leave()
    with pytest.raises(DataSetError, match="worker output"):
        copy_for_append(tmp_path / "worker_output", tmp_path / "other")
    assert tree(tmp_path / "set") == {"letter.txt"} and not (tmp_path / "other").exists()


def test_only_what_grows_is_copied(tmp_path: Path) -> None:
    source = undisturbed(tmp_path / "source", LENGTHS)
    copy_for_append(source, tmp_path / "set")
    for _, path in layout.numbered_files(source / "data", ".parquet"):
        assert path.stat().st_nlink == 2
    videos = [path.stat().st_nlink for _, path in layout.numbered_files(source / "videos" / CAMERA, ".mp4")]
    assert len(videos) > 1 and videos == [2] * (len(videos) - 1) + [1]
    assert not (tmp_path / "set/meta").exists()


def test_the_names_of_linked_files_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy takes the place of its source: a directory that nobody changes any more must be safe by then, too."""
    source = undisturbed(tmp_path / "source", LENGTHS)
    synced: set[str] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    copy_for_append(source, tmp_path / "set")
    linked = [path for path in (tmp_path / "set").rglob("*") if path.is_file() and path.stat().st_nlink > 1]
    assert len({path.parent for path in linked}) > 1
    assert {str(folder) for path in linked for folder in (path.parent, path.parent.parent)} <= synced
