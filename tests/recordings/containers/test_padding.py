"""Bytes between records that hold no message are a note; every message around them is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import recordings
from penstock._src.recordings.recovery.report import DamageLog
from tests.recordings import made
from tests.recordings.containers.makers import all_of, everything

NOTE = "bytes that are no record, "
CASES: dict[str, tuple[Callable[..., bytes], made.Change]] = {
    "behind an index.bag": (made.bag, made.behind_index(1, bytes(50))),
    "before an index.bag": (made.bag, made.behind_chunk(1, bytes(50))),
    "garbage.bag": (made.bag, made.behind_every_index),
    "at the end.bag": (made.bag, lambda data: data + b"\0" * 50),
    "in a chunk.bag": (made.bag, made.zeros_in_chunk),
    "behind an index.mcap": (made.mcap, made.mcap_padded(1, bytes(50))),
    "before an index.mcap": (made.mcap, made.mcap_padded(1, bytes(50), before_index=True)),
}


@pytest.mark.parametrize("on_corrupt", ["raise", "count"])
@pytest.mark.parametrize("name", CASES)
def test_padding_costs_no_message_and_is_a_note(name: str, on_corrupt: str, tmp_path: Path) -> None:
    make, change = CASES[name]
    path = tmp_path / name
    data = make(path)
    with recordings.open(path) as recording:
        whole = everything(recording)
    path.write_bytes(change(data))
    with recordings.open(path, on_corrupt=on_corrupt) as recording:  # type: ignore[arg-type]
        assert everything(recording) == whole
        assert recording.losses == []
        assert name.startswith("in a chunk") or any(NOTE in note for note in recording.notes), recording.notes


def test_an_index_that_points_elsewhere_is_put_right_by_the_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    data = made.bag(path)
    with recordings.open(path) as recording:
        whole = everything(recording)
    path.write_bytes(made.patched(4, 2, 9, of_data=True, flip=0x10)(data))
    with recordings.open(path) as recording:
        assert everything(recording) == whole and recording.losses == []


def test_json_without_a_schema_has_its_type_in_a_scanned_file_too(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = made.Writer(file, chunk_size=200, compression=made.CompressionType.NONE)
        writer.start()
        channel = writer.register_channel("/state", "json", 0)
        for number in range(20):
            writer.add_message(channel, number, b'{"x": 1}', number)
        writer.finish()
    path.write_bytes(made.mcap_padded(1, bytes(50))(path.read_bytes()))
    with recordings.open(path) as recording:
        assert [(topic.type, topic.count) for topic in recording.topics] == [("json", 20)]
        assert any(NOTE in note for note in recording.notes)


def test_every_broken_place_is_counted_also_those_that_are_not_listed() -> None:
    log = DamageLog()
    for place in range(2500):
        log.add(10 * place, 10 * place + 1, "broken")
    report = log.report(source="a", output="b", kind="mcap", bytes_in=0, bytes_out=0)
    assert len(report.damages) < 2500 == report.lost_count == log.lost


def test_a_cut_packed_chunk_gives_what_decodes_to_reading_as_to_recover(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    data = made.mcap(path, compression=made.CompressionType.LZ4, chunk_size=4000)
    chunk = next(begin for kind, begin, _ in reversed(made.mcap_records(data)) if kind == 6)
    path.write_bytes(data[: chunk + 1000])
    report = recordings.recover(path, tmp_path / "new.mcap")
    with recordings.open(path, on_corrupt="count") as recording, recordings.open(tmp_path / "new.mcap") as new:
        assert everything(recording) == everything(new)
        assert all_of(recording)[0].size == report.messages
        assert sum(loss.count for loss in recording.losses) == report.lost_count == 1
