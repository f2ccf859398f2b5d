"""The tables of tasks and subtasks of a data set: texts by number, and the columns that hold such numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot.features import Feature
from penstock.errors import DataSetCorrupt

ANNOTATION = "annotation."  # GR00T: whole numbers under such a name are numbers of tasks

TABLES = ("tasks", "subtasks")
Numbers = Mapping[str, Sequence[int]]
"""By table: the number that each of an input's texts has in the data set that is written."""


def table_of(feature: Feature) -> str | None:
    """The table into which the values of a column besides `task_index` point; None for other columns."""
    if not feature.is_numeric or np.dtype(feature.dtype).kind not in "iu":
        return None
    if feature.key == "subtask_index":  # LeRobot 0.4 and 0.5
        return "subtasks"
    return "tasks" if feature.key.startswith(ANNOTATION) else None


class TaskTable:
    """A table of a data set that is being written; `on_new_texts(name, texts)` is called before rows use new texts."""

    def __init__(self, name: str, on_new_texts: Callable[[str, Sequence[str]], None]) -> None:
        self.name = name
        self.texts: list[str] = []
        self._on_new_texts = on_new_texts
        self._numbers: dict[str, int] = {}
        self._last_input: tuple[Sequence[str], list[int]] = ((), [])

    def number(self, text: str) -> int | None:
        """The number of a text, the first of several."""
        return self._numbers.get(text)

    def add(self, texts: Sequence[str]) -> None:
        for text in texts:
            self._numbers.setdefault(text, len(self.texts))
            self.texts.append(text)

    def take(self, table: Sequence[str]) -> list[int]:
        """Take a whole table, whether rows use its tasks or not: the numbers that they have here."""
        if self._last_input[0] is not table:  # once for all episodes of an input
            numbers, added = place(self.texts, table)
            if added:
                self._on_new_texts(self.name, added)
                self.add(added)
            self._last_input = (table, numbers)
        return self._last_input[1]

    def end_input(self) -> str:
        """What changed in the numbers of the table that was taken last, for people; each change is named once."""
        (_, numbers), self._last_input = self._last_input, ((), [])
        return changes(numbers)


def place(table: Sequence[str], tasks: Sequence[str]) -> tuple[list[int], list[str]]:
    """The numbers that `tasks` get in a table, and the texts that are added to it for that.

    Equal texts are paired in their order: a table that is placed into itself keeps all its numbers.

    >>> place(["lift", "pour"], ["pour", "wipe"])
    ([1, 2], ['wipe'])
    """
    free: dict[str, list[int]] = {}
    for number in reversed(range(len(table))):
        free.setdefault(table[number], []).append(number)
    numbers: list[int] = []
    added: list[str] = []
    for text in tasks:
        known = free.get(text)
        if known:
            numbers.append(known.pop())
        else:
            numbers.append(len(table) + len(added))
            added.append(text)
    return numbers, added


def is_same(numbers: Sequence[int]) -> bool:
    return list(numbers) == list(range(len(numbers)))


def renumbered(values: NDArray[Any], numbers: Sequence[int], where: str) -> NDArray[Any]:
    """Numbers of tasks as they are in the table that gave `numbers`; below 0 stays: it stands for none."""
    if is_same(numbers):
        return values
    whole = np.asarray(values).astype(np.int64)
    if len(whole) and int(whole.max()) >= len(numbers):
        raise DataSetCorrupt(
            f"{where}: the value {int(whole.max())}, the table has {len(numbers)} texts",
            hint="its integers are read as indices of a table; rename the column if they are something else",
        )
    new: NDArray[Any] = np.where(whole < 0, whole, np.asarray(numbers, np.int64)[np.maximum(whole, 0)])
    return new.astype(values.dtype)


def renumber(features: Sequence[Feature], values: dict[str, Any], numbers: Numbers, where: str) -> None:
    """Bring the columns that point into a table to its new numbers."""
    for feature in features:
        table = table_of(feature)
        if table is not None and table in numbers:
            place = f"{where}, column {feature.key!r}"
            values[feature.key] = renumbered(np.asarray(values[feature.key]), numbers[table], place)


def changes(numbers: Sequence[int], shown: int = 6) -> str:
    """Which tasks got other numbers, for people: "0→2, 1→3"."""
    moved = [f"{old}→{new}" for old, new in enumerate(numbers) if old != new]
    more = f" and {len(moved) - shown:,} more" if len(moved) > shown else ""
    return ", ".join(moved[:shown]) + more
