"""What would have to be encoded: named in the plan with codec, quality and time; refused by video=copy-only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import penstock
from penstock._src.conversion.cameras.camera import CameraConversion, video_lines
from penstock._src.conversion.report import NoProgress
from penstock._src.conversion.settings import Encoding
from penstock.errors import DataSetError, VideoError
from tests.conversion import bags, datasets, version21, video_bags
from tests.conversion.bags import CAM_H, STATE
from tests.conversion.version21 import CAMERA, STILL, Video
from tests.media import streams
from tests.stores import hdf5_files

H = "observation.images.cam_h"


class Lines(NoProgress):
    """Keeps the lines about videos that are shown before anything is written."""

    def __init__(self) -> None:
        self.video: list[str] = []

    def plan(self, lines: Sequence[tuple[str, str]]) -> None:
        self.video += [text for label, text in lines if label == "video"]


def planned(source: Path, out: Path, **options: object) -> list[str]:
    lines = Lines()
    penstock.convert(source, out, progress=lines, **options)
    return lines.video


def refused(source: Path, out: Path, **options: object) -> str:
    with pytest.raises(VideoError) as caught:
        penstock.convert(source, out, **{"video": "copy-only", **options})
    assert not out.exists() and "video=copy" in (caught.value.hint or "")
    return caught.value.message


def shared(tmp_path: Path) -> Path:
    """Three episodes in one file; the second begins between two key frames."""
    penstock.convert(version21.make(tmp_path / "old", (12, 9, 11)), tmp_path / "shared")
    (path,) = datasets.video_files(tmp_path / "shared", CAMERA)
    path.unlink()
    images = [version21.image(n, row) for n, rows in enumerate((12, 9, 11)) for row in range(rows)]
    version21.encode(path, images, Video("h264", gop=21, options={"sc_threshold": "0"}))
    return tmp_path / "shared"


def test_the_plan_says_what_is_encoded_anew_and_copy_only_refuses_it(tmp_path: Path) -> None:
    source = shared(tmp_path)
    lines = planned(source, tmp_path / "new")
    assert lines == ["h264 encoded as h264 (1 of 3 episodes), crf 30, about 1 s (estimate): top"]
    assert planned(source, tmp_path / "finer", overrides=["encoding.crf=12"])[0].count("crf 12") == 1
    message = refused(source, tmp_path / "none")
    assert message == (
        f"{source}: episode 1, camera {CAMERA!r}: video=copy-only, and its images would have to be encoded: "
        "the episode does not begin with a key frame"
    )


def test_copy_only_gives_what_copy_gives(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", (6, 5), stills=True)
    assert planned(source, tmp_path / "copy") == ["copied as h264: top", "copied as images, in the table: still"]
    penstock.convert(source, tmp_path / "only", video="copy-only")
    assert datasets.digests(tmp_path / "copy") == datasets.digests(tmp_path / "only")


def test_a_data_set_that_is_resized_is_refused(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", (6,), stills=True)
    assert "episode 0" in (message := refused(source, tmp_path / "none", resize=[24, 32]))
    assert message.endswith("resize to 32×24")
    one = {STILL: {"topic": "", "resize": [24, 32]}}
    assert f"camera {STILL!r}" in refused(source, tmp_path / "none", features=one)


def test_recorded_jpegs_are_copied_and_raw_and_png_images_refused(tmp_path: Path) -> None:
    joints = bags.joints(STATE, bags.times(60, 0.5))
    jpeg = bags.write(tmp_path / "jpeg.bag", bags.camera(CAM_H, bags.times(30, 0.5)) + joints)
    for video in ("copy", "copy-only"):
        assert planned(jpeg, tmp_path / video, video=video) == ["copied as JPEG: cam_h"]
    assert datasets.digests(tmp_path / "copy") == datasets.digests(tmp_path / "copy-only")
    assert "resize from 64×48 to 32×24" in refused(jpeg, tmp_path / "none", resize=[24, 32])

    def raw(number: int) -> bags.Raw:
        return bags.raw(bags.image(number), "rgb8")

    images = bags.messages("/cam_h/image_raw", bags.times(30, 0.5), raw)
    bag = bags.write(tmp_path / "raw.bag", images + joints)
    assert planned(bag, tmp_path / "raw") == ["raw encoded as mjpeg, quality 95, about 1 s (estimate): cam_h"]
    assert refused(bag, tmp_path / "none") == (
        f"{bag}: every episode, camera {H!r}: video=copy-only, and its images would have to be encoded: "
        "they are raw rgb8"
    )


def test_a_stream_of_which_messages_are_left_out_is_named_in_the_plan_and_refused(tmp_path: Path) -> None:
    tape = video_bags.packets(streams.stream("h264", 30))
    bag = video_bags.write(tmp_path / "run.bag", tape, bags.joints(STATE, bags.times(100, 1.1)))
    assert planned(bag, tmp_path / "whole", video="copy-only") == ["copied as h264: cam"]
    (line,) = planned(bag, tmp_path / "half", stride=2)
    assert line == "h264 encoded as h264, crf 30, about 1 s (estimate): cam"
    message = refused(bag, tmp_path / "none", stride=2)
    assert message.startswith(f"{bag}: episode 0 (rows 0–")
    assert message.endswith("have to be encoded: the rows leave out messages, the first after message 0")


def test_hdf5_rows_of_jpeg_are_copied_and_raw_ones_refused(tmp_path: Path) -> None:
    hdf5_files.aloha(tmp_path / "jpeg.hdf5", 9)
    penstock.convert(tmp_path / "jpeg.hdf5", tmp_path / "new", fps=50, video="copy-only")
    hdf5_files.aloha(tmp_path / "raw.hdf5", 9, raw=True)
    message = refused(tmp_path / "raw.hdf5", tmp_path / "none", fps=50)
    assert message.startswith(f"{tmp_path / 'raw.hdf5'}: every episode, camera 'observation.images.")
    assert "they are raw" in message


def test_cameras_of_one_fate_share_a_line_and_the_threads() -> None:
    work = CameraConversion("", "h264", "av1", (480, 640), 30_000)
    cameras = [work._replace(key=f"observation.images.{name}") for name in "abc"]
    cameras[1] = cameras[1]._replace(stored_as="h264", frames=0)
    one, kept = video_lines(cameras, Encoding(crf=20), 1)
    assert one == ("video", "h264 encoded as av1, crf 20, about 22 min (estimate): a, c")
    assert kept == ("video", "copied as h264: b")
    assert video_lines(cameras, Encoding(), 8)[0][1] == "h264 encoded as av1, crf 30, about 11 min (estimate): a, c"


def test_each_call_that_appends_says_for_itself_whether_only_copies_will_do(tmp_path: Path) -> None:
    sources = [version21.make(tmp_path / "a", (6,)), shared(tmp_path)]
    penstock.convert(sources[0], tmp_path / "new")
    with pytest.raises(VideoError, match="does not begin with a key frame"):
        penstock.convert(sources[1], tmp_path / "new", append=True, video="copy-only")
    penstock.convert(version21.make(tmp_path / "b", (5,)), tmp_path / "new", append=True, video="copy-only")
    penstock.convert(sources[1], tmp_path / "new", append=True)
    assert datasets.info(tmp_path / "new")["total_frames"] == 6 + 5 + 32
    with pytest.raises(DataSetError, match="video"):
        penstock.convert(version21.make(tmp_path / "c", (5,)), tmp_path / "new", append=True, video="mjpeg")
