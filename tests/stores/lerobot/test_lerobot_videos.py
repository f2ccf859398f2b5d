"""Frames of LeRobot videos through the store: packets by offset, other codecs exactly as FFmpeg decodes them."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock._src.media.video import decode
from penstock._src.media.video.frame_times import FrameTimes
from penstock._src.stores.lerobot.store import LeRobotStore
from penstock._src.stores.lerobot.videos import DepthScale, VideoSource
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from tests.conversion import version21
from tests.conversion.version21 import CAMERA, Video
from tests.lerobot import making
from tests.stores.lerobot_sets import LENGTHS, V21_LENGTHS, images, jpegs, rows_of, v21_frames

VIDEOS = {
    "h264": Video(gop=4), "h264 with b-frames": Video(gop=12, b_frames=2), "hevc": Video("hevc", gop=5, b_frames=1),
    "av1": Video("av1", gop=2), "vp9": Video("vp9", gop=6), "mjpeg": Video("mjpeg"),
}  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed") / "set"
    making.make(root, LENGTHS)
    return root


@pytest.fixture(scope="module")
def long_gop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One key frame per episode, B-frames, 40 and 30 frames."""
    return version21.make(tmp_path_factory.mktemp("gop") / "set", (40, 30), Video(gop=100, b_frames=2))


def source_of(root: Path, name: str = CAMERA, **options: Any) -> VideoSource:
    source = open_store(root, **options).images(name)
    assert isinstance(source, VideoSource)
    return source


@settings(max_examples=15)
@given(data=st.data())
def test_packets_are_the_jpegs_that_were_written(packed: Path, data: st.DataObject) -> None:
    episodes = data.draw(st.none() | st.sampled_from([[0], [2, 1], [1, 0, 2]]))
    places = rows_of(LENGTHS, episodes)
    rows = data.draw(st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=30))
    source = source_of(packed, making.CAMERA, episodes=episodes)
    written = jpegs()
    scratch = Scratch()
    found = [image.tobytes() for image in source.read(rows, scratch)]
    assert found == [written[places[row]] for row in rows]
    assert source.scratch_bytes >= max(map(len, found)) and source.runs(np.array(rows)).tolist() == [*range(len(rows))]


@pytest.mark.parametrize("name", VIDEOS)
def test_every_frame_is_the_one_that_ffmpeg_decodes(tmp_path: Path, name: str) -> None:
    old = version21.make(tmp_path / "old", V21_LENGTHS, VIDEOS[name])
    penstock.convert(old, tmp_path / "new")
    shared = next((tmp_path / "new/videos").rglob("*.mp4"))
    places = rows_of(V21_LENGTHS, None)
    shared.unlink()  # one file for all, encoded in one go
    version21.encode(shared, [version21.image(*place) for place in places], VIDEOS[name])
    together = {places[number]: rgb for number, rgb in decode.frames(shared, range(32))}
    for root, frames in ((old, v21_frames(old)), (tmp_path / "new", together)):
        for episodes in (None, [2, 0]):
            places = rows_of(V21_LENGTHS, episodes)
            source = source_of(root, episodes=episodes)
            order = np.random.default_rng(5).integers(0, len(places), 25).tolist()
            for rows in (order, list(range(len(places)))):
                for row, shown in zip(rows, images(source, rows), strict=True):
                    if name == "mjpeg":  # another decoder of the same packet
                        assert version21.psnr(shown, frames[places[row]]) > 35
                    else:
                        assert np.array_equal(shown, frames[places[row]]), (root.name, episodes, row)


@pytest.mark.parametrize("kind", version21.REORDERED)
def test_moved_b_frames_are_read_at_random_as_the_source_shows_them(tmp_path: Path, kind: str) -> None:
    lengths = (12, 9, 31)
    old = version21.make(tmp_path / "old", lengths, version21.REORDERED[kind])
    penstock.convert(old, tmp_path / "new", video="copy-only")
    frames, places = v21_frames(old, lengths), rows_of(lengths, None)
    order = np.random.default_rng(3).permutation(len(places)).tolist()
    for root in (old, tmp_path / "new"):
        for rows in (order, list(range(len(places)))):
            for row, shown in zip(rows, images(source_of(root), rows), strict=True):
                assert np.array_equal(shown, frames[places[row]]), (root.name, row)


def test_reading_on_needs_no_seek(long_gop: Path) -> None:
    frames = v21_frames(long_gop, (40, 30))
    source = source_of(long_gop)
    for first in range(0, 40, 8):
        for row, shown in zip(range(first, first + 8), source.read(range(first, first + 8), Scratch()), strict=True):
            assert np.array_equal(shown, frames[0, row])
    (decoder,) = source._decoders._idle
    assert decoder.seeks == 0 and decoder.frames_to(40) == 0 and decoder.frames_to(39) is None
    assert np.array_equal(images(source, [3])[0], frames[0, 3])
    assert [decoder.seeks for decoder in source._decoders._idle] == [1]
    assert np.array_equal(images(source, [9])[0], frames[0, 9])  # no key frame lies between: it goes on
    assert [decoder.seeks for decoder in source._decoders._idle] == [1]


def test_two_readers_of_one_file_do_not_disturb_each_other(long_gop: Path) -> None:
    frames = v21_frames(long_gop, (40, 30))
    source = source_of(long_gop)
    one, other = source.read(range(0, 20), Scratch()), source.read(range(15, 35), Scratch())
    for number in range(20):
        assert np.array_equal(next(one), frames[0, number])
        assert np.array_equal(next(other), frames[0, 15 + number])
    assert source._decoders.n_open == 2
    one.close()
    other.close()
    assert source._decoders.n_open == 2


def test_decoders_are_bounded_and_closed(long_gop: Path, tmp_path: Path) -> None:
    many = version21.make(tmp_path / "many", (4,) * 6, Video(gop=2))
    store = open_store(many)
    source = store.images(CAMERA)
    assert isinstance(source, VideoSource)
    images(source, list(range(24)))
    assert source._decoders.n_open <= 2
    unfinished = source.read([0, 1, 2], Scratch())
    next(unfinished)
    store.close()
    assert source._decoders.n_open == 1
    unfinished.close()
    assert source._decoders.n_open == 0
    wide = source_of(long_gop)
    wide.decoder_threads = 3
    assert np.array_equal(images(wide, [33])[0], v21_frames(long_gop, (40, 30))[0, 33])
    assert [decoder.threads for decoder in wide._decoders._idle] == [3]
    wide.close()


def test_what_closed_decoders_leave_in_the_heap_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(decode, "give_back_freed", lambda: given.append(1))
    many = version21.make(tmp_path / "many", (2,) * 20, Video(gop=2))
    with open_store(many) as store:
        source = store.images(CAMERA)
        for episode in range(20):  # one file each, two decoders at a time: 18 are closed here, two at the end
            images(source, [2 * episode])
    assert len(given) in (2, 3)


def test_runs_are_what_one_decoder_reaches_by_going_on(tmp_path: Path, long_gop: Path) -> None:
    source = source_of(long_gop)
    assert source.runs(np.array([0, 2, 30, 39, 40, 41])).tolist() == [0, 0, 0, 0, 1, 1]
    short = source_of(version21.make(tmp_path / "short", (40,), Video(gop=4, options={"sc_threshold": "0"})))
    assert short.runs(np.array([0, 1, 2, 20, 22, 39])).tolist() == [0, 0, 0, 1, 1, 2]
    assert short.runs(np.array([], np.int64)).tolist() == []


def test_four_threads_at_once_get_the_right_frames(packed: Path, long_gop: Path) -> None:
    written, frames = jpegs(), v21_frames(long_gop, (40, 30))
    packets, video = source_of(packed, making.CAMERA), source_of(long_gop)
    places, long_places = rows_of(LENGTHS, None), rows_of((40, 30), None)

    def work(seed: int) -> bool:
        random = np.random.default_rng(seed)
        rows = random.integers(0, 28, 60).tolist()
        scratch = Scratch()
        same = all(
            image.tobytes() == written[places[row]]
            for row, image in zip(rows, packets.read(rows, scratch), strict=True)
        )
        rows = sorted(random.integers(0, 70, 12).tolist())
        shown = zip(rows, video.read(rows, scratch), strict=True)
        return same and all(np.array_equal(image, frames[long_places[row]]) for row, image in shown)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))
    assert video._decoders.n_open <= 4


def _child(store: LeRobotStore, answers: Any) -> None:
    source = store.images(CAMERA)
    assert isinstance(source, VideoSource)
    before = source._decoders.n_open
    shown = images(source, [39, 0, 20])
    answers.put((before, [int(image.sum()) for image in shown], store.numbers("counter", np.array([5])).tolist()))
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_uses_decoders_of_its_own(long_gop: Path, threads: int) -> None:
    frames = v21_frames(long_gop, (40, 30))
    store = LeRobotStore(long_gop)
    source = store.images(CAMERA)
    assert isinstance(source, VideoSource)
    source.decoder_threads = threads
    held = source.read(range(40), Scratch())
    assert np.array_equal(next(held), frames[0, 0])
    store.numbers("counter", np.array([5]))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_child, args=(store, answers))
    child.start()
    try:
        before, sums, numbers = answers.get(timeout=60)
        child.join(60)
    finally:
        child.kill()
    assert child.exitcode == 0 and before == 0 and numbers == [2**40 + 15]
    assert sums == [int(frames[0, number].sum()) for number in (39, 0, 20)]
    assert np.array_equal(next(held), frames[0, 1])  # the parent goes on
    held.close()


def open_below(directory: Path) -> int:
    """How many descriptors of this process are of files there."""
    found = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(os.path.realpath(path).startswith(f"{directory.resolve()}/") for path in found)


def test_open_files_are_bounded_and_given_back(tmp_path: Path) -> None:
    root = tmp_path / "set"
    making.make(root, (2,) * 6, video_file_bytes=1)
    store = LeRobotStore(root)
    store._files._limit = 2
    source = store.images(making.CAMERA)
    written = jpegs((2,) * 6)
    reading = source.read(range(12), Scratch())
    assert next(reading).tobytes() == written[0, 0]
    assert [image.tobytes() for image in source.read(range(12), Scratch())] == list(written.values())
    assert [image.tobytes() for image in reading] == list(written.values())[1:]  # its file left the cache meanwhile
    assert open_below(root) <= 2
    del reading
    store.close()
    assert open_below(root) == 0


def test_indexes_take_8_bytes_per_frame_and_are_bounded(tmp_path: Path) -> None:
    root = tmp_path / "set"
    making.make(root, (40, 40, 40), video_file_bytes=1)
    store = LeRobotStore(root)
    source = store.images(making.CAMERA)
    assert store.index_bytes == 0
    assert len(images(source, [0])) == 1
    one = store.index_bytes
    assert one <= 40 * 8 + 512
    store._indexes._limit = 2 * one
    assert len(images(source, [*range(120)])) == 120
    assert store.index_bytes <= 2 * one


def test_a_file_of_another_codec_is_read_as_what_it_is(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "set", (6, 6), Video("mjpeg"))
    version21.video_path(root, 1).unlink()
    version21.encode(version21.video_path(root, 1), [version21.image(1, row) for row in range(6)], Video())
    shown = images(source_of(root), [7, 2])
    expected = dict(decode.frames(version21.video_path(root, 1), [1]))
    assert np.array_equal(shown[0], expected[1]) and version21.psnr(shown[1], version21.image(0, 2)) > 25


@settings(max_examples=30)
@given(steps=st.lists(st.integers(1, 4), min_size=1, max_size=40), first=st.integers(-5, 5))
def test_times_find_their_frames(steps: list[int], first: int) -> None:
    ticks = np.cumsum([first, *steps]).astype(np.int64)
    keys = np.arange(len(ticks)) % 5 == 0
    times = FrameTimes.of(ticks, keys)
    for number, tick in enumerate(ticks.tolist()):
        assert times.number(tick) == number and times.of_frame(number) == tick
    for tick in set(range(first - 3, int(ticks[-1]) + 3)) - set(ticks.tolist()):
        assert times.number(tick) == -1
    assert times.key_before(np.arange(len(ticks))).tolist() == [number // 5 * 5 for number in range(len(ticks))]


def test_depth_codes_are_millimetres() -> None:
    linear = DepthScale(0.5, 4.595, 0.0, is_log=False)
    codes = np.array([[0, 1, 4095]], np.uint16)
    assert linear.millimetres(codes).tolist() == [[500, 501, 4595]]
    assert DepthScale().millimetres(codes)[0, [0, 2]].tolist() == [10, 10000]


def test_packets_of_an_episode_are_given_as_they_are_stored(packed: Path, long_gop: Path) -> None:
    with open_store(packed, episodes=[2, 0]) as store:
        rows = list(range(LENGTHS[2]))
        stored = [bytes(each) for each in store.images(making.CAMERA).read(rows, Scratch())]
        packets = store.packets(making.CAMERA, 0)
        assert packets is not None and packets.codec == "mjpeg"
        for block_bytes in (1, 1 << 20):
            blocks = list(packets.blocks(block_bytes))
            assert [bytes(piece) for block in blocks for piece in block.pieces] == stored
        assert sum(block.rows for block in blocks) == packets.count == LENGTHS[2]
        assert store.packets("action", 0) is None
    with open_store(long_gop) as store:
        packets = store.packets(CAMERA, 1)
        assert packets is not None and packets.key_rows.tolist() == [0]
        (first,) = packets.blocks(1 << 30)
        assert first.keys[0] and first.shifts is not None and len(first.pieces) == 30
        (shown,) = packets.decoded([7])
        assert np.array_equal(shown, next(iter(store.images(CAMERA).read([47], Scratch()))))
