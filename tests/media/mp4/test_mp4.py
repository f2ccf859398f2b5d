from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.index import read_index
from penstock._src.media.mp4.writer import Mark, Mp4Writer
from penstock._src.system.files import AppendFile, writing
from penstock.errors import OutputFailed, VideoError
from tests.media.images import decoded_alone, gray_jpeg, jpegs

needs_ffprobe = pytest.mark.skipif(shutil.which("ffprobe") is None, reason="ffprobe is not installed")


def writer(target: Path, fps: int = 30, height: int = 48, width: int = 64, **more: Any) -> Mp4Writer:
    return Mp4Writer(target, stsd=mjpeg_stsd(width, height), width=width, height=height, fps=fps, **more)


def assert_shows(path: Path, expected: Sequence[bytes], fps: int = 30) -> None:
    """PyAV sees exactly these JPEGs, one per row, at a constant rate from time zero."""
    import av

    with av.open(str(path)) as container:
        stream: Any = container.streams.video[0]
        assert stream.frames == len(expected)
        assert stream.average_rate == fps
        frames = list(container.decode(stream))
        assert [frame.pts * stream.time_base * fps for frame in frames] == list(range(len(expected)))
        for frame, jpeg in zip(frames, expected, strict=True):
            assert np.array_equal(frame.to_ndarray(format="rgb24"), decoded_alone(jpeg))


@pytest.mark.parametrize("fps", [1, 10, 30, 60, 125])
def test_every_frame_is_the_jpeg_that_was_given(tmp_path: Path, fps: int) -> None:
    images = jpegs(fps + 3)
    with writer(tmp_path / "a.mp4", fps) as video:
        video.append(images[:2])
        video.append([memoryview(piece) for piece in images[2:]])
        assert video.samples == len(images)
    assert_shows(tmp_path / "a.mp4", images, fps)


def test_one_frame_is_a_video(tmp_path: Path) -> None:
    with writer(tmp_path / "a.mp4") as video:
        video.append(jpegs(1))
    assert_shows(tmp_path / "a.mp4", jpegs(1))


def test_gray_frames_are_shown(tmp_path: Path) -> None:
    images = [gray_jpeg(k) for k in range(4)]
    with writer(tmp_path / "a.mp4") as video:
        video.append(images)
    assert_shows(tmp_path / "a.mp4", images)


def test_a_repeated_frame_is_stored_once(tmp_path: Path) -> None:
    a, b, c = jpegs(3)
    with writer(tmp_path / "a.mp4") as video:
        video.append([a, b])
        before = video.tell()
        video.repeat()
        video.repeat(2)
        assert video.tell() == before
        video.append([c])
        video.repeat()
    assert_shows(tmp_path / "a.mp4", [a, b, b, b, b, c, c])
    assert (tmp_path / "a.mp4").read_bytes().count(b) == 1


def test_an_episode_that_is_rolled_back_leaves_no_byte(tmp_path: Path) -> None:
    first, second, third = jpegs(3), jpegs(5, first=10), jpegs(2, first=20)
    with writer(tmp_path / "kept.mp4") as video:
        video.append(first)
        video.append(third)
    with writer(tmp_path / "rolled.mp4") as video:
        video.append(first)
        mark = video.mark()
        video.append(second)
        video.repeat(3)
        video.rollback(mark)
        assert (video.samples, video.tell()) == (mark.samples, mark.end_bytes)
        video.append(third)
    assert (tmp_path / "rolled.mp4").read_bytes() == (tmp_path / "kept.mp4").read_bytes()
    assert_shows(tmp_path / "rolled.mp4", [*first, *third])


def test_the_same_frames_give_the_same_bytes_however_they_are_handed_over(tmp_path: Path) -> None:
    images = jpegs(40)
    with writer(tmp_path / "a.mp4") as video:
        video.append(images)
    with writer(tmp_path / "b.mp4") as video:
        for piece in images:
            video.append([piece])
        video.append([])
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_more_pieces_than_one_call_takes_and_partial_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def partial(fd: int, pieces: Sequence[memoryview | bytes], offset: int) -> int:
        assert len(pieces) <= 1024
        return real(fd, [b"".join(pieces)[:1001]], offset)

    samples = [bytes([k % 251]) * (1 + k % 7) for k in range(2500)]
    with writer(tmp_path / "whole.mp4") as video:
        video.append(samples)
    monkeypatch.setattr(os, "pwritev", partial)
    with writer(tmp_path / "partial.mp4") as video:
        video.append(samples)
    assert (tmp_path / "partial.mp4").read_bytes() == (tmp_path / "whole.mp4").read_bytes()
    index = read_index(tmp_path / "whole.mp4")
    data = (tmp_path / "whole.mp4").read_bytes()
    assert [data[o : o + s] for o, s in zip(index.offsets, index.sizes, strict=True)] == samples


def test_beyond_four_gibibytes(tmp_path: Path) -> None:
    a, b = jpegs(2)
    path = tmp_path / "a.mp4"
    with writer(path) as video:
        video.append([a])
        os.truncate(path, 5 << 30)  # a hole stands for the frames of an hour
        video._file.end_bytes = 5 << 30
        video.append([b])
        video.repeat()
    assert path.stat().st_size > 5 << 30
    assert path.stat().st_blocks * 512 < 1 << 20
    assert_shows(path, [a, b, b])


def test_key_flags_are_kept(tmp_path: Path) -> None:
    with writer(tmp_path / "a.mp4") as video:
        video.append([b"x", b"y", b"z"], [True, False, True])
        video.append([b"w"], [False])
        with pytest.raises(VideoError, match="no key frame"):
            video.repeat()
        with pytest.raises(VideoError, match="2 samples came with another number"):
            video.append([b"x", b"y"], [True])
    assert read_index(tmp_path / "a.mp4").key.tolist() == [True, False, True, False]


def test_frames_stored_in_another_order_are_shown_from_time_zero_at_a_constant_rate(tmp_path: Path) -> None:
    shown = jpegs(5)
    with writer(tmp_path / "a.mp4", fps=25) as video:
        video.append(shown[:1])
        video.append([shown[k] for k in (1, 4, 2, 3)], shifts=[0, 2, -1, -1])
        with pytest.raises(VideoError, match="2 samples came with another number"):
            video.append(shown[:2], shifts=[0])
    assert_shows_in_any_order(tmp_path / "a.mp4", shown, fps=25)


def assert_shows_in_any_order(path: Path, expected: Sequence[bytes], fps: int) -> None:
    """The packets of every time are these JPEGs; a JPEG decoder does not put its frames into order."""
    import av

    with av.open(str(path)) as container:
        stream: Any = container.streams.video[0]
        assert stream.average_rate == fps and stream.start_time == 0
        packets = sorted((packet for packet in container.demux(stream) if packet.size), key=lambda each: each.pts)
        assert [packet.pts * stream.time_base * fps for packet in packets] == list(range(len(expected)))
        assert [bytes(packet) for packet in packets] == list(expected)


@settings(max_examples=40)
@given(data=st.data())
def test_any_order_within_episodes_is_read_back_also_after_a_rollback_and_a_new_start(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Episodes whose frames are stored in any order follow one another; a dropped one leaves nothing."""
    path = tmp_path_factory.mktemp("order") / "a.mp4"
    orders = data.draw(st.lists(st.integers(1, 6).flatmap(lambda n: st.permutations(range(n))), min_size=1, max_size=4))
    expected: list[bytes] = []
    video = writer(path)
    for number, order in enumerate(orders):
        frames = [bytes([number, k]) for k in range(len(order))]
        shifts = [place - k for k, place in enumerate(order)]
        mark: Mark = video.mark()
        video.append([b"dropped", b"too"], shifts=[1, -1])
        video.rollback(mark)
        video.append([frames[place] for place in order], shifts=None if not any(shifts) else shifts)
        if data.draw(st.booleans()):
            table = video.table()
            video.leave()
            video = writer(path, resume=table)
        expected += frames
    video.close()
    index, stored = read_index(path), path.read_bytes()
    order = index.presentation_order()
    found = [stored[index.offsets[k] : index.offsets[k] + index.sizes[k]] for k in order]
    assert found == expected
    assert (index.pts[order] * 30 // index.timescale).tolist() == list(range(len(expected)))


def test_what_makes_no_video_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="at least one sample"), writer(tmp_path / "a.mp4"):
        pass
    with writer(tmp_path / "b.mp4") as video:
        with pytest.raises(VideoError, match="no key frame"):
            video.repeat()
        with pytest.raises(VideoError, match="samples of 0 to 1 bytes"):
            video.append([b"x", b""])
        video.append([b"x"])
    with pytest.raises(VideoError, match="closed already"):
        video.append([b"x"])
    for bad in ({"fps": 0}, {"width": 70_000}, {"height": 0}):
        given: dict[str, Any] = {"stsd": mjpeg_stsd(64, 48), "width": 64, "height": 48, "fps": 30, **bad}
        with pytest.raises(VideoError):
            Mp4Writer(tmp_path / "c.mp4", **given)
    assert sorted(os.listdir(tmp_path)) == ["b.mp4"]


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"precious")
    with pytest.raises(OutputFailed, match=r"a\.mp4: cannot be created"):
        writer(tmp_path / "a.mp4")
    assert (tmp_path / "a.mp4").read_bytes() == b"precious"


def test_an_error_inside_the_block_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writer(tmp_path / "a.mp4") as video:
        video.append([bytes(20 << 20)])
        raise ZeroDivisionError
    assert not (tmp_path / "a.mp4").exists()


def test_a_full_disk_is_named_with_the_place() -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        with pytest.raises(OutputFailed, match="writing failed at byte 0: No space left") as caught:
            AppendFile(fd, "/dev/full").write([b"x"])
        assert caught.value.hint is not None
    finally:
        os.close(fd)


def test_a_failed_write_adds_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = jpegs(2)
    with writer(tmp_path / "a.mp4") as video:
        video.append([a])
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", _fails_with(errno.ENOSPC))
            with pytest.raises(OutputFailed, match="No space left"):
                video.append([b, b])
        video.append([b])
    assert_shows(tmp_path / "a.mp4", [a, b])


def test_space_asked_for_in_advance_is_given_back(tmp_path: Path) -> None:
    for name, fsync in (("a.mp4", True), ("b.mp4", False)):
        video = writer(tmp_path / name)
        for _ in range(9):
            video.append([bytes(1 << 20)])
        mark = video.mark()
        video.append([bytes(30 << 20)])
        video.rollback(mark)
        video.append([b"x" * 1000])
        video.close(fsync=fsync)
        found = (tmp_path / name).stat()
        assert 9 << 20 < found.st_size < (9 << 20) + 5000
        assert found.st_blocks * 512 < 10 << 20


def test_a_page_lost_on_the_way_to_the_disk_fails_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _fails_with(errno.EIO))
    with pytest.raises(OutputFailed, match="bringing the file to the disk failed"), writer(tmp_path / "a.mp4") as video:
        video.append([bytes(17 << 20)])
    assert not (tmp_path / "a.mp4").exists()


def test_without_early_write_back_or_preallocation_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[int, int]] = []

    def make(name: str) -> bytes:
        with writer(tmp_path / name) as video:
            for k in range(5):
                video.append([bytes([k]) * (9 << 20)])
        return (tmp_path / name).read_bytes()

    expected = make("a.mp4")
    monkeypatch.setattr(writing, "begin_write_back", lambda fd, offset, size: started.append((offset, size)))
    monkeypatch.setattr(writing, "_fallocate", lambda fd, offset, size: False)
    assert make("b.mp4") == expected
    assert [offset for offset, _ in started] == [0, started[0][1]] and all(size >= 16 << 20 for _, size in started)


@needs_ffprobe
def test_ffprobe_counts_the_frames_and_finds_the_exact_rate(tmp_path: Path) -> None:
    with writer(tmp_path / "a.mp4", fps=29) as video:
        video.append(jpegs(7))
        video.repeat(3)
        video.append(jpegs(4))
    command = ["ffprobe", "-v", "warning", "-count_frames", "-show_streams", "-of", "json", str(tmp_path / "a.mp4")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (stream,) = json.loads(done.stdout)["streams"]
    found = {key: stream[key] for key in ("codec_name", "nb_frames", "nb_read_frames", "avg_frame_rate", "start_pts")}
    assert found == {
        "codec_name": "mjpeg", "nb_frames": "14", "nb_read_frames": "14", "avg_frame_rate": "29/1", "start_pts": 0,
    }  # fmt: skip
    assert done.stderr == ""


def _fails_with(code: int) -> Any:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail
