"""The columns of HDF5 files: what a row is in memory and on disk, and where the rows of each group lie."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock._src.media.image import jpeg, png
from penstock._src.stores.hdf5.array import LARGEST_IMAGE_BYTES, Hdf5Array
from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.hdf5.layout import Hdf5Layout, Member, join, row_count
from penstock._src.stores.hdf5.probe import probe_chunks, probe_data_set, quietly
from penstock._src.stores.hdf5.rows import image_bytes
from penstock._src.stores.roles import ACTIONS, BOOKKEEPING, ENDS
from penstock.errors import ImageError, LimitExceeded, StoreCorrupt, StoreError

LONGEST_TEXT_BYTES = 1 << 20  # of one row
ENDS_DIFFER = "files that mark the ends of episodes in different columns are not one store: open them one by one"

_SMALLEST_DEPTH_PX = 8
_SMALLEST_SIDE_PX = 16
_MOST_STACKED = 12  # channels: four colour images
_FIRST_ROWS = 16  # looked at for whether strings are text, and for one whose image is whole
_DOUBT = "{} looks like images, taken as numbers: {} {}; uint8 (H, W, 1|3|4) is an image"
_LEAVE_OUT = "episodes=[…] opens the others, columns=[…] does without the column"
_WORDS = re.compile("[/_.]")


@dataclass(frozen=True)
class Hdf5Options:
    """The user's options when the store was opened."""

    channels: Any = "auto"
    mask: str | None = None
    columns: tuple[str, ...] | None = None
    allow_external: bool = False
    only: tuple[int, ...] | None = None
    """Groups by number, where a single file is opened in part."""


@dataclass(frozen=True)
class StoredColumn:
    """A column as all files have it: what a row is in memory, and on disk."""

    name: str
    kind: Any
    shape: tuple[int, ...]
    dtype: str
    encoding: str
    stored_shape: tuple[int, ...]
    stored_dtype: str
    turned: bool = False
    """Channels come first on disk."""
    ragged: bool = False


@dataclass(frozen=True)
class FirstFile:
    """What the first file with rows is; the others must agree."""

    path: str
    kind: str
    columns: tuple[StoredColumn, ...]
    group: str
    """Its first episode."""
    tree: dict[str, list[str]]
    """The names in every group under that, by its path from there."""

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)


def first_file_from(plain: dict[str, Any]) -> FirstFile:
    """Back from JSON."""
    tuples = ("shape", "stored_shape")
    columns = [StoredColumn(**{**each, **{name: tuple(each[name]) for name in tuples}}) for each in plain["columns"]]
    return FirstFile(**{**plain, "columns": tuple(columns)})


class Placement(NamedTuple):
    """Where the rows of one data set lie, and the way to them."""

    offset: int
    """Of the first row, where all lie in one piece; else -1."""
    row_bytes: int
    chunk_rows: int
    """Rows that are unpacked together; 1 where rows lie by themselves."""
    chunk_bytes: int
    stored_bytes: int
    way: str
    why: str


def place_column(file: Hdf5File, group: str, facts: StoredColumn, rows: int, like: FirstFile) -> Placement:
    """Where a column of `rows` rows lies in a group, or an error that says what does not fit."""
    name = join(group, facts.name)
    try:
        array = Hdf5Array(file, name, texts=facts.kind == "text")
    except StoreError:
        if file.kind(name) == "dataset":
            raise
        hint = ENDS_DIFFER if like.kind == "replay" and facts.name in ENDS else _LEAVE_OUT
        raise StoreError(f"{file.path}: there is no {name}, which {like.path} has", hint=hint) from None
    if array.count != rows:
        raise StoreError(
            f"{file.path}: {name} has {array.count:,} rows, the episode has {rows:,}",
            hint=f"the recording is incomplete; {_LEAVE_OUT}",
        )
    _check_fit(file, array, facts, like)
    reader = array.reader
    # Whatever crashes here does not crash the parent.
    if reader.is_by_library:
        quietly(probe_data_set, file.opened(name).id)
    elif array.chunks is not None and not array.is_ragged:
        quietly(probe_chunks, file.opened(name))
    return Placement(
        array.offset, array.row_bytes, reader.together, reader.unpacked_bytes, array.stored_bytes, array.way, array.why
    )


def _check_fit(file: Hdf5File, array: Hdf5Array, facts: StoredColumn, like: FirstFile) -> None:
    """The rows are what those of the first file are."""
    shape, wanted = (array.dtype.str, array.row_shape), (facts.stored_dtype, facts.stored_shape)
    if facts.encoding in ("jpeg", "png"):
        size = _image_size(array)
        if not isinstance(size, str) and size[:2] != facts.shape[:2]:
            shape, wanted = (facts.encoding, size[:2]), (facts.encoding, facts.shape[:2])
        elif array.is_ragged == facts.ragged and array.dtype.kind == np.dtype(facts.stored_dtype).kind:
            shape = wanted  # the padding may differ: it is no part of the image
    if facts.kind == "text" and array.is_ragged == facts.ragged and array.dtype.kind in "SO" and not array.row_shape:
        shape = wanted  # the longest may be longer here
    if shape != wanted:
        here, there = (f"{dtype} {'×'.join(map(str, sizes)) or 'alone'}" for dtype, sizes in (shape, wanted))
        raise StoreError(f"{file.path}: a row of {array.name} is {here}, in {like.path} it is {there}", hint=_LEAVE_OUT)


def find_columns(
    file: Hdf5File, layout: Hdf5Layout, group: str, options: Hdf5Options
) -> tuple[list[StoredColumn], list[str]]:
    """The columns that can be used, by the first group with rows; and why the others cannot."""
    rows = row_count(file, group)
    central = next((name for name in ACTIONS if layout.member(name)), None)
    wanted = {member.name for member in layout.members if member.base not in BOOKKEEPING}
    columns: list[StoredColumn] = []
    notes: list[str] = []
    for member in layout.members:
        is_end = member.name in ENDS  # needed to know where episodes end, whatever was asked for
        if not is_end and member.name not in (options.columns if options.columns is not None else wanted):
            continue
        facts: StoredColumn | str
        if member.rows != rows:
            facts = f"{member.rows:,} rows, {central or 'the first data set'} has {rows:,}"
        else:
            facts = _facts(Hdf5Array(file, join(group, member.name)), member)
        is_one = isinstance(facts, StoredColumn) and facts.kind == "numbers" and member.values == 1
        if is_end and layout.kind == "replay" and not is_one:
            text = f"{member.name} is {member.shape}, one value for each of {rows:,} rows expected"
            raise StoreError(f"{file.path}: {text}")
        if isinstance(facts, str):
            notes.append(f"{member.name} is left out: {facts}")
        else:
            columns.append(facts)
    singles = [name for name in layout.singles if options.columns is None or name in options.columns]
    if singles:
        notes.append(f"left out, as each is a single value without rows: {', '.join(singles)}")
    if options.columns is not None:
        lacking = [name for name in options.columns if name not in {each.name for each in columns}]
        if lacking:
            raise StoreError(
                f"{file.path} has no column {lacking[0]!r}",
                hint="; ".join(notes) or f"columns: {', '.join(member.name for member in layout.members)}",
            )
    doubts = [_DOUBT.format(each.name, each.dtype, _by(each.stored_shape)) for each in columns if _is_odd(each)]
    return columns, [*notes, *doubts]


def _facts(array: Hdf5Array, member: Member) -> StoredColumn | str:
    """A column, or why it cannot be one."""
    stored = member.row_shape
    dtype = array.dtype

    def as_column(kind: str, shape: tuple[int, ...], name: str, encoding: str, turned: bool = False) -> StoredColumn:
        return StoredColumn(member.name, kind, shape, name, encoding, stored, dtype.str, turned, array.is_ragged)

    if member.content == "other":
        text = _text_facts(array, member)
        if text is not None:
            return text
        return member.why.replace("hdf5.channels=last", 'channels="last" or "first"')
    if member.content == "pixels":
        turned = member.channels == "first"
        shape = (*stored[1:], stored[0]) if turned else stored if len(stored) == 3 else (*stored, 1)
        return as_column("image", shape, "uint8", "raw", turned)
    native = dtype.newbyteorder("=").name
    if member.content == "depth" or (
        "depth" in member.name.lower()
        and native == "float32"
        and len(stored) >= 2
        and min(stored[:2]) >= _SMALLEST_DEPTH_PX
        and stored[2:] in ((), (1,))
    ):
        return as_column("depth", (*stored[:2], 1), native, "raw")
    if member.content in ("jpeg", "png"):
        size = _image_size(array)
        if isinstance(size, str):
            return size
        height, width, is_depth = size
        if is_depth:
            return as_column("depth", (height, width, 1), "uint16", "png")
        return as_column("image", (height, width, 3), "uint8", member.content)
    return as_column("numbers", stored, native, "numbers")


def _text_facts(array: Hdf5Array, member: Member) -> StoredColumn | str | None:
    """A column of texts, or why it cannot be one; None where the rows are no strings at all."""
    import h5py

    if h5py.check_string_dtype(array.dtype) is None:
        return None
    if member.row_shape:
        return f"text, {_by(member.row_shape)} of them a row; one is read"
    rows = Hdf5Array(array.file, array.name, texts=True)
    count = min(rows.count, _FIRST_ROWS)
    try:
        if rows.is_ragged:
            first = [each.tobytes() for each in rows.ragged(0, count, LONGEST_TEXT_BYTES)]
        else:
            first = rows.rows(0, count).tolist()
        for each in first:
            each.decode("utf-8")
    except (UnicodeDecodeError, LimitExceeded, StoreCorrupt) as error:
        return f"strings that are neither JPEG, PNG nor UTF-8 text ({error})"
    return StoredColumn(member.name, "text", (), "str", "text", (), array.dtype.str, False, rows.is_ragged)


def _is_odd(facts: StoredColumn) -> bool:
    """Numbers in the shape of images: sizes and views do not apply to them."""
    shape = facts.stored_shape
    if facts.kind != "numbers" or not shape or min(shape) < 1:
        return False
    if len(shape) == 2:
        named = {"image", "images", "rgb"} & set(_WORDS.split(facts.name.lower()))
        return bool(named) and min(shape) >= _SMALLEST_SIDE_PX
    frame = shape[-3:]  # of (K, H, W, C), which is several images in a row
    sides = ((frame[:2], frame[-1]), (frame[-2:], frame[0]))
    return len(shape) in (3, 4) and any(min(side) >= _SMALLEST_SIDE_PX and n <= _MOST_STACKED for side, n in sides)


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(str(size) for size in shape)


def _image_size(array: Hdf5Array) -> tuple[int, int, bool] | str:
    """(height, width, 16 bits of depth?) by the header of the first image that is whole, or why there is none."""
    problem = "it has no rows"
    for row in range(min(array.count, _FIRST_ROWS)):
        try:
            if array.is_ragged:
                data = next(array.ragged(row, row + 1, LARGEST_IMAGE_BYTES)).data
            else:
                data = array.rows(row, row + 1).reshape(-1).view(np.uint8).data
            data = data[: image_bytes(data)]
            if png.is_png(data):
                header = png.probe(data)
                return header.height, header.width, header.is_depth
            info = jpeg.probe(data)
            return info.height, info.width, False
        except (ImageError, LimitExceeded, StoreCorrupt) as error:
            problem = error.message
    return f"no image among its first rows is whole: {problem}"
