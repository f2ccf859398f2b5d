"""What a sample is, for offline RL: a row and what follows it, never across the end of an episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._src.load.sampling.bound import BoundWindow, Output, check_some, columns_of, lengths_of, named
from penstock._src.stores.roles import next_columns
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock._src.stores.store import Store


@dataclass(frozen=True)
class Transition:
    """Row i, and as "next.<column>" row i+1 of the images and the state (or of `next_columns`).

    Where the store has next columns of its own for numbers, what they follow stands for the state. A store without a
    state that knows the simulator's takes that.

    The last row of an episode has no next one. Where it is terminal it is a sample all the same, and its next row is
    itself: the terminal flag masks it. Where it is not terminal, or unknown, it is left out. Next columns of the
    store's own (`next_observations`, `next_obs/…`) are used; where it has them for all that is asked, every row is a
    sample.
    """

    columns: tuple[str, ...] | None = None
    next_columns: tuple[str, ...] | None = None

    def __init__(self, columns: Iterable[str] | None = None, next_columns: Iterable[str] | None = None) -> None:
        self.__dict__.update(columns=named(columns, "columns"), next_columns=named(next_columns, "next_columns"))

    def bind(self, store: Store) -> BoundWindow:
        """With the columns and episodes of a store."""
        own = own_next(store)
        columns = columns_of(store, self.columns)
        if self.columns is None:
            columns = tuple(name for name in columns if name not in own.values())
        following = self._following(store, columns, own)
        outputs: list[tuple[Output, tuple[int, ...]]] = [(Output(name, name), (0,)) for name in columns]
        for name in following:
            if store.columns[name].kind == "text":
                raise UsageError(f"{store.path}: {name!r} is text, which has no next row: it comes from the row itself")
            stored = own.get(name)
            outputs.append((Output(f"next.{name}", stored or name), (0,) if stored else (1,)))
        lengths = lengths_of(store)
        if all(name in own for name in following):
            counts = lengths
        else:
            terminal = store.ends_terminal
            counts = np.where(terminal, lengths, lengths - 1) if terminal is not None else lengths - 1
            counts = np.minimum(np.maximum(counts, 0), lengths)
        check_some(store, counts, 2, repr(self))
        return BoundWindow(store, outputs, first_rows=store.episode_starts[:-1], counts=counts)

    def _following(self, store: Store, columns: tuple[str, ...], own: Mapping[str, str]) -> tuple[str, ...]:
        if self.next_columns is not None:
            return columns_of(store, self.next_columns)
        action = store.roles.get("action")
        images = {name for name in columns if store.columns[name].is_image}
        numbers = [name for name in columns if name in own and name != action and name not in images] or list(
            store.columns_for("state") or store.columns_for("environment_state")
        )
        numbers += [name for name in columns if name in own and name == action]
        following = tuple(name for name in columns if name in images or name in numbers)
        if not following:
            raise UsageError(
                f"{store.path}: no images and no state among {', '.join(columns)}: what follows a row is not known",
                hint="name it: Transition(next_columns=[…])",
            )
        return following

    def describe(self) -> dict[str, Any]:
        """JSON-safe; equal descriptions give equal samples of one store."""
        return {
            "kind": "transition",
            "columns": None if self.columns is None else list(self.columns),
            "next_columns": None if self.next_columns is None else list(self.next_columns),
        }

    def __repr__(self) -> str:
        options = (("columns", self.columns), ("next_columns", self.next_columns))
        return f"Transition({', '.join(f'{name}={list(value)}' for name, value in options if value is not None)})"


def own_next(store: Store) -> dict[str, str]:
    """Columns whose next row the store has as a column of its own: "obs/joint" → "next_obs/joint"."""
    names = [name for name, column in store.columns.items() if column.kind != "text"]  # a text has no next row
    return next_columns(names, store.roles.get("action"))
