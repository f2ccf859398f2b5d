from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._src.media.mp4.index import read_index
from penstock._src.media.mp4.writer import Mp4Writer
from penstock._src.media.video import decode
from penstock._src.media.video.encode import CODECS, EncodedSample, EncoderSettings, VideoEncoder
from penstock._src.media.video.hardware import encoder_settings
from penstock.errors import VideoError
from tests.media.images import psnr_db, rgb_image

HEIGHT, WIDTH = 96, 128


def images(count: int, first: int = 0) -> list[NDArray[np.uint8]]:
    return [rgb_image(first + k, HEIGHT, WIDTH) for k in range(count)]


def encoded(codec: str, frames: list[NDArray[np.uint8]], threads: int = 1) -> tuple[bytes, list[EncodedSample]]:
    with VideoEncoder(encoder_settings(codec, crf=18), WIDTH, HEIGHT, fps=30, threads=threads) as encoder:
        samples = [sample for rgb in frames for sample in encoder.encode(rgb)]
        samples += encoder.flush()
        return encoder.stsd, samples


@pytest.mark.parametrize("codec", CODECS)
def test_every_image_comes_out_once_and_in_order(codec: str, tmp_path: Path) -> None:
    """Two episodes of two encoders in one file, as a converter writes them."""
    episodes = [images(9), images(4, first=20)]
    parts = [encoded(codec, episode) for episode in episodes]
    assert parts[0][0] == parts[1][0]
    with Mp4Writer(tmp_path / "a.mp4", stsd=parts[0][0], width=WIDTH, height=HEIGHT, fps=30) as video:
        for _, samples in parts:
            video.append([sample.data for sample in samples], [sample.key for sample in samples])
    index = read_index(tmp_path / "a.mp4")
    assert (index.codec, index.count, index.fps) == (codec, 13, 30)
    assert index.key.tolist() == [k % 2 == 0 for k in range(9)] + [k % 2 == 0 for k in range(4)]
    shown = dict(decode.frames(tmp_path / "a.mp4", range(13)))
    for number, rgb in enumerate([*episodes[0], *episodes[1]]):
        assert psnr_db(shown[number], rgb) > 30
    for number, rgb in decode.frames(tmp_path / "a.mp4", [12, 3, 10]):
        assert np.array_equal(rgb, shown[number])


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_made_by_ffmpeg_from_the_same_settings_shows_the_same_pixels(codec: str, tmp_path: Path) -> None:
    """Our muxer and our samples against FFmpeg's own: what readers see is equal to the last bit."""
    import av

    settings = encoder_settings(codec, crf=18)
    with av.open(str(tmp_path / "ffmpeg.mp4"), "w") as container:
        stream: Any = container.add_stream(settings.encoder, rate=30, options=settings.options(1))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, settings.pix_fmt
        for k, rgb in enumerate(images(8)):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            frame.pts = k
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    stsd, samples = encoded(codec, images(8))
    with Mp4Writer(tmp_path / "ours.mp4", stsd=stsd, width=WIDTH, height=HEIGHT, fps=30) as video:
        video.append([sample.data for sample in samples], [sample.key for sample in samples])
    ours = dict(decode.frames(tmp_path / "ours.mp4", range(8)))
    theirs = dict(decode.frames(tmp_path / "ffmpeg.mp4", range(8)))
    assert all(np.array_equal(ours[k], theirs[k]) for k in range(8))
    expected = read_index(tmp_path / "ffmpeg.mp4")
    assert [len(sample.data) for sample in samples] == expected.sizes.tolist()
    assert [sample.key for sample in samples] == expected.key.tolist()


def test_encoders_in_threads_give_what_they_give_alone() -> None:
    alone = {codec: encoded(codec, images(6)) for codec in CODECS}
    together: dict[str, tuple[bytes, list[EncodedSample]]] = {}

    def work(codec: str) -> None:
        together[codec] = encoded(codec, images(6))

    threads = [threading.Thread(target=work, args=(codec,)) for codec in CODECS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_the_settings_are_those_of_lerobot() -> None:
    for codec in CODECS:
        settings = EncoderSettings(codec)
        assert (settings.crf, settings.g, settings.pix_fmt) == (30, 2, "yuv420p")
        assert settings.preset == (12 if codec == "av1" else None)
        options = settings.options(threads=3)
        assert (options["crf"], options["g"]) == ("30", "2")
    assert EncoderSettings().codec == "av1"
    assert encoder_settings("h264", crf=20, gop=10, preset="fast") == EncoderSettings("h264", 20, 10, "fast")
    assert encoder_settings("av1") == EncoderSettings("av1")


def test_what_an_encoder_reports_for_info_json() -> None:
    with VideoEncoder(EncoderSettings("h264", preset="fast"), WIDTH, HEIGHT, fps=30) as encoder:
        assert encoder.info == {
            "video.codec": "h264", "video.pix_fmt": "yuv420p", "video.g": 2, "video.crf": 30, "video.preset": "fast",
            "video.fast_decode": 0, "video.video_backend": "pyav", "video.extra_options": {},
        }  # fmt: skip
        assert encoder.flush() == []


@pytest.mark.parametrize("size", [(63, 48), (64, 47), (0, 48)])
def test_odd_sizes_are_refused_with_the_way_out(size: tuple[int, int]) -> None:
    with pytest.raises(VideoError, match=r"even width and height, got \d+×\d+") as caught:
        VideoEncoder(EncoderSettings("h264"), *size, fps=30)
    even = [size[1] + size[1] % 2, size[0] + size[0] % 2]
    assert "JPEG" in str(caught.value) and f"resize: {even} (height, width)" in str(caught.value)


def test_wrong_calls_are_reported() -> None:
    for bad in ({"codec": "vp9"}, {"crf": 64}, {"crf": -1}, {"g": 0}, {"codec": "h264", "crf": 52}):
        with pytest.raises(VideoError):
            EncoderSettings(**bad)  # type: ignore[arg-type]
    with pytest.raises(VideoError, match="known: h264, hevc, av1"):
        encoder_settings("mjpeg")
    with pytest.raises(VideoError, match="libx264 cannot be opened"):
        VideoEncoder(EncoderSettings("h264", preset="quick"), WIDTH, HEIGHT, fps=30)
    with pytest.raises(VideoError, match="at least one thread"):
        VideoEncoder(EncoderSettings("h264"), WIDTH, HEIGHT, fps=30, threads=0)
    with VideoEncoder(EncoderSettings("h264"), WIDTH, HEIGHT, fps=30) as encoder:
        with pytest.raises(VideoError, match=r"image 0 is uint8 \(48, 64, 3\), expected uint8 \(96, 128, 3\)"):
            encoder.encode(rgb_image())
        encoder.encode(images(1)[0])
        assert len(encoder.flush()) == 1
        with pytest.raises(VideoError, match="after the last one"):
            encoder.encode(images(1)[0])
