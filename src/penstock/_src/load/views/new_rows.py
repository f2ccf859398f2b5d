"""`NewRows`: what one task decodes, and a view keeps. In memory it is decoded where the view keeps it.

with view.new_rows(slots) as new:
    pixels = new.memory(slot)          # decode to it; None: decode elsewhere
    new.put(slot, pixels)
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.views.memory_rows import MemoryRows

if TYPE_CHECKING:
    from penstock._src.load.views.view import View


class NewRows:
    """Places in memory are taken for all rows at once, and marked at once: threads seldom wait for each other."""

    def __init__(self, view: View, memory: MemoryRows | None, slots: Iterable[int]) -> None:
        self._view, self._memory = view, memory
        self._whole: set[int] = set()
        self._places = {} if memory is None else memory.reserve(slots)

    def memory(self, slot: int) -> NDArray[np.uint8] | None:
        """Where the pixels of a row may be decoded to; None where nothing is gained by it."""
        place = self._places.get(slot)
        return None if place is None or self._memory is None else self._memory.pixels(place)

    def put(self, slot: int, pixels: NDArray[np.uint8]) -> bool:
        """Keep a row; whether it is there now. What the system refuses is counted."""
        try:
            return self.keep(slot, pixels)
        except OSError as error:
            return self._view.refuse_write(error)

    def keep(self, slot: int, pixels: NDArray[np.uint8]) -> bool:
        """As `put`, but what the system refuses is an OSError. A row that is there already, or that another thread is
        just making, stays."""
        if self._memory is None:
            return self._view.keep(slot, pixels)
        if slot not in self._places:
            return True
        place = self._places[slot]
        if place is None:
            return self._view.refuse_full()
        own = self._memory.pixels(place)
        if own is None or own.ctypes.data != pixels.ctypes.data:
            self._memory.copy(pixels, place)
        self._whole.add(slot)
        return True

    def __enter__(self) -> NewRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._memory is not None:
            self._memory.finish(self._places, self._whole)
