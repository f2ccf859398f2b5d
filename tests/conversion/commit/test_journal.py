from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock._src.conversion.commit.journal import Header, Journal, encode_line
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot import layout
from penstock._src.lerobot.features import Description, Feature
from penstock.errors import DataSetCorrupt, DataSetError
from tests.lerobot.making import digests
from tests.lerobot.stories import FEATURES, begin, can_resume, undisturbed, write_all

HEADER = Header(Description(30, FEATURES[3:4], "kuavo", 1000, 2000, 10), {"inputs": ["a\udc80.bag"]})
NOTES: list[dict[str, object]] = [{"n": number, "text": "größe\n" * number} for number in range(4)]


def journal_with_notes(root: Path) -> Journal:
    journal = Journal.create(root, HEADER, fsync=False)
    for note in NOTES:
        journal.append({"type": "note", "note": note})
    journal.close()
    return journal


def test_every_line_is_json_and_comes_back(tmp_path: Path) -> None:
    journal = journal_with_notes(tmp_path)
    lines = journal.path.read_text().splitlines()
    assert [json.loads(line)["record"]["type"] for line in lines] == ["header", "note", "note", "note", "note"]
    read = Journal.read(tmp_path)
    assert read.header == HEADER._replace(identity={})  # which may name very many inputs, and is read when asked for
    assert list(read.notes()) == NOTES and read.identity == HEADER.identity


def test_torn_at_every_byte(tmp_path: Path) -> None:
    path = journal_with_notes(tmp_path).path
    content = path.read_bytes()
    ends = [position + 1 for position, byte in enumerate(content) if byte == ord("\n")]
    for size in range(len(content)):
        path.write_bytes(content[:size])
        whole = sum(end <= size for end in ends)
        if whole == 0:
            assert not can_resume(tmp_path)
            with pytest.raises(DataSetError, match="has no line"):
                Journal.read(tmp_path)
            continue
        journal = Journal.read(tmp_path)
        assert can_resume(tmp_path) and path.stat().st_size == size  # reading changes nothing
        journal.open_for_append(fsync=False)
        assert path.stat().st_size == ends[whole - 1]
        journal.append({"type": "note", "note": {"new": True}})
        journal.close()
        assert list(Journal.read(tmp_path).notes()) == [*NOTES[: whole - 1], {"new": True}]


def test_a_power_cut_may_leave_zeros_at_the_end(tmp_path: Path) -> None:
    path = journal_with_notes(tmp_path).path
    content = path.read_bytes()
    for tail in (bytes(100), b'{"crc":"12' + bytes(50) + b"}}\n"):
        path.write_bytes(content + tail)
        assert list(Journal.read(tmp_path).notes()) == NOTES


def test_a_flipped_bit_is_never_a_loss(tmp_path: Path) -> None:
    path = journal_with_notes(tmp_path).path
    content = path.read_bytes()
    for position in range(0, len(content) - 1, 7):
        damaged = bytearray(content)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(DataSetCorrupt, match="damaged line"):
            Journal.read(tmp_path)


def test_half_a_line_ends_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path, HEADER, fsync=False)
    real = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(DataSetError, match=r"journal\.jsonl: cannot write the journal: No space left"):
            journal.append({"type": "note", "note": NOTES[1]})
    with pytest.raises(DataSetError, match="closed"):
        journal.append({"type": "note", "note": NOTES[1]})
    assert list(Journal.read(tmp_path).records()) == [HEADER.to_json()]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 2}, "journal format 2"),
        ({"type": "note"}, "not a header"),
        ({"features": [{"key": "a"}]}, "dtype None"),
        ({"features": [Feature("../a", "bool", (1,)).to_json() | {"key": "../a"}]}, "feature name"),
    ],
)
def test_headers_of_others_are_refused(tmp_path: Path, change: dict[str, object], text: str) -> None:
    path = tmp_path / layout.JOURNAL_PATH
    path.parent.mkdir()
    path.write_bytes(encode_line({**HEADER.to_json(), **change}))
    with pytest.raises(DataSetError, match=text):
        Journal.read(tmp_path)


def test_only_plain_json_can_be_noted(tmp_path: Path) -> None:
    writer = begin(tmp_path / "set")
    for bad in ({"a": {1, 2}}, {"a": float("nan")}):
        with pytest.raises(DataSetError, match="not plain JSON"):
            writer.note(bad)
    write_all(writer, (2,))
    episode = writer.episode(task="x")
    with pytest.raises(DataSetError, match="no row"):
        episode.commit(note={"a": object()})
    writer.leave()
    assert len(list(Journal.read(tmp_path / "set").episodes())) == 1


def test_a_data_set_whose_last_line_is_torn_loses_that_episode_alone(tmp_path: Path) -> None:
    lengths = (4, 3, 6)
    expected = digests(undisturbed(tmp_path / "whole", lengths))
    left = tmp_path / "left"
    writer = begin(left, data_file_bytes=30_000)
    write_all(writer, lengths[:2])
    before = sorted(path.name for path in (left / "penstock").iterdir())
    kept = {path.name: path.read_bytes() for path in (left / "penstock").iterdir()}
    write_all(writer, lengths[2:], first=2)
    writer.leave()
    # The moment before the line of the third episode was whole: its files are there, the old state is, too.
    content = (left / layout.JOURNAL_PATH).read_bytes()
    for name in before:
        (left / "penstock" / name).write_bytes(kept[name])
    (left / layout.JOURNAL_PATH).write_bytes(content[:-2])
    writer = DataSetWriter.resume(left, fsync=False)
    assert writer.episodes == 2
    write_all(writer, lengths[2:], first=2)
    writer.close()
    assert digests(left) == expected
