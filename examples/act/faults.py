"""Numbers that nothing can be learnt from: NaN and infinity, counted while the statistics are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock.errors import PenstockError

from .ranges import way_without


@dataclass
class _Fault:
    """Of one column."""

    values: int = 0
    first: tuple[int, int] | None = None  # episode, and row in it
    episodes: set[int] = field(default_factory=set)


class Faults:
    """What is wrong in all blocks that were looked at; `check` refuses them."""

    def __init__(self) -> None:
        self._found: dict[str, _Fault] = {}

    def look(self, store: penstock.Store, name: str, start: int, values: NDArray[np.float64]) -> None:
        """At the rows of a column from `start` on, each one a vector."""
        bad = ~np.isfinite(values)
        if not bad.any():
            return
        fault = self._found.setdefault(name, _Fault())
        fault.values += int(bad.sum())
        rows = start + np.flatnonzero(bad.any(axis=1))
        places = store.episode_of(rows)
        first = store.episode_number(int(places[0])), int(rows[0] - store.episode_starts[places[0]])
        fault.first = min(fault.first or first, first)
        fault.episodes.update(store.episode_number(place) for place in np.unique(places).tolist())

    def check(self, path: object, all_episodes: Sequence[int]) -> None:
        """Refuse, with the way out: without these episodes, where two are left."""
        if not self._found:
            return
        told = "; ".join(_told(name, fault) for name, fault in self._found.items())
        bad = set().union(*(fault.episodes for fault in self._found.values()))
        raise PenstockError(f"{path}: {told}", hint=way_without(all_episodes, bad))


def _told(name: str, fault: _Fault) -> str:
    episode, row = fault.first or (0, 0)
    are = "value is" if fault.values == 1 else "values are"
    return f"{fault.values:,} {are} NaN or infinity in {name}, the first in row {row:,} of episode {episode:,}"
