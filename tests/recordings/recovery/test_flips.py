"""Flipped bits: whatever is broken, a readable recording or our error; nothing invented, nothing lost unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType

from penstock import recordings
from penstock.errors import PenstockError
from tests.recordings.containers.makers import cdr_payload, ros1_payload
from tests.recordings.recovery.cases import (
    Files,
    distinct_messages,
    mcap_record_at,
    recover,
    rows_of,
    tiny_bag,
    tiny_db3,
    tiny_mcap,
)

MESSAGES = distinct_messages(24, 4, 1, 9)
KINDS = ("plain.bag", "lz4.bag", "plain.mcap", "zstd.mcap", "loose.mcap", "a.db3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Files:
    place = tmp_path_factory.mktemp("whole")
    zstd = {"chunk_size": 500, "compression": CompressionType.ZSTD}
    return Files(
        {
            "plain.bag": tiny_bag(place / "plain.bag", MESSAGES, chunk_bytes=500),
            "lz4.bag": tiny_bag(place / "lz4.bag", MESSAGES, chunk_bytes=500, compression="lz4"),
            "plain.mcap": tiny_mcap(place / "plain.mcap", MESSAGES, chunk_size=500),
            "zstd.mcap": tiny_mcap(place / "zstd.mcap", MESSAGES, **zstd),
            "loose.mcap": tiny_mcap(place / "loose.mcap", MESSAGES, use_chunking=False),
            "a.db3": tiny_db3(place / "a.db3", MESSAGES),
        }
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(data=st.data())
def test_flipped_bits_never_break_a_recovery_and_invent_nothing(
    whole: Files, tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    damaged = bytearray(whole[kind])
    flips = data.draw(st.lists(st.integers(0, 8 * len(damaged) - 1), min_size=1, max_size=3))
    for bit in flips:
        damaged[bit // 8] ^= 1 << bit % 8
    place = tmp_path_factory.getbasetemp()
    payload = ros1_payload if kind.endswith(".bag") else cdr_payload
    recorded = rows_of(MESSAGES, payload)
    try:
        report, rows = recover(bytes(damaged), place / kind, place / f"new-{kind}")
    except PenstockError as error:
        assert str(error)
        return
    invented = rows - recorded
    # Plain bags and pages have no checksums: a flip inside a message, its time or its topic's name stays unseen, and a
    # name is that of many messages; packed bags multiply a flip. mcap chunks have a CRC, which nobody can check when
    # the head of the chunk is broken too: then the damage is told.
    if kind in ("plain.mcap", "zstd.mcap"):
        known = {row for row in invented if row[0] in {message.topic for message in MESSAGES}}
        assert not known or (report.lost and len(known) < len(flips))
    missing = sum((recorded - rows).values())
    assert report.lost or missing <= sum(invented.values())


def test_a_message_that_became_an_index_record_is_counted(whole: Files, tmp_path: Path) -> None:
    damaged = bytearray(whole["loose.mcap"])
    damaged[mcap_record_at(bytes(damaged), 5, 9)] ^= 2  # a message becomes a message index
    report, rows = recover(bytes(damaged), tmp_path / "a.mcap", tmp_path / "new.mcap")
    assert report.lost and report.lost_messages == 1
    assert sum((rows_of(MESSAGES, cdr_payload) - rows).values()) == 1


@pytest.mark.parametrize("kind", ["plain.bag", "plain.mcap"])
def test_a_broken_length_costs_one_message_and_no_other(whole: Files, tmp_path: Path, kind: str) -> None:
    data = bytearray(whole[kind])
    payload = ros1_payload if kind.endswith(".bag") else cdr_payload
    victim = MESSAGES[10]
    at = data.index(payload(victim.text))
    length_at = at - 4 if kind == "plain.bag" else at - 22 - 8
    if kind == "plain.mcap":  # its CRC would give up the whole chunk: none is claimed
        for number in range(data.count(b"<0")):
            chunk = mcap_record_at(bytes(data), 6, number)
            if chunk < 0:
                break
            data[chunk + 9 + 24 : chunk + 9 + 28] = bytes(4)
    recorded = rows_of(MESSAGES, payload)
    gone = rows_of([victim], payload)
    for flip in (0x01, 0x40, 0x80):
        for byte in (0, 1, 3):
            damaged = bytearray(data)
            damaged[length_at + byte] ^= flip
            report, rows = recover(bytes(damaged), tmp_path / kind, tmp_path / f"new-{kind}")
            assert rows == recorded - gone, (flip, byte)
            assert (report.lost_messages, report.lost_unknown) == (1, False)
            assert any(damage.begin <= length_at < damage.end for damage in report.damages)


def test_a_chunk_that_fails_its_crc_is_lost_by_number_unless_it_is_asked_for(whole: Files, tmp_path: Path) -> None:
    for kind in ("plain.mcap", "zstd.mcap"):
        path = tmp_path / kind
        path.write_bytes(whole[kind])
        with recordings.open(path) as recording:
            position = int(recording._chunks.position[1])  # type: ignore[attr-defined]
            inside = sum(int((index.chunk == 1).sum()) for index in recording._index)  # type: ignore[attr-defined]
        damaged = bytearray(whole[kind])
        at = position + 60 if kind == "plain.mcap" else position - 16 - len("zstd")  # its claimed CRC
        damaged[at] ^= 0x10
        report, rows = recover(bytes(damaged), path, tmp_path / f"new-{kind}")
        assert (report.lost_messages, report.lost_unknown, report.exit_code) == (inside, False, 3)
        assert sum(rows.values()) == len(MESSAGES) - inside
        assert [damage.begin < position <= damage.end for damage in report.damages] == [True]
        kept, rows = recover(bytes(damaged), path, tmp_path / f"new-{kind}", keep_suspect=True)
        assert sum(rows.values()) == len(MESSAGES)
        assert (kept.suspect_messages, kept.lost_messages, kept.exit_code) == (inside, 0, 3)


def test_a_message_index_that_looks_like_a_message_is_none(whole: Files, tmp_path: Path) -> None:
    damaged = bytearray(whole["plain.mcap"])
    damaged[mcap_record_at(bytes(damaged), 7, 1)] = 5
    report, rows = recover(bytes(damaged), tmp_path / "a.mcap", tmp_path / "new.mcap")
    assert rows == rows_of(MESSAGES, cdr_payload)
    assert (report.exit_code, report.damage_count) == (0, 1)


@pytest.mark.parametrize("kind", ["plain.bag", "lz4.bag"])
def test_a_broken_chunk_header_costs_its_chunk_at_most(whole: Files, tmp_path: Path, kind: str) -> None:
    data = whole[kind]
    path = tmp_path / kind
    path.write_bytes(data)
    with recordings.open(path) as recording:
        inside = sum(int((index.chunk == 2).sum()) for index in recording._index)  # type: ignore[attr-defined]
        at = int(recording._chunks.position[2])  # type: ignore[attr-defined]
    damaged = bytearray(data)
    begin = data.rindex(b"op=\x05", 0, at)
    damaged[begin] ^= 0xFF
    report, rows = recover(bytes(damaged), path, tmp_path / f"new-{kind}")
    assert report.lost_messages == len(MESSAGES) - sum(rows.values())
    assert not report.lost_unknown
    assert sum(rows.values()) == len(MESSAGES) - (inside if kind == "lz4.bag" else 0)


def test_a_broken_length_of_a_packed_chunk_costs_nothing(whole: Files, tmp_path: Path) -> None:
    data = whole["lz4.bag"]
    at = data.index(b"size=") + 9
    for value in (b"\x01", b"\xff"):
        damaged = data[:at] + value + data[at + 1 :]
        report, rows = recover(damaged, tmp_path / "lz4.bag", tmp_path / "new.bag")
        assert rows == rows_of(MESSAGES, ros1_payload)
        assert report.exit_code == 0


def test_a_broken_page_of_a_db3_costs_its_own_rows(tmp_path: Path) -> None:
    data = tiny_db3(tmp_path / "whole.db3", MESSAGES)
    leaf = next(at for at in range(1024, len(data), 512) if data[at] == 0x0D and b"<0010:" in data[at : at + 512])
    inside = [message for message in MESSAGES if cdr_payload(message.text) in data[leaf : leaf + 512]]
    damaged = data[:leaf] + bytes(512) + data[leaf + 512 :]
    report, rows = recover(damaged, tmp_path / "a.db3", tmp_path / "new.db3")
    assert rows == rows_of(MESSAGES, cdr_payload) - rows_of(inside, cdr_payload)
    assert report.lost_messages == len(inside) > 0
    assert report.exit_code == 3


def test_a_db3_without_its_header_is_read_all_the_same(tmp_path: Path) -> None:
    data = tiny_db3(tmp_path / "whole.db3", MESSAGES, page_bytes=4096)  # as recorders write them
    report, rows = recover(bytes(100) + data[100:], tmp_path / "a.db3", tmp_path / "new.db3")
    assert rows == rows_of(MESSAGES, cdr_payload)
    assert report.lost_messages == 0
    assert any("does not begin like a file of its name" in note for note in report.notes)
