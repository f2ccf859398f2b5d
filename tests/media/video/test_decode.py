from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.writer import Mp4Writer
from penstock._src.media.video import decode
from penstock.errors import VideoError
from tests.media.images import decoded_alone, jpegs, psnr_db, rgb_image
from tests.media.mp4.test_mp4_index import ffmpeg_video


def test_frames_of_a_copied_video_by_number(tmp_path: Path) -> None:
    images = jpegs(9)
    with Mp4Writer(tmp_path / "a.mp4", stsd=mjpeg_stsd(64, 48), width=64, height=48, fps=30) as video:
        video.append(images[:5])
        video.repeat(2)
        video.append(images[5:])
    rows = [*images[:5], images[4], images[4], *images[5:]]
    found = list(decode.frames(tmp_path / "a.mp4", [10, 0, 6, 5, 4, 6]))
    assert [number for number, _ in found] == [0, 4, 5, 6, 10]
    for number, rgb in found:
        assert np.array_equal(rgb, decoded_alone(rows[number]))


@pytest.mark.parametrize("first_pts", [0, 7])
def test_frames_between_far_key_frames_and_out_of_decoding_order(tmp_path: Path, first_pts: int) -> None:
    path = ffmpeg_video(tmp_path / "a.mp4", count=40, bf="3", g="15", crf="10", first_pts=first_pts)
    for number, rgb in decode.frames(path, [0, 1, 13, 14, 15, 29, 31, 39]):
        assert psnr_db(rgb, rgb_image(number)) > 25
        assert psnr_db(rgb, rgb_image(number + 1)) < 20


def test_numbers_outside_the_video_and_broken_files_are_named(tmp_path: Path) -> None:
    path = ffmpeg_video(tmp_path / "a.mp4", count=5)
    for bad in ([5], [-1, 2]):
        with pytest.raises(VideoError, match="of a video with 5 frames"):
            list(decode.frames(path, bad))
    assert list(decode.frames(path, [])) == []
    (tmp_path / "text.mp4").write_text("no video at all")
    with pytest.raises(VideoError, match=r"text\.mp4: "):
        list(decode.frames(tmp_path / "text.mp4", [0]))
    with pytest.raises(VideoError, match=r"absent\.mp4"):
        list(decode.frames(tmp_path / "absent.mp4", [0]))


def test_a_frame_that_does_not_decode_is_named(tmp_path: Path) -> None:
    images = jpegs(4)
    with Mp4Writer(tmp_path / "a.mp4", stsd=mjpeg_stsd(64, 48), width=64, height=48, fps=30) as video:
        video.append([*images[:2], b"no image", images[3]])
    with pytest.raises(VideoError, match=r"a\.mp4: (frame 2 of 4 does not decode|cannot be decoded)"):
        list(decode.frames(tmp_path / "a.mp4", [2]))
    assert [number for number, _ in decode.frames(tmp_path / "a.mp4", [0, 1])] == [0, 1]
