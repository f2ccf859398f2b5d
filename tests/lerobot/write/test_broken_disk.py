"""Whatever call to the system fails, the error is ours, and what was committed can be resumed to the same bytes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock._src.conversion.commit.journal import Journal
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock.errors import OutputFailed, PenstockError
from tests.lerobot.faults import BreakingDisk
from tests.lerobot.making import digests
from tests.lerobot.stories import FEATURES, begin, can_resume, undisturbed, write

LENGTHS = (4, 2, 2)
STORY: dict[str, Any] = {"features": FEATURES[:1] + FEATURES[3:4], "data_file_bytes": 5_850, "video_file_bytes": 4_000}


def convert(root: Path) -> None:
    """What a job does: go on if there is something, begin anew if not."""
    if can_resume(root):
        writer = DataSetWriter.resume(root)
    else:
        if root.exists():
            shutil.rmtree(root)
        writer = begin(root, fsync=True, **STORY)
    try:
        for number in range(writer.episodes, len(LENGTHS)):
            write(writer, number, LENGTHS[number], last=number == len(LENGTHS) - 1)
        writer.close()
    except BaseException:
        writer.abandon()
        raise


def broken(root: Path, disk: BreakingDisk) -> bool:
    """Convert on a breaking disk; whether it failed. Every failure is one of ours."""
    with pytest.MonkeyPatch.context() as patch:
        disk.install(patch)
        try:
            convert(root)
        except PenstockError as error:
            # With the disk gone for good, an error of the abort may follow; it is ours as well.
            assert isinstance(error, OutputFailed), repr(error)
            return True
    return False


def committed(root: Path) -> int:
    return sum(1 for _ in Journal.read(root).episodes()) if can_resume(root) else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digests(undisturbed(tmp_path_factory.mktemp("whole") / "set", LENGTHS, **STORY))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls count, not the disk of this machine."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


@pytest.mark.parametrize(("for_good", "step"), [(False, 1), (True, 2)], ids=["one call fails", "the disk is gone"])
def test_a_disk_that_breaks_at_any_call(tmp_path: Path, whole: dict[str, str], for_good: bool, step: int) -> None:
    counting = BreakingDisk()
    assert not broken(tmp_path / "counted", counting)
    failed = survived = 0
    for at in range(0, counting.calls, step):
        root = tmp_path / f"at{at}"
        if broken(root, BreakingDisk(at, for_good=for_good)):
            failed += 1
        before = committed(root)
        convert(root)
        assert digests(root) == whole, f"call {at}"
        survived += before
        shutil.rmtree(root)
    # Only a file that is deleted without need may fail to be: all other calls count.
    assert failed * step > 0.9 * counting.calls and survived * step > counting.calls


def test_a_disk_that_breaks_while_it_is_resumed(tmp_path: Path, whole: dict[str, str]) -> None:
    counting = BreakingDisk()
    left = tmp_path / "left"
    writer = begin(left, **STORY)
    write(writer, 0, LENGTHS[0])
    write(writer, 1, LENGTHS[1])
    writer.close()
    shutil.copytree(left, tmp_path / "counted")
    assert not broken(tmp_path / "counted", counting)
    for at in range(counting.calls):
        root = tmp_path / f"at{at}"
        shutil.copytree(left, root)
        broken(root, BreakingDisk(at, for_good=at % 2 == 0, code=errno.ENOSPC))
        assert committed(root) >= 2
        convert(root)
        assert digests(root) == whole, f"call {at}"
        shutil.rmtree(root)
