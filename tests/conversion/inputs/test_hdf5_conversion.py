"""HDF5 files become data sets: every number and every frame compared with what h5py was given."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

import penstock
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.inputs.input import EpisodeCallbacks, InputRef, OpenOptions, open_input
from penstock._src.conversion.report import NoProgress
from penstock._src.conversion.settings import Settings, read_settings
from penstock.errors import BudgetExceeded, ConfigError, DataSetError, ImageError, Interrupted, StoreError
from tests.conversion import datasets, version21
from tests.stores import hdf5_files as files

MIB = 2**20
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "hdf5"
HIGH, LOW = "observation.images.cam_high", "observation.images.cam_low"


def bytes_of(out: Path) -> dict[str, str]:
    return {name: digest for name, digest in datasets.digests(out).items() if not name.startswith("penstock/")}


def decoded(data: bytes) -> np.ndarray:
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


def test_jpeg_rows_of_aloha_are_copied_to_the_byte(tmp_path: Path) -> None:
    made = [files.aloha(tmp_path / f"episode_{i}.hdf5", rows=6 + i, seed=i * 10) for i in (0, 2, 10)]
    report = penstock.convert(tmp_path, tmp_path / "out", fps=50, task="pour")
    out = tmp_path / "out"
    assert (report.episodes, report.frames, report.lost) == (3, 30, {}) and report.exit_code == 0
    assert datasets.problems(out, full=True) == []
    for key, name in ((HIGH, "cam_high"), (LOW, "cam_low")):
        assert datasets.samples(out, key) == [row.tobytes() for episode in made for row in episode[name]]
    for key, name in (
        ("observation.state", "qpos"),
        ("observation.velocity", "qvel"),
        ("observation.effort", "effort"),
        ("action", "action"),
    ):
        expected = np.concatenate([episode[name] for episode in made]).astype(np.float32)
        assert np.array_equal(datasets.values(out, key).astype(np.float32), expected)
    assert [row["length"] for row in datasets.episodes(out)] == [6, 8, 16]
    assert datasets.info(out)["fps"] == 50


@pytest.mark.parametrize("video", ["copy", "images", "h264"])
def test_raw_frames_are_encoded_as_asked(tmp_path: Path, video: str) -> None:
    made = files.aloha(tmp_path / "episode_0.hdf5", raw=True, fps=30)
    out = tmp_path / "out"
    penstock.convert(tmp_path / "episode_0.hdf5", out, video=video)
    assert datasets.problems(out, full=True) == []
    if video == "images":
        found = [decoded(cell["bytes"]) for cell in datasets.table(out).column(HIGH).to_pylist()]
    elif video == "copy":
        found = [decoded(sample) for sample in datasets.samples(out, HIGH)]
    else:
        found = list(version21.decoded(datasets.video_files(out, HIGH)[0]))
    assert len(found) == len(made["cam_high"])
    for image, expected in zip(found, made["cam_high"], strict=True):
        assert distance(image, expected) < (12 if video == "h264" else 3)


def test_rows_of_their_own_length_and_png_rows(tmp_path: Path) -> None:
    jpegs, pngs = files.encoded(7, 1), files.encoded(7, 2, ".png")
    path = tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("observations/images/one", (7,), dtype=h5py.vlen_dtype(np.uint8))
        for i, row in enumerate(jpegs):
            rows[i] = row
        file["observations/images/two"] = files.padded(pngs)
        file["action"] = np.arange(14.0).reshape(7, 2)
    penstock.convert(path, tmp_path / "out", fps=10, video="images")
    table = datasets.table(tmp_path / "out")
    assert [cell["bytes"] for cell in table.column("observation.images.one").to_pylist()] == [
        row.tobytes() for row in jpegs
    ]
    assert [cell["bytes"] for cell in table.column("observation.images.two").to_pylist()] == [
        row.tobytes() for row in pngs
    ]
    penstock.convert(path, tmp_path / "copied", fps=10)
    assert datasets.samples(tmp_path / "copied", "observation.images.one") == [row.tobytes() for row in jpegs]
    for sample, original in zip(datasets.samples(tmp_path / "copied", "observation.images.two"), pngs, strict=True):
        assert distance(decoded(sample), decoded(original.tobytes())) < 3


def test_a_longer_jpeg_of_a_later_demonstration_is_no_loss(tmp_path: Path) -> None:
    rows = [*files.encoded(3, 1), *files.encoded(2, 2)]
    rows.sort(key=len)
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number, part in enumerate((rows[:3], rows[3:])):
            file[f"data/demo_{number}/actions"] = np.zeros((len(part), 2))
            images = file.create_dataset(f"data/demo_{number}/obs/cam", (len(part),), h5py.vlen_dtype(np.uint8))
            for place, row in enumerate(part):
                images[place] = row
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out", fps=20)
    assert (report.frames, report.lost) == (5, {})
    assert datasets.samples(tmp_path / "out", "observation.images.cam") == [row.tobytes() for row in rows]


def test_robomimic_demonstrations_in_natural_order(tmp_path: Path) -> None:
    made = files.robomimic(tmp_path / "demos.hdf5")
    out = tmp_path / "out"
    report = penstock.convert(tmp_path / "demos.hdf5", out)
    order = ["demo_0", "demo_2", "demo_10"]
    assert datasets.info(out)["fps"] == 20 and datasets.info(out)["robot_type"] == "Panda"
    assert [row["tasks"] for row in datasets.episodes(out)] == [["Lift"], ["lift the cube"], ["Lift"]]
    state = [
        np.concatenate([made[name][f"obs/robot0_{part}"] for part in ("eef_pos", "eef_quat", "gripper_qpos")], axis=1)
        for name in order
    ]
    assert np.array_equal(datasets.values(out, "observation.state"), np.concatenate(state).astype(np.float32))
    objects = np.concatenate([made[name]["obs/object"] for name in order]).astype(np.float32)
    assert np.array_equal(datasets.values(out, "observation.environment_state"), objects)
    assert datasets.info(out)["features"]["next.done"]["dtype"] == "bool"
    assert datasets.values(out, "next.done").reshape(-1).tolist() == [
        bool(value) for name in order for value in made[name]["dones"]
    ]
    images = np.concatenate([made[name]["obs/agentview_image"] for name in order])
    for sample, expected in zip(datasets.samples(out, "observation.images.agentview"), images, strict=True):
        assert distance(decoded(sample), expected) < 3
    assert any("next_obs/object" in note for note in report.notes)
    penstock.convert(tmp_path / "demos.hdf5", tmp_path / "train", overrides=["hdf5.mask=train"])
    assert [row["length"] for row in datasets.episodes(tmp_path / "train")] == [5, 6]


@pytest.mark.parametrize("first", [False, True])
def test_replay_steps_are_cut_after_terminals_and_timeouts(tmp_path: Path, first: bool) -> None:
    made = files.replay(tmp_path / "replay.hdf5", first=first)
    out = tmp_path / "out"
    penstock.convert(tmp_path / "replay.hdf5", out, fps=15)
    assert [row["length"] for row in datasets.episodes(out)] == [4, 7, 4]
    assert np.array_equal(datasets.values(out, "observation.state"), made["observations/joint"])
    assert np.array_equal(datasets.values(out, "next.reward").reshape(-1), made["rewards"])
    assert datasets.values(out, "next.truncated").reshape(-1).tolist() == made["timeouts"].tolist()
    for sample, expected in zip(datasets.samples(out, "observation.images.left"), made["left"], strict=True):
        assert distance(decoded(sample), expected) < 3


def test_a_nan_among_the_terminals_ends_no_episode(tmp_path: Path) -> None:
    files.replay(tmp_path / "replay.hdf5")
    with h5py.File(tmp_path / "replay.hdf5", "r+") as file:
        ends = file["terminals"][()].astype(np.float32)
        ends[[1, 8]] = np.nan
        del file["terminals"]
        file["terminals"] = ends
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=15)
    assert [row["length"] for row in datasets.episodes(tmp_path / "out")] == [4, 7, 4]
    assert any("terminals is NaN in 2 of 15 rows" in note for note in report.notes)
    done = datasets.values(tmp_path / "out", "next.done").reshape(-1)
    assert np.flatnonzero(done == 1).tolist() == [3]


@pytest.mark.parametrize("behind", [0x07, 0xFF])
def test_a_jpeg_row_ends_at_its_own_marker_whatever_follows(tmp_path: Path, behind: int) -> None:
    made = files.aloha(tmp_path / "episode_0.hdf5", rows=5)
    with h5py.File(tmp_path / "episode_0.hdf5", "r+") as file:
        rows = file["observations/images/cam_low"]
        longest = rows.shape[1] + 9
        del file["observations/images/cam_low"]
        file["observations/images/cam_low"] = np.stack(
            [np.pad(each, (0, longest - len(each)), constant_values=behind) for each in made["cam_low"]]
        )
    report = penstock.convert(tmp_path / "episode_0.hdf5", tmp_path / "out", fps=50, task="pour")
    assert (report.frames, report.lost) == (5, {})
    assert datasets.samples(tmp_path / "out", LOW) == [row.tobytes() for row in made["cam_low"]]


def test_d4rl_observations_are_the_state(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        file.create_dataset("observations", data=np.arange(40.0).reshape(10, 4), chunks=(3, 2), compression="gzip")
        file["next_observations"] = np.zeros((10, 4))
        file["actions"] = np.ones((10, 2))
        file["rewards"] = np.arange(10.0)
        file["terminals"] = np.arange(10) == 6
        file["infos/qpos"] = np.zeros((10, 3))
    penstock.convert(tmp_path / "d4rl.hdf5", tmp_path / "out", fps=20)
    assert np.array_equal(datasets.values(tmp_path / "out", "observation.state"), np.arange(40.0).reshape(10, 4))
    assert [row["length"] for row in datasets.episodes(tmp_path / "out")] == [7, 3]


def broken(path: Path) -> dict[str, object]:
    """An episode with three images that cannot be used, the first among them."""
    made = files.aloha(path, rows=10)
    with h5py.File(path, "r+") as file:
        rows = file["observations/images/cam_high"]
        rows[0] = 0
        rows[4, 200:] = 0
        rows[5, :2] = 7
    return made


@pytest.mark.parametrize("video", ["copy", "mjpeg"])
def test_unusable_images_are_counted(tmp_path: Path, video: str) -> None:
    made = broken(tmp_path / "episode_0.hdf5")
    out = tmp_path / "out"
    report = penstock.convert(tmp_path / "episode_0.hdf5", out, fps=50, video=video)
    assert report.lost == {"unusable image: observations/images/cam_high": 3} and report.exit_code == 3
    (note,) = [note for note in report.notes if "unusable images" in note]
    assert note.startswith("episode_0.hdf5: 3 unusable images") and "row 0" in note
    rows = [1, 2, 3, 6, 7, 8, 9]
    assert np.array_equal(datasets.values(out, "action"), made["action"][rows].astype(np.float32))
    if video == "copy":
        assert datasets.samples(out, HIGH) == [made["cam_high"][row].tobytes() for row in rows]
        assert datasets.samples(out, LOW) == [made["cam_low"][row].tobytes() for row in rows]
    assert datasets.problems(out, full=True) == []


@pytest.mark.parametrize("asked", [{"bad_messages": "reject"}, {"strict": True}])
def test_unusable_images_can_stop_it(tmp_path: Path, asked: dict[str, object]) -> None:
    broken(tmp_path / "episode_0.hdf5")
    with pytest.raises(StoreError, match=r"3 unusable images, the first: observations/images/cam_high: row 0"):
        penstock.convert(tmp_path / "episode_0.hdf5", tmp_path / "out", fps=50, **asked)
    assert not (tmp_path / "out").exists()


def test_an_episode_without_a_usable_row_is_lost_alone(tmp_path: Path) -> None:
    files.robomimic(tmp_path / "demos.hdf5", (3, 2, 0))
    kept = files.encoded(3, 1)
    rows = {"demo_0": files.padded(kept), "demo_2": np.ones((2, 50), np.uint8), "demo_10": np.ones((0, 50), np.uint8)}
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        for name, values in rows.items():
            del file[f"data/{name}/obs/agentview_image"]
            file[f"data/{name}/obs/agentview_image"] = values
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out")
    assert report.episodes == 1 and report.exit_code == 3
    assert report.lost["episode without a usable row"] == 2
    assert any("left out: data/demo_10" in note for note in report.notes)
    assert datasets.samples(tmp_path / "out", "observation.images.agentview") == [row.tobytes() for row in kept]


def test_what_one_episode_lost_costs_the_next_nothing(tmp_path: Path) -> None:
    files.robomimic(tmp_path / "demos.hdf5", (4, 4))
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        for name in ("demo_0", "demo_2"):
            del file[f"data/{name}/obs/agentview_image"]
            file[f"data/{name}/obs/agentview_image"] = files.padded(files.encoded(4, 1))
        file["data/demo_0/obs/agentview_image"][1] = 0
        file["data/demo_0/obs/agentview_image"][2] = 0
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out")
    assert report.lost == {"unusable image: obs/agentview_image": 2}
    assert [row["length"] for row in datasets.episodes(tmp_path / "out")] == [2, 4]


class StopAfter(NoProgress):
    """A user who stops the conversion at the n-th report of how far it is."""

    def __init__(self, count: int) -> None:
        self.left = count

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted("stopped")


@pytest.mark.parametrize("stop_at", [1, 3])
def test_a_stopped_conversion_goes_on_to_the_same_bytes(tmp_path: Path, stop_at: int) -> None:
    files.replay(tmp_path / "replay.hdf5")
    penstock.convert(tmp_path / "replay.hdf5", tmp_path / "whole", fps=15)
    with pytest.raises(Interrupted):
        penstock.convert(tmp_path / "replay.hdf5", tmp_path / "halves", fps=15, progress=StopAfter(stop_at))
    penstock.convert(tmp_path / "replay.hdf5", tmp_path / "halves", fps=15, resume=stop_at > 1)
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "halves")


def test_the_state_is_small_json_and_enough_to_go_on(tmp_path: Path) -> None:
    """Every episode by an input of its own, which knows nothing but the state of the one before."""
    broken(tmp_path / "one.hdf5")
    settings = read_settings(values={"fps": 50})
    found, options = InputRef("hdf5", tmp_path / "one.hdf5"), OpenOptions(settings, 512 * MIB, 2)
    callbacks = EpisodeCallbacks(on_moved=lambda _: None, on_rows=lambda _: None)
    penstock.convert(tmp_path / "one.hdf5", tmp_path / "whole", fps=50)
    state = None
    with open_input(found, options) as first:
        writer = DataSetWriter(tmp_path / "out", fps=first.fps, features=first.features, robot_type=first.robot_type)
    with writer:
        while True:
            with open_input(found, options) as source:
                plan = source.next_episode(state)
                if plan is None:
                    lost = source.finish(state).lost
                    break
                episode = writer.episode(rows=plan.rows, task=plan.task)
                try:
                    state = json.loads(json.dumps(source.write(plan, episode, callbacks)))
                except Exception as again:
                    episode.abort()
                    state = json.loads(json.dumps(again.state))  # type: ignore[attr-defined]
                    continue
                episode.commit()
    assert lost == {"unusable image: observations/images/cam_high": 3}
    assert len(json.dumps(state)) < 1000
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_the_bytes_do_not_depend_on_memory_or_chunks(tmp_path: Path) -> None:
    made = files.images(23, 4)
    numbers = np.random.default_rng(0).normal(size=(23, 6))
    storages = ({}, {"chunks": (5, 48, 64, 3)}, {"chunks": (7, 20, 64, 2), "compression": "gzip"})
    for i, storage in enumerate(storages):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file.create_dataset("observations/images/cam", data=made, **storage)
            file["action"] = numbers
        penstock.convert(tmp_path / f"{i}.h5", tmp_path / f"out{i}", fps=10, memory=("1GiB", "300MiB", "512MiB")[i])
    assert bytes_of(tmp_path / "out0") == bytes_of(tmp_path / "out1") == bytes_of(tmp_path / "out2")


def test_a_budget_that_cannot_hold_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file.create_dataset("images/cam", shape=(4, 8000, 8000, 3), dtype=np.uint8, chunks=(1, 100, 8000, 3))
        file["action"] = np.zeros((4, 2))
    with pytest.raises(BudgetExceeded, match="and the budget is 256 MiB"):
        penstock.convert(tmp_path / "wide.h5", tmp_path / "out", fps=10, memory="256MiB")
    assert not (tmp_path / "out").exists()


def test_features_may_be_named_sliced_and_joined(tmp_path: Path) -> None:
    made = files.aloha(tmp_path / "episode_0.hdf5")
    features = {
        "observation.state": [
            {"topic": "observations/qpos", "field": "[0:6]"},
            {"topic": "/observations/qvel", "field": "[13]", "scale": 2.0, "offset": 1.0},
        ],
        "action": {"topic": "action", "dtype": "float64"},
    }
    out = tmp_path / "out"
    penstock.convert(tmp_path / "episode_0.hdf5", out, fps=50, features=features)
    expected = np.concatenate([made["qpos"][:, :6], made["qvel"][:, 13:] * 2 + 1], axis=1)
    assert np.array_equal(datasets.values(out, "observation.state"), expected.astype(np.float32))
    assert np.array_equal(datasets.values(out, "action"), made["action"])
    assert datasets.info(out)["features"]["observation.state"]["names"] == [*(f"qpos_{i}" for i in range(6)), "qvel_13"]
    for wrong, text in (
        ({"topic": "observations/nothing"}, "has no column .observations/nothing"),
        ({"topic": "action", "field": "[3:99]"}, r"\[3:99\] of 14 values"),
        ({"topic": "action", "policy": "linear"}, "paired already"),
    ):
        with pytest.raises((StoreError, ConfigError), match=text):
            penstock.convert(tmp_path / "episode_0.hdf5", tmp_path / "no", fps=50, features={"action": wrong})


@pytest.mark.parametrize(("rows", "noted"), [(2048, False), (2049, True)])
def test_an_episode_whose_times_lerobot_cannot_resolve_is_noted(tmp_path: Path, rows: int, noted: bool) -> None:
    with h5py.File(tmp_path / "long.hdf5", "w") as file:
        file["action"] = np.zeros((rows, 2), np.float32)
        file["observations/qpos"] = np.zeros((rows, 2), np.float32)
    report = penstock.convert(tmp_path / "long.hdf5", tmp_path / "out", fps=1, task="wait")
    assert any(f"an episode of {rows:,} s is longer than the 2,048 s" in note for note in report.notes) is noted


def test_rates_and_tasks_come_from_the_file_or_are_asked_for(tmp_path: Path) -> None:
    files.aloha(tmp_path / "silent.hdf5", rows=3)
    with pytest.raises(ConfigError, match=r"fps=50 \(ALOHA records at 50 Hz\)"):
        penstock.convert(tmp_path / "silent.hdf5", tmp_path / "out")
    files.aloha(tmp_path / "said.hdf5", rows=4, fps=25, task="stack the cups")
    penstock.convert(tmp_path / "said.hdf5", tmp_path / "out")
    assert datasets.info(tmp_path / "out")["fps"] == 25
    assert datasets.episodes(tmp_path / "out")[0]["tasks"] == ["stack the cups"]
    with pytest.raises(DataSetError, match="30 fps against 25"):
        files.aloha(tmp_path / "z_other.hdf5", rows=4, fps=30)
        penstock.convert([tmp_path / "said.hdf5", tmp_path / "z_other.hdf5"], tmp_path / "both")


def test_every_second_row_without_the_ends(tmp_path: Path) -> None:
    made = files.aloha(tmp_path / "episode_0.hdf5", rows=12, fps=50)
    penstock.convert(tmp_path / "episode_0.hdf5", tmp_path / "out", stride=2, sample_drop=1)
    rows = [1, 3, 5, 7, 9]
    assert datasets.info(tmp_path / "out")["fps"] == 25
    assert datasets.samples(tmp_path / "out", HIGH) == [made["cam_high"][row].tobytes() for row in rows]
    assert np.array_equal(datasets.values(tmp_path / "out", "action"), made["action"][rows].astype(np.float32))


def test_what_does_not_fit_together_is_reported(tmp_path: Path) -> None:
    files.aloha(tmp_path / "short.hdf5", rows=6)
    with h5py.File(tmp_path / "short.hdf5", "r+") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = np.zeros((5, 14))
    with pytest.raises(StoreError, match="observations/qpos has 5 rows, the episode has 6") as caught:
        penstock.convert(tmp_path / "short.hdf5", tmp_path / "out", fps=50)
    assert "convert without it: leave_out=observation.state" in str(caught.value.hint)
    report = penstock.convert(tmp_path / "short.hdf5", tmp_path / "kept", fps=50, leave_out=["observation.state"])
    assert (report.frames, report.exit_code) == (6, 0)
    assert "observation.state" not in datasets.info(tmp_path / "kept")["features"]
    files.aloha(tmp_path / "mixed.hdf5", rows=6)
    with h5py.File(tmp_path / "mixed.hdf5", "r+") as file:
        small = cv2.imencode(".jpg", files.image(1)[:40])[1].reshape(-1)
        rows = file["observations/images/cam_high"]
        rows[3] = 0
        rows[3, : len(small)] = small
    with pytest.raises(ImageError, match=r"cam_high: row 3 is jpeg 64×40, the first was jpeg 64×48"):
        penstock.convert(tmp_path / "mixed.hdf5", tmp_path / "out", fps=50)
    with h5py.File(tmp_path / "empty.hdf5", "w") as file:
        file["action"] = np.zeros((0, 3))
    with pytest.raises(StoreError, match="has no rows"):
        penstock.convert(tmp_path / "empty.hdf5", tmp_path / "out", fps=50)


def test_depth_keeps_its_values(tmp_path: Path) -> None:
    depth = np.random.default_rng(0).integers(0, 5000, (5, 24, 32), dtype=np.uint16)
    with h5py.File(tmp_path / "depth.h5", "w") as file:
        file["observations/images/head_depth"] = depth
        file["action"] = np.zeros((5, 2))
    penstock.convert(tmp_path / "depth.h5", tmp_path / "out", fps=10)
    column = datasets.table(tmp_path / "out").column("observation.images.head_depth").to_pylist()
    for cell, expected in zip(column, depth, strict=True):
        assert np.array_equal(cv2.imdecode(np.frombuffer(cell["bytes"], np.uint8), cv2.IMREAD_UNCHANGED), expected)


def test_settings_that_only_hdf5_has_are_checked() -> None:
    assert Settings().hdf5.allow_external is False
    with pytest.raises(ConfigError, match="channels"):
        read_settings(overrides=["hdf5.channels=middle"])


def test_the_order_of_colours_may_be_said(tmp_path: Path) -> None:
    made = files.aloha(tmp_path / "episode_0.hdf5", rows=3, raw=True, fps=50)
    penstock.convert(tmp_path / "episode_0.hdf5", tmp_path / "out", overrides=["hdf5.pixels=bgr"])
    for sample, expected in zip(datasets.samples(tmp_path / "out", HIGH), made["cam_high"], strict=True):
        assert distance(decoded(sample), expected[..., ::-1]) < 3


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_files_that_others_recorded_become_data_sets(tmp_path: Path) -> None:
    for name, column, key in (
        ("offline_rl_flat", "observations", "observation.state"),
        ("robosuite_lift_panda", "data/demo_1/actions", "action"),
    ):
        penstock.convert(SHARED / f"{name}.hdf5", tmp_path / name, fps=20)
        with h5py.File(SHARED / f"{name}.hdf5") as oracle:
            assert np.array_equal(datasets.values(tmp_path / name, key), oracle[column][:].astype(np.float32))
        assert datasets.problems(tmp_path / name) == []
    assert datasets.episodes(tmp_path / "robosuite_lift_panda")[0]["tasks"] == ["Lift"]
