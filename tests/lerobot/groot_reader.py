"""A reader of GR00T-flavoured LeRobot v2 data sets, written from NVIDIA's data preparation guide, for the tests.

It trusts `meta/modality.json` for everything: which slice of which column is a state or an action, which video file is
a camera, and which column holds numbers of tasks. Nothing of penstock is used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

STATISTICS = ("max", "min", "mean", "std", "q01", "q99")
_DEFAULT_COLUMN = {"state": "observation.state", "action": "action"}


class GrootDataSet:
    """One data set; episodes are read whole, frames by the timestamps of the rows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
        self.modality: dict[str, Any] = json.loads((root / "meta/modality.json").read_text())
        self.stats: dict[str, Any] = json.loads((root / "meta/stats.json").read_text())
        with open(root / "meta/episodes.jsonl") as lines:
            self.episodes = [json.loads(line) for line in lines]
        with open(root / "meta/tasks.jsonl") as lines:
            self.tasks = {entry["task_index"]: entry["task"] for entry in map(json.loads, lines)}

    def episode(self, index: int) -> dict[str, Any]:
        """Everything that modality.json names, under the names that a data config uses: `state.left_arm`, …"""
        table = pq.read_table(self._path(self.info["data_path"], index))
        assert table.num_rows == self.episodes[index]["length"]
        found: dict[str, Any] = {}
        for modality in ("state", "action"):
            for name, entry in self.modality[modality].items():
                column = entry.get("original_key", _DEFAULT_COLUMN[modality])
                rows = np.array(table.column(column).to_pylist(), np.float32).reshape(table.num_rows, -1)
                assert 0 <= entry["start"] < entry["end"] <= rows.shape[1]
                found[f"{modality}.{name}"] = rows[:, entry["start"] : entry["end"]]
        times_s = np.array(table.column("timestamp").to_pylist())
        for name, entry in self.modality["video"].items():
            key = entry.get("original_key", f"observation.images.{name}")
            found[f"video.{name}"] = self._frames(key, index, times_s)
        for name, entry in self.modality.get("annotation", {}).items():
            numbers = table.column(entry.get("original_key", f"annotation.{name}")).to_pylist()
            found[f"annotation.{name}"] = [self.tasks[number] for number in numbers]
        return found

    def statistics(self, modality: str, name: str) -> dict[str, NDArray[np.float64]]:
        """Those of one part, each statistic sliced like the column; any entry that cannot be is an error."""
        entry = self.modality[modality][name]
        stats = self.stats[entry.get("original_key", _DEFAULT_COLUMN[modality])]
        assert set(STATISTICS) <= set(stats)
        places = np.arange(entry["start"], entry["end"])
        return {statistic: np.array(values)[places] for statistic, values in stats.items()}

    def resolution(self, name: str) -> tuple[int, int, int, float]:
        """Width, height, channels and rate of a camera, from the features of info.json."""
        feature = self.info["features"][self.modality["video"][name]["original_key"]]
        height, width = (feature["shape"][feature["names"].index(side)] for side in ("height", "width"))
        return width, height, feature["info"]["video.channels"], feature["info"]["video.fps"]

    def _path(self, template: str, index: int, key: str = "") -> Path:
        chunk = index // self.info["chunks_size"]
        return self.root / template.format(episode_chunk=chunk, episode_index=index, video_key=key)

    def _frames(self, key: str, index: int, times_s: NDArray[np.float64]) -> list[NDArray[np.uint8]]:
        """The frame nearest to each timestamp, as a reader does that knows no frame numbers."""
        with av.open(str(self._path(self.info["video_path"], index, key))) as container:
            shown = [(float(frame.time or 0), frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
        at = np.array([time_s for time_s, _ in shown])
        nearest = np.abs(at[None, :] - times_s[:, None]).argmin(axis=1)
        assert np.abs(at[nearest] - times_s).max() < 0.5 / self.info["fps"]
        return [shown[number][1] for number in nearest.tolist()]
