"""A store as one batch needs it: the outputs of a window, and for every column the way to its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.load.pictures import Fit, FloatTable, fit_for
from penstock.load.tables import Numbers
from penstock.load.window import BoundWindow, Output
from penstock.stores.store import Column, ImageSource, Store
from penstock.system.units import format_bytes

if TYPE_CHECKING:
    from penstock.load.view import View

ImageSize = tuple[int, int] | int | Mapping[str, tuple[int, int] | None] | None
Normalize = Mapping[str, Any] | tuple[Sequence[float], Sequence[float]] | None
INDEX = "index"
"""The row of the store that each sample stands at."""
SOURCE = "source"
"""The number of the store in a mix that each sample comes from."""


@dataclass(frozen=True)
class Shaping:
    """What pictures shall look like in a batch."""

    image_size: ImageSize = (224, 224)
    exact: bool = False
    resize: str = "linear"
    dtype: str = "uint8"
    normalize: Normalize = None

    def size_of(self, name: str) -> tuple[int, int] | None:
        """(height, width) asked for a column; None keeps what it has."""
        asked = self.image_size.get(name) if isinstance(self.image_size, Mapping) else self.image_size
        if asked is None:
            return None
        try:
            sides = (asked, asked) if isinstance(asked, (int, np.integer)) else asked
            height, width = (0 if isinstance(side, bool) else index(side) for side in sides)
        except (TypeError, ValueError):
            height = width = 0
        if not (0 < height <= 16384 and 0 < width <= 16384):
            raise UsageError(f"image_size {asked!r} is not (height, width)", hint="image_size=(224, 224), or None")
        return height, width

    def check_names(self, store: Store) -> None:
        """Refuse columns that are named and are no pictures of the store: a slip would go unseen."""
        pictures = [name for name, column in store.columns.items() if column.is_picture]
        for what, given in (("image_size", self.image_size), ("normalize", self.normalize)):
            for name in given if isinstance(given, Mapping) else ():
                if name not in pictures:
                    hint = f"pictures there: {', '.join(pictures) or 'none'}"
                    if what == "normalize" and name in ("mean", "std"):
                        hint = "normalize=(mean, std), or by column: {column: (mean, std)}"
                    raise UsageError(f"{store.path}: {what} names {name!r}, which is no picture column", hint=hint)

    def float_table(self, name: str, channels: int) -> FloatTable | None:
        if self.dtype == "uint8":
            if self.normalize is not None:
                raise UsageError("normalize makes floats", hint='add dtype="float32"')
            return None
        if self.dtype != "float32":
            raise UsageError(f"dtype {self.dtype!r} of pictures", hint='"uint8" or "float32"')
        given: Any = self.normalize
        if isinstance(given, Mapping):
            given = given.get(name, (None, None))
        try:
            mean, std = given if given is not None else (None, None)
            return FloatTable(channels, mean, std)
        except (TypeError, ValueError):
            hint = "normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), or a dict of such by column"
            raise UsageError(f"normalize={given!r} is not (mean, std) per channel", hint=hint) from None

    def describe(self) -> dict[str, Any]:
        return {"exact": self.exact, "resize": self.resize, "dtype": self.dtype}


@dataclass(frozen=True)
class ForDevice(Shaping):
    """Pictures stay uint8 until they are on a device, which makes of them what was `asked`; that is checked here."""

    asked: Shaping = Shaping()

    def float_table(self, name: str, channels: int) -> FloatTable | None:
        self.asked.float_table(name, channels)
        return None


@dataclass(frozen=True)
class PictureColumn:
    """One picture column of a source and all outputs that take rows of it."""

    column: Column
    outputs: tuple[Output, ...]
    fit: Fit
    table: FloatTable | None
    reader: ImageSource

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one picture in a batch."""
        return (self.fit.channels, *self.fit.size)

    @property
    def dtype(self) -> str:
        return self.column.dtype if self.fit.is_depth else ("uint8" if self.table is None else "float32")

    @property
    def view_row_bytes(self) -> int:
        """One picture of a view; 0 where a view brings nothing."""
        if self.fit.is_depth or (self.column.encoding == "raw" and self.fit.size == self.fit.stored):
            return 0
        return int(np.prod(self.shape))

    @property
    def is_jpeg(self) -> bool:
        return self.column.encoding in ("jpeg", "mjpeg") and not self.fit.is_depth


class Source:
    """One store, bound to a window. `views` may answer for picture columns."""

    def __init__(self, bound: BoundWindow, shaping: Shaping, table_limit_bytes: int) -> None:
        self.bound = bound
        self.store = bound.store
        self.shaping = shaping
        self.views: dict[str, View] = {}
        self.number: int | None = None
        by_column: dict[str, list[Output]] = {}
        for output in bound.outputs:
            by_column.setdefault(output.column, []).append(output)
        self.pictures: list[PictureColumn] = []
        self.number_outputs: list[Output] = []
        self.text_outputs: list[Output] = []
        for name, outputs in by_column.items():
            column = self.store.column(name)
            if column.is_picture:
                self.pictures.append(self._picture(column, tuple(outputs)))
            elif column.kind == "numbers":
                self.number_outputs += outputs
            else:
                self.text_outputs += outputs
        names = list(dict.fromkeys(output.column for output in self.number_outputs))
        self.numbers = Numbers(self.store, names, table_limit_bytes)

    def _picture(self, column: Column, outputs: tuple[Output, ...]) -> PictureColumn:
        fit = fit_for(column, self.shaping.size_of(column.name), self.shaping.exact, self.shaping.resize)
        table = None if fit.is_depth else self.shaping.float_table(column.name, fit.channels)
        return PictureColumn(column, outputs, fit, table, self.store.images(column.name))

    @property
    def has_own_index(self) -> bool:
        return any(output.name == INDEX for output in self.bound.outputs)

    def be_number(self, number: int) -> None:
        """It is one of the sources of a mix: batches say which, so no column may be called so."""
        for output in self.bound.outputs:
            if SOURCE in (output.name, output.mask):
                raise UsageError(
                    f"{self.store.path}: two entries of the batch would be called {SOURCE!r}: {output.column}, and the "
                    "number of the store in the Mix",
                    hint=f"leave {output.column!r} out with columns=[…]",
                )
        self.number = number

    def describe(self) -> list[str]:
        """For people: where numbers lie, and an entry of a batch that is not what its name promises elsewhere."""
        name = "" if self.number is None else f" of {self.store.path}"
        notes = self.numbers.describe()
        if self.numbers.in_memory_bytes:
            notes = [f"numbers{name}: {format_bytes(self.numbers.in_memory_bytes)} in memory", *notes]
        if self.has_own_index and not self.store.declares_index:
            notes.append(f"{INDEX!r} in a batch is the column of that name{name}, not the row of the store")
        return notes

    def shapes(self, batch_size: int, *, without: Callable[[PictureColumn], bool] = lambda _: False) -> dict[
        str, tuple[tuple[int, ...], str]
    ]:  # fmt: skip
        """Shape and dtype of every output of a batch, in the order of the window; texts and `without` left out."""
        found: dict[str, tuple[tuple[int, ...], str]] = {}
        pictures = {column.name: column for column in self.pictures}
        for output in self.bound.outputs:
            lead = (batch_size,) if output.steps is None else (batch_size, output.steps)
            column = self.store.column(output.column)
            if output.column in pictures:
                if not without(pictures[output.column]):
                    found[output.name] = ((*lead, *pictures[output.column].shape), pictures[output.column].dtype)
            elif column.kind == "numbers":
                found[output.name] = ((*lead, *column.shape), column.dtype)
            if output.mask is not None:
                found[output.mask] = (lead, "bool")
        if not self.has_own_index:
            found[INDEX] = ((batch_size,), "int64")
        if self.number is not None:
            found[SOURCE] = ((batch_size,), "int64")
        return found

    def encoded_bytes(self, batch_size: int, encoded: Callable[[PictureColumn], bool]) -> int:
        """What the pictures of a batch that stay encoded take, by the mean of their columns."""
        total = 0
        for column in self.pictures:
            if encoded(column):
                steps = sum(output.steps or 1 for output in column.outputs)
                total += int(1.25 * batch_size * steps * column.column.stored_bytes / max(self.store.rows, 1))
        return total

    def scratch_bytes(self) -> int:
        """What one thread holds while it makes pictures of this store: one picture at a time, but unpacked blocks stay,
        of every column its own."""
        kept = sum(each.reader.scratch_bytes for each in self.pictures if each.column.keeps_blocks)
        at_work = (
            each.fit.scratch_bytes + (0 if each.column.keeps_blocks else each.reader.scratch_bytes)
            for each in self.pictures
        )
        return kept + max(at_work, default=0)


def sources_of(
    bound: Sequence[BoundWindow], shaping: Shaping, tables_bytes: int, *, is_mix: bool = False
) -> list[Source]:
    """One source for each; their tables of numbers take `tables_bytes` together, small stores first. Those of a mix
    know their number."""
    made: dict[int, Source] = {}
    left = tables_bytes
    for number in sorted(range(len(bound)), key=lambda number: bound[number].store.rows):
        made[number] = Source(bound[number], shaping, left // (len(bound) - len(made)))
        left -= made[number].numbers.in_memory_bytes
        if is_mix:
            made[number].be_number(number)
    return [made[number] for number in range(len(bound))]


@dataclass(frozen=True)
class Unique:
    """Rows of a column that a batch needs, each once, and where each goes."""

    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    counts: NDArray[np.int64]
    dests: NDArray[np.int64]

    def places(self, number: int) -> list[int]:
        begin = int(self.first[number])
        found: list[int] = self.dests[begin : begin + int(self.counts[number])].tolist()
        return found


OUTPUT_SHIFT = 40  # a destination: the output's number above, the picture's number within the output below
PLACE_MASK = (1 << OUTPUT_SHIFT) - 1


def merge(outputs: Sequence[Output], rows_of: Mapping[str, NDArray[np.int64]], places: NDArray[np.int64]) -> Unique:
    """All rows that the outputs of one column need, sorted and merged; `places`: where the samples are in the batch."""
    rows, dests = [], []
    for number, output in enumerate(outputs):
        wanted = rows_of[output.name]
        steps = wanted.shape[1]
        positions = places[:, None] * steps + np.arange(steps, dtype=np.int64)
        rows.append(wanted.reshape(-1))
        dests.append((positions | (number << OUTPUT_SHIFT)).reshape(-1))
    all_rows, all_dests = np.concatenate(rows), np.concatenate(dests)
    order = np.argsort(all_rows, kind="stable")
    all_rows, all_dests = all_rows[order], all_dests[order]
    is_first = np.ones(len(all_rows), np.bool_)
    np.not_equal(all_rows[1:], all_rows[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    counts = np.diff(np.append(first, len(all_rows)))
    return Unique(all_rows[first], first, counts, all_dests)
