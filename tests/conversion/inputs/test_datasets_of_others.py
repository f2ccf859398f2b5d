"""Data sets that somebody else made: metadata that is wrong in small ways, parts that are absent, parts left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.inputs.input import Input, InputRef, OpenOptions, open_input
from penstock._src.conversion.settings import Settings
from penstock._src.lerobot.check.dataset import check
from penstock._src.media.mp4.index import read_index
from penstock.errors import ConfigError, DataSetCorrupt, DataSetError, RecordingError
from tests.conversion import bags, datasets, version21
from tests.conversion.version21 import CAMERA, FPS, STILL, Video
from tests.lerobot import making
from tests.stores import hdf5_files
from tests.stores.lerobot.test_lerobot_files import shorten

GHOST = "observation.images.ghost"
MIB = 2**20


def opened(path: Path, **values: object) -> Input:
    return open_input(InputRef("lerobot", path), OpenOptions(Settings(**values), 512 * MIB, threads=1))  # type: ignore[arg-type]


def declare_ghost(root: Path, camera: str) -> Path:
    """A camera that is declared and has no file."""
    path = root / "meta/info.json"
    tree = json.loads(path.read_text())
    tree["features"][GHOST] = tree["features"][camera]
    path.write_text(json.dumps(tree))
    return root


# Videos whose metadata ends a frame early


@pytest.mark.parametrize("limits", [{}, {"video_file_bytes": 1}])
def test_video_ends_one_frame_short_are_noted_and_every_frame_is_moved(tmp_path: Path, limits: dict[str, int]) -> None:
    making.make(tmp_path / "set", **limits)
    shorten(tmp_path / "set", 1)
    report = penstock.convert(tmp_path / "set", tmp_path / "new")
    assert (report.episodes, report.frames, report.lost) == (3, 28, {})
    assert datasets.samples(tmp_path / "new", making.CAMERA) == [
        jpeg for number, rows in enumerate((12, 7, 9)) for jpeg in making.jpegs(rows, number)
    ]
    assert any("to_timestamp of 3 episodes is not where their frames end" in note for note in report.notes)
    checked = check(tmp_path / "set")
    assert checked.is_clean and len([each for each in checked.problems if "to_timestamp" in each.message]) == 3
    assert datasets.problems(tmp_path / "new", full=True) == []


def test_frames_that_are_really_missing_are_refused(tmp_path: Path) -> None:
    making.make(tmp_path / "set", (12, 7))
    shorten(tmp_path / "set", 1, (0, 1))
    path = tmp_path / "set/meta/episodes/chunk-000/file-000.parquet"
    table = pq.ParquetFile(path).read()
    key = f"videos/{making.CAMERA}/from_timestamp"
    short = table.set_column(table.column_names.index(key), key, pa.array([0.0, 11 / making.FPS]))
    pq.write_table(short, path)  # the second episode begins within the first
    with pytest.raises(DataSetCorrupt, match=r"11.00 frames at 30 fps, and the file has 11 until the next episode"):
        penstock.convert(tmp_path / "set", tmp_path / "new")
    assert not check(tmp_path / "set").is_clean


# Cameras and columns that are left out


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_declared_camera_without_a_file_is_left_out_on_request(tmp_path: Path, version: str) -> None:
    root = tmp_path / "set"
    if version == "v2.1":
        version21.make(root)
    else:
        making.make(root)
    camera = CAMERA if version == "v2.1" else making.CAMERA
    penstock.convert(root, tmp_path / "expected")
    declare_ghost(root, camera)
    with pytest.raises(DataSetCorrupt, match="3 of 3 episodes cannot be used") as caught:
        penstock.convert(root, tmp_path / "new")
    assert f"leave_out=[{GHOST}]" in str(caught.value.hint)
    report = penstock.convert(root, tmp_path / "new", leave_out=[GHOST])
    assert report.lost == {} and report.exit_code == 0
    assert datasets.digests(tmp_path / "new") == datasets.digests(tmp_path / "expected")


def test_any_camera_and_column_can_be_left_out(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old", stills=True)
    names = [CAMERA, "remark", "observation.pose"]
    shutil.rmtree(root / "videos")  # files of what is left out are not looked at
    report = penstock.convert(root, tmp_path / "new", overrides=[f"leave_out=[{','.join(names)}]"])
    kept = set(datasets.info(tmp_path / "new")["features"])
    assert kept == {*version21.FEATURES, *version21.PLACE, STILL} - set(names)
    assert set(datasets.table(tmp_path / "new").column_names) == kept
    assert not any("declare" in note for note in report.notes)
    assert datasets.problems(tmp_path / "new", full=True) == []


def test_one_name_needs_no_list(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old", (4,))
    penstock.convert(root, tmp_path / "new", overrides=["leave_out=remark"])
    assert "remark" not in datasets.info(tmp_path / "new")["features"]
    with pytest.raises(ConfigError, match="3 is not a name or a list of names"):
        penstock.convert(root, tmp_path / "other", leave_out=3)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["observation.images.tpo"], "did you mean 'observation.images.top'"),
        (["timestamp"], "has no feature 'timestamp'"),
        ([*version21.FEATURES, CAMERA], "no feature of .* is left"),
    ],
)
def test_names_that_cannot_be_left_out_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    root = version21.make(tmp_path / "old", (4,))
    with pytest.raises(ConfigError, match=message):
        penstock.convert(root, tmp_path / "new", leave_out=names)


@pytest.mark.parametrize("first_has_it", [True, False])
def test_data_sets_fit_once_what_only_one_has_is_left_out(tmp_path: Path, first_has_it: bool) -> None:
    version21.make(tmp_path / "a", (4,), stills=first_has_it)
    version21.make(tmp_path / "b", (5,), stills=not first_has_it)
    with pytest.raises(DataSetError, match="does not fit") as caught:
        penstock.convert([tmp_path / "a", tmp_path / "b"], tmp_path / "new")
    assert f"start anew with 'leave_out=[{STILL}]'" in str(caught.value.hint)
    report = penstock.convert([tmp_path / "a", tmp_path / "b"], tmp_path / "merged", leave_out=[STILL])
    assert (report.episodes, report.frames) == (2, 9)
    assert any(f"leave_out: there is no {STILL} in it" in note for note in report.notes) != first_has_it


def test_features_of_recordings_and_hdf5_files_can_be_left_out_too(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.robot(1.0))
    penstock.convert(bag, tmp_path / "one", leave_out=["observation.images.cam_h", "action"])
    assert {"observation.images.cam_l", "observation.state"} == set(datasets.info(tmp_path / "one")["features"]) - set(
        version21.PLACE
    )
    hdf5_files.aloha(tmp_path / "episode_0.hdf5", rows=6)
    names = ["observation.images.cam_low", "observation.effort"]
    penstock.convert(tmp_path / "episode_0.hdf5", tmp_path / "two", fps=50, leave_out=names)
    assert not set(names) & set(datasets.info(tmp_path / "two")["features"])
    with pytest.raises(ConfigError, match="has no feature 'cam_h'"):
        penstock.convert(bag, tmp_path / "three", leave_out=["cam_h"])


# Nothing left, times that were others


def test_a_plan_without_an_episode_does_not_describe_videos(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old")
    assert any(label == "video" for label, _ in opened(root).lines())
    shutil.rmtree(root / "videos")
    planned = opened(root, bad_episodes="drop")
    assert planned.lines()[1] == ("rows", "0 at 30 fps · 0 episodes")
    assert not any(label in ("video", "numbers") for label, _ in planned.lines())


def test_when_no_episode_is_left_the_error_says_where_to_look(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old", (4,), Video("mjpeg"))
    shutil.rmtree(root / "videos")
    with pytest.raises(RecordingError, match="no episode could be converted") as caught:
        penstock.convert(root, tmp_path / "new", bad_episodes="drop")
    assert "the notes say why" in str(caught.value.hint)
    with pytest.raises(DataSetCorrupt, match="is missing") as caught_strict:
        penstock.convert(root, tmp_path / "new", bad_episodes="drop", strict=True)
    assert "without --strict" in str(caught_strict.value.hint)


def test_an_input_without_an_episode_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        version21.make(tmp_path / name, (4, 3), Video("mjpeg"))
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name / "videos")
    report = penstock.convert([tmp_path / name for name in "abc"], tmp_path / "new", bad_episodes="drop")
    assert (report.episodes, report.frames) == (2, 7) and sum(report.lost.values()) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda times: times + 0.01, "9 rows had another timestamp than their frame, by up to 0.01 s"),
        (lambda times: times * 2, "8 rows had another timestamp than their frame, by up to 0.267 s"),
        (lambda times: times + 2.17 * (times > 0.2), "2 rows had another timestamp than their frame, by up to 2.17"),
    ],
)
def test_timestamps_that_are_replaced_are_noted_with_how_much_they_differed(
    tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    root = version21.make(tmp_path / "old", (12, 9), None)
    path = version21.data_path(root, 1)
    table = pq.ParquetFile(path).read()
    times = pa.array(change(np.arange(9) / FPS).astype(np.float32))
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", times), path)
    report = penstock.convert(root, tmp_path / "new", overrides=["rosbag.chunk_size=4"])
    assert any(message in note for note in report.notes), report.notes
    assert not check(root).is_clean  # LeRobot would look for frames at these times


def test_frames_that_are_moved_to_other_times_are_noted_with_how_much(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old", (12,), Video(header_fps=25))
    notes = penstock.convert(root, tmp_path / "new").notes
    assert any(f"by up to {11 / 25 - 11 / 30:.3g} s" in note for note in notes), notes


# One answer to a path that leaves the data set


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("key", ["data_path", "video_path"])
@pytest.mark.parametrize("start", ["../", "/tmp/", "data/../../"])
def test_a_path_that_leaves_the_data_set_is_refused_by_all(
    tmp_path: Path, version: str, key: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "set"
    if version == "v2.1":
        version21.make(root, (4,))
    else:
        making.make(root, (4,))
    version21.edit_info(root, **{key: start + datasets.info(root)[key]})
    message = "would leave the data set"
    with pytest.raises(DataSetCorrupt, match=message):
        penstock.open(root)
    for words in (["inspect", str(root)], ["doctor", str(root)], ["convert", str(root), str(tmp_path / "new")]):
        assert main(words) == 1
        shown = capsys.readouterr()
        assert message in shown.out + shown.err, words
    assert not (tmp_path / "new").exists()


# The doctor of v2.1


def test_a_whole_version_21_data_set_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = version21.make(tmp_path / "old", stills=True)
    assert main(["doctor", str(root)]) == 0
    shown = capsys.readouterr().out
    assert f"fine: {root}" in shown and "NOT" not in shown and "LeRobot v2.1" in shown


def test_rows_of_version_21_are_looked_at(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old")
    path = version21.data_path(root, 1)
    table = pq.ParquetFile(path).read()
    pq.write_table(table.take([1, 0, *range(2, 9)]), path)
    report = check(root)
    assert not report.is_clean
    assert any("row 12: frame_index is 1, expected 0 (2 of 9 rows)" in each.message for each in report.problems)
    with pytest.raises(DataSetCorrupt, match="frame_index is 1, not 0"):
        penstock.convert(root, tmp_path / "new")


@pytest.mark.parametrize("codec", ["h264", "mjpeg"])
def test_all_frames_of_version_21_are_decoded_when_asked(tmp_path: Path, codec: str) -> None:
    root = version21.make(tmp_path / "old", (6, 5), Video(codec))
    whole = check(root, full=True)
    assert whole.is_clean and whole.counted["frames decoded"] == 11
    path = version21.video_path(root, 1)
    index, data = read_index(path), bytearray(path.read_bytes())
    at, size = int(index.offsets[3]), int(index.sizes[3])
    data[at : at + size] = bytes(size)
    path.write_bytes(data)
    assert check(root).is_clean and not check(root, full=True).is_clean
