"""The real LeRobot 0.6.1 reads recorded video streams: moved as they are, every pixel is the one of the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import penstock
from tests.conversion import bags, video_bags
from tests.media import streams
from tests.media.images import psnr_db

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]

KEY = "observation.images.cam"
BACKENDS = ("torchcodec", "pyav")


def converted(root: Path, codec: str, sent: Any, **options: Any) -> Any:
    others = bags.joints("/joint_states", bags.times(100, len(sent) / 30 + 0.1))
    root.mkdir(exist_ok=True)
    recording = video_bags.write(root / "run.bag", video_bags.packets(sent, codec), others)
    return penstock.convert(recording, root / "out", **options)


def rows(root: Path, backend: str) -> list[np.ndarray]:
    data = LeRobotDataset("penstock/streams", root=root / "out", video_backend=backend)
    return [(data[k][KEY].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8) for k in range(len(data))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("codec", ["h264", "h265"])
def test_a_moved_stream_is_read_pixel_for_pixel(codec: str, backend: str, tmp_path: Path) -> None:
    """Two episodes that follow one another in one file, each from a key frame on."""
    sent = streams.stream(codec, 30)
    report = converted(tmp_path, codec, sent, split_episodes=True, rosbag={"chunk_size": 20})
    assert (report.episodes, report.lost_count) == (2, 0)
    assert any("moved as it is" in note for note in report.notes)
    shown = rows(tmp_path, backend)
    expected = streams.decoded(codec, sent)
    assert len(shown) == 30
    assert all(map(np.array_equal, shown, expected))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_with_b_frames_is_read_in_the_order_in_which_it_is_shown(backend: str, tmp_path: Path) -> None:
    sent = streams.stream("h264", 30, b_frames=3, crf=10)
    report = converted(tmp_path, "h264", sent, encoding={"crf": 10})
    assert any("encoded as h264, because" in note and "B-frames" in note for note in report.notes)
    expected = streams.decoded("h264", sent)
    assert all(psnr_db(a, b) > 24 for a, b in zip(rows(tmp_path, backend), expected, strict=True))


def test_lerobot_reads_what_info_json_says_of_a_moved_stream(tmp_path: Path) -> None:
    converted(tmp_path, "h265", streams.stream("h265", 20))
    data = LeRobotDataset("penstock/streams", root=tmp_path / "out")
    info = data.meta.features[KEY]["info"]
    assert (info["video.codec"], info["video.pix_fmt"], info["video.fps"]) == ("hevc", "yuv420p", 30)
    assert data.num_frames == 20
