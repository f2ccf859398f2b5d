"""A store as one batch needs it: the outputs of a window, and for every column the way to its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.images import FloatTable, ImageFit, fit_for
from penstock._src.load.engine.tables import Numbers
from penstock._src.load.sampling.window import BoundWindow, Output
from penstock._src.stores.store import Column, ImageSource, Store
from penstock._src.system.units import format_bytes
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock._src.load.views.view import View

ImageSize = tuple[int, int] | int | Mapping[str, tuple[int, int] | None] | None
Normalize = Mapping[str, Any] | tuple[Sequence[float], Sequence[float]] | None
INDEX = "index"
"""The row of the store that each sample stands at."""
SOURCE = "source"
"""The number of the store in a mix that each sample comes from."""


@dataclass(frozen=True)
class Shaping:
    """What images shall look like in a batch."""

    image_size: ImageSize = (224, 224)
    exact: bool = False
    resize: str = "linear"
    dtype: str = "uint8"
    normalize: Normalize = None

    def size_of(self, name: str) -> tuple[int, int] | None:
        """(height, width) asked for a column; None keeps what it has."""
        size = self.image_size.get(name) if isinstance(self.image_size, Mapping) else self.image_size
        if size is None:
            return None
        try:
            sides = (size, size) if isinstance(size, (int, np.integer)) else size
            height, width = (0 if isinstance(side, bool) else index(side) for side in sides)
        except (TypeError, ValueError):
            height = width = 0
        if not (0 < height <= 16384 and 0 < width <= 16384):
            raise UsageError(f"image_size {size!r} is not (height, width)", hint="image_size=(224, 224), or None")
        return height, width

    def check_names(self, store: Store) -> None:
        """Refuse columns that are named and are no images of the store: a slip would go unseen."""
        images = [name for name, column in store.columns.items() if column.is_image]
        for what, option in (("image_size", self.image_size), ("normalize", self.normalize)):
            for name in option if isinstance(option, Mapping) else ():
                if name not in images:
                    hint = f"images there: {', '.join(images) or 'none'}"
                    if what == "normalize" and name in ("mean", "std"):
                        hint = "normalize=(mean, std), or by column: {column: (mean, std)}"
                    raise UsageError(f"{store.path}: {what} names {name!r}, which is not an image column", hint=hint)

    def float_table(self, name: str, channels: int) -> FloatTable | None:
        if self.dtype == "uint8":
            if self.normalize is not None:
                raise UsageError("normalize makes floats", hint='add dtype="float32"')
            return None
        if self.dtype != "float32":
            raise UsageError(f"dtype {self.dtype!r} of images", hint='"uint8" or "float32"')
        normalize: Any = self.normalize
        if isinstance(normalize, Mapping):
            normalize = normalize.get(name, (None, None))
        try:
            mean, std = normalize if normalize is not None else (None, None)
            return FloatTable(channels, mean, std)
        except (TypeError, ValueError):
            hint = "normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), or a dict of such by column"
            raise UsageError(f"normalize={normalize!r} is not (mean, std) per channel", hint=hint) from None

    def describe(self) -> dict[str, Any]:
        return {"exact": self.exact, "resize": self.resize, "dtype": self.dtype}


@dataclass(frozen=True)
class DeviceShaping(Shaping):
    """Images stay uint8 until they are on a device, which converts them by `user_shaping`; that is checked here."""

    user_shaping: Shaping = Shaping()

    def float_table(self, name: str, channels: int) -> FloatTable | None:
        self.user_shaping.float_table(name, channels)
        return None


@dataclass(frozen=True)
class ImageColumn:
    """One image column of a source and all outputs that take rows of it."""

    column: Column
    outputs: tuple[Output, ...]
    fit: ImageFit
    table: FloatTable | None
    reader: ImageSource

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image in a batch."""
        return (self.fit.channels, *self.fit.size)

    @property
    def dtype(self) -> str:
        return self.column.dtype if self.fit.is_depth else ("uint8" if self.table is None else "float32")

    @property
    def view_row_bytes(self) -> int:
        """One image of a view; 0 where a view brings nothing."""
        if self.fit.is_depth or (self.column.encoding == "raw" and self.fit.size == self.fit.stored):
            return 0
        return int(np.prod(self.shape))

    @property
    def is_jpeg(self) -> bool:
        return self.column.encoding in ("jpeg", "mjpeg") and not self.fit.is_depth


class SampleSource:
    """One store, bound to a window. `views` may answer for image columns."""

    def __init__(self, bound: BoundWindow, shaping: Shaping, table_limit_bytes: int) -> None:
        self.bound = bound
        self.store = bound.store
        self.shaping = shaping
        self.views: dict[str, View] = {}
        self.number: int | None = None
        by_column: dict[str, list[Output]] = {}
        for output in bound.outputs:
            by_column.setdefault(output.column, []).append(output)
        self.images: list[ImageColumn] = []
        self.number_outputs: list[Output] = []
        self.text_outputs: list[Output] = []
        for name, outputs in by_column.items():
            column = self.store.column(name)
            if column.is_image:
                self.images.append(self._image(column, tuple(outputs)))
            elif column.kind == "numbers":
                self.number_outputs += outputs
            else:
                self.text_outputs += outputs
        names = list(dict.fromkeys(output.column for output in self.number_outputs))
        self.numbers = Numbers(self.store, names, table_limit_bytes)

    def _image(self, column: Column, outputs: tuple[Output, ...]) -> ImageColumn:
        fit = fit_for(column, self.shaping.size_of(column.name), self.shaping.exact, self.shaping.resize)
        table = None if fit.is_depth else self.shaping.float_table(column.name, fit.channels)
        return ImageColumn(column, outputs, fit, table, self.store.images(column.name))

    @property
    def has_own_index(self) -> bool:
        return any(output.name == INDEX for output in self.bound.outputs)

    def set_number(self, number: int) -> None:
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

    def shapes(self, batch_size: int, *, without: Callable[[ImageColumn], bool] = lambda _: False) -> dict[
        str, tuple[tuple[int, ...], str]
    ]:  # fmt: skip
        """Shape and dtype of every output of a batch, in the order of the window; texts and `without` left out."""
        shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        images = {column.name: column for column in self.images}
        for output in self.bound.outputs:
            lead = (batch_size,) if output.steps is None else (batch_size, output.steps)
            column = self.store.column(output.column)
            if output.column in images:
                if not without(images[output.column]):
                    shapes[output.name] = ((*lead, *images[output.column].shape), images[output.column].dtype)
            elif column.kind == "numbers":
                shapes[output.name] = ((*lead, *column.shape), column.dtype)
            if output.mask is not None:
                shapes[output.mask] = (lead, "bool")
        if not self.has_own_index:
            shapes[INDEX] = ((batch_size,), "int64")
        if self.number is not None:
            shapes[SOURCE] = ((batch_size,), "int64")
        return shapes

    def encoded_bytes(self, batch_size: int, encoded: Callable[[ImageColumn], bool]) -> int:
        """What the images of a batch that stay encoded take, by the mean of their columns."""
        total = 0
        for column in self.images:
            if encoded(column):
                steps = sum(output.steps or 1 for output in column.outputs)
                total += int(1.25 * batch_size * steps * column.column.stored_bytes / max(self.store.rows, 1))
        return total

    def scratch_bytes(self) -> int:
        """What one thread holds while it makes images of this store: one image at a time, but unpacked blocks stay,
        of every column its own."""
        kept = sum(each.reader.scratch_bytes for each in self.images if each.column.keeps_blocks)
        at_work = (
            each.fit.scratch_bytes + (0 if each.column.keeps_blocks else each.reader.scratch_bytes)
            for each in self.images
        )
        return kept + max(at_work, default=0)


def sources_of(
    bound: Sequence[BoundWindow], shaping: Shaping, tables_bytes: int, *, is_mix: bool = False
) -> list[SampleSource]:
    """One source for each; their tables of numbers take `tables_bytes` together, small stores first. Those of a mix
    know their number."""
    made: dict[int, SampleSource] = {}
    left = tables_bytes
    for number in sorted(range(len(bound)), key=lambda number: bound[number].store.rows):
        made[number] = SampleSource(bound[number], shaping, left // (len(bound) - len(made)))
        left -= made[number].numbers.in_memory_bytes
        if is_mix:
            made[number].set_number(number)
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
        places: list[int] = self.dests[begin : begin + int(self.counts[number])].tolist()
        return places


OUTPUT_SHIFT = 40  # a destination: the output's number above, the image's number within the output below
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
