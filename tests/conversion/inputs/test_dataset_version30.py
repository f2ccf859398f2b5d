"""A v3.0 data set as input: encoded anew later, merged with others and with recordings, resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.inputs.input import EpisodeCallbacks, InputRef, OpenOptions, open_input
from penstock._src.conversion.report import NoProgress
from penstock._src.conversion.settings import Settings
from penstock._src.lerobot.features import Feature, depth_feature
from penstock._src.media.image import depth as depth_images
from penstock._src.media.mp4.index import read_index
from penstock.errors import BudgetExceeded, DataSetError, Interrupted
from tests.conversion import bags, datasets, version21
from tests.conversion.version21 import CAMERA, Video

MIB = 2**20


def recorded(tmp_path: Path, name: str = "bag", seconds: float = 0.6, **options: object) -> Path:
    """A data set made from a recording with JPEG cameras, one of which shows some images twice."""
    bag = bags.write(tmp_path / f"{name}.bag", bags.robot(seconds))
    penstock.convert(bag, tmp_path / name, **options)
    return tmp_path / name


def files(out: Path) -> dict[str, str]:
    """The digests of everything that other programs read."""
    return {name: digest for name, digest in datasets.digests(out).items() if not name.startswith("penstock/")}


def cameras(out: Path) -> list[str]:
    return [key for key, entry in datasets.info(out)["features"].items() if entry["dtype"] == "video"]


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_copied_now_and_compressed_tonight(tmp_path: Path, codec: str) -> None:
    source = recorded(tmp_path)
    out = tmp_path / codec
    report = penstock.convert(source, out, video=codec)
    assert report.lost == {} and datasets.problems(out, full=True) == []
    before, after = datasets.table(source), datasets.table(out)
    assert before.equals(after), "numbers are not touched"
    for key in cameras(source):
        images, encoded = (version21.decoded(datasets.video_files(each, key)[0]) for each in (source, out))
        assert len(images) == len(encoded) == report.frames
        assert np.mean([version21.psnr(a, b) for a, b in zip(images, encoded, strict=True)]) > 24
        assert datasets.info(out)["features"][key]["info"]["video.codec"] == codec


def test_a_moved_data_set_keeps_frames_that_stand_for_several_rows_once(tmp_path: Path) -> None:
    source = recorded(tmp_path, fps=60, timeline="fixed", missing="hold")
    penstock.convert(source, tmp_path / "moved")
    for key in cameras(source):
        (old,), (new,) = (datasets.video_files(each, key) for each in (source, tmp_path / "moved"))
        offsets = read_index(old).offsets
        assert len(np.unique(offsets)) < len(offsets), "the source must repeat frames"
        assert old.read_bytes() == new.read_bytes()


def test_an_episode_that_begins_between_key_frames_is_encoded_and_its_neighbours_are_not(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", (12, 9, 11))
    penstock.convert(source, tmp_path / "shared")
    (path,) = datasets.video_files(tmp_path / "shared", CAMERA)
    images = [version21.image(n, row) for n, rows in enumerate((12, 9, 11)) for row in range(rows)]
    path.unlink()
    version21.encode(path, images, Video("h264", gop=16, options={"sc_threshold": "0", "crf": "10"}))
    expected = version21.decoded(path)
    key = np.flatnonzero(read_index(path).key)
    assert 0 in key and 12 not in key and 21 not in key
    report = penstock.convert(tmp_path / "shared", tmp_path / "new", overrides=["encoding.crf=14"])
    assert any("2 of 3 episodes" in note and "does not begin with a key frame" in note for note in report.notes)
    moved = datasets.samples(tmp_path / "new", CAMERA)[:12]
    index, data = read_index(path), path.read_bytes()
    assert moved == [data[at : at + n] for at, n in zip(index.offsets[:12], index.sizes[:12], strict=True)]
    found = [rgb for file in datasets.video_files(tmp_path / "new", CAMERA) for rgb in version21.decoded(file)]
    assert len(found) == 32 and all(np.array_equal(a, b) for a, b in zip(found[:12], expected[:12], strict=True))
    assert min(version21.psnr(a, b) for a, b in zip(found, expected, strict=True)) > 28
    assert datasets.problems(tmp_path / "new", full=True) == []


def test_a_key_frame_that_needs_older_ones_is_no_place_to_cut(tmp_path: Path) -> None:
    """x264's intra refresh marks frames from which a decoder recovers after a while; they are no new beginning."""
    penstock.convert(version21.make(tmp_path / "old", (10, 22)), tmp_path / "shared")
    (path,) = datasets.video_files(tmp_path / "shared", CAMERA)
    path.unlink()
    images = [version21.image(n, row) for n, rows in enumerate((10, 22)) for row in range(rows)]
    refresh = {"x264-params": "intra-refresh=1:keyint=10:bframes=0", "crf": "10"}
    version21.encode(path, images, Video("h264", gop=10, options=refresh))
    assert read_index(path).key[10], "the border must be marked as a key frame"
    expected = version21.decoded(path)
    report = penstock.convert(tmp_path / "shared", tmp_path / "new", overrides=["encoding.crf=14"])
    assert any("1 of 2 episodes" in note and "needs frames before it" in note for note in report.notes)
    found = [rgb for file in datasets.video_files(tmp_path / "new", CAMERA) for rgb in version21.decoded(file)]
    assert min(version21.psnr(a, b) for a, b in zip(found, expected, strict=True)) > 28


def test_b_frames_are_cut_out_of_a_shared_file_at_closed_borders_only(tmp_path: Path) -> None:
    """A key frame of a closed GOP at every border; then B-frames that lie across the borders."""
    lengths = (12, 12, 12, 12)
    penstock.convert(version21.make(tmp_path / "old", lengths), tmp_path / "shared")
    (path,) = datasets.video_files(tmp_path / "shared", CAMERA)
    path.unlink()
    images = [version21.image(n, row) for n, rows in enumerate(lengths) for row in range(rows)]
    closed = Video("h264", gop=12, b_frames=3, options={"x264-params": "b-adapt=0:scenecut=0", "crf": "10"})
    version21.encode(path, images, closed)
    index = read_index(path)
    assert index.key[[0, 12, 24, 36]].all() and (np.diff(index.pts) < 0).any()
    expected = version21.decoded(path)
    penstock.convert(tmp_path / "shared", tmp_path / "new", video="copy-only")
    (moved,) = datasets.video_files(tmp_path / "new", CAMERA)
    assert all(np.array_equal(a, b) for a, b in zip(version21.decoded(moved), expected, strict=True))

    path.unlink()
    version21.encode(path, images, Video("h264", gop=13, b_frames=3, options=closed.options | {
        "x264-params": "b-adapt=0:scenecut=0:open-gop=1", "crf": "10"}))  # fmt: skip
    expected = version21.decoded(path)
    report = penstock.convert(tmp_path / "shared", tmp_path / "anew", overrides=["encoding.crf=12"])
    assert any("4 of 4 episodes are encoded anew as h264" in note for note in report.notes)
    found = [rgb for file in datasets.video_files(tmp_path / "anew", CAMERA) for rgb in version21.decoded(file)]
    assert len(found) == 48 and min(version21.psnr(a, b) for a, b in zip(found, expected, strict=True)) > 28
    assert datasets.problems(tmp_path / "anew", full=True) == []


def test_distances_are_moved_whatever_is_asked_of_the_images(tmp_path: Path) -> None:
    key = "observation.images.depth"
    depth = [np.full((48, 64), 1000 + row, np.uint16) for row in range(7)]
    images = [depth_images.encode(each) for each in depth]
    features = [depth_feature(key, (48, 64), "mm"), Feature("action", "float32", (2,))]
    with DataSetWriter(tmp_path / "set", fps=30, features=features, robot_type="test", fsync=False) as writer:
        episode = writer.episode(rows=7, task="look")
        episode.add_image_sample(key, depth[0])
        episode.write_rows({key: images, "action": np.zeros((7, 2), np.float32)})
        episode.commit()
    report = penstock.convert(tmp_path / "set", tmp_path / "new", video="h264", resize=[24, 32])
    assert any("holds distances" in note for note in report.notes)
    assert [entry["bytes"] for entry in datasets.table(tmp_path / "new").column(key).to_pylist()] == images
    assert datasets.info(tmp_path / "new")["features"][key] == datasets.info(tmp_path / "set")["features"][key]
    stats = json.loads((tmp_path / "new/meta/stats.json").read_text())[key]
    assert (stats["min"], stats["max"]) == ([[[1000]]], [[[1006]]])


def test_data_sets_are_merged_and_the_other_robot_is_named(tmp_path: Path) -> None:
    one = version21.make(tmp_path / "a", (6, 5))
    other = version21.make(tmp_path / "b", (4,), robot_type="otherbot")
    features = json.loads((other / "meta/info.json").read_text())["features"]
    version21.edit_info(other, features=dict(reversed(features.items())))
    report = penstock.convert([one, other], tmp_path / "merged")
    assert report.episodes == 3 and report.frames == 15
    assert any("its robot is 'otherbot', the data set's is 'testbot'" in note for note in report.notes)
    state = np.array(datasets.table(tmp_path / "merged").column("observation.state").to_pylist(), np.float32)
    expected = [version21.numbers(n, rows)["observation.state"] for n, rows in ((0, 6), (1, 5), (0, 4))]
    assert np.array_equal(state, np.concatenate(expected))
    assert datasets.info(tmp_path / "merged")["robot_type"] == "testbot"
    assert datasets.problems(tmp_path / "merged", full=True) == []


def test_a_data_set_and_a_recording_that_fit_become_one(tmp_path: Path) -> None:
    source = recorded(tmp_path, "first")
    bag = bags.write(tmp_path / "second.bag", bags.robot(0.5, seed=3))
    penstock.convert([source, bag], tmp_path / "merged")
    penstock.convert([tmp_path / "first.bag", bag], tmp_path / "direct")
    assert files(tmp_path / "merged") == files(tmp_path / "direct")


def test_a_data_set_is_appended_to_another_as_if_both_had_been_there(tmp_path: Path) -> None:
    one, other = version21.make(tmp_path / "a", (6, 5)), version21.make(tmp_path / "b", (4,))
    penstock.convert([one, other], tmp_path / "together")
    penstock.convert(one, tmp_path / "later")
    penstock.convert(other, tmp_path / "later", append=True)
    assert files(tmp_path / "later") == files(tmp_path / "together")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fps": 15}, "15 fps against 30"),
        ({"features": "action"}, "it has no action"),
        ({"features": "names"}, "the names of action"),
    ],
)
def test_data_sets_that_do_not_fit_are_refused_with_what_differs(tmp_path: Path, change: dict, message: str) -> None:
    one = version21.make(tmp_path / "a", (6,), None)
    other = version21.make(tmp_path / "b", (6,), None)
    features = json.loads((other / "meta/info.json").read_text())["features"]
    if change.get("features") == "action":
        del features["action"]
    elif "features" in change:
        features["action"]["names"] = ["p", "q", "r"]
    version21.edit_info(other, **{**change, "features": features})
    with pytest.raises(DataSetError, match=message):
        penstock.convert([one, other], tmp_path / "merged")


class StopAfter(NoProgress):
    """A user who stops the conversion at the n-th report of how far it is."""

    def __init__(self, count: int) -> None:
        self.left = count

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted("stopped")


@pytest.mark.parametrize("stop_at", [2, 3, 4])
def test_a_conversion_that_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path, stop_at: int) -> None:
    source = version21.make(tmp_path / "old", (7, 40, 5, 6))
    penstock.convert(source, tmp_path / "whole", video="mjpeg")
    with pytest.raises(Interrupted):
        penstock.convert(source, tmp_path / "halves", video="mjpeg", progress=StopAfter(stop_at))
    penstock.convert(source, tmp_path / "halves", video="mjpeg", resume=True)
    assert files(tmp_path / "whole") == files(tmp_path / "halves")


def test_the_state_is_small_plain_json_and_enough_to_go_on(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", (6, 5, 4))
    found, options = InputRef("lerobot", source), OpenOptions(Settings(), 512 * MIB, 2)
    callbacks = EpisodeCallbacks(on_moved=lambda _: None, on_rows=lambda _: None)
    with (
        open_input(found, options) as whole,
        DataSetWriter(
            tmp_path / "new", fps=whole.fps, features=whole.features, robot_type=whole.robot_type, fsync=False
        ) as writer,
    ):
        state = None
        for expected_rows in (6, 5, 4):
            with open_input(found, options) as each:  # every episode by an input that knows nothing but the state
                plan = each.next_episode(state)
                assert plan is not None and plan.rows == expected_rows and plan.task is None
                with writer.episode(rows=plan.rows) as episode:
                    state = json.loads(json.dumps(each.write(plan, episode, callbacks)))
                    episode.commit()
        assert whole.next_episode(state) is None and whole.finish(state).lost == {}
    assert datasets.problems(tmp_path / "new") == []


def test_memory_is_planned_with_the_decoders_and_refused_when_it_is_too_little(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", (6,))
    with open_input(InputRef("lerobot", source), OpenOptions(Settings(), 512 * MIB, 2)) as moved:
        assert moved.memory.encoders_bytes == 0 and moved.memory.parts()["decoders"] > 0  # for the statistics
        assert not moved.encodes
    with open_input(InputRef("lerobot", source), OpenOptions(Settings(video="av1"), 512 * MIB, 2)) as encoded:
        assert encoded.memory.encoders_bytes > 0 and encoded.encodes
    with pytest.raises(BudgetExceeded, match="the budget is"):
        open_input(InputRef("lerobot", source), OpenOptions(Settings(video="av1"), 64 * MIB, 2))


def test_another_rate_cannot_be_asked_of_a_data_set(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", (6,), None)
    with pytest.raises(DataSetError, match="its rows are at 30 fps, and fps=10 was requested"):
        penstock.convert(source, tmp_path / "new", fps=10)


@pytest.mark.parametrize("video", ["mjpeg", "copy"])
def test_what_one_and_two_processes_write_is_the_same(tmp_path: Path, video: str) -> None:
    sources = [version21.make(tmp_path / name, lengths) for name, lengths in (("a", (6, 5)), ("b", (7,)))]
    penstock.convert(sources, tmp_path / "one", video=video, jobs=1)
    penstock.convert(sources, tmp_path / "two", video=video, jobs=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_settings_that_a_data_set_has_no_use_for_are_named(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "a", (6,))
    report = penstock.convert(source, tmp_path / "out", task="pour", stride=2, episodes={"gap": "1s"}, strict=True)
    assert [note for note in report.notes if "no effect" in note] == [
        "a: stride, task, episodes have no effect on data sets"
    ]
    assert not any("no effect" in note for note in penstock.convert(source, tmp_path / "plain").notes)
