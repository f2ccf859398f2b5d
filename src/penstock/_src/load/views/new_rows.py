"""`NewRows`: what one task decodes or copies, and a view keeps.

with view.new_rows(slots) as new:
    pixels = new.memory(slot)          # decode to it; None: decode elsewhere, and put that
    new.put(slot, pixels)

with view.new_rows(slots) as new:      # a view in memory
    new.put_all(slots, batch, at)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.views.memory_rows import MemoryRows

if TYPE_CHECKING:
    from penstock._src.load.views.view import View


PLACES_AT_ONCE = 16  # that one thread takes: another process may need the others


class NewRows:
    """Places in memory are taken for all rows at once, and marked at once: threads seldom wait for each other."""

    def __init__(self, view: View, memory: MemoryRows | None, slots: Iterable[int]) -> None:
        self._view, self._memory = view, memory
        self._whole: set[int] = set()
        self._places = {} if memory is None else memory.reserve(slots)

    def memory(self, slot: int) -> NDArray[np.uint8] | None:
        """Where the pixels of a row may be decoded to; None where the view has no memory for it."""
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
        if own.ctypes.data != pixels.ctypes.data:
            np.copyto(own, pixels)
        self._whole.add(slot)
        return True

    def put_all(self, slots: Sequence[int], batch: NDArray[np.uint8], at: Sequence[int]) -> int:
        """Keep rows of a batch in memory, many in one call; how many. `at`: where each of them is in the batch."""
        assert self._memory is not None
        new = [(slot, self._places[slot], here) for slot, here in zip(slots, at, strict=True) if slot in self._places]
        kept = [(slot, place, here) for slot, place, here in new if place is not None]
        self._memory.copy(batch, [here for _, _, here in kept], [place for _, place, _ in kept])
        self._whole.update(slot for slot, _, _ in kept)
        for _ in range(len(new) - len(kept)):
            self._view.refuse_full()
        return len(kept)

    def __enter__(self) -> NewRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._memory is not None:
            self._memory.finish(self._places, self._whole)
