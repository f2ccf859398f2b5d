"""LeRobot 0.6.1 does not read v2.1, but its own converter makes v3.0 of what penstock writes as v2.1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

import penstock
from tests.conversion import bags, datasets

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]


def test_lerobots_own_converter_makes_v30_of_it(tmp_path: Path) -> None:
    sources = [bags.write(tmp_path / f"run_{n}.bag", bags.robot(0.4 + n / 10, seed=n)) for n in range(3)]
    penstock.convert(sources, tmp_path / "v30", task="打开抽屉")
    root = tmp_path / "penstock" / "v21"
    report = penstock.convert(sources, root, output="v2.1", task="打开抽屉")
    convert_dataset("penstock/v21", root=root, push_to_hub=False)
    data = LeRobotDataset("penstock/v21", root=root)
    assert (len(data), data.num_episodes) == (report.frames, 3)
    numbers = {key: datasets.values(tmp_path / "v30", key) for key in ("observation.state", "action")}
    for row in range(0, len(data), 5):
        item = data[row]
        assert item["task"] == "打开抽屉"
        for key, expected in numbers.items():
            assert np.array_equal(item[key].numpy(), expected[row].astype(np.float32))
        assert item["observation.images.cam_h"].shape == (3, bags.HEIGHT, bags.WIDTH)
    np.testing.assert_allclose(
        data.meta.stats["action"]["mean"], numbers["action"].astype(np.float64).mean(axis=0), rtol=1e-5
    )
