"""The real LeRobot 0.6.1 reads what several machines converted: a chunk of videos for each group of recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import penstock
from tests.conversion.sharing import FRAMES, local, make_recordings, share_out

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]

KEYS = (
    "observation.images.cam_h",
    "observation.images.cam_l",
    "observation.state",
    "index",
    "episode_index",
    "timestamp",
)


def test_lerobot_reads_the_rows_and_frames_of_one_machine(tmp_path: Path) -> None:
    sources = make_recordings(tmp_path / "in")
    share_out(sources, tmp_path / "shared", 3)
    penstock.convert(**local(sources, tmp_path / "alone", files={"data_mb": 1}))  # videos in one file
    shared, alone = (LeRobotDataset(f"penstock/{name}", root=tmp_path / name) for name in ("shared", "alone"))
    assert len(shared) == len(alone) == sum(FRAMES)
    for row in range(len(alone)):
        for key in KEYS:
            assert np.array_equal(shared[row][key].numpy(), alone[row][key].numpy()), (row, key)
