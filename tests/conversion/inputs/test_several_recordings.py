"""Several recordings in one data set: in order, rolled over files, and refused where they do not fit together."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.inputs.recording import plan_recording
from penstock._src.conversion.mapping.suggest import suggest_yaml
from penstock._src.conversion.settings import read_settings
from penstock.errors import AlignError, DataSetError, RecordingError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, STATE, Joints, Jpeg

KEY = "observation.images.cam_h"


def small(seed: int = 0, *, fps: float = 30.0, joints: int = 4, **size: int) -> list[bags.Message]:
    tape = bags.camera(CAM_H, bags.times(fps, 0.5), seed=seed, **size)
    return tape + bags.joints(STATE, bags.times(60, 0.5), seed=seed, count=joints)


def test_recordings_become_episodes_in_the_order_of_their_names(tmp_path: Path) -> None:
    tapes = {name: small(seed) for seed, name in enumerate(("run2", "run10", "run33"))}
    sources = [bags.write(tmp_path / f"{name}.bag", tape) for name, tape in tapes.items()]
    report = penstock.convert([sources[2], sources[0], sources[1], sources[0]], tmp_path / "out")
    assert report.episodes == 3 and report.frames == 45
    stored = [m.content.data for tape in tapes.values() for m in bags.of(tape, CAM_H)]
    assert datasets.samples(tmp_path / "out", KEY) == stored
    table = datasets.table(tmp_path / "out")
    assert table.column("episode_index").to_pylist() == [0] * 15 + [1] * 15 + [2] * 15
    assert table.column("frame_index").to_pylist() == list(range(15)) * 3
    assert table.column("index").to_pylist() == list(range(45))
    assert [Path(each["source"]) for each in report.alignment] == sources
    assert report.bytes_in == sum(source.stat().st_size for source in sources)
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_a_directory_and_a_glob_are_recordings_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        bags.write(tmp_path / f"run{number}.bag", small(number))
    bags.write(tmp_path / "other.mcapdir", small(42))
    report = penstock.convert(tmp_path, tmp_path / "out")
    assert [Path(source).name for source in report.sources] == ["other.mcapdir", "run1.bag", "run9.bag", "run10.bag"]
    globbed = penstock.convert(str(tmp_path / "run*.bag"), tmp_path / "out2")
    assert [Path(source).name for source in globbed.sources] == ["run1.bag", "run9.bag", "run10.bag"]


def test_one_recording_of_each_format_makes_one_data_set(tmp_path: Path) -> None:
    sources = [bags.write(tmp_path / f"run.{suffix}", small(3)) for suffix in ("bag", "db3dir", "mcapdir")]
    penstock.convert(sources, tmp_path / "out")
    stored = datasets.samples(tmp_path / "out", KEY)
    assert stored[:15] == stored[15:30] == stored[30:]
    values = datasets.values(tmp_path / "out", "observation.state")
    assert np.array_equal(values[:15], values[15:30]) and np.array_equal(values[:15], values[30:])


def noise(number: int, seed: int) -> bytes:
    """An image of about 80 kB, so that a few make a megabyte."""
    rng = np.random.default_rng(1000 * seed + number)
    pixels = rng.integers(0, 256, (160, 240, 3)).astype(np.uint8)
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 97])
    assert done
    return data.tobytes()


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[bytes]]:
    """Four recordings of 0.7 MB of images each."""
    directory = tmp_path_factory.mktemp("heavy")
    sources, images = [], []
    for seed in range(4):
        tape = bags.messages(CAM_H, bags.times(30, 0.4), lambda n, seed=seed: Jpeg(noise(n, seed)))
        images += [m.content.data for m in bags.of(tape, CAM_H)]
        sources.append(bags.write(directory / f"{seed}.bag", tape + bags.joints(STATE, bags.times(60, 0.4), seed=seed)))
    assert 0.6e6 < sum(len(p) for p in images) / 4 < 1.0e6
    return sources, images


def test_videos_roll_over_between_episodes(heavy: tuple[list[Path], list[bytes]], tmp_path: Path) -> None:
    sources, images = heavy
    out = tmp_path / "out"
    penstock.convert(sources, out, files={"video_mb": 1})
    assert len(datasets.video_files(out, KEY)) == 2
    assert datasets.samples(out, KEY) == images
    found = [(e[f"videos/{KEY}/file_index"], e[f"videos/{KEY}/from_timestamp"]) for e in datasets.episodes(out)]
    assert found == [(0, 0.0), (0, 12 / 30), (1, 0.0), (1, 12 / 30)]
    assert datasets.problems(out, full=True) == []


def test_tables_roll_over_and_keep_their_rows_in_order(heavy: tuple[list[Path], list[bytes]], tmp_path: Path) -> None:
    sources, images = heavy
    out = tmp_path / "out"
    penstock.convert(sources, out, files={"data_mb": 1}, video="images")
    assert len(sorted((out / "data").rglob("*.parquet"))) >= 2
    table = datasets.table(out)
    assert [image["bytes"] for image in table.column(KEY).to_pylist()] == images
    assert table.column("index").to_pylist() == list(range(48))
    assert not (out / "videos").exists()
    assert datasets.problems(out, full=True) == []


def _order(names: tuple[str, ...]) -> list[bags.Message]:
    joints = bags.messages(STATE, bags.times(60, 0.5), lambda n: Joints(names, (1.0, 2.0, 3.0, 4.0)))
    return bags.camera(CAM_H, bags.times(30, 0.5)) + joints


OTHER = {
    "rate": (lambda: small(fps=20), ["20.00 Hz", "30 fps"]),
    "camera size": (lambda: small(width=32), ["cam_h", "[48, 32, 3]", "[48, 64, 3]"]),
    "vector size": (lambda: small(joints=5), ["observation.state", "5", "4"]),
    "joint names": (lambda: _order(("a", "b", "c", "d")), ["observation.state", "joint_0", "'a'"]),
    "image kind": (
        lambda: (
            bags.messages(CAM_H, bags.times(30, 0.5), lambda n: Jpeg(bags.png(n)))
            + bags.joints(STATE, bags.times(60, 0.5))
        ),
        ["cam_h", "mjpeg", "copy"],
    ),
}


@pytest.mark.parametrize("what", OTHER)
def test_a_recording_that_does_not_fit_is_refused_naming_both(what: str, tmp_path: Path) -> None:
    make, words = OTHER[what]
    first = bags.write(tmp_path / "first.bag", small())
    second = bags.write(tmp_path / "second.bag", make())
    with pytest.raises((DataSetError, AlignError)) as caught:
        penstock.convert([first, second], tmp_path / "out")
    text = str(caught.value)
    assert "first.bag" in text and "second.bag" in text
    assert all(word in text for word in words), text
    assert not (tmp_path / "out").exists()


def test_the_rate_of_the_first_recording_stands_for_all(tmp_path: Path) -> None:
    """Cameras run at 29.6 and 29.4 Hz: each alone would round to its own rate."""
    sources = [bags.write(tmp_path / f"{n}.bag", small(fps=fps)) for n, fps in enumerate((29.6, 29.4, 59.8))]
    alone = [penstock.convert(source, tmp_path / f"alone{n}") for n, source in enumerate(sources)]
    assert [report.fps for report in alone] == [30, 29, 60]
    report = penstock.convert(sources, tmp_path / "out")
    assert report.fps == 30 and [e["length"] for e in datasets.episodes(tmp_path / "out")] == [15, 15, 15]
    config = tmp_path / "robot.yaml"
    with recordings.open(sources[0]) as recording:
        config.write_text(suggest_yaml(plan_recording(recording, read_settings(), 2**30)[0]))
    penstock.convert(sources, tmp_path / "suggested", config=config)
    assert datasets.digests(tmp_path / "suggested") == datasets.digests(tmp_path / "out")


def test_a_recording_without_a_topic_of_the_first_is_refused_by_name(tmp_path: Path) -> None:
    first = bags.write(tmp_path / "first.bag", small())
    second = bags.write(tmp_path / "second.bag", bags.camera(CAM_H, bags.times(30, 0.5)))
    with pytest.raises(RecordingError, match=STATE) as caught:
        penstock.convert([first, second], tmp_path / "out")
    assert "second.bag" in str(caught.value)


def test_resize_lets_cameras_of_two_sizes_share_a_data_set(tmp_path: Path) -> None:
    sources = [bags.write(tmp_path / "a.bag", small()), bags.write(tmp_path / "b.bag", small(width=128, height=96))]
    report = penstock.convert(sources, tmp_path / "out", resize="24x32")
    assert report.episodes == 2
    assert datasets.info(tmp_path / "out")["features"][KEY]["shape"] == [24, 32, 3]
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize(("chunk_size", "lengths"), [(10, [10, 10, 10]), (12, [12, 12, 6]), (100, [30]), (0, [30])])
def test_split_episodes_cuts_a_recording_into_chunks(chunk_size: int, lengths: list[int], tmp_path: Path) -> None:
    tape = bags.robot(1)
    bag = bags.write(tmp_path / "run.bag", tape)
    report = penstock.convert(bag, tmp_path / "out", split_episodes=True, rosbag={"chunk_size": chunk_size})
    assert [e["length"] for e in datasets.episodes(tmp_path / "out")] == lengths
    assert report.episodes == len(lengths) and report.frames == 30
    assert datasets.samples(tmp_path / "out", KEY) == [m.content.data for m in bags.of(tape, CAM_H)]
    times = datasets.table(tmp_path / "out").column("frame_index").to_pylist()
    assert times == [n for length in lengths for n in range(length)]
    assert any("no effect" in note for note in report.notes) == (chunk_size == 0)
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_split_episodes_begins_each_episode_with_a_image_of_its_own(tmp_path: Path) -> None:
    """A slow camera shows one image across the border of two episodes; both must hold it."""
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.camera("/slow/compressed", bags.times(5, 1), seed=4)
    tape += bags.joints(STATE, bags.times(60, 1))
    bag = bags.write(tmp_path / "run.bag", tape)
    penstock.convert(bag, tmp_path / "whole")
    penstock.convert(bag, tmp_path / "split", split_episodes=True, rosbag={"chunk_size": 7})
    slow = "observation.images.slow"
    assert datasets.samples(tmp_path / "split", slow) == datasets.samples(tmp_path / "whole", slow)
    assert datasets.problems(tmp_path / "split", full=True) == []


def test_a_damaged_first_recording_does_not_take_a_feature_from_the_others(tmp_path: Path) -> None:
    """Its commands begin late, and it is cut before them: what it lacks is missing in it, not in the data set."""
    begins_ns = bags.START_NS + 4 * 10**8
    tape = [each for each in bags.robot(1.0) if each.topic != bags.COMMAND or each.time_ns > begins_ns]
    sources = [bags.write(tmp_path / f"{name}.bag", tape) for name in ("run1", "run2", "run3")]
    whole = penstock.convert(sources[1:], tmp_path / "whole")
    data = sources[0].read_bytes()
    sources[0].write_bytes(data[: len(data) * 3 // 10])
    report = penstock.convert(sources, tmp_path / "out", keep_going=True)
    assert report.features.keys() == whole.features.keys() and "action" in whole.features
    assert report.exit_code == 3 and report.episodes == 2
    assert any("run1.bag is damaged: the data set has the features of run2.bag" in note for note in report.notes)
    assert [Path(path).name for path in report.failed] == ["run1.bag"]
    for key in ("action", "observation.state"):
        assert np.array_equal(datasets.values(tmp_path / "out", key), datasets.values(tmp_path / "whole", key))
    with pytest.raises(RecordingError, match=r"run1\.bag: no topic '/joint_cmd'"):
        penstock.convert(sources, tmp_path / "refused")
    alone = penstock.convert(sources[0], tmp_path / "alone")  # nothing else says what a data set of it has
    assert "action" not in alone.features and alone.exit_code == 3
