"""Cut at any byte: every message that lies whole before the cut comes back, and nothing else does."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType, Writer

from penstock import recordings
from penstock._src.recordings.db3.pages import SqlitePages
from penstock._src.recordings.metadata import RecordingFileFacts
from penstock._src.recordings.recovery.report import DamageLog
from penstock._src.recordings.recovery.scan_bytes import FileBytes
from penstock._src.recordings.ros1.scan import recover_bag
from penstock.errors import PenstockError
from tests.recordings.containers.makers import Message, cdr_payload, ros1_payload
from tests.recordings.recovery.cases import (
    PAGE_BYTES,
    Files,
    Payload,
    Rows,
    distinct_messages,
    end_of,
    lettered_messages,
    read_back,
    recover,
    rows_of,
    tiny_bag,
    tiny_db3,
    tiny_mcap,
)

MESSAGES = distinct_messages(9, 2)
# Some rows fill many pages, and there are enough for a tree of pages.
ROWS = lettered_messages(24, 2, 20, 200, 5)
KINDS = ("plain.bag", "plain.mcap", "loose.mcap", "a.db3")


def _make(kind: str, path: Path) -> bytes:
    if kind == "plain.bag":
        return tiny_bag(path, MESSAGES, chunk_bytes=300)
    if kind == "plain.mcap":
        return tiny_mcap(path, MESSAGES, chunk_size=300)
    if kind == "loose.mcap":
        return tiny_mcap(path, MESSAGES, use_chunking=False)
    return tiny_db3(path, ROWS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return Files({kind: _make(kind, tmp_path_factory.mktemp(kind) / kind) for kind in KINDS})


def _before(data: bytes, cut: int, payload: Payload, messages: list[Message] = MESSAGES) -> Rows:
    return rows_of([message for message in messages if end_of(data, message, payload) <= cut], payload)


def _scan(kind: str, source: FileBytes, target: Path, log: DamageLog) -> None:
    """What `recover` does between opening and renaming, which would cost most of the time here."""
    if kind.endswith(".bag"):
        recover_bag(source, target, log, keep_suspect=False)
    else:
        from penstock._src.recordings.mcap.scan import recover_mcap

        recover_mcap(source, target, log, RecordingFileFacts("x", "mcap"), keep_suspect=False)


@pytest.mark.parametrize("kind", ["plain.bag", "plain.mcap", "loose.mcap"])
def test_every_message_before_a_cut_at_every_byte_comes_back(
    whole: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    data = whole[kind]
    payload = ros1_payload if kind.endswith(".bag") else cdr_payload
    source, target = tmp_path / kind, tmp_path / f"new-{kind}"
    source.write_bytes(data)
    previous: Rows | None = None
    for cut in range(len(data) - 1, 0, -1):
        with source.open("r+b") as file:
            file.truncate(cut)
        log = DamageLog()
        target.unlink(missing_ok=True)
        with FileBytes(source) as opened:
            _scan(kind, opened, target, log)
        expected = _before(data, cut, payload)
        assert log.written == sum(expected.values()), cut
        if expected != previous:
            assert read_back(target) == expected, cut
            previous = expected
        report = log.report(source="", output="", kind="", bytes_in=cut, bytes_out=0)
        assert report.lost or log.written == len(MESSAGES), f"a loss at {cut} that nobody is told of"
    assert previous == Counter()


def test_every_row_before_a_cut_at_every_byte_of_a_db3_is_found(whole: dict[str, bytes], tmp_path: Path) -> None:
    data = tiny_db3(tmp_path / "small.db3", ROWS[:9])
    source = tmp_path / "a.db3"
    source.write_bytes(data)
    ends = {cdr_payload(message.text): end_of(data, message, cdr_payload) for message in ROWS[:9]}
    seen = set()
    for cut in range(len(data), 0, -1):
        with source.open("r+b") as file:
            file.truncate(cut)
        with FileBytes(source) as opened:
            pages = SqlitePages(opened)
            values = [pages.values(row) for row in pages.rows() if len(row.types) == 4]
        found = {row[3] for row in values if row is not None and isinstance(row[3], bytes)}
        assert found == {payload for payload, end in ends.items() if end <= cut}, cut
        seen.add(len(found))
    assert {0, len(ends)} < seen


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_recover_returns_what_lies_whole_before_a_cut(
    whole: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(20, len(whole[kind]) - 1))
    place = tmp_path_factory.getbasetemp()
    payload = ros1_payload if kind.endswith(".bag") else cdr_payload
    messages = ROWS if kind == "a.db3" else MESSAGES
    report, rows = recover(whole[kind][:cut], place / kind, place / f"new-{kind}")
    assert rows == _before(whole[kind], cut, payload, messages)
    assert report.exit_code == (3 if report.lost else 0)
    assert report.lost or sum(rows.values()) == len(messages)


PACKED = {
    "lz4.bag": ("lz4", ros1_payload),
    "bz2.bag": ("bz2", ros1_payload),
    "lz4.mcap": (CompressionType.LZ4, cdr_payload),
    "zstd.mcap": (CompressionType.ZSTD, cdr_payload),
}
LONG = distinct_messages(60, 30)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    made = Files()
    for kind, (codec, _) in PACKED.items():
        path = tmp_path_factory.mktemp("packed") / kind
        if kind.endswith(".bag"):
            made[kind] = tiny_bag(path, LONG, chunk_bytes=3000, compression=codec)
        else:
            made[kind] = tiny_mcap(path, LONG, chunk_size=3000, compression=codec)
    return made


@pytest.mark.parametrize("kind", PACKED)
@settings(max_examples=20)
@given(data=st.data())
def test_packed_chunks_before_a_cut_come_back_and_the_last_one_as_far_as_it_decodes(
    packed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    whole, place = packed[kind], tmp_path_factory.getbasetemp()
    (place / kind).write_bytes(whole)
    with recordings.open(place / kind) as recording:
        ends = recording._chunks.position + recording._chunks.stored_bytes  # type: ignore[attr-defined]
        per_chunk = Counter(int(c) for index in recording._index for c in index.chunk)  # type: ignore[attr-defined]
    cut = data.draw(st.integers(40, len(whole) - 1))
    report, rows = recover(whole[:cut], place / kind, place / f"new-{kind}")
    least = sum(count for chunk, count in per_chunk.items() if ends[chunk] <= cut)
    most = least + sum(count for chunk, count in per_chunk.items() if ends[chunk] > cut)
    assert least <= sum(rows.values()) <= most
    # In the order of the recording, a prefix of it, and nothing that was not recorded.
    assert rows == rows_of(LONG[: sum(rows.values())], PACKED[kind][1])
    assert report.lost or sum(rows.values()) == len(LONG)


@pytest.mark.parametrize("kind", ["lz4.bag", "lz4.mcap"])
def test_an_lz4_chunk_that_is_cut_in_its_only_block_is_a_loss_that_is_reported(
    packed: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    whole = packed[kind]
    path = tmp_path / kind
    path.write_bytes(whole)
    with recordings.open(path) as recording:
        begin = int(recording._chunks.position[1])  # type: ignore[attr-defined]
        stored = int(recording._chunks.stored_bytes[1])  # type: ignore[attr-defined]
        before = sum(int((index.chunk == 0).sum()) for index in recording._index)  # type: ignore[attr-defined]
    report, rows = recover(whole[: begin + stored * 3 // 4], path, tmp_path / f"new-{kind}")
    assert sum(rows.values()) == before and report.lost_unknown
    assert any("could be decompressed" in damage.cause for damage in report.damages)


@pytest.mark.parametrize("cut", [0, 1, 5, 12])
@pytest.mark.parametrize("kind", ["plain.bag", "plain.mcap", "a.db3"])
def test_a_file_without_its_first_record_is_our_error_or_an_empty_recording(
    whole: dict[str, bytes], tmp_path: Path, kind: str, cut: int
) -> None:
    source, target = tmp_path / kind, tmp_path / f"new-{kind}"
    source.write_bytes(whole[kind][:cut])
    try:
        report = recordings.recover(source, target)
        assert report.messages == 0 and report.exit_code == 3
    except PenstockError as error:
        assert str(source) in str(error)
        assert not target.exists()


def test_a_db3_cut_inside_its_last_page_is_never_read_with_zeros(tmp_path: Path) -> None:
    messages = lettered_messages(8, 2, 200)
    data = tiny_db3(tmp_path / "whole.db3", messages)
    recorded = rows_of(messages, cdr_payload)
    path = tmp_path / "a.db3"
    for cut in range(len(data) - 1, len(data) - 1100, -37):
        path.write_bytes(data[:cut])
        with pytest.raises(PenstockError, match="cut"):
            recordings.open(path)
        recordings.recover(path, tmp_path / "new.db3", overwrite=True)
        assert read_back(tmp_path / "new.db3") <= recorded


def test_sqlite_alone_reaches_no_row_of_a_cut_db3_whose_leaf_pages_hold_many(tmp_path: Path) -> None:
    """Why penstock._src.recordings.db3.pages exists: the root of a table names pages that lie behind the cut."""
    messages = distinct_messages(700, 3)  # enough for a second level of inner pages
    data = tiny_db3(tmp_path / "whole.db3", messages)
    path = tmp_path / "a.db3"
    path.write_bytes(data[: len(data) // 2 // PAGE_BYTES * PAGE_BYTES])
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.execute("PRAGMA writable_schema = ON")  # or SQLite would refuse the whole file
    reached = 0
    for row in range(1, len(messages) + 1):
        with contextlib.suppress(sqlite3.Error):
            reached += connection.execute("SELECT data FROM messages WHERE rowid = ?", (row,)).fetchone() is not None
    connection.close()
    report = recordings.recover(path, tmp_path / "new.db3")
    assert reached == 0 and report.messages > len(messages) // 3
    assert read_back(tmp_path / "new.db3") <= rows_of(messages, cdr_payload)


def test_records_that_show_through_a_packed_chunk_are_not_taken_for_records_of_the_file(tmp_path: Path) -> None:
    # lz4 leaves what does not shrink as it is: the cut chunk is full of whole records.
    noise = np.random.default_rng(0)
    sent = [noise.bytes(3000) for _ in range(40)]
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=1 << 20, compression=CompressionType.LZ4)
        writer.start()
        channel = writer.register_channel("/noise", "raw", writer.register_schema("a/B", "ros2msg", b"byte[] x"))
        for number, payload in enumerate(sent):
            writer.add_message(channel, number, payload, number)
        writer.finish()
    data = path.read_bytes()
    report, rows = recover(data[: len(data) * 7 // 10], path, tmp_path / "new.mcap")
    assert 25 <= report.messages < 40
    assert rows == Counter(("/noise", number, payload) for number, payload in enumerate(sent[: report.messages]))
