"""The real LeRobot 0.6.1 reads converted recordings: every frame and every number is the one that the alignment names.

The expected rows come from the brute-force aligner and from the recorded messages themselves, never from penstock's own
alignment; the expected pixels from decoding the recorded JPEG alone.
"""

from __future__ import annotations

import io
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from lerobot.datasets.aggregate import aggregate_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import penstock
from penstock._src.demo.recording import (
    CAMERA_TOPIC,
    CAMERAS,
    COMMAND_TOPIC,
    COMPRESSED_IMAGE,
    JOINT_STATE,
    JOINTS,
    STATE_TOPIC,
    Script,
    events,
    image_payload,
    joint_payload,
)
from penstock._src.demo.scene import SceneCamera, joint_angles
from penstock._src.media.image.codec import encode_jpeg
from penstock._src.recordings.ros1.writer import BagWriter
from tests.align.brute import BruteStream, brute_align

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]

BACKENDS = ("torchcodec", "pyav")
WIDTH, HEIGHT, FPS = 160, 120, 30
NUMBERS = {STATE_TOPIC: "observation.state", COMMAND_TOPIC: "action"}


@dataclass(frozen=True)
class Recorded:
    """A bag, and what went into it."""

    path: Path
    times: dict[str, list[int]]
    payloads: dict[str, list[Any]]

    def expected(self) -> list[dict[str, Any]]:
        """The rows as the brute-force aligner sees them: a JPEG or a vector for each feature."""
        streams = [BruteStream(topic, times) for topic, times in self.times.items()]
        rows = brute_align(streams, timeline=CAMERA_TOPIC.format(CAMERAS[0]))
        return [
            {topic: self.payloads[topic][rows.choices[topic][row].left] for topic in self.times}
            for row in range(len(rows.times))
        ]


def record(path: Path, *, seconds: float, seed: int) -> Recorded:
    """A recording whose cameras and joints run at their own rates, the third camera at half the rate of the others."""
    script = Script(seconds=seconds, fps=FPS, width=WIDTH, height=HEIGHT, seed=seed)
    cameras = {CAMERA_TOPIC.format(name): SceneCamera(WIDTH, HEIGHT, seed * 10 + i) for i, name in enumerate(CAMERAS)}
    slow = CAMERA_TOPIC.format(CAMERAS[2])
    times: dict[str, list[int]] = {}
    kept: dict[str, list[Any]] = {}
    with BagWriter(path) as bag:
        ids = {topic: bag.add_topic(topic, *COMPRESSED_IMAGE, "0" * 32) for topic in cameras}
        ids |= {topic: bag.add_topic(topic, *JOINT_STATE, "0" * 32) for topic in NUMBERS}
        for event in events(script):
            if event.topic == slow and event.sequence % 2:
                continue
            if event.topic in cameras:
                content: Any = encode_jpeg(cameras[event.topic].frame(event.sequence / FPS), 90)
                payload = image_payload(event.time_ns, event.sequence, content)
            else:
                content = joint_angles(event.sequence * 0.01 + seed, JOINTS)
                payload = joint_payload(event.time_ns, event.sequence, content)
            bag.write(ids[event.topic], event.time_ns, payload)
            times.setdefault(event.topic, []).append(event.time_ns)
            kept.setdefault(event.topic, []).append(content)
    return Recorded(path, times, kept)


def decoded(jpeg: bytes) -> np.ndarray:
    with av.open(io.BytesIO(jpeg)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def pixels(item: dict[str, Any], key: str) -> np.ndarray:
    return (item[key].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)


def read(root: Path, **options: Any) -> LeRobotDataset:
    return LeRobotDataset("penstock/converted", root=root, **options)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    folder = tmp_path_factory.mktemp("bags")
    return [record(folder / f"run{i}.bag", seconds=seconds, seed=i) for i, seconds in enumerate((1.5, 1.0, 1.2))]


@pytest.fixture(scope="module", params=["one file", "rolled over"])
def converted(
    request: pytest.FixtureRequest, recordings: list[Recorded], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[dict[str, Any]]]]:
    """Three bags in one set; rolled over, so many that their videos pass the smallest limit of a file, 1 MiB."""
    folder = tmp_path_factory.mktemp("converted")
    expected = [recording.expected() for recording in recordings]
    sources = [recording.path for recording in recordings]
    options: dict[str, Any] = {}
    if request.param == "rolled over":
        options = {"files": {"data_mb": 1, "video_mb": 1}, "rosbag": {"chunk_size": 7}}
        expected = expected * 3
        sources = [shutil.copy(source, folder / f"copy{i}.bag") for i, source in enumerate(sources * 3)]
    penstock.convert(sources, folder / "set", task="pour the tea", robot_type="demo", **options)
    return folder / "set", expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_pixel_and_number_is_that_of_the_message_the_alignment_names(
    converted: tuple[Path, list[list[dict[str, Any]]]], backend: str
) -> None:
    root, episodes = converted
    data = read(root, video_backend=backend)
    assert len(data) == sum(len(rows) for rows in episodes)
    assert data.num_episodes == len(episodes)
    position = 0
    for number, rows in enumerate(episodes):
        for frame, row in enumerate(rows):
            item = data[position]
            assert (int(item["episode_index"]), int(item["frame_index"]), int(item["index"])) == (
                number,
                frame,
                position,
            )
            assert item["task"] == "pour the tea"
            for name in CAMERAS:
                shown = pixels(item, f"observation.images.{name}")
                np.testing.assert_array_equal(shown, decoded(row[CAMERA_TOPIC.format(name)]))
            for topic, key in NUMBERS.items():
                np.testing.assert_array_equal(item[key].numpy(), row[topic].astype(np.float32))
            position += 1


def test_several_episodes_share_files_or_roll_over(converted: tuple[Path, list[list[dict[str, Any]]]]) -> None:
    root, episodes = converted
    files = sorted((root / "videos" / f"observation.images.{CAMERAS[0]}").rglob("*.mp4"))
    assert len(files) == 1 if len(episodes) == 3 else 1 < len(files) < len(episodes)


def test_windows_over_time_are_right(converted: tuple[Path, list[list[dict[str, Any]]]]) -> None:
    root, episodes = converted
    key = f"observation.images.{CAMERAS[0]}"
    window = {"action": [0.0, 1 / FPS, 2 / FPS], key: [-1 / FPS, 0.0]}
    data = read(root, delta_timestamps=window)
    start = 0
    for rows in episodes[:3]:
        for frame in (0, len(rows) // 2, len(rows) - 1):
            item = data[start + frame]
            ahead = [min(frame + step, len(rows) - 1) for step in range(3)]
            expected = np.stack([rows[i][COMMAND_TOPIC] for i in ahead]).astype(np.float32)
            np.testing.assert_array_equal(item["action"].numpy(), expected)
            assert item["action_is_pad"].tolist() == [frame + step >= len(rows) for step in range(3)]
            before = decoded(rows[max(frame - 1, 0)][CAMERA_TOPIC.format(CAMERAS[0])])
            shown = (item[key][0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
            np.testing.assert_array_equal(shown, before)
        start += len(rows)


def test_statistics_are_those_of_the_rows(converted: tuple[Path, list[list[dict[str, Any]]]]) -> None:
    root, episodes = converted
    stats = read(root).meta.stats
    for topic, key in NUMBERS.items():
        values = np.stack([row[topic] for rows in episodes for row in rows]).astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(stats[key]["mean"], values.mean(axis=0), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(stats[key]["std"], values.std(axis=0), rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(stats[key]["min"], values.min(axis=0))
        np.testing.assert_array_equal(stats[key]["max"], values.max(axis=0))
        assert stats[key]["count"].tolist() == [len(values)]
    assert stats[f"observation.images.{CAMERAS[0]}"]["mean"].shape == (3, 1, 1)


def test_lerobots_own_aggregation_takes_converted_sets(recordings: list[Recorded], tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root, recording in zip(roots, recordings, strict=False):
        penstock.convert(recording.path, root)
    together = tmp_path / "together"
    aggregate_datasets(["p/a", "p/b"], "p/ab", roots=roots, aggr_root=together)
    data = read(together)
    rows = [row for recording in recordings[:2] for row in recording.expected()]
    assert len(data) == len(rows)
    for position in (0, len(recordings[0].expected()) - 1, len(recordings[0].expected()), len(rows) - 1):
        key = f"observation.images.{CAMERAS[1]}"
        shown = pixels(data[position], key)
        np.testing.assert_array_equal(shown, decoded(rows[position][CAMERA_TOPIC.format(CAMERAS[1])]))


def test_the_expected_rows_hold_recorded_jpegs(recordings: list[Recorded]) -> None:
    """The test's own foundation: what `expected` gives lies in the bag, byte for byte."""
    raw = recordings[0].path.read_bytes()
    for row in recordings[0].expected()[::10]:
        jpeg = row[CAMERA_TOPIC.format(CAMERAS[2])]
        assert struct.pack("<I", len(jpeg)) + jpeg in raw
