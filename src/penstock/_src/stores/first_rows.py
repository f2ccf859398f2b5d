"""`FirstRows`: the first rows of a store as a store, for measuring a part of what is large."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.store import ImageSource, Store

_ALIKE = ("path", "kind", "fps", "columns", "roles", "joined_roles", "declares_index", "notes", "reading_bytes")


class FirstRows(Store):
    """Rows 0…rows-1 of another store, which it closes with itself. The last episode may be cut."""

    def __init__(self, whole: Store, rows: int) -> None:
        self._whole = whole
        for name in _ALIKE:
            setattr(self, name, getattr(whole, name))
        starts = whole.episode_starts
        count = int(np.searchsorted(starts, min(rows, whole.rows), side="left"))
        self.episode_starts = np.append(starts[:count], min(rows, whole.rows))
        self.ends_terminal = None if whole.ends_terminal is None else whole.ends_terminal[:count]
        self.episode_numbers = None if whole.episode_numbers is None else whole.episode_numbers[:count]

    def images(self, name: str) -> ImageSource:
        return self._whole.images(name)

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self._whole.numbers(name, rows)

    def texts(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        return self._whole.texts(name, rows)

    def fingerprint(self, name: str) -> str:
        return f"{self._whole.fingerprint(name)}-{self.rows}"

    def close(self) -> None:
        self._whole.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return FirstRows, (self._whole, self.rows)
