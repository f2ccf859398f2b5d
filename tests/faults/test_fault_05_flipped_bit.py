"""Fault 5: a flipped bit in a chunk.

Expected: the CRC is checked; the chunk is counted as lost, exit code 3; `--strict` stops.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import recordings
from penstock._src.cli import main
from penstock.errors import RecordingCorrupt
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H
from tests.recordings.containers.makers import everything

H = "observation.images.cam_h"
TAPE = bags.robot(1)


def _flipped(tmp_path: Path) -> tuple[Path, int, int]:
    """An mcap of plain chunks, one bit of an image turned: nothing but the CRC can tell."""
    from mcap.reader import make_reader
    from mcap.writer import CompressionType, Writer

    bags.write(tmp_path / "run.mcapdir", TAPE)
    path = tmp_path / "run.mcap"
    with next((tmp_path / "run.mcapdir").glob("*.mcap")).open("rb") as file, path.open("wb") as out:
        writer = Writer(out, chunk_size=20_000, compression=CompressionType.NONE)
        writer.start("ros2", "test")
        ids: dict[int, int] = {}
        for schema, channel, message in make_reader(file).iter_messages(log_time_order=False):
            if channel.id not in ids:
                assert schema is not None
                kind = writer.register_schema(schema.name, schema.encoding, schema.data)
                ids[channel.id] = writer.register_channel(channel.topic, channel.message_encoding, kind)
            writer.add_message(ids[channel.id], message.log_time, message.data, message.publish_time)
        writer.finish()
    with recordings.open(path) as recording:
        position = int(recording._chunks.position[2])  # type: ignore[attr-defined]
        inside = sum(int((index.chunk == 2).sum()) for index in recording._index)  # type: ignore[attr-defined]
    data = bytearray(path.read_bytes())
    data[data.index(b"\xff\xd8\xff", position) + 700] ^= 0x20
    path.write_bytes(data)
    return path, position, inside


def test_fault_05_convert_counts_the_chunk_and_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, inside = _flipped(tmp_path)
    assert main(["convert", str(path), str(tmp_path / "out"), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert any("CRC" in cause for cause in report["lost"]), report["lost"]
    assert sum(count for cause, count in report["lost"].items() if "CRC" in cause) <= inside
    sent = {message.content.data for message in bags.of(TAPE, CAM_H)}  # type: ignore[union-attr]
    assert set(datasets.samples(tmp_path / "out", H)) < sent  # not one image with the flipped bit


def test_fault_05_strict_stops_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, position, _ = _flipped(tmp_path)
    assert main(["convert", str(path), str(tmp_path / "out"), "--strict"]) == 1
    assert f"byte {position:,}" in (shown := capsys.readouterr().err) and "CRC" in shown
    assert not (tmp_path / "out").exists()


def test_fault_05_reading_doctor_and_recover_count_the_same_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, position, inside = _flipped(tmp_path)
    with recordings.open(path) as recording, pytest.raises(RecordingCorrupt, match="CRC") as caught:
        everything(recording)
    assert caught.value.offset == position
    assert main(["doctor", str(path), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["counted"]["lost"] == inside
    assert main(["recover", str(path), str(tmp_path / "new.mcap"), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["lost_messages"] == inside and not report["lost_unknown"]
    assert main(["doctor", str(tmp_path / "new.mcap")]) == 0
