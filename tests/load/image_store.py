"""A store over arrays: real images, JPEG or raw, without files; for tests of the engine and the loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.store import Column, ImageArray, ImageSource, Scratch, Store
from penstock.errors import StoreCorrupt


class ArraySource(ImageSource):
    def __init__(self, rows: Sequence[NDArray[Any]], broken: frozenset[int], log: list[int]) -> None:
        self._rows, self._broken, self._log = rows, broken, log
        self.scratch_bytes = max((each.nbytes for each in rows), default=0)

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            if row in self._broken:
                raise StoreCorrupt(f"row {row} is broken on purpose")
            self._log.append(row)
            data = self._rows[row]
            held = scratch.take(data.nbytes)
            held[:] = data.reshape(-1).view(np.uint8)
            yield held.view(data.dtype).reshape(data.shape)

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return -rows  # any order is right: backwards shows that nobody relies on rows


class ArrayStore(Store):
    """`lengths` rows per episode; cameras "cam" (JPEG) and "raw", numbers "state", "action", texts "task"."""

    kind = "arrays"
    fps = 30.0

    def __init__(
        self, lengths: Sequence[int], size: tuple[int, int] = (48, 64), broken: Sequence[int] = (), name: str = "arrays"
    ) -> None:
        self.arguments = (tuple(lengths), size, tuple(broken), name)
        self.path = Path(name)
        self.episode_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rng = np.random.default_rng(7)
        count = self.rows
        small = rng.integers(0, 256, (count, 6, 8, 3), dtype=np.uint8)
        self.raw = [cv2.resize(each, size[::-1], interpolation=cv2.INTER_CUBIC) for each in small]
        self.jpeg = [cv2.imencode(".jpg", each[:, :, ::-1])[1].reshape(-1) for each in self.raw]
        self.values = {
            "state": rng.standard_normal((count, 4)).astype(np.float32),
            "action": rng.standard_normal((count, 3)).astype(np.float32),
            "reward": rng.standard_normal(count),
        }
        columns = [
            Column("cam", "image", (*size, 3), "uint8", "jpeg", "file", "made", sum(map(len, self.jpeg))),
            Column("raw", "image", (*size, 3), "uint8", "raw", "file", "made", sum(each.nbytes for each in self.raw)),
        ]
        for key, array in self.values.items():
            shape, dtype = array.shape[1:], str(array.dtype)
            columns.append(Column(key, "numbers", shape, dtype, "numbers", "file", "made", array.nbytes))
        columns.append(Column("task", "text", (), "str", "text", "file", "made", 0))
        self.columns = {column.name: column for column in columns}
        self.roles = {"state": "state", "action": "action", "reward": "reward"}
        self.broken = frozenset(broken)
        self.log: list[int] = []

    def images(self, name: str) -> ImageSource:
        rows: Sequence[NDArray[Any]] = self.jpeg if name == "cam" else self.raw
        return ArraySource(rows, self.broken if name == "cam" else frozenset(), self.log)

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.values[name][rows]

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        for start in range(0, self.rows, 7):
            yield start, {name: self.values[name][start : start + 7] for name in names}

    def texts(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        return [f"task of episode {episode}" for episode in self.episode_of(rows).tolist()]

    def fingerprint(self, name: str) -> str:
        return f"{self.arguments} {name}"

    def close(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayStore, self.arguments
