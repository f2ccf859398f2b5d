"""Which paths are recordings, and which files are one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import recordings
from penstock.errors import NotARecording, RecordingError
from tests.recordings.containers.makers import (
    cdr_payload,
    everything,
    expected,
    some_messages,
    write_bag,
    write_mcap,
    write_rosbag2,
)

MESSAGES = some_messages(30)


def _split(root: Path, name: str, parts: int) -> list[Path]:
    size = len(MESSAGES) // parts
    return [write_mcap(root / f"{name}_{n}.mcap", MESSAGES[n * size : (n + 1) * size]) for n in range(parts)]


def test_directory_is_searched_recursively_and_sorted_naturally(tmp_path: Path) -> None:
    (tmp_path / "day" / "two").mkdir(parents=True)
    for name in ("run_10.bag", "run_2.bag", "day/two/x.bag"):
        write_bag(tmp_path / name, MESSAGES)
    write_rosbag2(tmp_path / "day" / "ros2bag", MESSAGES)
    (tmp_path / "notes.txt").write_text("no recording")
    found = [str(path.relative_to(tmp_path)) for path in recordings.find([tmp_path])]
    assert found == ["day/ros2bag", "day/two/x.bag", "run_2.bag", "run_10.bag"]


def test_series_of_files_without_metadata_is_one_recording_in_numeric_order(tmp_path: Path) -> None:
    _split(tmp_path, "part", 15)
    write_mcap(tmp_path / "other.mcap", MESSAGES)
    assert [path.name for path in recordings.find([tmp_path])] == ["other.mcap", "part_0.mcap"]
    with recordings.open(tmp_path / "part_0.mcap") as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert "part_14.mcap" in recording.notes[0]


def test_directory_of_one_series_opens_as_that_series(tmp_path: Path) -> None:
    _split(tmp_path, "part", 3)
    with recordings.open(tmp_path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)


def test_later_file_of_a_series_stands_for_itself(tmp_path: Path) -> None:
    files = _split(tmp_path, "part", 3)
    assert recordings.find([files[1]]) == [files[1]]
    with recordings.open(files[1]) as recording:
        assert sum(topic.count for topic in recording.topics) == 10
    assert recordings.find(files) == [files[0]]


def test_glob_names_each_recording_once(tmp_path: Path) -> None:
    _split(tmp_path, "part", 3)
    write_bag(tmp_path / "a.bag", MESSAGES)
    found = recordings.find([f"{tmp_path}/*", tmp_path / "a.bag", tmp_path])
    assert [path.name for path in found] == ["a.bag", "part_0.mcap"]


def test_files_inside_a_found_bag_directory_are_not_found_twice(tmp_path: Path) -> None:
    bag = write_rosbag2(tmp_path / "bag", MESSAGES)
    assert recordings.find([bag, bag / "bag.db3"]) == [bag]


def test_unfinished_bag_is_found_so_that_it_can_be_reported(tmp_path: Path) -> None:
    write_bag(tmp_path / "a.bag.active", MESSAGES)
    assert [path.name for path in recordings.find([tmp_path])] == ["a.bag.active"]


def test_misspelt_path_names_what_is_near(tmp_path: Path) -> None:
    write_bag(tmp_path / "monday.bag", MESSAGES)
    for call in (recordings.open, lambda path: recordings.find([path])):
        with pytest.raises(RecordingError, match=r"did you mean 'monday\.bag'"):
            call(tmp_path / "mondey.bag")


def test_what_is_no_recording_is_refused_with_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.bag").write_bytes(b"hello world, this is text")
    (tmp_path / "b.bag").write_bytes(b"")
    with pytest.raises(NotARecording, match="begins with b'hello world"):
        recordings.open(tmp_path / "a.bag")
    with pytest.raises(NotARecording, match="empty"):
        recordings.open(tmp_path / "b.bag")
    (tmp_path / "nothing").mkdir()
    for call in (recordings.open, lambda path: recordings.find([path])):
        with pytest.raises(NotARecording, match="no recording"):
            call(tmp_path / "nothing")
    with pytest.raises(RecordingError, match="no file matches"):
        recordings.find([f"{tmp_path}/*.mcap"])


def test_directory_of_several_recordings_asks_which(tmp_path: Path) -> None:
    write_bag(tmp_path / "a.bag", MESSAGES)
    write_bag(tmp_path / "b.bag", MESSAGES)
    with pytest.raises(RecordingError, match=r"holds 2 recordings: a\.bag, b\.bag"):
        recordings.open(tmp_path)


def test_content_counts_and_not_the_name(tmp_path: Path) -> None:
    with recordings.open(write_bag(tmp_path / "a.mcap", MESSAGES)) as recording:
        assert recording.kind == "ros1"


def test_metadata_naming_files_outside_the_directory_is_not_followed(tmp_path: Path) -> None:
    outside = write_mcap(tmp_path / "secret.mcap", MESSAGES)
    bag = tmp_path / "bag"
    bag.mkdir()
    (bag / "metadata.yaml").write_text(
        f"rosbag2_bagfile_information:\n  relative_file_paths: ['../secret.mcap', '{outside}']\n"
    )
    with pytest.raises(NotARecording, match="none of the files"):
        recordings.open(bag)


def test_missing_file_of_a_bag_is_a_counted_loss(tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    bag.mkdir()
    _split(bag, "bag", 3)
    (bag / "bag_1.mcap").unlink()
    (bag / "metadata.yaml").write_text(
        "rosbag2_bagfile_information:\n  relative_file_paths: [bag_0.mcap, bag_1.mcap, bag_2.mcap]\n"
        "  files:\n  - {path: bag_1.mcap, message_count: 10}\n"
    )
    with recordings.open(bag) as recording:
        assert sum(topic.count for topic in recording.topics) == 20
        assert [(loss.count, loss.where) for loss in recording.losses] == [(10, "bag_1.mcap")]


def test_broken_metadata_does_not_hide_the_files(tmp_path: Path) -> None:
    bag = write_rosbag2(tmp_path / "bag", MESSAGES)
    for text in ("{", "- 1", "rosbag2_bagfile_information: 3", "\x00", "rosbag2_bagfile_information: {files: 3}"):
        (bag / "metadata.yaml").write_text(text)
        with recordings.open(bag) as recording:
            assert everything(recording) == expected(MESSAGES, cdr_payload)


def test_metadata_that_disagrees_with_the_file_is_noted_and_the_file_believed(tmp_path: Path) -> None:
    bag = write_rosbag2(tmp_path / "bag", MESSAGES)
    described = (bag / "metadata.yaml").read_text()
    count = sum(message.topic == "/alpha" for message in MESSAGES)
    (bag / "metadata.yaml").write_text(
        described.replace(f"message_count: {count}\n", "message_count: 999\n").replace("/beta", "/delta")
    )
    with recordings.open(bag) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert any("999" in note and "/alpha" in note for note in recording.notes)
        assert any("/delta" in note and "none" in note for note in recording.notes)
