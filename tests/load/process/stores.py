"""Stores that an engine process can import: one whose rows end the process that reads them, one that is slow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock.errors import StoreError
from tests.load.image_store import ArraySource, ArrayStore


class _DeadlySource(ArraySource):
    def __init__(self, rows: Sequence[NDArray[Any]], deadly: Mapping[int, int], owner: int) -> None:
        super().__init__(rows, frozenset(), [])
        self._deadly, self._owner = deadly, owner

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row, image in zip(rows, super().read(rows, scratch), strict=True):
            if row in self._deadly and os.getpid() != self._owner:
                os.kill(os.getpid(), self._deadly[row])
                time.sleep(60)
            yield image


class DeadlyStore(ArrayStore):
    """`deadly`: row → the signal that ends the process which reads it, unless it is the one that made the store. With
    0, which is no signal, reading the row takes a minute."""

    def __init__(self, lengths: Sequence[int], deadly: Mapping[int, int], owner: int | None = None) -> None:
        super().__init__(lengths, name="deadly")
        self.deadly = dict(deadly)
        self.owner = os.getpid() if owner is None else owner

    def images(self, name: str) -> ImageSource:
        return _DeadlySource(self.jpeg if name == "cam" else self.raw, self.deadly, self.owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeadlyStore, (self.arguments[0], self.deadly, self.owner)


class RefusingStore(ArrayStore):
    """Its numbers cannot be read from a row on: an error of the work itself, not of one image."""

    def __init__(self, lengths: Sequence[int], first_bad: int) -> None:
        super().__init__(lengths, name="refusing")
        self.first_bad = first_bad

    def texts(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        if (rows >= self.first_bad).any():
            raise ZeroDivisionError(f"row {int(rows.max())} of {name}")
        return super().texts(name, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return RefusingStore, (self.arguments[0], self.first_bad)


class LockedStore(ArrayStore):
    """Another process cannot open it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise StoreError("locked")


SEGFAULT = int(signal.SIGSEGV)
KILL = int(signal.SIGKILL)
