"""Fetching: the order asked, bounded memory, buffers that are recycled and never shared by mistake."""

from __future__ import annotations

import gc
import sqlite3
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType

from penstock import recordings
from penstock._src.recordings.fetch import BufferPool
from penstock._src.recordings.recording import Loss
from penstock.errors import RecordingCorrupt, RecordingError
from tests.recordings.containers.makers import (
    BASE_NS,
    Message,
    all_of,
    everything,
    some_messages,
    write_bag,
    write_mcap,
    write_rosbag2,
)

MESSAGES = some_messages(150, longest=2000)
CONTAINERS = ("bag", "lz4.bag", "crc.mcap", "zstd.mcap", "db3", "packed-db3")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("containers")
    return {
        "bag": write_bag(root / "a.bag", MESSAGES, chunk_bytes=4000),
        "lz4.bag": write_bag(root / "b.bag", MESSAGES, chunk_bytes=4000, compression="lz4"),
        "crc.mcap": write_mcap(root / "c.mcap", MESSAGES, chunk_size=4000, compression=CompressionType.NONE),
        "zstd.mcap": write_mcap(root / "d.mcap", MESSAGES, chunk_size=4000),
        "db3": write_rosbag2(root / "e", MESSAGES),
        "packed-db3": write_rosbag2(root / "f", MESSAGES, mode="MESSAGE"),
    }


@pytest.mark.parametrize("container", CONTAINERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_in_any_memory_gives_the_same_bytes(paths: dict[str, Path], container: str, data: Any) -> None:
    memory_bytes = data.draw(st.integers(0, 20_000))
    with recordings.open(paths[container]) as recording:
        whole = everything(recording, memory_bytes=16 << 20)
        ids, numbers = all_of(recording)
        places = np.array(data.draw(st.lists(st.integers(0, ids.size - 1), max_size=60)), np.int64)
        names = [(topic.name, topic.type) for topic in recording.topics]
        got = []
        for block in recording.fetch(ids[places], numbers[places], memory_bytes=memory_bytes):
            got += [bytes(payload) for payload in block.payloads if payload is not None]
            block.release()
        assert got == [whole[names[ids[place]]][numbers[place]][1] for place in places]


@pytest.mark.parametrize("container", CONTAINERS)
def test_blocks_stay_valid_while_they_are_held(paths: dict[str, Path], container: str) -> None:
    with recordings.open(paths[container]) as recording:
        whole = everything(recording)
        ids, numbers = all_of(recording)
        blocks = list(recording.fetch(ids, numbers, memory_bytes=64 << 20))
        names = [(topic.name, topic.type) for topic in recording.topics]
        payloads = [payload for block in blocks for payload in block.payloads]
        for topic, number, payload in zip(ids.tolist(), numbers.tolist(), payloads, strict=True):
            assert payload == whole[names[topic]][number][1]


def test_payloads_outlive_a_block_that_was_never_released(paths: dict[str, Path]) -> None:
    with recordings.open(paths["bag"]) as recording:
        whole = everything(recording)
        ids, numbers = all_of(recording)
        kept: list[memoryview | None] = []
        for block in recording.fetch(ids, numbers, memory_bytes=20_000):
            kept += block.payloads
        names = [(topic.name, topic.type) for topic in recording.topics]
        for topic, number, payload in zip(ids.tolist(), numbers.tolist(), kept, strict=True):
            assert payload == whole[names[topic]][number][1]


def test_holding_all_blocks_beyond_the_memory_is_an_error_that_says_so(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "penstock._src.recordings.fetch._WAIT_S", 0.2
    )  # other threads of this process might release them
    with recordings.open(paths["bag"]) as recording:
        ids, numbers = all_of(recording)
        with pytest.raises(RecordingError, match="were not released"):
            list(recording.fetch(ids, numbers, memory_bytes=20_000))


def test_blocks_may_be_released_in_another_thread(paths: dict[str, Path]) -> None:
    with recordings.open(paths["bag"]) as recording:
        ids, numbers = all_of(recording)
        waiting: list[threading.Thread] = []
        seen = 0
        for block in recording.fetch(ids, numbers, memory_bytes=20_000):
            seen += len(block)
            waiting.append(threading.Thread(target=block.release))
            waiting[-1].start()
        for thread in waiting:
            thread.join()
        assert seen == ids.size


def test_payloads_cannot_be_written(paths: dict[str, Path]) -> None:
    for container in CONTAINERS:
        with recordings.open(paths[container]) as recording:
            for block in recording.fetch(np.array([0], np.int32), np.array([0], np.int64)):
                payload = block.payloads[0]
                assert payload is not None and payload.readonly


def test_pool_reuses_what_is_released_and_holds_no_more_than_its_limit() -> None:
    pool = BufferPool(1 << 20)
    first = pool.acquire(200_000)
    pool.give_back(first, True)
    assert pool.acquire(150_000) is first
    for size in (300_000, 100_000, 500_000, 10, 900_000):
        pool.give_back(first, True)
        first = pool.acquire(size)
        assert len(first) >= size
        assert pool.held_bytes <= 1 << 20


def test_one_message_larger_than_the_memory_passes(tmp_path: Path) -> None:
    messages = some_messages(4, longest=100_000)
    with recordings.open(write_bag(tmp_path / "a.bag", messages)) as recording:
        assert everything(recording, memory_bytes=100) == everything(recording, memory_bytes=1 << 24)


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
def test_messages_compressed_one_by_one_keep_to_the_memory_when_unpacked(tmp_path: Path, storage: str) -> None:
    messages = [Message("/alpha", BASE_NS + number, "x" * 100_000) for number in range(60)]
    memory_bytes, seen = 2 << 20, 0
    with recordings.open(write_rosbag2(tmp_path / "a", messages, storage=storage, mode="MESSAGE")) as recording:
        assert recording.size_bytes < 200_000
        for block in recording.fetch(*all_of(recording), memory_bytes=memory_bytes):
            assert sum(len(payload) for payload in block.payloads if payload is not None) <= memory_bytes // 4
            seen += len(block)
            block.release()
    assert seen == len(messages)


def test_broken_messages_that_were_compressed_one_by_one_are_counted_by_their_numbers(tmp_path: Path) -> None:
    messages = [Message("/alpha", BASE_NS + number, "x" * 100_000) for number in range(60)]
    path = write_rosbag2(tmp_path / "a", messages, mode="MESSAGE")
    with sqlite3.connect(next(path.glob("*.db3"))) as file:
        for row, data in file.execute("SELECT rowid, data FROM messages WHERE rowid IN (31, 47)").fetchall():
            file.execute("UPDATE messages SET data = ? WHERE rowid = ?", (data[:-5] + b"xxxxx", row))
    with recordings.open(path, on_corrupt="count") as recording:
        payloads = dict(recording.payloads(recording.topics[0]))
        assert [number for number, payload in payloads.items() if payload is None] == [30, 46]
        assert list(recording.losses) == [Loss("a compressed message does not decompress", 2, "/alpha")]
    with recordings.open(path) as recording, pytest.raises(RecordingCorrupt, match="message 30 of those asked for"):
        list(recording.payloads(recording.topics[0]))


def test_a_request_that_does_not_fit_the_recording_is_refused(paths: dict[str, Path]) -> None:
    with recordings.open(paths["bag"]) as recording:
        count = recording.topics[1].count
        with pytest.raises(RecordingError, match=f"topic with id 1 has no message {count}"):
            recording.fetch(np.array([1], np.int32), np.array([count], np.int64))
        with pytest.raises(RecordingError, match="topic with id 9 has no message 0"):
            recording.fetch(np.array([9], np.int32), np.array([0], np.int64))
        with pytest.raises(RecordingError, match="1-D arrays of one length"):
            recording.fetch(np.array([0], np.int32), np.array([0, 1], np.int64))


@pytest.mark.parametrize("container", CONTAINERS)
def test_clipped_payloads_are_the_beginning_of_whole_ones(paths: dict[str, Path], container: str) -> None:
    with recordings.open(paths[container]) as recording:
        whole = everything(recording)
        ids, numbers = all_of(recording)
        names = [(topic.name, topic.type) for topic in recording.topics]
        for block in recording.fetch(ids, numbers, clip_bytes=128):
            for place, payload in enumerate(block.payloads, block.first):
                full = whole[names[ids[place]]][numbers[place]][1]
                assert payload is not None and full is not None
                assert len(payload) >= min(len(full), 64) and full.startswith(payload)
            block.release()


def test_index_holds_at_most_24_bytes_per_message(tmp_path: Path) -> None:
    messages = some_messages(20_000, longest=10)
    for path in (write_bag(tmp_path / "a.bag", messages), write_rosbag2(tmp_path / "a", messages)):
        with recordings.open(path) as recording:
            assert recording.index_bytes <= 24 * len(messages)


def test_progress_never_exceeds_the_file_and_rises(paths: dict[str, Path]) -> None:
    with recordings.open(paths["bag"]) as recording:
        ids, numbers = all_of(recording)
        order = np.argsort(np.concatenate([recording.times_ns(topic) for topic in recording.topics]))
        seen = []
        for block in recording.fetch(ids[order], numbers[order], memory_bytes=20_000):
            seen.append(block.file_bytes)
            block.release()
        assert seen == sorted(seen) and seen[-1] <= recording.size_bytes


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_closed_recording_holds_no_buffers(paths: dict[str, Path], container: str) -> None:
    """Many recordings are converted in one process: their buffers must not wait for the garbage collector."""
    kept = []
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            with recordings.open(paths[container]) as recording:
                everything(recording, memory_bytes=1 << 20)
            kept.append(recording)
        pool = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/recordings/fetch.py")])
    finally:
        tracemalloc.stop()
        gc.enable()
    assert sum(trace.size for trace in pool.traces) < 16_384
