"""The rows of one episode of a LeRobot data set in order, each checked to stand where it belongs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DataSetCorrupt
from penstock.lerobot.read.frames import TOLERANCE_S
from penstock.lerobot.read.reader import DataSet, ReadRows
from penstock.lerobot.read.row_stream import RowStream

PLACE_KEYS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_DOCTOR = "`penstock doctor` lists what else disagrees"


class EpisodeTable:
    """The rows of one episode, some after the others; `retimed` of them had another time than their frame, so far."""

    def __init__(self, data: DataSet, number: int, rows: RowStream) -> None:
        self._data, self._number, self._rows = data, number, rows
        rows.begin(data.row_spans(number))
        self._episode = int(data.episodes.index[number])
        self._at = 0
        self.retimed = 0
        self.apart_s = 0.0

    def take(self, rows: int) -> ReadRows:
        """The next rows: numbers as arrays, texts and images as lists; each stands where it belongs."""
        taken = self._rows.take(rows)
        self._check_place(taken)
        self._check_tasks(taken)
        self._at += rows
        return taken

    def _check_place(self, taken: ReadRows) -> None:
        data, episode = self._data, self._episode
        frame, owner, index = (np.asarray(taken[key]) for key in ("frame_index", "episode_index", "index"))
        expected = np.arange(self._at, self._at + len(frame))
        self._refuse("frame_index", frame, expected)
        self._refuse("episode_index", owner, np.full(len(owner), episode))
        if data.is_v30:
            self._refuse("index", index, expected + int(data.episodes.first_row[self._number]))
        should_s = (expected / data.info.fps).astype(np.float32)
        allowed_s = np.maximum(TOLERANCE_S, np.spacing(np.abs(should_s)))
        apart_s = np.abs(np.asarray(taken["timestamp"], np.float64) - should_s)
        wrong = ~(apart_s <= allowed_s)
        self.retimed += int(np.count_nonzero(wrong))
        self.apart_s = max(self.apart_s, float(np.max(apart_s[wrong & np.isfinite(apart_s)], initial=0.0)))

    def _refuse(self, key: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            at = int(wrong[0])
            raise DataSetCorrupt(
                f"{self._data.root}: episode {self._episode}, row {self._at + at:,}: {key} is {found[at]}, not "
                f"{expected[at]}",
                hint=f"its rows would be paired with the wrong frames; {_DOCTOR}",
            )

    def _check_tasks(self, taken: ReadRows) -> None:
        used, count = np.unique(np.asarray(taken["task_index"])), len(self._data.tasks)
        if int(used[0]) < 0 or int(used[-1]) >= count:
            raise DataSetCorrupt(
                f"{self._data.root}: episode {self._episode}: task_index {int(used[-1])}, there are {count} tasks",
                hint=_DOCTOR,
            )
