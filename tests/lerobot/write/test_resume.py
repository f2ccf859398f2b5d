"""Killed anywhere and resumed, a data set has the bytes of an undisturbed run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot import layout
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.lerobot.write.sink import LeRobotSink
from penstock._src.media.mp4.index import read_index
from penstock.errors import DataSetCorrupt, DataSetError
from tests.lerobot.making import CAMERA, digests, tree
from tests.lerobot.stories import IDENTITY, begin, fill, task_of, undisturbed, write, write_all

LENGTHS = (5, 3, 9, 1, 6, 4, 7)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("whole") / "set", LENGTHS)


def test_the_limits_of_this_story_roll_files_over_at_several_places(whole: Path) -> None:
    data = open_data_set(whole)
    assert len(data.data_files) >= 3 and any(file.rows > 10 for file in data.data_files)
    assert len(set(data.episodes.videos[CAMERA].file.tolist())) >= 2


@pytest.mark.parametrize("stop", range(len(LENGTHS) + 1))
def test_left_after_any_episode_and_resumed(tmp_path: Path, whole: Path, stop: int) -> None:
    root = tmp_path / "set"
    writer = begin(root)
    write_all(writer, LENGTHS[:stop])
    writer.leave()
    assert not (root / layout.INFO_PATH).exists()
    writer = DataSetWriter.resume(root, fsync=False)
    assert (writer.episodes, writer.frames) == (stop, sum(LENGTHS[:stop]))
    write_all(writer, LENGTHS[stop:], first=stop)
    writer.close()
    assert digests(root) == digests(whole)


def test_stopped_after_every_single_episode(tmp_path: Path, whole: Path) -> None:
    root = tmp_path / "set"
    begin(root).leave()
    for number, rows in enumerate(LENGTHS):
        writer = DataSetWriter.resume(root, fsync=False)
        write(writer, number, rows, last=number % 2 == 0)
        writer.leave()
    DataSetWriter.resume(root, fsync=False).close()
    assert digests(root) == digests(whole)


@pytest.mark.parametrize("gone", [False, True])
def test_an_episode_that_was_being_written_leaves_nothing(tmp_path: Path, whole: Path, gone: bool) -> None:
    """`gone`: the process is, without a word; else the writer is abandoned."""
    root = tmp_path / "set"
    for stop in range(len(LENGTHS)):
        writer = begin(root) if stop == 0 else DataSetWriter.resume(root, fsync=False)
        before = digests(root)
        episode = writer.episode(rows=8, task=task_of(50 + stop))
        fill(episode, 50 + stop, 8)
        writer.stop() if gone else writer.abandon()
        writer = DataSetWriter.resume(root, fsync=False)
        assert digests(root) == before
        write(writer, stop, LENGTHS[stop])
        writer.leave()
    DataSetWriter.resume(root, fsync=False).close()
    assert digests(root) == digests(whole)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=7),
    data_bytes=st.sampled_from([1, 9_000, 30_000, 10**6]),
    video_bytes=st.sampled_from([1, 5_000, 20_000, 10**6]),
    data=st.data(),
)
def test_any_lengths_limits_and_stops(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data_bytes: int, video_bytes: int, data: st.DataObject
) -> None:
    """Left, closed or abandoned in the middle of an episode, in any order: always the same bytes."""
    folder = tmp_path_factory.mktemp("any")
    limits = {"data_file_bytes": data_bytes, "video_file_bytes": video_bytes}
    expected = digests(undisturbed(folder / "whole", lengths, **limits))
    root = folder / "set"
    writer = begin(root, **limits)
    for number, rows in enumerate(lengths):
        how = data.draw(st.sampled_from(["go on", "leave", "close", "abort", "abandon"]))
        if how in ("abort", "abandon"):
            episode = writer.episode(rows=7, task=task_of(70 + number))
            fill(episode, 70 + number, 7)
            episode.abort() if how == "abort" else writer.abandon()
        elif how == "leave" or (how == "close" and number == 0):
            writer.leave()
        elif how == "close":
            writer.close()
        if how not in ("go on", "abort"):
            writer = DataSetWriter.resume(root, fsync=False)
        write(writer, number, rows, last=data.draw(st.booleans()))
    writer.close()
    assert digests(root) == expected
    shutil.rmtree(folder)


def test_what_was_reported_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "set"
    writer = begin(root)
    write(writer, 0, 3)
    writer.note({"lost": {"cam": 2}})
    write(writer, 1, 2)
    writer.note({"done": "größe.bag"})
    writer.leave()
    for _ in range(2):
        writer = DataSetWriter.resume(root, fsync=False)
        assert writer.journal.identity == IDENTITY
        assert [record.note for record in writer.journal.episodes()] == [{"number": 0}, {"number": 1}]
        assert list(writer.journal.notes()) == [{"lost": {"cam": 2}}, {"done": "größe.bag"}]
        assert writer.tasks.texts == ["task 0", "task 1"]
        writer.close()


def info_of(writer: DataSetWriter) -> dict[str, Any]:
    assert isinstance(writer.sink, LeRobotSink)
    return {"videos": writer.sink.video_info, **writer.sink.info({}, {"total_episodes": writer.episodes})}


def test_bad_values_and_statistics_survive(tmp_path: Path, whole: Path) -> None:
    root = tmp_path / "set"
    writer = begin(root)
    write_all(writer, LENGTHS[:3])
    expected = (writer.bad_values(), writer.stats(), info_of(writer))
    writer.leave()
    resumed = DataSetWriter.resume(root, fsync=False)
    assert (resumed.bad_values(), resumed.stats(), info_of(resumed)) == expected
    assert expected[0] == {"state": {"b": {"nan": 1}}}


def test_a_resumed_set_is_no_data_set_until_it_is_closed(tmp_path: Path) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:3])
    before = digests(root)
    writer = DataSetWriter.resume(root, fsync=False)
    assert not (root / layout.INFO_PATH).exists()
    writer.close()
    assert digests(root) == before


def test_one_state_remains(tmp_path: Path) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:4])
    assert {path.name for path in (root / "penstock").iterdir()} == {"journal.jsonl", "state-000004.bin"}
    (root / "penstock/report.json").write_text("{}")
    (root / "README.md").write_text("mine")
    writer = DataSetWriter.resume(root, fsync=False)
    write(writer, 4, 6)
    writer.close()
    assert (root / "README.md").read_text() == "mine"
    assert {path.name for path in (root / "penstock").iterdir()} == {
        "journal.jsonl", "report.json", "state-000005.bin",
    }  # fmt: skip


def test_another_name_of_a_video_keeps_its_video(tmp_path: Path) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:2], video_file_bytes=10**6)
    video = layout.video_path(root, CAMERA, layout.FIRST_FILE)
    backup = tmp_path / "backup.mp4"
    backup.hardlink_to(video)
    before = backup.read_bytes()
    writer = DataSetWriter.resume(root, fsync=False)
    write(writer, 2, 9)
    writer.close()
    assert backup.read_bytes() == before and read_index(video).count == sum(LENGTHS[:3])


def test_missing_and_short_files_are_named(tmp_path: Path) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS)
    before = tree(root)
    missing = layout.data_path(root, layout.FIRST_FILE)
    missing.rename(tmp_path / "kept.parquet")
    short = layout.video_path(root, CAMERA, layout.FIRST_FILE)
    content = short.read_bytes()
    short.write_bytes(content[:100])
    for match in (f"{short}: 100 bytes, ", f"{missing}: 0 rows, "):
        with pytest.raises(DataSetError, match=match):
            DataSetWriter.resume(root, fsync=False)
        assert tree(root) == before - {missing.relative_to(root).as_posix()}  # nothing was touched
        short.write_bytes(content)
    (tmp_path / "kept.parquet").rename(missing)
    DataSetWriter.resume(root, fsync=False).close()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    root = tmp_path / "set"
    writer = begin(root, data_file_bytes=10**6)
    write_all(writer, LENGTHS[:2])
    writer.leave()
    layout.part_path(root, 1).unlink()
    with pytest.raises(DataSetError, match=r"episode-000001\.parquet: missing"):
        DataSetWriter.resume(root, fsync=False)


def test_rows_of_another_file_are_refused(tmp_path: Path) -> None:
    one = undisturbed(tmp_path / "one", (5, 3, 9))
    two = undisturbed(tmp_path / "two", (5, 4, 9))
    shutil.copyfile(layout.data_path(two, layout.FIRST_FILE), layout.data_path(one, layout.FIRST_FILE))
    with pytest.raises(DataSetError, match="rows"):
        DataSetWriter.resume(one, fsync=False)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_state_is_named(tmp_path: Path, damage: str) -> None:
    root = undisturbed(tmp_path / "set", (3,))
    state = root / "penstock/state-000001.bin"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        state.unlink()
    else:
        state.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(DataSetCorrupt, match=r"state-000001\.bin"):
        DataSetWriter.resume(root, fsync=False)
    assert (root / layout.INFO_PATH).exists()


@pytest.mark.parametrize("name", ["data", ".spool", f"videos/{CAMERA}"])
def test_links_lead_nowhere(tmp_path: Path, name: str) -> None:
    root = undisturbed(tmp_path / "set", (2,))
    victim = tmp_path / "victim/chunk-000"
    victim.mkdir(parents=True)
    (victim / "file-007.mp4").write_text("precious")
    (victim / "file-007.parquet").write_text("precious")
    for target in (tmp_path / "victim", root / "meta"):
        link = root / name
        if link.is_symlink():
            link.unlink()
        elif link.exists():
            link.rename(tmp_path / "moved")
        link.symlink_to(target)
        with pytest.raises(DataSetCorrupt, match="symbolic link"):
            DataSetWriter.resume(root, fsync=False)
    assert len(tree(tmp_path / "victim")) == 3 and (root / layout.INFO_PATH).exists()


def test_a_directory_that_is_not_ours_cannot_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(DataSetError, match="no journal"):
        DataSetWriter.resume(tmp_path)
    assert tree(tmp_path) == {"letter.txt"}
