"""Cut or flipped bytes: our error or the right bytes, never another exception, never memory for what a file claims."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType, IndexType

from penstock import recordings
from penstock.errors import LimitExceeded, PenstockError, RecordingCorrupt
from tests.recordings.containers.makers import everything, some_messages, write_bag, write_mcap, write_rosbag2

MESSAGES = some_messages(25, longest=60)
KINDS = ("plain.bag", "lz4.bag", "bz2.bag", "zstd.mcap", "plain.mcap", "loose.mcap", "unindexed.mcap", "a.db3")


def _make(kind: str, path: Path) -> Path:
    if kind == "plain.bag":
        return write_bag(path, MESSAGES, chunk_bytes=500)
    if kind in ("lz4.bag", "bz2.bag"):
        return write_bag(path, MESSAGES, chunk_bytes=500, compression=kind[:3])
    if kind == "zstd.mcap":
        return write_mcap(path, MESSAGES, chunk_size=500)
    if kind == "plain.mcap":
        return write_mcap(path, MESSAGES, chunk_size=500, compression=CompressionType.NONE)
    if kind == "loose.mcap":
        return write_mcap(path, MESSAGES, use_chunking=False)
    if kind == "unindexed.mcap":
        return write_mcap(path, MESSAGES, chunk_size=500, index_types=IndexType.NONE, use_statistics=False)
    return write_rosbag2(path.parent / "bag", MESSAGES) / "bag.db3"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return {kind: _make(kind, tmp_path_factory.mktemp(kind) / kind).read_bytes() for kind in KINDS}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@contextmanager
def _little_memory(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


def _try(path: Path, data: bytes, on_corrupt: str) -> tuple[int, PenstockError | None]:
    """Messages read, and the error that ended it."""
    path.write_bytes(data)
    try:
        with recordings.open(path, on_corrupt=on_corrupt) as recording:  # type: ignore[arg-type]
            found = everything(recording, memory_bytes=10_000)
            assert on_corrupt == "count" or all(payload is not None for rows in found.values() for _, payload in rows)
            return sum(len(rows) for rows in found.values()), None
    except PenstockError as error:
        assert str(error)
        return 0, error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_corrupt", ["raise", "count"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_file_cut_at_any_byte_is_our_error_or_readable(
    whole: dict[str, bytes], place: Path, kind: str, on_corrupt: str, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, len(whole[kind]) - 1))
    read, error = _try(place / kind, whole[kind][:size], on_corrupt)
    if error is None and on_corrupt == "raise":
        # Only what every message comes back from, or what ends between two records, may pass without an error.
        assert read == len(MESSAGES) or kind.endswith(".mcap")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_corrupt", ["raise", "count"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_flipped_bytes_are_our_error_or_readable(
    whole: dict[str, bytes], place: Path, kind: str, on_corrupt: str, data: st.DataObject
) -> None:
    damaged = bytearray(whole[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        )
    _try(place / kind, bytes(damaged), on_corrupt)


@pytest.mark.parametrize("kind", ["plain.bag", "lz4.bag"])
def test_cut_bag_says_where_it_was_cut_and_what_to_do(whole: dict[str, bytes], place: Path, kind: str) -> None:
    for size in range(13, len(whole[kind]), 97):
        read, error = _try(place / kind, whole[kind][:size], "raise")
        if read == len(MESSAGES):
            continue  # of the index alone something is missing
        assert isinstance(error, RecordingCorrupt)
        assert error.offset is not None and error.offset <= size
        assert error.hint is not None and f"penstock recover {place / kind}" in error.hint


def test_bag_without_index_is_refused_in_strict_reading_with_the_way_to_recover(
    whole: dict[str, bytes], place: Path
) -> None:
    data = whole["plain.bag"]
    at = data.index(b"index_pos=") + len(b"index_pos=")
    (index_at,) = struct.unpack_from("<Q", data, at)
    unfinished = data[:at] + bytes(8) + data[at + 8 : index_at]
    _, error = _try(place / "a.bag.active", unfinished, "raise")
    assert isinstance(error, RecordingCorrupt) and "no index" in error.message
    assert f"penstock recover {place / 'a.bag.active'} a-recovered.bag" in str(error)


def test_old_bag_version_is_refused_by_name(place: Path) -> None:
    _, error = _try(place / "old.bag", b"#ROSBAG V1.2\n" + bytes(4096), "raise")
    assert error is not None and "V1.2" in error.message and "rosbag filter" in str(error)


def _grow(data: bytes, marker: bytes, value: bytes) -> bytes:
    at = data.index(marker) + len(marker)
    return data[:at] + value + data[at + len(value) :]


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "chunk size 4 GiB": lambda data: _grow(data, b"size=", struct.pack("<I", 0xFFFFFFFF)),
    "index count 2^32": lambda data: _grow(data, b"count=", struct.pack("<I", 0xFFFFFFFF)),
    "index beyond the file": lambda data: _grow(data, b"index_pos=", struct.pack("<Q", 1 << 63)),
    "chunk beyond the file": lambda data: _grow(data, b"chunk_pos=", struct.pack("<Q", (1 << 63) - 1)),
}


@pytest.mark.parametrize("kind", ["plain.bag", "lz4.bag"])
@pytest.mark.parametrize("what", HOSTILE)
def test_false_sizes_in_a_bag_take_no_memory_and_are_refused_unless_nothing_is_lost(
    whole: dict[str, bytes], place: Path, kind: str, what: str
) -> None:
    data = HOSTILE[what](whole[kind])
    everything_there, _ = _try(place / kind, whole[kind], "raise")
    with _little_memory(8 << 20):
        found, error = _try(place / kind, data, "raise")
    assert isinstance(error, (RecordingCorrupt, LimitExceeded)) or found == everything_there


@pytest.mark.parametrize("size", [1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("kind", ["zstd.mcap", "plain.mcap"])
def test_false_decompressed_size_in_an_mcap_is_refused_with_both_numbers_unless_nothing_is_lost(
    whole: dict[str, bytes], place: Path, kind: str, size: int
) -> None:
    everything_there, _ = _try(place / kind, whole[kind], "raise")
    data = bytearray(whole[kind])
    chunk_at = _first_record(bytes(data), 6)
    data[chunk_at + 9 + 16 : chunk_at + 9 + 24] = struct.pack("<Q", size)
    with _little_memory(8 << 20):
        found, error = _try(place / kind, bytes(data), "raise")
    if kind == "plain.mcap":
        assert found == everything_there  # its records lie there as they are
    else:
        assert isinstance(error, LimitExceeded) and error.size == size > error.limit


@pytest.mark.parametrize("kind", ["zstd.mcap", "loose.mcap"])
def test_record_length_beyond_the_file_is_refused(whole: dict[str, bytes], place: Path, kind: str) -> None:
    data = bytearray(whole[kind])
    at = _first_record(bytes(data), 5 if kind == "loose.mcap" else 6)
    data[at + 1 : at + 9] = struct.pack("<Q", 1 << 63)
    with _little_memory(8 << 20):
        _, error = _try(place / kind, bytes(data), "raise")
    assert isinstance(error, RecordingCorrupt) and error.offset == at


def _first_record(data: bytes, kind: int) -> int:
    at = 8
    while data[at] != kind:
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    return at


def test_understated_size_of_a_chunk_is_found_out(whole: dict[str, bytes], place: Path) -> None:
    data = whole["lz4.bag"]
    at = data.index(b"size=") + 5
    (size,) = struct.unpack_from("<I", data, at)
    for claimed in (size - 1, size + 1):
        _, error = _try(place / "lz4.bag", _grow(data, b"size=", struct.pack("<I", claimed)), "raise")
        assert isinstance(error, RecordingCorrupt) and f"claims {claimed:,}" in error.message


@pytest.mark.parametrize("kind", ["zstd.mcap", "plain.mcap", "bz2.bag"])
def test_damaged_chunk_costs_its_own_messages_only_when_losses_are_counted(
    whole: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / kind
    path.write_bytes(whole[kind])
    with recordings.open(path) as recording:
        complete = everything(recording)
        position, stored = recording._chunks.position[1], recording._chunks.stored_bytes[1]  # type: ignore[attr-defined]
        lost = sum((index.chunk == 1).sum() for index in recording._index)  # type: ignore[attr-defined]
    damaged = bytearray(whole[kind])
    damaged[int(position + stored // 2)] ^= 0xFF
    path.write_bytes(damaged)
    with recordings.open(path) as recording, pytest.raises(RecordingCorrupt) as caught:
        everything(recording)
    assert caught.value.offset == position
    with recordings.open(path, on_corrupt="count") as recording:
        for _ in range(2):
            found = everything(recording)
            assert sum(loss.count for loss in recording.losses) == lost
        assert all(f"byte {int(position):,}" in loss.where for loss in recording.losses)
    missing = 0
    for key, rows in complete.items():
        for one, other in zip(rows, found[key], strict=True):
            assert other == one or other == (one[0], None)
            missing += other[1] is None
    assert missing == lost > 0


def test_file_that_shrinks_under_the_reader_is_our_error(whole: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    path.write_bytes(whole["plain.bag"])
    with recordings.open(path) as recording:
        with path.open("r+b") as file:
            file.truncate(5000)
        with pytest.raises(RecordingCorrupt, match="the file ends"):
            everything(recording)
