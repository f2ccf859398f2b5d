"""LeRobot's own readers show, for every row, exactly the frame that was put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._src.media.image import codec
from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.writer import Mp4Writer
from penstock._src.media.video import decode
from penstock._src.media.video.encode import CODECS, VideoEncoder
from penstock._src.media.video.hardware import encoder_settings
from tests.media.images import decoded_alone, gray_jpeg, jpegs, rgb_image

pytestmark = pytest.mark.compat
video_utils: Any = pytest.importorskip("lerobot.datasets.video_utils")

BACKENDS = ["torchcodec", "pyav"]


def read(path: Path, rows: list[int], fps: int, backend: str) -> list[Any]:
    times_s = [row / fps for row in rows]
    found = video_utils.decode_video_frames(path, times_s, 1e-4, backend, return_uint8=True)
    return [np.moveaxis(chw.numpy(), 0, 2) for chw in found]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fps", [10, 30, 50])
@pytest.mark.parametrize("kind", ["4:2:0", "4:2:2", "4:4:4", "gray"])
def test_copied_jpegs_with_repeats_and_any_order(tmp_path: Path, backend: str, fps: int, kind: str) -> None:
    numbers = range(70)
    if kind == "gray":
        images = [gray_jpeg(k) for k in numbers]
    else:
        images = [codec.encode_jpeg(rgb_image(k), subsampling=kind) for k in numbers]
    with Mp4Writer(tmp_path / "a.mp4", stsd=mjpeg_stsd(64, 48), width=64, height=48, fps=fps) as video:
        video.append(images)
        video.repeat(3)
        video.append([images[0]])
        mark = video.mark()
        video.append(jpegs(5, first=200))
        video.rollback(mark)
        video.append(images[10:20])
    rows = [*images, *[images[-1]] * 3, images[0], *images[10:20]]
    for row, rgb in enumerate(read(tmp_path / "a.mp4", list(range(len(rows))), fps, backend)):
        assert np.array_equal(rgb, decoded_alone(rows[row])), row
    for row in (83, 0, 71, 73, 74, 40):
        (rgb,) = read(tmp_path / "a.mp4", [row], fps, backend)
        assert np.array_equal(rgb, decoded_alone(rows[row])), row


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_video_of_one_frame(tmp_path: Path, backend: str) -> None:
    with Mp4Writer(tmp_path / "a.mp4", stsd=mjpeg_stsd(64, 48), width=64, height=48, fps=30) as video:
        video.append(jpegs(1))
    (rgb,) = read(tmp_path / "a.mp4", [0], 30, backend)
    assert np.array_equal(rgb, decoded_alone(jpegs(1)[0]))


@pytest.mark.parametrize("codec", CODECS)
def test_encoded_episodes(tmp_path: Path, codec: str) -> None:
    video: Mp4Writer | None = None
    for episode in range(2):
        with VideoEncoder(encoder_settings(codec), 128, 96, fps=30) as encoder:
            samples = [s for k in range(11) for s in encoder.encode(rgb_image(20 * episode + k, 96, 128))]
            samples += encoder.flush()
            video = video or Mp4Writer(tmp_path / "a.mp4", stsd=encoder.stsd, width=128, height=96, fps=30)
            video.append([s.data for s in samples], [s.key for s in samples])
    assert video is not None
    video.close()
    expected = dict(decode.frames(tmp_path / "a.mp4", range(22)))
    for backend in BACKENDS:
        for row, rgb in enumerate(read(tmp_path / "a.mp4", list(range(22)), 30, backend)):
            assert np.array_equal(rgb, expected[row]), (backend, row)
        for row in (21, 4, 11, 13):
            (rgb,) = read(tmp_path / "a.mp4", [row], 30, backend)
            assert np.array_equal(rgb, expected[row]), (backend, row)


def test_lerobot_describes_and_joins_our_files(tmp_path: Path) -> None:
    for name, first in (("a.mp4", 0), ("b.mp4", 50)):
        with Mp4Writer(tmp_path / name, stsd=mjpeg_stsd(64, 48), width=64, height=48, fps=30) as video:
            video.append(jpegs(6, first=first))
            video.repeat(2)
    info = video_utils.get_video_info(tmp_path / "a.mp4")
    assert (info["video.codec"], info["video.pix_fmt"], info["video.fps"]) == ("mjpeg", "yuvj420p", 30)
    assert video_utils.get_video_duration_in_s(tmp_path / "a.mp4") == pytest.approx(8 / 30)
    video_utils.concatenate_video_files([tmp_path / "a.mp4", tmp_path / "b.mp4"], tmp_path / "both.mp4")
    images = [jpegs(6, first=first) for first in (0, 50)]
    expected = [decoded_alone(jpeg) for part in images for jpeg in [*part, part[5], part[5]]]
    for backend in BACKENDS:
        shown = read(tmp_path / "both.mp4", list(range(16)), 30, backend)
        assert all(np.array_equal(rgb, want) for rgb, want in zip(shown, expected, strict=True))
