"""A store whose rows lie in memory: every number column counts rows, so that a test sees which row it was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.store import Column, ImageArray, ImageSource, Scratch, Store
from penstock.errors import StoreError


class MemoryStore(Store):
    """Episodes of given lengths; `numbers`, `images` and `texts` name the columns."""

    path = Path("memory")
    kind = "rows in memory"

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        numbers: Sequence[str] = ("state", "action"),
        images: Sequence[str] = (),
        texts: Sequence[str] = (),
        fps: float | None = None,
        ends_terminal: Sequence[bool] | None = None,
        roles: dict[str, str] | None = None,
    ) -> None:
        self._words = (list(lengths), tuple(numbers), tuple(images), tuple(texts), fps, ends_terminal, roles)
        self.episode_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.fps = fps
        self.ends_terminal = None if ends_terminal is None else np.array(ends_terminal, bool)
        self.roles = roles or {}
        columns = [Column(n, "image", (2, 2, 3), "uint8", "raw", "memory", "in memory", 0) for n in images]
        columns += [Column(n, "numbers", (2,), "int64", "numbers", "memory", "in memory", 0) for n in numbers]
        columns += [Column(n, "text", (), "object", "text", "memory", "in memory", 0) for n in texts]
        self.columns = {column.name: column for column in columns}

    def images(self, name: str) -> ImageSource:
        return RowImages()

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self.column(name).kind != "numbers":
            raise StoreError(f"{name} is not a numbers column")
        return np.stack([rows, rows * 2], axis=1)

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        yield 0, {name: self.numbers(name, np.arange(self.rows)) for name in names}

    def texts(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        return [f"{name} {row}" for row in rows]

    def fingerprint(self, name: str) -> str:
        return f"{abs(hash((name, str(self._words)))):x}"

    def close(self) -> None:
        pass  # nothing is open

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._words


class RowImages(ImageSource):
    """Pixels that are all the row's number, modulo 256."""

    scratch_bytes = 12

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            yield np.full((2, 2, 3), row % 256, np.uint8)

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows


def _again(
    lengths: Any, numbers: Any, images: Any, texts: Any, fps: Any, ends_terminal: Any, roles: Any
) -> MemoryStore:
    return MemoryStore(
        lengths, numbers=numbers, images=images, texts=texts, fps=fps, ends_terminal=ends_terminal, roles=roles
    )
