"""A window bound to a store: how many samples there are, what each gives, and which rows it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import UsageError

if TYPE_CHECKING:
    from typing import Any

    from penstock._src.stores.store import Store


class Sampling(Protocol):
    """What a sample is: `Window`, `Clip`, `Transition`, or one of your own."""

    def bind(self, store: Store) -> BoundWindow:
        """With the columns and episodes of a store."""

    def describe(self) -> dict[str, Any]:
        """JSON-safe; equal descriptions give equal samples."""


@dataclass(frozen=True)
class Output:
    """One entry of a batch."""

    name: str
    column: str
    steps: int | None = None
    """Rows of the column in one sample; None: one row, and no time dimension."""
    mask: str | None = None
    """The name of the entry that says which steps lie beyond the episode's ends."""


class RowRequests(NamedTuple):
    """The rows that some samples need. Outputs that need the same rows share one array: do not write into it."""

    rows: dict[str, NDArray[np.int64]]
    """By output: (samples, steps), with one step where the output has no time dimension."""
    pads: dict[str, NDArray[np.bool_]]
    """By output that has a mask: (samples, steps), True where the row stands in for one beyond the episode."""
    anchors: NDArray[np.int64]
    """The row of each sample itself: offset 0."""


class BoundWindow:
    """The samples of a store. A sample is a row and others at fixed offsets from it, held within the row's episode.

    Holds two numbers per episode, none per row; any thread may ask.
    """

    def __init__(
        self,
        store: Store,
        outputs: Iterable[tuple[Output, Sequence[int]]],
        *,
        first_rows: NDArray[np.int64],
        counts: NDArray[np.int64],
        step: int = 1,
    ) -> None:
        """Episode e has `counts[e]` samples: rows `first_rows[e]`, and on every `step` rows."""
        self.store = store
        pairs = tuple(outputs)
        self.outputs = tuple(output for output, _ in pairs)
        self.offsets = {output.name: tuple(offsets) for output, offsets in pairs}
        _check_names(store, self.outputs)
        self._first_rows = first_rows
        self._sample_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._step = step
        self._groups: dict[tuple[int, ...], list[Output]] = {}
        for output in self.outputs:
            self._groups.setdefault(self.offsets[output.name], []).append(output)
        self._every_row = step == 1 and self.count == store.rows

    @property
    def count(self) -> int:
        """The number of samples."""
        return int(self._sample_starts[-1])

    def needs(self, samples: ArrayLike) -> RowRequests:
        """The rows of these samples, in their order; repeats are fine."""
        rows, episodes = self._located(samples)
        starts = self.store.episode_starts
        first, last = starts[episodes][:, None], (starts[episodes + 1] - 1)[:, None]
        needs = RowRequests({}, {}, rows)
        here = rows[:, None]
        for offsets, outputs in self._groups.items():
            wanted = here if offsets == (0,) else here + np.array(offsets, np.int64)
            held = here if wanted is here else np.clip(wanted, first, last)
            needs.rows.update((output.name, held) for output in outputs)
            masked = [output.name for output in outputs if output.mask]
            if masked:
                needs.pads.update(dict.fromkeys(masked, wanted != held))
        return needs

    def rows_of(self, samples: ArrayLike) -> NDArray[np.int64]:
        """The row of each sample itself (offset 0): what a batch has as "index"."""
        return self._located(samples)[0]

    def _located(self, samples: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        numbers = np.asarray(samples, np.int64).reshape(-1)
        if numbers.size and int(numbers.view(np.uint64).max()) >= self.count:
            raise UsageError(
                f"samples {int(numbers.min()):,} to {int(numbers.max()):,} do not all lie within 0…{self.count - 1:,}"
            )
        if self._every_row:
            return numbers, self.store.episode_of(numbers)
        episodes = np.searchsorted(self._sample_starts, numbers, side="right") - 1
        rows = self._first_rows[episodes] + (numbers - self._sample_starts[episodes]) * self._step
        return rows, episodes

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        shown = ", ".join(
            output.name + ("" if output.steps is None else f" ×{output.steps}") for output in self.outputs
        )
        return f"<{self.count:,} samples of {self.store!r}: {shown}>"


def lengths_of(store: Store) -> NDArray[np.int64]:
    """Rows of every episode."""
    return np.diff(store.episode_starts)


def check_some(store: Store, counts: NDArray[np.int64], span: int, what: str) -> None:
    """Refuses a window that no episode can hold; `span` is the rows that one sample covers."""
    if int(counts.sum()):
        return
    if not store.episodes:
        raise UsageError(f"{store.path}: there are no rows, so nothing to load", hint="; ".join(store.notes) or None)
    lengths = lengths_of(store)
    longest = int(lengths.max()) if len(lengths) else 0
    hint = "ask for fewer rows, or use Window(…, pad=True), which pads at the ends of an episode"
    raise UsageError(
        f"{store.path}: no episode is long enough for {what}: one sample spans {span:,} rows, and the longest of "
        f"{store.episodes:,} episodes has {longest:,}",
        hint=hint if longest else None,
    )


def columns_of(store: Store, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns asked for, each known to the store; all of them where none are named."""
    return tuple(store.column(name).name for name in columns) if columns is not None else tuple(store.columns)


def named(columns: Iterable[str] | str | None, what: str) -> tuple[str, ...] | None:
    """Names as a tuple without repeats; a text alone is one name."""
    if columns is None:
        return None
    names = tuple(dict.fromkeys([columns] if isinstance(columns, str) else columns))
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{what} must be names of columns, and at least one: {columns!r}")
    return names


def _check_names(store: Store, outputs: Sequence[Output]) -> None:
    seen: dict[str, str] = {}
    entries: list[tuple[str, str]] = [(output.name, output.column) for output in outputs]
    entries += [(output.mask, f"the mask of {output.column}") for output in outputs if output.mask]
    for name, origin in entries:
        if name in seen:
            raise UsageError(
                f"{store.path}: two entries of the batch would be called {name!r}: {seen[name]} and {origin}",
                hint="leave one of them out with columns=[…]",
            )
        seen[name] = origin


def offsets_text(offsets: Sequence[int]) -> str:
    """`[0, 1, 2]` as a range where it is one."""
    if len(offsets) > 2:
        stride = offsets[1] - offsets[0]
        if stride and all(b - a == stride for a, b in pairwise(offsets)):
            stop = offsets[-1] + (1 if stride > 0 else -1)
            words = f"{offsets[0]}, {stop}" if offsets[0] or stride != 1 else f"{stop}"
            return f"range({words}{'' if stride == 1 else f', {stride}'})"
    return repr(list(offsets))


def mapping_repr(pairs: Mapping[str, str]) -> str:
    """Keyword arguments where the names allow it, else a mapping."""
    if all(name.isidentifier() and name not in ("offsets", "pad", "columns") for name in pairs):
        return ", ".join(f"{name}={text}" for name, text in pairs.items())
    return "{" + ", ".join(f"{name!r}: {text}" for name, text in pairs.items()) + "}"
