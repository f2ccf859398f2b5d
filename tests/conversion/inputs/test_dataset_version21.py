"""LeRobot v2.1 becomes v3.0: every sample, every number and every task as it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.media.mp4.index import read_index
from tests.conversion import datasets, version21
from tests.conversion.version21 import CAMERA, FPS, HEIGHT, STILL, TASKS, WIDTH, Video

LENGTHS = (12, 9, 11)
ROWS = sum(LENGTHS)


def source_samples(root: Path, episodes: int = len(LENGTHS)) -> list[bytes]:
    found = []
    for episode in range(episodes):
        path = version21.video_path(root, episode)
        index, data = read_index(path), path.read_bytes()
        found += [data[at : at + size] for at, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)]
    return found


@pytest.mark.parametrize("codec", ["h264", "av1", "mjpeg"])
def test_every_sample_is_moved_as_it_is(tmp_path: Path, codec: str) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, Video(codec))
    report = penstock.convert(source, tmp_path / "new")
    assert datasets.samples(tmp_path / "new", CAMERA) == source_samples(source)
    assert len(datasets.video_files(tmp_path / "new", CAMERA)) == 1, "bit rates in the header must not split the files"
    assert report.episodes == 3 and report.frames == ROWS and report.lost == {}
    assert datasets.problems(tmp_path / "new", full=True) == []
    images = version21.decoded(datasets.video_files(tmp_path / "new", CAMERA)[0])
    expected = [rgb for episode in range(3) for rgb in version21.decoded(version21.video_path(source, episode))]
    assert len(images) == ROWS and all(np.array_equal(a, b) for a, b in zip(images, expected, strict=True))


def test_rows_of_every_kind_tasks_and_metadata_are_kept(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS)
    penstock.convert(source, tmp_path / "new", overrides=["rosbag.chunk_size=4"])
    table = datasets.table(tmp_path / "new")
    for key in version21.FEATURES:
        expected = [value for n, rows in enumerate(LENGTHS) for value in version21.numbers(n, rows)[key]]
        found = table.column(key).to_pylist()
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)), key
    tasks = np.concatenate([version21.tasks_of(n, rows) for n, rows in enumerate(LENGTHS)])
    assert table.column("task_index").to_pylist() == tasks.tolist()
    named = [list(episode["tasks"]) for episode in datasets.episodes(tmp_path / "new")]
    assert named == [[TASKS[0]], [TASKS[0]], list(TASKS)]
    info = datasets.info(tmp_path / "new")
    assert (info["fps"], info["robot_type"], info["codebase_version"]) == (FPS, "testbot", "v3.0")
    assert info["features"]["observation.state"]["names"] == ["a", "b", "c", "d", "e"]
    assert info["features"]["action"]["names"] == ["x", "y", "z"]
    camera = info["features"][CAMERA]["info"]
    assert camera["lens"] == 35 and camera["video.codec"] == "h264" and camera["video.pix_fmt"] == "yuv420p"
    assert camera["is_depth_map"] is False and "video.is_depth_map" not in camera
    stats = json.loads((tmp_path / "new/meta/stats.json").read_text())
    state = np.concatenate([version21.numbers(n, rows)["observation.state"] for n, rows in enumerate(LENGTHS)])
    assert np.allclose(stats["observation.state"]["mean"], state.mean(axis=0), atol=1e-6)
    assert 0 < stats[CAMERA]["mean"][0][0][0] < 1


def test_converting_the_result_again_moves_it_to_the_same_bytes(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, stills=True)
    penstock.convert(source, tmp_path / "one")
    penstock.convert(tmp_path / "one", tmp_path / "two")
    first, second = (_without_report(datasets.digests(tmp_path / name)) for name in ("one", "two"))
    assert first == second


@pytest.mark.parametrize("kind", version21.REORDERED)
def test_videos_with_b_frames_are_moved_as_they_are(tmp_path: Path, kind: str) -> None:
    source = version21.make(tmp_path / "old", (12, 9, 31), version21.REORDERED[kind])
    assert (np.diff(read_index(version21.video_path(source, 2)).pts) < 0).any(), "the source must have B-frames"
    report = penstock.convert(source, tmp_path / "new")
    assert report.lost == {} and not any("anew" in note for note in report.notes)
    assert datasets.samples(tmp_path / "new", CAMERA) == source_samples(source)
    assert datasets.problems(tmp_path / "new", full=True) == []
    (path,) = datasets.video_files(tmp_path / "new", CAMERA)
    index = read_index(path)
    times = index.pts[index.presentation_order()]
    assert (times * FPS == np.arange(52) * index.timescale).all(), "from 0, one frame per row"
    assert index.key[[0, 12, 21]].all(), "every episode begins with a place to seek to"
    for key in np.flatnonzero(index.key).tolist():
        assert (index.pts[key + 1 :] > index.pts[key]).all(), "a reader that seeks here finds every frame after it"
    expected = [rgb for episode in range(3) for rgb in version21.decoded(version21.video_path(source, episode))]
    assert all(np.array_equal(a, b) for a, b in zip(version21.decoded(path), expected, strict=True))


def test_b_frames_of_other_codecs_are_encoded_anew_and_the_reason_is_reported(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, Video("mpeg4", gop=12, b_frames=2))
    report = penstock.convert(source, tmp_path / "new")
    assert any("3 of 3 episodes are encoded anew as av1, crf 30" in note and "B-frames of mpeg4" in note
               for note in report.notes)  # fmt: skip
    assert datasets.problems(tmp_path / "new", full=True) == []


@pytest.mark.parametrize("container", [{"use_editlist": "0"}, {"movflags": "negative_cts_offsets"}])
def test_b_frames_begin_at_0_wherever_the_source_lets_them_begin(tmp_path: Path, container: dict[str, str]) -> None:
    video = Video("h264", gop=12, b_frames=2, container=container)
    source = version21.make(tmp_path / "old", LENGTHS, video)
    penstock.convert(source, tmp_path / "new", video="copy-only")
    assert datasets.problems(tmp_path / "new", full=True) == []
    (path,) = datasets.video_files(tmp_path / "new", CAMERA)
    expected = [rgb for episode in range(3) for rgb in version21.decoded(version21.video_path(source, episode))]
    assert all(np.array_equal(a, b) for a, b in zip(version21.decoded(path), expected, strict=True))
    path.unlink()  # a v3.0 file that several episodes share and that begins likewise
    images = [version21.image(n, row) for n, rows in enumerate(LENGTHS) for row in range(rows)]
    version21.encode(path, images, Video("h264", gop=100, b_frames=2, container=container))
    expected = version21.decoded(path)
    penstock.convert(tmp_path / "new", tmp_path / "anew", overrides=["encoding.crf=8"])
    found = [rgb for file in datasets.video_files(tmp_path / "anew", CAMERA) for rgb in version21.decoded(file)]
    assert len(found) == ROWS and min(version21.psnr(a, b) for a, b in zip(found, expected, strict=True)) > 28
    assert datasets.problems(tmp_path / "anew", full=True) == []


def test_moved_b_frames_are_moved_again_joined_and_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    sources = [
        version21.make(tmp_path / name, (12, 9), video)
        for name, video in (("a", version21.REORDERED["h264"]), ("b", Video("h264", gop=12)))
    ]
    penstock.convert(sources, tmp_path / "one", jobs=1)
    penstock.convert(sources, tmp_path / "two", jobs=2)
    penstock.convert(sources[0], tmp_path / "grown")
    penstock.convert(sources[1], tmp_path / "grown", append=True)
    penstock.convert(tmp_path / "one", tmp_path / "again")
    for other in ("two", "grown", "again"):
        assert datasets.digests(tmp_path / "one") == datasets.digests(tmp_path / other), other


def test_a_codec_that_cannot_be_written_is_moved_and_only_encoded_when_it_must(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, Video("vp9", options={"crf": "20", "b:v": "0"}))
    report = penstock.convert(source, tmp_path / "new")
    assert datasets.samples(tmp_path / "new", CAMERA) == source_samples(source)
    assert datasets.info(tmp_path / "new")["features"][CAMERA]["info"]["video.codec"] == "vp9"
    assert not any("encoded anew" in note for note in report.notes)


def test_frames_at_other_times_than_their_rows_are_moved_to_them(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, Video("h264", header_fps=25))
    report = penstock.convert(source, tmp_path / "new")
    assert any("3 episodes lay at other times" in note for note in report.notes)
    assert datasets.samples(tmp_path / "new", CAMERA) == source_samples(source)
    assert datasets.problems(tmp_path / "new") == []


def test_images_of_the_table_stay_or_become_a_video(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, None, stills=True)
    penstock.convert(source, tmp_path / "kept")
    images = [entry["bytes"] for entry in datasets.table(tmp_path / "kept").column(STILL).to_pylist()]
    assert images == [version21.still(n, row) for n, rows in enumerate(LENGTHS) for row in range(rows)]
    penstock.convert(source, tmp_path / "video", video="h264", overrides=["encoding.crf=18"])
    assert datasets.info(tmp_path / "video")["features"][STILL]["dtype"] == "video"
    frames = version21.decoded(datasets.video_files(tmp_path / "video", STILL)[0])
    assert len(frames) == ROWS
    assert min(version21.psnr(rgb, version21.image(0, row)) for row, rgb in enumerate(frames[:12])) > 28
    assert datasets.problems(tmp_path / "video", full=True) == []


def test_a_video_becomes_images_of_the_table_jpeg_as_it_is(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, Video("mjpeg"))
    penstock.convert(source, tmp_path / "table", video="images", overrides=["rosbag.chunk_size=4"])
    images = [entry["bytes"] for entry in datasets.table(tmp_path / "table").column(CAMERA).to_pylist()]
    assert images == source_samples(source)
    assert datasets.info(tmp_path / "table")["features"][CAMERA]["dtype"] == "image"
    assert datasets.problems(tmp_path / "table", full=True) == []
    penstock.convert(tmp_path / "table", tmp_path / "back", video="mjpeg")
    assert datasets.samples(tmp_path / "back", CAMERA) == source_samples(source)


def test_resizing_encodes_anew_at_the_asked_size(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS)
    report = penstock.convert(source, tmp_path / "new", resize=[24, 32])
    assert datasets.info(tmp_path / "new")["features"][CAMERA]["shape"] == [24, 32, 3]
    assert any("resize to 32×24" in note for note in report.notes)
    assert datasets.problems(tmp_path / "new", full=True) == []


def test_the_same_codec_is_copied_unless_other_settings_are_asked(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS)
    report = penstock.convert(source, tmp_path / "same", video="h264")
    assert any("is h264 already and is copied" in note for note in report.notes)
    assert datasets.samples(tmp_path / "same", CAMERA) == source_samples(source)
    penstock.convert(source, tmp_path / "anew", video="h264", overrides=["encoding.crf=40"])
    assert datasets.samples(tmp_path / "anew", CAMERA) != source_samples(source)


def test_channels_first_and_columns_of_another_type_are_understood(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS)
    info = json.loads((source / "meta/info.json").read_text())
    info["features"][CAMERA] |= {"shape": [3, HEIGHT, WIDTH], "names": ["channels", "height", "width"]}
    info["features"]["action"]["dtype"] = "float32"
    (source / "meta/info.json").write_text(json.dumps(info))
    report = penstock.convert(source, tmp_path / "new")
    assert datasets.info(tmp_path / "new")["features"][CAMERA]["shape"] == [HEIGHT, WIDTH, 3]
    assert any("action is stored as float64 and declared as float32" in note for note in report.notes)


def test_other_timestamps_are_counted_and_reported(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = version21.make(tmp_path / "old", LENGTHS, None)
    path = version21.data_path(source, 1)
    table = pq.ParquetFile(path).read()
    late = pa.array((np.arange(9) / FPS + 0.01).astype(np.float32))
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", late), path)
    report = penstock.convert(source, tmp_path / "new")
    assert any("9 rows had another timestamp" in note for note in report.notes)
    assert datasets.problems(tmp_path / "new") == []


def _without_report(found: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in found.items() if not name.startswith("penstock/")}
