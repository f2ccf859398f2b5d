"""What becomes of images: copied, embedded, encoded, resized; from JPEG, PNG and raw messages."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

import penstock
from penstock._src.media.mp4.index import read_index
from penstock.errors import ConfigError, DataSetError, ImageError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, STATE, Jpeg

H = "observation.images.cam_h"
RAW = "/cam_h/image_raw"


@pytest.fixture(scope="module")
def tape() -> list[bags.Message]:
    return bags.camera(CAM_H, bags.times(30, 0.7)) + bags.joints(STATE, bags.times(60, 0.7))


@pytest.fixture(scope="module")
def bag(tape: list[bags.Message], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bags.write(tmp_path_factory.mktemp("videos") / "run.bag", tape)


def decoded(out: Path, key: str) -> list[np.ndarray]:
    """All frames of the first video file, through FFmpeg."""
    import av

    with av.open(str(datasets.video_files(out, key)[0])) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(np.int16) - other.astype(np.int16)).mean())


@pytest.mark.parametrize("video", ["copy", "mjpeg", "h264", "hevc", "av1"])
def test_every_video_has_one_frame_per_row_in_order(
    video: str, bag: Path, tape: list[bags.Message], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = penstock.convert(bag, out, video=video)
    (file,) = datasets.video_files(out, H)
    index = read_index(file)
    assert index.count == report.frames == 21
    codec = {"copy": "mjpeg", "mjpeg": "mjpeg"}.get(video, video)
    assert datasets.info(out)["features"][H]["info"]["video.codec"] == codec
    frames = decoded(out, H)
    wanted = [cv2.imdecode(np.frombuffer(m.content.data, np.uint8), 1)[..., ::-1] for m in tape[:21]]
    assert len(frames) == 21
    for number, frame in enumerate(frames):
        others = [distance(frame, each) for each in wanted]
        assert int(np.argmin(others)) == number, (video, number)
    assert datasets.problems(out, full=True) == []


def test_copied_video_bytes_are_the_recorded_ones_and_stand_once(
    bag: Path, tape: list[bags.Message], tmp_path: Path
) -> None:
    report = penstock.convert(bag, tmp_path / "out")
    (file,) = datasets.video_files(tmp_path / "out", H)
    images = [m.content.data for m in bags.of(tape, CAM_H)]
    assert datasets.samples(tmp_path / "out", H) == images
    assert sum(len(p) for p in images) < file.stat().st_size < sum(len(p) for p in images) + 2000
    assert report.features[H]["stored_as"] == "copied"


def test_images_are_embedded_as_they_were_recorded(bag: Path, tape: list[bags.Message], tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "out", video="images")
    column = datasets.table(tmp_path / "out").column(H).to_pylist()
    assert [entry["bytes"] for entry in column] == [m.content.data for m in bags.of(tape, CAM_H)]
    assert datasets.info(tmp_path / "out")["features"][H]["dtype"] == "image"
    assert not (tmp_path / "out/videos").exists() and not (tmp_path / "out/images").exists()
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_one_camera_can_be_stored_in_another_way_than_the_rest(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.robot(0.5))
    features = {
        "observation.images.a": CAM_H,
        "observation.images.b": {"topic": CAM_L, "video": "images", "resize": [24, 32]},
        "observation.images.c": {"topic": CAM_L, "video": "h264"},
        "observation.state": STATE,
    }
    report = penstock.convert(bag, tmp_path / "out", features=features)
    stored = [report.features[f"observation.images.{name}"]["stored_as"] for name in "abc"]
    assert stored == ["copied", "images", "h264"]
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize("video", ["copy", "images", "h264"])
def test_resize_gives_every_image_the_asked_size(video: str, bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(bag, out, video=video, resize=[24, 32])
    assert datasets.info(out)["features"][H]["shape"] == [24, 32, 3]
    if video == "images":
        entry = datasets.table(out).column(H).to_pylist()[3]["bytes"]
        assert cv2.imdecode(np.frombuffer(entry, np.uint8), 1).shape == (24, 32, 3)
    else:
        assert {frame.shape for frame in decoded(out, H)} == {(24, 32, 3)}
    assert datasets.problems(out, full=True) == []


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "mono8"])
@pytest.mark.parametrize("padding", [0, 5])
def test_raw_images_become_jpegs_of_the_same_colours(encoding: str, padding: int, tmp_path: Path) -> None:
    def content(number: int) -> bags.Raw:
        return bags.raw(bags.image(number), encoding, padding=padding)

    tape = bags.messages(RAW, bags.times(30, 0.4), content) + bags.joints(STATE, bags.times(60, 0.4))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert report.features[H]["recorded_as"] == "raw" and report.features[H]["stored_as"] == "mjpeg"
    frames = decoded(tmp_path / "out", H)
    assert len(frames) == 12
    for number, frame in enumerate(frames):
        rgb = bags.image(number)
        if encoding == "mono8":
            rgb = np.repeat(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)[..., np.newaxis], 3, axis=2)
        # Half of the colour resolution is left by 4:2:0; the moving stripe is only four pixels wide.
        assert distance(frame, rgb) < 12
        assert distance(frame, rgb) < distance(frame, rgb[..., ::-1]) or encoding == "mono8"
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize("video", ["copy", "images", "h264"])
def test_png_images_are_kept_in_tables_and_encoded_in_videos(video: str, tmp_path: Path) -> None:
    tape = bags.messages(CAM_H, bags.times(30, 0.4), lambda n: Jpeg(bags.png(n), "png"))
    tape += bags.joints(STATE, bags.times(60, 0.4))
    out = tmp_path / "out"
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), out, video=video)
    assert report.features[H]["recorded_as"] == "png"
    assert report.features[H]["stored_as"] == {"copy": "mjpeg", "images": "copied", "h264": "h264"}[video]
    if video == "images":
        column = datasets.table(out).column(H).to_pylist()
        assert [entry["bytes"] for entry in column] == [bags.png(n) for n in range(12)]
    else:
        assert all(distance(frame, bags.image(n)) < 12 for n, frame in enumerate(decoded(out, H)))
    assert datasets.problems(out, full=True) == []


@pytest.mark.parametrize("video", ["copy", "images"])
def test_a_cut_png_is_left_out_and_counted(video: str, tmp_path: Path) -> None:
    tape = bags.messages(CAM_H, bags.times(30, 0.4), lambda n: Jpeg(bags.png(n), "png"))
    tape = bags.change(tape, CAM_H, 5, bags.with_content(Jpeg(bags.png(5)[:-40], "png")))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", video=video, image_samples=1)
    assert dict(report.lost) == {f"unusable message: {CAM_H}": 1}
    assert report.frames == 11


@pytest.mark.parametrize("video", ["copy", "mjpeg", "h264", "images"])
def test_a_slow_camera_is_repeated_without_a_byte_twice(video: str, tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.camera(CAM_L, bags.times(6, 1), seed=2)
    tape += bags.joints(STATE, bags.times(60, 1))
    out = tmp_path / "out"
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), out, video=video)
    slow = "observation.images.cam_l"
    assert report.alignment[0]["streams"][slow]["repeats"] == report.frames - 6
    if video in ("copy", "mjpeg"):
        (file,) = datasets.video_files(out, slow)
        index = read_index(file)
        assert index.count == report.frames
        places = {(at, size) for at, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)}
        assert len(places) == 6
        assert file.stat().st_size < sum(size for _, size in places) + 3000
        assert len(decoded(out, slow)) == report.frames
    assert datasets.problems(out, full=True) == []


def test_quality_is_the_quality_of_the_encoded_jpegs(tmp_path: Path) -> None:
    tape = bags.messages(RAW, bags.times(30, 0.3), lambda n: bags.raw(bags.image(n), "rgb8"))
    bag = bags.write(tmp_path / "run.bag", tape)
    sizes = {}
    for quality in (30, 95):
        penstock.convert(bag, tmp_path / str(quality), encoding={"quality": quality})
        sizes[quality] = sum(len(sample) for sample in datasets.samples(tmp_path / str(quality), H))
    assert sizes[30] < 0.75 * sizes[95]


def test_images_cannot_be_interpolated(bag: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not mixed"):
        penstock.convert(bag, tmp_path / "out", features={H: {"topic": CAM_H, "policy": "linear"}})


def test_image_statistics_come_from_a_bounded_sample(bag: Path, tmp_path: Path) -> None:
    for wanted in (None, 1, 5, 100):
        out = tmp_path / str(wanted)
        penstock.convert(bag, out, image_samples=wanted)
        stats = json.loads((out / "meta/stats.json").read_text())[H]
        assert stats["count"] == [8 if wanted is None else min(wanted, 21)]
        low, mean, high = (np.array(stats[name]) for name in ("min", "mean", "max"))
        assert mean.shape == (3, 1, 1)
        assert (low >= 0).all() and (low <= mean).all() and (mean <= high).all() and (high <= 1).all()


@pytest.mark.parametrize("chunk_size", [1000, 20, 7])
def test_copied_frames_share_a_pixel_format_wherever_the_blocks_end(chunk_size: int, tmp_path: Path) -> None:
    """Its change is an error inside a block as between two; what is encoded may change."""

    def content(number: int) -> Jpeg:
        factor = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420 if number < 20 else cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
        options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
        return Jpeg(cv2.imencode(".jpg", bags.image(number), options)[1].tobytes())

    tape = bags.messages(CAM_H, bags.times(30, 1), content) + bags.joints(STATE, bags.times(60, 1))
    bag = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(ImageError, match=f"{CAM_H}: message 20 is yuvj444p"):
        penstock.convert(bag, tmp_path / "out", rosbag={"chunk_size": chunk_size})
    for video in ("mjpeg", "images"):
        report = penstock.convert(bag, tmp_path / video, video=video, rosbag={"chunk_size": chunk_size})
        assert (report.frames, report.lost_count) == (30, 0)


def test_whole_numbers_that_float64_rounds_are_refused(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.messages(
        "/count", bags.times(60, 1), lambda n: bags.Array((float(2**53 + 2 * n + 2),))
    )
    bag = bags.write(tmp_path / "run.bag", tape)
    features = {H: CAM_H, "count": {"topic": "/count", "field": "data", "dtype": "int64"}}
    with pytest.raises(DataSetError, match="2\\^53"):
        penstock.convert(bag, tmp_path / "out", features=features)
