"""Numbers of loaders: one for each, never given again, while the `id` of one that is gone may be another's."""

from __future__ import annotations

import itertools
import weakref
from typing import Any


class LoaderIds:
    """Numbers below 0, which are the id of nothing; only weak references are kept."""

    def __init__(self) -> None:
        self._next = itertools.count(-1, -1)
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._living: set[int] = set()

    def of(self, loader: Any) -> int:
        """The number of a loader; of one that nothing may refer to weakly a new one each time."""
        place = id(loader)
        known = self._known.get(place)
        if known is not None and known[0]() is loader:
            return known[1]
        number = next(self._next)
        try:
            reference = weakref.ref(loader, lambda _: self._forget(place, number))
        except TypeError:
            return number
        self._known[place] = reference, number
        self._living.add(number)
        return number

    def at(self, place: int) -> int:
        """The number of the living loader with this id; a number stays what it is."""
        return place if place < 0 or place not in self._known else self._known[place][1]

    def is_living(self, number: int) -> bool:
        return number in self._living

    def _forget(self, place: int, number: int) -> None:
        # Called wherever a loader is freed, perhaps in the midst of something: it takes no lock.
        self._living.discard(number)
        known = self._known.get(place)
        if known is not None and known[1] == number:
            self._known.pop(place, None)


loader_ids = LoaderIds()
