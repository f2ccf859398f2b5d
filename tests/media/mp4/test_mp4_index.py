from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock._src.media.mp4 import boxes as mp4_boxes
from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.index import VideoIndex, read_index
from penstock._src.media.mp4.writer import Mp4Writer
from penstock.errors import LimitExceeded, VideoError
from tests.media.images import jpegs, rgb_image

REAL = sorted((Path(__file__).parents[4] / "shared" / "data" / "lerobot").rglob("*.mp4"))
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


def ffmpeg_video(path: Path, codec: str = "libx264", count: int = 30, first_pts: int = 0, **options: str) -> Path:
    """A file as FFmpeg writes it, through PyAV; `container_…` options go to the muxer."""
    import av

    muxer = {key.removeprefix("container_"): value for key, value in options.items() if key.startswith("container_")}
    encoder = {key: value for key, value in options.items() if not key.startswith("container_")}
    with av.open(str(path), "w", options=muxer) as container:
        stream: Any = container.add_stream(codec, rate=25, options=encoder)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for k in range(count):
            frame = av.VideoFrame.from_ndarray(rgb_image(k), format="rgb24")
            frame.pts = first_pts + k
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def assert_agrees_with_ffmpeg(path: Path) -> VideoIndex:
    """Every packet that PyAV demuxes has the bytes, time and key flag that the index gives."""
    import av

    index = read_index(path)
    data = path.read_bytes()
    with av.open(str(path)) as container:
        stream: Any = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert index.codec == stream.codec_context.name.replace("libdav1d", "av1")
        assert (index.width, index.height) == (stream.width, stream.height)
        assert index.timescale == 1 / stream.time_base
        assert len(packets) == index.count == stream.frames
        assert [packet.pts for packet in packets] == index.pts.tolist()
        assert [bool(packet.is_keyframe) for packet in packets] == index.key.tolist()
        assert [not packet.is_discard for packet in packets] == index.shown.tolist()
        for packet, offset, size in zip(packets, index.offsets, index.sizes, strict=True):
            assert bytes(packet) == data[offset : offset + size]
    with av.open(str(path)) as container:
        seen = [frame.pts for frame in container.decode(video=0)]
    assert seen == index.pts[index.presentation_order()].tolist()
    return index


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_files_with_reordered_frames(tmp_path: Path, suffix: str) -> None:
    index = assert_agrees_with_ffmpeg(ffmpeg_video(tmp_path / f"a{suffix}", bf="3", g="12"))
    assert not index.key.all()
    assert index.presentation_order().tolist() != list(range(30))
    assert index.fps == pytest.approx(25)
    assert index.duration_s == pytest.approx(30 / 25)


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"container_movflags": "faststart", "bf": "2"}),
        ("libx264", {"container_movflags": "negative_cts_offsets", "bf": "2"}),
        ("libx264", {"container_video_track_timescale": "90000"}),
        ("libx265", {"x265-params": "log-level=none"}),
        ("mjpeg", {}),
        ("mpeg4", {"bf": "2"}),
    ],
)
def test_other_codecs_and_layouts_of_ffmpeg(tmp_path: Path, codec: str, options: dict[str, str]) -> None:
    assert_agrees_with_ffmpeg(ffmpeg_video(tmp_path / "a.mp4", codec, count=20, **options))


def test_a_track_that_starts_late(tmp_path: Path) -> None:
    index = assert_agrees_with_ffmpeg(ffmpeg_video(tmp_path / "a.mp4", first_pts=10, bf="0", g="5"))
    assert index.pts[0] == 10 * index.timescale // 25


def test_a_video_track_after_an_audio_track(tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        sound: Any = container.add_stream("aac", rate=48000, layout="mono")
        video: Any = container.add_stream("libx264", rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        for k in range(12):
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            silence.sample_rate, silence.pts = 48000, 1024 * k
            container.mux(sound.encode(silence))
            frame = av.VideoFrame.from_ndarray(rgb_image(k), format="rgb24")
            frame.pts = k
            container.mux(video.encode(frame))
        container.mux(sound.encode(None))
        container.mux(video.encode(None))
    assert_agrees_with_ffmpeg(tmp_path / "a.mp4")


@needs_ffmpeg
def test_a_cut_without_reencoding_keeps_frames_that_are_not_shown(tmp_path: Path) -> None:
    ffmpeg_video(tmp_path / "whole.mp4", count=60, g="20", bf="0", sc_threshold="0")
    command = ["ffmpeg", "-v", "error", "-ss", "1.0", "-i", str(tmp_path / "whole.mp4"), "-c", "copy"]
    subprocess.run([*command, str(tmp_path / "cut.mp4")], check=True)
    index = assert_agrees_with_ffmpeg(tmp_path / "cut.mp4")
    assert (~index.shown).sum() == 5


def test_our_own_files_with_repeats(tmp_path: Path) -> None:
    with Mp4Writer(tmp_path / "a.mp4", stsd=mjpeg_stsd(64, 48), width=64, height=48, fps=30) as video:
        video.append(jpegs(40))
        video.repeat(2)
        video.append(jpegs(3))
    index = assert_agrees_with_ffmpeg(tmp_path / "a.mp4")
    assert index.fps == 30
    assert index.offsets[39] == index.offsets[40] == index.offsets[41]


@pytest.mark.skipif(not REAL, reason="no shared recordings here")
def test_real_videos_of_a_lerobot_data_set() -> None:
    for path in REAL:
        assert assert_agrees_with_ffmpeg(path).codec == "av1"


def test_a_fragmented_file_is_named_as_such(tmp_path: Path) -> None:
    ffmpeg_video(tmp_path / "a.mp4", container_movflags="frag_keyframe+empty_moov")
    with pytest.raises(VideoError, match="fragmented") as caught:
        read_index(tmp_path / "a.mp4")
    assert "ffmpeg -i" in str(caught.value)


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="cannot be opened: No such file"):
        read_index(tmp_path / "absent.mp4")
    with pytest.raises(VideoError, match="cannot be"):
        read_index(tmp_path)
    for name, data, says in [
        ("empty", b"", "0 bytes"),
        ("text", b"hello world, this is text", "claims"),
        ("sound", mp4_boxes._box(b"moov", mp4_boxes._box(b"trak")), "no video track"),
        ("unclosed", mp4_boxes.prologue() + bytes(100), "claims 0 bytes"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(VideoError, match=says):
            read_index(tmp_path / name)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    data = ffmpeg_video(tmp_path / "a.mp4", count=4).read_bytes()
    for size in range(0, len(data), 7):
        (tmp_path / "cut.mp4").write_bytes(data[:size])
        with pytest.raises(VideoError):
            read_index(tmp_path / "cut.mp4")


def test_a_file_whose_samples_are_missing_names_the_first(tmp_path: Path) -> None:
    data = ffmpeg_video(tmp_path / "a.mp4", count=4, container_movflags="faststart").read_bytes()
    moov = data.index(b"moov") - 4
    (tmp_path / "b.mp4").write_bytes(data[moov : moov + int.from_bytes(data[moov : moov + 4], "big")])
    with pytest.raises(VideoError, match="sample 0 lies at bytes"):
        read_index(tmp_path / "b.mp4")


def patched(data: bytes, box: bytes, at: int, layout: str, *values: int) -> bytes:
    """The file with numbers changed at an offset after a box's name."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, data.index(box) + 4 + at, *values)
    return bytes(changed)


def test_claims_that_the_bytes_do_not_hold_cost_an_error_not_memory(tmp_path: Path) -> None:
    data = ffmpeg_video(tmp_path / "a.mp4", count=4, bf="2").read_bytes()
    hostile = {
        "fixed sizes": patched(data, b"stsz", 4, ">II", 1, 0xFFFF_FFFF),
        "size table": patched(data, b"stsz", 4, ">II", 0, 15_000_000),
        "last sample too long": patched(data, b"stsz", 12 + 4 * 3, ">I", len(data)),
        "chunk far away": patched(data, b"stco", 8, ">I", 0xFFFF_FFFF),
        "chunk table": patched(data, b"stco", 4, ">I", 0xFFFF_FFFF),
        "per chunk": patched(data, b"stsc", 8, ">II", 1, 0),
        "chunk order": patched(data, b"stsc", 8, ">I", 2),
        "description": patched(data, b"stsc", 16, ">I", 2),
        "times": patched(data, b"stts", 8, ">I", 1),
        "key frame": patched(data, b"stss", 8, ">I", 5),
        "scale": patched(data, b"mdhd", 12, ">I", 0),
        "edits": patched(data, b"elst", 4, ">I", 0xFFFF_FFFF),
        "no entry": patched(data, b"stsd", 8, ">I", 4),
    }
    for name, content in hostile.items():
        (tmp_path / "b.mp4").write_bytes(content)
        with pytest.raises((VideoError, LimitExceeded)) as caught:
            read_index(tmp_path / "b.mp4")
        assert "b.mp4" in str(caught.value), name
    with open(tmp_path / "big.mp4", "wb") as file:
        file.write(struct.pack(">I4sQ", 1, b"moov", 1 << 40))
        file.truncate(1 << 40)
    with pytest.raises(LimitExceeded):
        read_index(tmp_path / "big.mp4")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("samples")
    ours = folder / "ours.mp4"
    with Mp4Writer(ours, stsd=mjpeg_stsd(64, 48), width=64, height=48, fps=30) as video:
        video.append([b"a", b"bb", b"ccc"], [True, False, True])
        video.repeat(2)
    theirs = ffmpeg_video(folder / "theirs.mp4", count=5, bf="2", first_pts=3)
    return [ours.read_bytes(), theirs.read_bytes()]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    which=st.integers(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1), st.sampled_from([1, 2, 4]), st.integers(0, 2**32 - 1)), max_size=4),
    keep=st.floats(0.5, 1),
)
@example(which=0, flips=[], keep=1.0)
def test_damaged_indexes_give_our_errors_or_a_result(
    which: int, flips: Sequence[tuple[float, int, int]], keep: float, samples: list[bytes], tmp_path: Path
) -> None:
    data = bytearray(samples[which])
    moov = data.index(b"moov") - 4
    for place, width, value in flips:
        at = moov + int(place * (len(data) - moov - width))
        data[at : at + width] = (value % 256**width).to_bytes(width, "big")
    (tmp_path / "a.mp4").write_bytes(bytes(data[: int(keep * len(data))]))
    try:
        index = read_index(tmp_path / "a.mp4")
    except (VideoError, LimitExceeded):
        assert flips or keep < 1
        return
    size = (tmp_path / "a.mp4").stat().st_size
    assert len(index.offsets) == len(index.sizes) == len(index.pts) == len(index.key) == index.count
    assert all(o >= 0 and o + s <= size for o, s in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True))
