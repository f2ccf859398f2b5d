"""The real LeRobot 0.6.1 reads and aggregates what penstock writes, and the doctor understands what LeRobot writes."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from lerobot.datasets.aggregate import aggregate_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.video_utils import get_video_info

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.media.image.codec import encode_jpeg
from tests.lerobot import reading
from tests.lerobot.making import (
    CAMERA,
    FEATURES,
    FPS,
    IMAGE,
    IMAGE_FEATURES,
    NAMES,
    jpegs,
    make,
    numbers,
    rgb,
)

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("default"),  # LeRobot and what it imports warn about themselves
]

LENGTHS = (12, 7, 9)
TASKS = ("lift the cup", "打开抽屉")
BACKENDS = ("torchcodec", "pyav")
ROLLED = {"data_file_bytes": 1, "video_file_bytes": 1}


@pytest.fixture(scope="module", params=["one file", "rolled over"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("penstock") / "set"
    limits = ROLLED if request.param == "rolled over" else {}
    make(root, lengths=LENGTHS, tasks=TASKS, **limits)
    return root


def read(root: Path, **options: Any) -> LeRobotDataset:
    return LeRobotDataset("penstock/test", root=root, **options)


def decoded(jpeg: bytes) -> np.ndarray:
    """The image as FFmpeg decodes the JPEG alone."""
    with av.open(io.BytesIO(jpeg), format="mjpeg") as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def expected_images(lengths: tuple[int, ...], first_seed: int = 0) -> list[np.ndarray]:
    return [decoded(jpeg) for seed, n in enumerate(lengths, start=first_seed) for jpeg in jpegs(n, seed)]


def pixels(item: dict[str, Any], key: str = CAMERA) -> np.ndarray:
    return item[key].permute(1, 2, 0).numpy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_frame_and_value_is_the_one_that_was_written(written: Path, backend: str) -> None:
    data = read(written, video_backend=backend, return_uint8=True)
    assert len(data) == sum(LENGTHS) and data.num_episodes == len(LENGTHS) and data.fps == FPS
    state = np.concatenate([numbers(n, seed)["observation.state"] for seed, n in enumerate(LENGTHS)])
    images = expected_images(LENGTHS)
    episodes = np.repeat(range(len(LENGTHS)), LENGTHS)
    for row in range(len(data)):
        item = data[row]
        assert np.array_equal(item["observation.state"].numpy(), state[row])
        assert item["episode_index"].item() == episodes[row] and item["index"].item() == row
        assert item["task"] == TASKS[episodes[row] % 2]
        assert np.array_equal(pixels(item), images[row]), row


def test_reading_gives_no_warning(
    written: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    with caplog.at_level(logging.WARNING):
        data = read(written, delta_timestamps={"action": [0.0, 1 / FPS]})
        data[0], data[len(data) - 1]
    assert [record.getMessage() for record in caplog.records] == []
    assert [str(warning.message) for warning in recwarn if "penstock" in str(warning.message)] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_are_cut_at_the_ends_of_episodes(written: Path, backend: str) -> None:
    steps = [-2 / FPS, 0.0, 1 / FPS]
    data = read(written, video_backend=backend, return_uint8=True, delta_timestamps={CAMERA: steps, "action": steps})
    action = np.concatenate([numbers(n, seed)["action"] for seed, n in enumerate(LENGTHS)])
    images = expected_images(LENGTHS)
    starts = np.cumsum((0, *LENGTHS))
    for row in (0, 1, 5, 11, 12, 13, 18, 19, 27):
        episode = int(np.searchsorted(starts, row, side="right")) - 1
        first, last = int(starts[episode]), int(starts[episode + 1]) - 1
        wanted = [min(max(row + step, first), last) for step in (-2, 0, 1)]
        item = data[row]
        assert np.array_equal(item["action"].numpy(), action[wanted])
        assert item["action_is_pad"].tolist() == [not first <= row + step <= last for step in (-2, 0, 1)]
        shown = item[CAMERA].permute(0, 2, 3, 1).numpy()
        assert np.array_equal(shown, np.stack([images[w] for w in wanted]))


def test_some_episodes_alone_are_read(written: Path) -> None:
    data = read(written, episodes=[1, 2], return_uint8=True, video_backend="pyav")
    images = expected_images(LENGTHS)
    assert len(data) == 16
    assert [data[row]["index"].item() for row in range(16)] == list(range(12, 28))
    assert all(np.array_equal(pixels(data[row]), images[12 + row]) for row in range(16))


def test_statistics_arrive_in_lerobots_shapes(written: Path) -> None:
    stats = read(written).meta.stats
    action = np.concatenate([numbers(n, seed)["action"] for seed, n in enumerate(LENGTHS)]).astype(np.float64)
    np.testing.assert_allclose(stats["action"]["q90"], np.quantile(action, 0.9, axis=0), rtol=1e-6)
    np.testing.assert_allclose(stats["action"]["std"], action.std(axis=0), rtol=1e-6)
    assert stats[CAMERA]["mean"].shape == (3, 1, 1) and stats["action"]["count"].tolist() == [28]


def test_info_says_of_the_video_what_lerobot_finds_in_it(written: Path) -> None:
    info = json.loads((written / "meta/info.json").read_text())["features"][CAMERA]["info"]
    for path in sorted((written / "videos").rglob("*.mp4")):
        found = get_video_info(path)
        assert {key: info[key] for key in found} == found


def test_images_in_the_table_are_read(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=LENGTHS, features=IMAGE_FEATURES)
    data = read(tmp_path / "set")
    from PIL import Image

    sources = [jpeg for seed, n in enumerate(LENGTHS) for jpeg in jpegs(n, seed)]
    for row in (0, 11, 12, 27):
        shown = (pixels(data[row], IMAGE) * 255).round().astype(np.uint8)
        assert np.array_equal(shown, np.asarray(Image.open(io.BytesIO(sources[row])).convert("RGB")))


@pytest.mark.parametrize("features", [FEATURES, IMAGE_FEATURES], ids=["video", "images"])
@pytest.mark.parametrize("limits", [{}, ROLLED], ids=["one file", "rolled over"])
def test_lerobots_own_aggregation_accepts_two_sets(
    tmp_path: Path, features: tuple[Feature, ...], limits: dict[str, int]
) -> None:
    make(tmp_path / "one", lengths=LENGTHS, features=features, tasks=TASKS, **limits)
    make(tmp_path / "two", lengths=(5, 8), features=features, first_seed=3, tasks=("press", TASKS[0]), **limits)
    roots = [tmp_path / "one", tmp_path / "two"]
    aggregate_datasets(["a/one", "a/two"], "a/both", roots=roots, aggr_root=tmp_path / "both")
    report = check(tmp_path / "both", full=True)
    assert report.is_clean, report.problems
    data = read(tmp_path / "both", return_uint8=True, video_backend="pyav")
    lengths = (*LENGTHS, 5, 8)
    assert len(data) == sum(lengths)
    state = np.concatenate([numbers(n, seed)["observation.state"] for seed, n in enumerate(lengths)])
    images = expected_images(lengths)
    for row in range(len(data)):
        item = data[row]
        assert np.array_equal(item["observation.state"].numpy(), state[row])
        if features is FEATURES:
            assert np.array_equal(pixels(item), images[row]), row
    assert [data[row]["task"] for row in (0, 12, 28, 33)] == [TASKS[0], TASKS[1], "press", TASKS[0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_in_any_script_are_read(tmp_path: Path, backend: str) -> None:
    features = (
        Feature("observation.images.頭 🤖", "video", FEATURES[0].shape, NAMES),
        Feature("größe", "float32", (2,)),
    )
    with DataSetWriter(tmp_path / "set", fps=FPS, features=features) as writer, writer.episode(task="x") as episode:
        episode.video(features[0].key).append(jpegs(3))
        episode.write_rows({"größe": np.arange(6).reshape(3, 2)})
        episode.commit()
    item = read(tmp_path / "set", video_backend=backend, return_uint8=True)[2]
    assert item["größe"].tolist() == [4.0, 5.0]
    assert np.array_equal(pixels(item, features[0].key), decoded(jpegs(3)[2]))


def test_matrices_are_read_and_aggregated(tmp_path: Path) -> None:
    features = (Feature("matrix", "float32", (2, 3)), Feature("flag", "bool", (1,)))
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    for name in ("one", "two"):
        with DataSetWriter(tmp_path / name, fps=FPS, features=features) as writer, writer.episode(task="x") as episode:
            episode.write_rows({"matrix": values, "flag": np.array([True, False, True, True])})
            episode.commit()
    assert np.array_equal(read(tmp_path / "one")[2]["matrix"].numpy(), values[2])
    roots = [tmp_path / "one", tmp_path / "two"]
    aggregate_datasets(["a/one", "a/two"], "a/both", roots=roots, aggr_root=tmp_path / "both")
    assert np.array_equal(read(tmp_path / "both")[6]["matrix"].numpy(), values[2])


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_encoded_video_is_read(tmp_path: Path, codec: str) -> None:
    from penstock._src.media.video.encode import EncoderSettings, VideoEncoder

    feature = Feature(CAMERA, "video", (64, 96, 3), NAMES)
    images = [np.full((64, 96, 3), 10 * number, dtype=np.uint8) for number in range(20)]
    with DataSetWriter(tmp_path / "set", fps=FPS, features=[feature]) as writer:
        for _ in range(2):
            with (
                VideoEncoder(EncoderSettings(codec), 96, 64, FPS) as encoder,
                writer.episode(rows=20, task="x") as episode,
            ):
                sink = episode.video(CAMERA)
                for image in images:
                    sink.append_encoded(encoder.encode(image), encoder)
                sink.append_encoded(encoder.flush(), encoder)
                episode.write_rows({}, rows=20)
                episode.commit()
    info = json.loads((tmp_path / "set/meta/info.json").read_text())["features"][CAMERA]["info"]
    found = get_video_info(tmp_path / f"set/videos/{CAMERA}/chunk-000/file-000.mp4")
    assert {key: info[key] for key in found} == found
    assert check(tmp_path / "set", full=True).is_clean
    for backend in BACKENDS:
        data = read(tmp_path / "set", video_backend=backend, return_uint8=True)
        for row in range(40):
            assert abs(float(pixels(data[row]).mean()) - 10 * (row % 20)) < 4, (backend, row)


@pytest.mark.parametrize("backend", BACKENDS)
def test_frames_of_long_episodes_are_found(tmp_path: Path, backend: str) -> None:
    """Times are float32 there: a file that is too long, or an episode that starts late in it, would be out of reach."""
    lengths = (7, 29_500, 40_000)
    with DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[:1]) as writer:
        for count in lengths:
            with writer.episode(rows=count, task="wait") as episode:
                episode.video(CAMERA).append(jpegs(1))
                episode.video(CAMERA).repeat(count - 2)
                episode.video(CAMERA).append(jpegs(2)[1:])
                episode.write_rows({}, rows=count)
                episode.commit()
    assert read(tmp_path / "set").meta.episodes[1][f"videos/{CAMERA}/from_timestamp"] > 0
    data = read(tmp_path / "set", video_backend=backend, return_uint8=True)
    last = decoded(jpegs(2)[1]).astype(int)
    ends = np.cumsum(lengths)
    for row in (*(ends - 1).tolist(), *(np.linspace(7, ends[-1] - 1, 40).astype(int).tolist())):
        difference = np.abs(pixels(data[row]).astype(int) - last).max()
        assert (difference <= 2) == (row + 1 in ends), row


def lerobot_made(root: Path, use_videos: bool) -> LeRobotDataset:
    kind = "video" if use_videos else "image"
    features = {
        CAMERA: {"dtype": kind, "shape": (64, 96, 3), "names": list(NAMES)},
        "observation.state": {"dtype": "float32", "shape": (4,), "names": ["a", "b", "c", "d"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "flag": {"dtype": "bool", "shape": (1,), "names": None},
    }
    data = LeRobotDataset.create("lerobot/test", FPS, features, root=root, robot_type="test", use_videos=use_videos)
    for seed, length in enumerate((13, 8)):
        values = numbers(length, seed)
        for row in range(length):
            frame = {key: value[row] for key, value in values.items()}
            frame |= {CAMERA: np.kron(rgb(row), np.ones((2, 2, 1), dtype=np.uint8)), "flag": np.array([row % 2 == 0])}
            data.add_frame({**frame, "task": f"task {seed}"})
        data.save_episode()
    data.finalize()
    return data


@pytest.mark.parametrize("use_videos", [True, False], ids=["video", "images"])
def test_the_doctor_finds_nothing_in_what_lerobot_wrote(tmp_path: Path, use_videos: bool) -> None:
    lerobot_made(tmp_path / "set", use_videos)
    report = check(tmp_path / "set", full=True)
    assert report.is_clean, report.problems
    assert report.counted["rows"] == 21
    data = open_data_set(tmp_path / "set")
    assert np.array_equal(reading.rows(data, ["action"], 13, 21)["action"], numbers(8, 1)["action"])


@pytest.mark.parametrize("use_videos", [True, False], ids=["video", "images"])
def test_tables_have_the_columns_and_types_of_lerobots_own(tmp_path: Path, use_videos: bool) -> None:
    lerobot_made(tmp_path / "theirs", use_videos)
    theirs_info = json.loads((tmp_path / "theirs/meta/info.json").read_text())
    features = [
        Feature(key, entry["dtype"], tuple(entry["shape"]), entry["names"])
        for key, entry in list(theirs_info["features"].items())[:4]
    ]
    with DataSetWriter(tmp_path / "ours", fps=FPS, features=features, robot_type="test") as writer:
        image = encode_jpeg(np.zeros((64, 96, 3), dtype=np.uint8))
        with writer.episode(task="x") as episode:
            columns: dict[str, Any] = {**numbers(3), "flag": np.ones(3, dtype=bool)}
            if use_videos:
                episode.video(CAMERA).append([image] * 3)
            else:
                columns[CAMERA] = [image] * 3
            episode.write_rows(columns)
            episode.commit()
    for relative in (
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/tasks.parquet",
    ):
        ours, theirs = (pq.read_schema(tmp_path / name / relative) for name in ("ours", "theirs"))
        assert ours.names == theirs.names
        assert [str(field.type).replace("item", "element") for field in ours] == [
            str(field.type).replace("item", "element") for field in theirs
        ]
    ours_info = json.loads((tmp_path / "ours/meta/info.json").read_text())
    assert list(ours_info) == list(theirs_info)
    assert list(ours_info["features"]) == list(theirs_info["features"])
    if use_videos:
        assert list(ours_info["features"][CAMERA]["info"]) == list(theirs_info["features"][CAMERA]["info"])
    hugging_face = (
        json.loads(pq.read_schema(tmp_path / name / "data/chunk-000/file-000.parquet").metadata[b"huggingface"])["info"]
        for name in ("ours", "theirs")
    )
    assert next(hugging_face) == next(hugging_face)
