"""output=v2.1: what GR00T, openpi and older LeRobot read, from every kind of input, with the promises of v3.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.media.mp4.index import read_index
from penstock.errors import ConfigError, DataSetError, Interrupted
from tests.conversion import bags, datasets, topics, version21
from tests.conversion.cameras.test_depth import KEY as DEPTH
from tests.conversion.cameras.test_depth import RAW, raw_mm, tape_of
from tests.faults.jobs import call, contents, leftovers, make_sources
from tests.faults.test_fault_23_other_job import StopAfter
from tests.lerobot.groot_reader import STATISTICS, GrootDataSet
from tests.stores import hdf5_files

CAM_H = "observation.images.cam_h"
META = ["episodes.jsonl", "episodes_stats.jsonl", "info.json", "modality.json", "stats.json", "tasks.jsonl"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three recordings, five episodes."""
    return make_sources(tmp_path_factory.mktemp("recordings"))


def v21(sources: list[Path], out: Path, **more: Any) -> dict[str, Any]:
    return call(sources, out, output="v2.1", **{"video": "copy", **more})


def lines(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "meta" / name).read_text().splitlines()]


def codec(out: Path, key: str = CAM_H) -> str:
    return str(datasets.info(out)["features"][key]["info"]["video.codec"])


def faults(out: Path, *, full: bool = False) -> list[str]:
    """What doctor finds, but for its word that this is v2.1."""
    return [each.message for each in check(out, full=full).problems if each.severity != "info"]


def samples(out: Path, key: str) -> list[bytes]:
    """Every frame's bytes, episode after episode."""
    found = []
    for path in sorted(out.glob(f"videos/chunk-*/{key}/episode_*.mp4")):
        index, data = read_index(path), path.read_bytes()
        found += [data[at : at + size] for at, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)]
    return found


def test_every_episode_has_files_of_its_own(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = penstock.convert(**v21(sources, out))
    lengths = [9, 6, 9, 3, 9]
    assert (report.episodes, report.frames, report.exit_code) == (5, sum(lengths), 0)
    assert sorted(path.name for path in (out / "meta").iterdir()) == META
    for episode, rows in enumerate(lengths):
        table = pq.read_table(out / f"data/chunk-000/episode_{episode:06d}.parquet")
        assert table.num_rows == rows and set(table.column("episode_index").to_pylist()) == {episode}
        for key in (CAM_H, "observation.images.cam_l"):
            assert len(read_index(out / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4").sizes) == rows
    assert lines(out, "tasks.jsonl") == [{"task_index": 0, "task": "fold"}]
    assert lines(out, "episodes.jsonl") == [
        {"episode_index": episode, "tasks": ["fold"], "length": rows} for episode, rows in enumerate(lengths)
    ]
    info = datasets.info(out)
    assert {name: info[name] for name in info if name.startswith("total")} == {
        "total_episodes": 5, "total_frames": 36, "total_tasks": 1, "total_videos": 10, "total_chunks": 1,
    }  # fmt: skip
    assert (info["codebase_version"], info["chunks_size"], info["splits"]) == ("v2.1", 1000, {"train": "0:5"})


def test_frames_rows_and_statistics_are_those_of_v30(sources: list[Path], tmp_path: Path) -> None:
    old, new = tmp_path / "v21", tmp_path / "v30"
    penstock.convert(**v21(sources, old))
    penstock.convert(**call(sources, new))
    assert datasets.table(old).equals(datasets.table(new))
    for key in (CAM_H, "observation.images.cam_l"):
        assert samples(old, key) == datasets.samples(new, key), "copied JPEG, byte for byte"
    for line, episode in zip(lines(old, "episodes_stats.jsonl"), datasets.episodes(new), strict=True):
        for key, stats in line["stats"].items():
            assert list(stats) == ["min", "max", "mean", "std", "count"]
            assert stats == {name: episode[f"stats/{key}/{name}"] for name in stats}, key
        assert set(line["stats"]) == {name.split("/")[1] for name in episode if name.startswith("stats/")}


def test_h264_is_the_default_and_the_plan_says_so(
    sources: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(sources[0]), str(tmp_path / "out"), "output=v2.1"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "LeRobot v2.1 · video=h264" in stdout
    assert codec(tmp_path / "out") == "h264"
    penstock.convert(sources[0], tmp_path / "copied", output="v2.1", video="copy")
    assert codec(tmp_path / "copied") == "mjpeg"
    penstock.convert(sources[0], tmp_path / "v30")
    assert codec(tmp_path / "v30") == "mjpeg"


def test_an_output_that_nobody_knows_is_refused(sources: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output: 'v2.2' is not known"):
        penstock.convert(sources[0], tmp_path / "out", output="v2.2")


@pytest.mark.parametrize("video", ["copy", "h264"])
def test_a_groot_reader_finds_everything_by_modality_json(tmp_path: Path, video: str) -> None:
    joints = ["shoulder_pan", "elbow_flex", "wrist_roll", "gripper"]
    bag = bags.write(tmp_path / "run.bag", bags.robot(0.4))
    features: dict[str, Any] = {
        CAM_H: bags.CAM_H,
        "observation.state": {"sources": [{"topic": bags.STATE, "field": "position[0:4]"}], "names": joints},
        "action": bags.COMMAND,
    }
    penstock.convert(bag, tmp_path / "out", output="v2.1", video=video, features=features, task="lift")
    penstock.convert(bag, tmp_path / "v30", features=features, task="lift")
    data = GrootDataSet(tmp_path / "out")
    episode = data.episode(0)
    state = datasets.values(tmp_path / "v30", "observation.state").astype(np.float32)
    assert np.array_equal(episode["state.single_arm"], state[:, :3])
    assert np.array_equal(episode["state.gripper"], state[:, 3:])
    assert np.array_equal(episode["action.all"], datasets.values(tmp_path / "v30", "action").astype(np.float32))
    assert episode["annotation.human.task_description"] == ["lift"] * len(state)
    (video_file,) = (tmp_path / "out/videos").rglob("*.mp4")
    expected = version21.decoded(video_file)
    assert all(np.array_equal(a, b) for a, b in zip(episode["video.cam_h"], expected, strict=True))
    assert data.resolution("cam_h") == (bags.WIDTH, bags.HEIGHT, 3, 30)
    stats = data.statistics("state", "gripper")
    assert set(stats) == set(STATISTICS), "anything else could not be sliced like the column"
    np.testing.assert_allclose(stats["mean"], state[:, 3:].astype(np.float64).mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(stats["q99"], np.quantile(state[:, 3:], 0.99, axis=0), rtol=1e-2)


def test_hdf5_and_data_sets_are_converted(tmp_path: Path) -> None:
    made = hdf5_files.aloha(tmp_path / "episode_0.hdf5", rows=7)
    penstock.convert(tmp_path / "episode_0.hdf5", tmp_path / "hdf5", output="v2.1", fps=50)
    episode = GrootDataSet(tmp_path / "hdf5").episode(0)
    assert np.array_equal(episode["state.velocity"], made["qvel"].astype(np.float32))
    assert len(episode["video.cam_high"]) == 7 and codec(tmp_path / "hdf5", "observation.images.cam_high") == "h264"

    source = version21.make(tmp_path / "old", (12, 9, 11))
    penstock.convert(source, tmp_path / "moved", output="v2.1", video="copy-only")
    for number in range(3):
        old, new = (read_index(version21.video_path(root, number)) for root in (source, tmp_path / "moved"))
        assert np.array_equal(old.sizes, new.sizes)
    assert faults(tmp_path / "moved", full=True) == []
    report = penstock.convert(source, tmp_path / "default", output="v2.1")
    assert any("is h264 already and is copied" in note for note in report.notes)
    assert contents(tmp_path / "default") == contents(tmp_path / "moved")


@pytest.mark.parametrize("video", ["h264", "av1", "mjpeg"])
def test_v30_to_v21_and_back_loses_nothing(tmp_path: Path, video: str) -> None:
    first = version21.make(tmp_path / "source", (12, 9, 11), version21.Video(video))
    v30, old, back = tmp_path / "v30", tmp_path / "v21", tmp_path / "back"
    penstock.convert(first, v30)
    penstock.convert(v30, old, output="v2.1", video="copy-only")
    report = penstock.convert(old, back, video="copy-only")
    assert report.lost == {} and report.exit_code == 0
    assert contents(back) == contents(v30), "rows, frames, tasks, statistics: all files"


def test_a_recording_goes_to_v21_and_back_without_a_difference(sources: list[Path], tmp_path: Path) -> None:
    penstock.convert(**call(sources, tmp_path / "v30"))
    penstock.convert(tmp_path / "v30", tmp_path / "v21", output="v2.1", video="copy", rosbag={"chunk_size": 9})
    penstock.convert(tmp_path / "v21", tmp_path / "back", rosbag={"chunk_size": 9})
    assert contents(tmp_path / "back") == contents(tmp_path / "v30")


@pytest.mark.parametrize("rows", [3, 20, 26])
@pytest.mark.parametrize("video", ["copy", "h264"])
def test_stopped_and_resumed_gives_the_same_bytes(sources: list[Path], tmp_path: Path, rows: int, video: str) -> None:
    with pytest.raises(Interrupted):
        penstock.convert(**v21(sources, tmp_path / "out", video=video), progress=StopAfter(rows))
    penstock.convert(**v21(sources, tmp_path / "out", video=video, resume=True))
    penstock.convert(**v21(sources, tmp_path / "undisturbed", video=video))
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed") and leftovers(tmp_path / "out") == []


def test_two_processes_give_the_same_bytes(sources: list[Path], tmp_path: Path) -> None:
    for video in ("copy", "h264"):
        outs = [tmp_path / f"{video}{jobs}" for jobs in (1, 2)]
        for jobs, out in enumerate(outs, start=1):
            report = penstock.convert(**v21(sources, out, video=video, jobs=jobs))
            assert report.episodes == 5
        assert contents(outs[0]) == contents(outs[1])


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("video", ["copy", None])
def test_append_gives_the_bytes_of_one_call(
    sources: list[Path], tmp_path: Path, named: bool, video: str | None
) -> None:
    words = call(sources[:1], tmp_path / "out", output="v2.1", **({} if video is None else {"video": video}))
    penstock.convert(**words)
    before = contents(tmp_path / "out")
    more = {"output": "v2.1"} if named else {}
    report = penstock.convert(**call(sources[1:], tmp_path / "out", append=True, **more))
    assert report.episodes == 5 and contents(tmp_path / "out").keys() > before.keys()
    penstock.convert(**{**words, "sources": [str(path) for path in sources], "out": str(tmp_path / "at once")})
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")
    assert not (tmp_path / "out/penstock/episodes").exists()


def test_a_modality_json_that_somebody_edited_survives_an_append(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(**v21(sources[:1], out))
    (out / "meta/modality.json").write_text('{"mine": true}')
    penstock.convert(**v21(sources[1:2], out, append=True))
    assert (out / "meta/modality.json").read_text() == '{"mine": true}'


def test_another_output_cannot_be_appended(sources: list[Path], tmp_path: Path) -> None:
    penstock.convert(**call(sources[:1], tmp_path / "out"))
    with pytest.raises(DataSetError, match=r"output: 'v2.1' instead of 'v3.0'"):
        penstock.convert(**v21(sources[1:], tmp_path / "out", append=True))


def test_files_that_changed_are_named_before_anything_is_appended(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(**v21(sources[:1], out))
    video = out / f"videos/chunk-000/{CAM_H}/episode_000000.mp4"
    video.write_bytes(video.read_bytes()[:-1])
    with pytest.raises(DataSetError, match=r"episode_000000\.mp4: .* were committed"):
        penstock.convert(**v21(sources[1:], out, append=True))


def test_losses_are_counted_and_said_in_the_exit_code(tmp_path: Path) -> None:
    tape = bags.change(bags.robot(0.5), bags.CAM_H, 4, bags.with_content(bags.Jpeg(b"\xff\xd8 no image")))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", output="v2.1")
    assert sum(report.lost.values()) > 0 and report.exit_code == 3
    assert faults(tmp_path / "out", full=True) == []


def test_doctor_is_content_and_open_loads_it(sources: list[Path], tmp_path: Path) -> None:
    for video in ("copy", "h264"):
        out = tmp_path / video
        penstock.convert(**v21(sources, out, video=video))
        assert main(["doctor", str(out), "--full"]) == 0
        with penstock.Loader(penstock.open(out), batch_size=4, memory="1GiB") as loader:
            batches = list(loader)
        rows = np.concatenate([batch["index"].reshape(-1) for batch in batches])
        loaded = np.concatenate([batch["action"].reshape(len(batch["index"]), -1) for batch in batches])
        assert np.array_equal(loaded[np.argsort(rows)], datasets.values(out, "action"))
        assert {batch[CAM_H].shape[-3:] for batch in batches} == {(3, 224, 224)}


def test_depth_is_kept_and_its_statistics_do_not_stop_lerobot(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", tape_of(RAW, raw_mm))
    penstock.convert(bag, tmp_path / "out", output="v2.1")
    penstock.convert(bag, tmp_path / "v30")
    stats = lines(tmp_path / "out", "episodes_stats.jsonl")[0]["stats"]
    assert DEPTH not in stats and "timestamp" in stats
    assert all(np.shape(entry["mean"]) == (3, 1, 1) for key, entry in stats.items() if "image" in key)
    assert open_data_set(tmp_path / "out").info.features[DEPTH].is_depth
    column = datasets.table(tmp_path / "out").column(DEPTH).to_pylist()
    assert column == datasets.table(tmp_path / "v30").column(DEPTH).to_pylist()


def test_chunks_hold_a_thousand_episodes(tmp_path: Path) -> None:
    from penstock._src.conversion.commit.writer import DataSetWriter
    from penstock._src.lerobot.features import Feature

    out = tmp_path / "out"
    features = (Feature("action", "float32", (2,)),)
    with DataSetWriter(out, fps=10, features=features, output="v2.1", fsync=False, chunks_size=3) as writer:
        for number in range(7):
            with writer.episode(rows=2, task="a") as episode:
                episode.write_rows({"action": np.full((2, 2), number, np.float32)})
                episode.commit(grouped=True)
    assert sorted(path.parent.name for path in out.rglob("*.parquet")) == ["chunk-000"] * 3 + ["chunk-001"] * 3 + [
        "chunk-002"
    ]
    assert datasets.info(out)["total_chunks"] == 3 and datasets.info(out)["video_path"] is None
    assert faults(out) == []
    assert GrootDataSet(out).episode(6)["action.all"].tolist() == [[6, 6]] * 2


def test_columns_of_language_are_refused_with_the_way_out(tmp_path: Path) -> None:
    texts = topics.spoken("/subtask", {0.1: "reach", 0.3: "grasp"})
    tape = bags.camera(bags.CAM_H, bags.times(20, 1.0)) + bags.joints(bags.STATE, bags.times(20, 1.0))
    bag = topics.write(tmp_path / "run.bag", tape, texts)
    words = {"subtask": "/subtask", "language": True}
    with pytest.raises(DataSetError, match="no columns like language_persistent") as refused:
        penstock.convert(bag, tmp_path / "out", output="v2.1", episodes=words)
    assert "episodes.language=false" in str(refused.value) and not (tmp_path / "out").exists()
    penstock.convert(bag, tmp_path / "v30", episodes=words)
    with pytest.raises(DataSetError, match=r"leave_out=\[language_persistent\]"):
        penstock.convert(tmp_path / "v30", tmp_path / "out", output="v2.1")
    penstock.convert(tmp_path / "v30", tmp_path / "out", output="v2.1", leave_out=["language_persistent"])
    penstock.convert(bag, tmp_path / "at once", output="v2.1", episodes={"subtask": "/subtask"})
    assert datasets.table(tmp_path / "out").column("subtask").to_pylist()[-1] == "grasp"
    assert datasets.table(tmp_path / "out").equals(datasets.table(tmp_path / "at once"))


class StopOnce(StopAfter):
    """Presses Ctrl-C once: a second time would end even what is being joined."""

    def stage(self, stage: Any) -> None:
        super().stage(stage)
        if stage.at.startswith("row "):
            self._rows = 10**9


def test_two_processes_that_were_stopped_are_resumed_to_the_same_bytes(sources: list[Path], tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        penstock.convert(**v21(sources, tmp_path / "out", jobs=2), progress=StopOnce(3))
    penstock.convert(**v21(sources, tmp_path / "out", jobs=2, resume=True))
    penstock.convert(**v21(sources, tmp_path / "undisturbed"))
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed") and leftovers(tmp_path / "out") == []
