"""The real LeRobot 0.6.1 reads tasks and subtasks of cut episodes, row by row and in batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lerobot.datasets.language_render import active_at
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import penstock
from tests.conversion import bags, topics
from tests.conversion.topics import spoken

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]


WORDS = ("episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop")
TEXTS = ("episodes.task=/task", "episodes.subtask=/subtask")


def record(path: Path) -> Path:
    """Two episodes of 20 rows; the first has subtasks."""
    times = bags.times(20, 3.0)
    tape = bags.camera(bags.CAM_H, times) + bags.joints(bags.STATE, times)
    marks = spoken("/rec", {0.5: "start", 1.5: "stop", 2.0: "start"})
    texts = spoken("/task", {0.0: "tidy up", 1.8: "wipe"}), spoken("/subtask", {0.5: "reach", 1.0: "grasp"})
    return topics.write(path / "run.bag", tape, marks, *texts)


def test_every_row_has_its_task_and_its_subtask(tmp_path: Path) -> None:
    penstock.convert(record(tmp_path), tmp_path / "out", overrides=[*WORDS, *TEXTS])
    dataset = LeRobotDataset("local/run", root=tmp_path / "out")
    assert (dataset.num_episodes, dataset.num_frames) == (2, 40)
    rows = [dataset[row] for row in range(40)]
    assert [row["task"] for row in rows] == ["tidy up"] * 20 + ["wipe"] * 20
    assert [row["subtask"] for row in rows] == ["reach"] * 10 + ["grasp"] * 10 + [""] * 20
    assert rows[7]["observation.images.cam_h"].shape == (3, 48, 64)
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=12)))
    assert batch["subtask"] == ["reach"] * 10 + ["grasp"] * 2

    second = LeRobotDataset("local/run", root=tmp_path / "out", episodes=[1])
    assert (len(second), second[0]["task"], second[0]["subtask"]) == (20, "wipe", "")


def test_the_language_column_gives_the_same_subtasks(tmp_path: Path) -> None:
    """As LeRobot 0.6.1 keeps annotations: all subtasks of the episode in every row, each with its time."""
    penstock.convert(record(tmp_path), tmp_path / "out", overrides=[*WORDS, *TEXTS, "episodes.language=true"])
    dataset = LeRobotDataset("local/run", root=tmp_path / "out")
    assert dataset.meta.has_language_columns
    for number in range(40):
        row = dataset[number]
        entry = active_at(float(row["timestamp"]), persistent=row["language_persistent"], style="subtask")
        assert ("" if entry is None else entry["content"]) == row["subtask"]
    assert [each["timestamp"] for each in dataset[0]["language_persistent"]] == [0.0, 0.5]
    assert dataset[39]["language_persistent"] == []
