"""Small episodes share one round of waiting for the disk; a group counts as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock._src.conversion.commit import journal
from penstock._src.conversion.commit import writer as writers
from penstock._src.conversion.commit.journal import Journal
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock.errors import PenstockError
from tests.lerobot.faults import BreakingDisk
from tests.lerobot.making import digests
from tests.lerobot.stories import FEATURES, begin, can_resume, fill, task_of, undisturbed

LENGTHS = (4, 2, 3, 1, 2, 5, 2)
GROUP = 3


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "GROUP_EPISODES", GROUP)
    monkeypatch.setattr(writers, "GROUP_S", 1e9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digests(undisturbed(tmp_path_factory.mktemp("whole") / "set", LENGTHS))


def write(writer: DataSetWriter, number: int) -> None:
    with writer.episode(rows=LENGTHS[number], task=task_of(number)) as episode:
        fill(episode, number, LENGTHS[number], writer.features)
        episode.commit(note={"number": number}, grouped=True)


def convert(root: Path, until: int = len(LENGTHS)) -> None:
    """What a job does: go on if there is something, begin anew if not."""
    if can_resume(root):
        writer = DataSetWriter.resume(root)
    else:
        shutil.rmtree(root, ignore_errors=True)
        writer = begin(root, fsync=True)
    try:
        for number in range(writer.episodes, until):
            write(writer, number)
        writer.close()
    except BaseException:
        writer.abandon()
        raise


def committed(root: Path) -> int:
    return sum(1 for _ in Journal.read(root).episodes())


def test_a_group_is_brought_to_the_disk_in_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, real=real: (synced.append(_name_of(fd)), real(fd)))
    writer = begin(tmp_path / "set", fsync=True)
    for number in range(GROUP - 1):
        write(writer, number)
    assert synced == [] and committed(writer.root) == 0
    write(writer, GROUP - 1)
    assert committed(writer.root) == GROUP and synced[-1] == "journal.jsonl"
    assert [synced.count(name) for name in ("journal.jsonl", "penstock", ".spool", "state-000003.bin")] == [1, 1, 1, 1]
    assert sum(name.startswith("episode-") for name in synced) == GROUP
    writer.abandon()


@pytest.mark.parametrize(("limit", "value"), [("GROUP_BYTES", 1), ("GROUP_S", 0.0), ("GROUP_EPISODES", 1)])
def test_an_episode_that_took_long_or_is_large_does_not_wait(
    tmp_path: Path, limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, limit, value)
    writer = begin(tmp_path / "set")
    write(writer, 0)
    assert committed(writer.root) == 1
    writer.abandon()


def test_grouped_episodes_give_the_same_bytes(tmp_path: Path, whole: dict[str, str]) -> None:
    convert(tmp_path / "set")
    assert digests(tmp_path / "set") == whole


@pytest.mark.parametrize("end", ["settle", "note", "leave", "abandon", "another"])
def test_whatever_ends_the_wait_keeps_the_group(tmp_path: Path, whole: dict[str, str], end: str) -> None:
    """Also an episode that is open then: it is dropped, and no frame of it stays."""
    writer = begin(tmp_path / "set", fsync=True)
    write(writer, 0)
    write(writer, 1)
    if end == "settle":
        writer.settle()
    elif end == "note":
        writer.note({"so": "far"})
    elif end == "another":
        with writer.episode(rows=LENGTHS[2], task=task_of(2)) as episode:
            fill(episode, 2, LENGTHS[2])
            episode.commit(note={"number": 2})
    else:
        fill(writer.episode(rows=9, task=task_of(77)), 77, 9)
        writer.leave() if end == "leave" else writer.abandon()
    assert committed(tmp_path / "set") == (3 if end == "another" else 2)
    writer.abandon()
    convert(tmp_path / "set")
    assert digests(tmp_path / "set") == whole


@pytest.mark.parametrize("missing_bytes", [1, 30, 3000])
def test_a_group_whose_lines_were_torn_does_not_count(
    tmp_path: Path, whole: dict[str, str], missing_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the lines of a group are written: some of them are whole, and yet none counts."""
    writer = begin(tmp_path / "set", fsync=True)
    for number in range(2 * GROUP - 1):
        write(writer, number)

    def torn(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:-missing_bytes])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journal, "write_all", _only_for("journal.jsonl", torn, journal.write_all))
        write(writer, 2 * GROUP - 1)
    lines = (tmp_path / "set/penstock/journal.jsonl").read_bytes().count(b"\n")
    assert 1 + GROUP < lines < 1 + 2 * GROUP  # the header, the first group, and some of the second
    assert committed(tmp_path / "set") == GROUP
    convert(tmp_path / "set")
    assert digests(tmp_path / "set") == whole


def _name_of(descriptor: int) -> str:
    return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))


def _only_for(name: str, call: Callable[[int, bytes], None], other: Callable[..., None]) -> Callable[..., None]:
    def chosen(descriptor: int, data: bytes) -> None:
        (call if _name_of(descriptor) == name else other)(descriptor, data)

    return chosen


@pytest.mark.parametrize("for_good", [False, True], ids=["one call fails", "the disk is gone"])
def test_a_disk_that_breaks_at_any_call(tmp_path: Path, for_good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setitem(begin.__globals__, "FEATURES", FEATURES[:1] + FEATURES[3:4])
    until = GROUP + 2
    wanted = digests(undisturbed(tmp_path / "wanted", LENGTHS[:until]))
    counting = BreakingDisk()
    with pytest.MonkeyPatch.context() as patch:
        counting.install(patch)
        convert(tmp_path / "counted", until)
    failed = 0
    for at in range(0, counting.calls, 3 if for_good else 2):
        root = tmp_path / f"at{at}"
        with pytest.MonkeyPatch.context() as patch:
            BreakingDisk(at, for_good=for_good).install(patch)
            try:
                convert(root, until)
            except PenstockError:
                failed += 1
        convert(root, until)
        assert digests(root) == wanted, at
        shutil.rmtree(root)
    assert failed > 20
