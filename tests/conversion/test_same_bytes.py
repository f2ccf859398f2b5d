"""The same recording gives the same data set: whatever file it lies in, however often, in whatever chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

import penstock
from penstock._src.cli import main
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, COMMAND, STATE

KEYS = ("observation.images.cam_h", "observation.images.cam_l")


@pytest.fixture(scope="module")
def tape() -> list[bags.Message]:
    return bags.robot(1.3)


@pytest.fixture(scope="module")
def bag(tape: list[bags.Message], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bags.write(tmp_path_factory.mktemp("same") / "run.bag", tape)


@pytest.fixture(scope="module")
def whole(bag: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bag, converted with nothing said."""
    out = tmp_path_factory.mktemp("same-out") / "whole"
    penstock.convert(bag, out)
    return out


def test_the_data_set_is_whole(whole: Path, tape: list[bags.Message]) -> None:
    assert datasets.problems(whole, full=True) == []
    assert datasets.info(whole)["total_frames"] == len(bags.of(tape, CAM_H))


@pytest.mark.parametrize("suffix", ["db3dir", "mcapdir"])
def test_ros2_recordings_give_the_bytes_of_the_ros1_bag(
    suffix: str, tape: list[bags.Message], whole: Path, tmp_path: Path
) -> None:
    recording = bags.write(tmp_path / f"run.{suffix}", tape)
    penstock.convert(recording, tmp_path / "out")
    assert datasets.digests(tmp_path / "out") == datasets.digests(whole)


@pytest.mark.parametrize("suffix", ["db3dir", "mcapdir"])
def test_a_ros2_file_without_its_metadata_gives_the_same_bytes(
    suffix: str, tape: list[bags.Message], whole: Path, tmp_path: Path
) -> None:
    recording = bags.write(tmp_path / f"run.{suffix}", tape)
    (recording / "metadata.yaml").unlink()
    (file,) = recording.iterdir()
    penstock.convert(file, tmp_path / "out")
    assert datasets.digests(tmp_path / "out") == datasets.digests(whole)


@pytest.mark.parametrize("compression", ["lz4", "bz2"])
def test_a_compressed_bag_gives_the_same_bytes(
    compression: str, tape: list[bags.Message], whole: Path, tmp_path: Path
) -> None:
    recording = bags.write(tmp_path / "run.bag", tape, compression=compression, chunk_bytes=16 * 1024)
    penstock.convert(recording, tmp_path / "out")
    assert datasets.digests(tmp_path / "out") == datasets.digests(whole)


def test_header_time_gives_the_same_bytes_from_ros1_and_ros2(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1), stamp_late_ns=20_000_000)
    tape += bags.joints(STATE, bags.times(90, 1), stamp_late_ns=1_000_000)
    found = []
    for suffix in ("bag", "db3dir", "mcapdir"):
        recording = bags.write(tmp_path / f"run.{suffix}", tape)
        penstock.convert(recording, tmp_path / f"out-{suffix}", time="header")
        found.append(datasets.digests(tmp_path / f"out-{suffix}"))
    assert found[0] == found[1] == found[2]


def test_two_runs_give_identical_bytes(bag: Path, whole: Path, tmp_path: Path) -> None:
    penstock.convert(bag, tmp_path / "again")
    assert datasets.digests(tmp_path / "again") == datasets.digests(whole)


@pytest.mark.parametrize("video", ["h264", "images"])
def test_two_runs_of_an_encoder_give_identical_bytes(video: str, bag: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        penstock.convert(bag, tmp_path / name, video=video)
    assert datasets.digests(tmp_path / "one") == datasets.digests(tmp_path / "two")


@pytest.mark.parametrize("chunk_size", [0, None, 1, 7, "auto", 1000])
def test_chunk_size_changes_neither_values_nor_videos(
    chunk_size: int | str | None, bag: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = penstock.convert(bag, out, rosbag={"chunk_size": chunk_size})
    assert report.episodes == 1
    assert datasets.table(out).equals(datasets.table(whole))
    videos = {name: digest for name, digest in datasets.digests(whole).items() if name.startswith("videos/")}
    assert len(videos) == 2
    assert videos.items() <= datasets.digests(out).items()


@pytest.mark.parametrize("chunk_size", [1, 4, 0])
def test_chunks_that_end_within_a_repeated_image_repeat_it(chunk_size: int, tmp_path: Path) -> None:
    """A camera at 10 Hz beside one at 30 Hz: three rows show each image, and a chunk may end between them."""
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.camera(CAM_L, bags.times(10, 1), seed=3)
    tape += bags.joints(STATE, bags.times(100, 1))
    bag = bags.write(tmp_path / "run.bag", tape)
    penstock.convert(bag, tmp_path / "out", rosbag={"chunk_size": chunk_size})
    shown = [bags.of(tape, CAM_L).index(m) for m in bags.of(tape, CAM_L)]
    sent = [m.content.data for m in bags.of(tape, CAM_L)]
    stored = datasets.samples(tmp_path / "out", KEYS[1])
    # Rows are 33.3 ms apart, images 100 ms: row r takes the image nearest to it, at most once again beyond the end.
    assert stored == [sent[min(shown[-1], round(row / 3))] for row in range(len(stored))]
    assert len(stored) == len(datasets.samples(tmp_path / "out", KEYS[0])) == datasets.table(tmp_path / "out").num_rows


def test_the_suggested_configuration_gives_the_same_bytes_as_none(
    bag: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bag), "--suggest-config"]) == 0
    config = tmp_path / "robot.yaml"
    config.write_text(capsys.readouterr().out)
    penstock.convert(bag, tmp_path / "out", config=config)
    assert datasets.digests(tmp_path / "out") == datasets.digests(whole)


def test_a_suggestion_keeps_everything_that_was_asked_for(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--suggest-config with a configuration prints all of it, not only what penstock found by itself."""
    asked = {
        "sample_drop": 2,
        "tolerance": "45ms",
        "resize": [24, 32],
        "task": "stack the cups: three, no #4",
        "robot_type": "kuavo",
        "image_samples": 5,
        "encoding": {"quality": 70},
        "files": {"data_mb": 7},
        "features": {
            "observation.images.h": {"topic": CAM_H, "video": "mjpeg", "time_offset": "2ms"},
            "observation.state": {
                "sources": [
                    {"topic": STATE, "unit": "deg", "scale": 2.0, "offset": [1, 2, 3, 4], "policy": "linear"},
                    {"topic": COMMAND, "names": ["joint_3", "joint_1"], "tolerance": "50ms", "missing": "hold"},
                ],
                "dtype": "float64",
            },
        },
    }
    mine, printed = tmp_path / "mine.yaml", tmp_path / "printed.yaml"
    mine.write_text(yaml.safe_dump(asked))
    assert main(["inspect", str(bag), "--suggest-config", "--config", str(mine), "time=header"]) == 0
    printed.write_text(capsys.readouterr().out)
    penstock.convert(bag, tmp_path / "a", config=mine, time="header")
    penstock.convert(bag, tmp_path / "b", config=printed)
    assert datasets.digests(tmp_path / "a") == datasets.digests(tmp_path / "b")
    assert np.isfinite(datasets.values(tmp_path / "b", "observation.state")).all()
