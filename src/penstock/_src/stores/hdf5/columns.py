"""The columns of HDF5 files: what a row is in memory and on disk, and where the rows of each group lie."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock._src.media.image import jpeg, png
from penstock._src.stores.hdf5.array import LARGEST_IMAGE_BYTES, Hdf5Array
from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.hdf5.layout import Hdf5Layout, join, row_count
from penstock._src.stores.hdf5.probe import probe_data_set
from penstock._src.stores.hdf5.rows import image_bytes
from penstock._src.stores.roles import BOOKKEEPING, CENTRAL_ROLES, ENDS, SUCCESSES, ChannelOrder, find_roles
from penstock._src.system.units import name_hint
from penstock.errors import ImageError, LimitExceeded, StoreCorrupt, StoreError

LEAVE_OUT = "episodes=[…] opens the others, columns=[…] does without the column"
ENDS_DIFFER = "files that mark the ends of episodes in different columns are not one store: open them one by one"

_SMALLEST_DEPTH_PX = 8
_CHANNEL_COUNTS = (1, 3, 4)
_IMAGE_WORDS = {"image", "images", "rgb", "camera", "cam"}
_FIRST_ROWS = 16  # looked at for one whose image is whole
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
    pixels: str = "rgb"
    """The order of the colours of raw pixels."""
    defers: bool = False
    """A column that does not fit is an error only for who reads it."""


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


def column_from(plain: dict[str, Any]) -> StoredColumn:
    """Back from JSON."""
    return StoredColumn(**{**plain, "shape": tuple(plain["shape"]), "stored_shape": tuple(plain["stored_shape"])})


@dataclass(frozen=True)
class FirstFile:
    """What the first file with rows is; the others must agree."""

    path: str
    kind: str
    columns: tuple[StoredColumn, ...]
    names: set[str]
    """All data sets of its first episode."""


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
        array = Hdf5Array(file, name)
    except StoreError:
        if file.kind(name) == "dataset":
            raise
        hint = ENDS_DIFFER if like.kind == "replay" and facts.name in ENDS else LEAVE_OUT
        raise StoreError(f"{file.path}: there is no {name}, which {like.path} has", hint=hint) from None
    if array.count != rows:
        raise incomplete(file, name, array.count, rows)
    _check_fit(file, array, facts, like)
    reader = array.reader
    if array.way == "library" or (array.chunks is not None and not array.is_ragged):
        probe_data_set(file.opened(name), with_rows=array.way == "library")
    row_bytes, stored_bytes = array.row_bytes, array.stored_bytes
    if array.is_ragged:
        row_bytes, images_bytes = array.lengths()
        stored_bytes += images_bytes
    return Placement(
        array.offset, row_bytes, reader.together, reader.unpacked_bytes, stored_bytes, array.way, array.why
    )


def incomplete(file: Hdf5File, name: str, count: int, rows: int) -> StoreError:
    text = f"{file.path}: {name} has {count:,} rows, the episode has {rows:,}"
    return StoreError(text, hint=f"the recording is incomplete; {LEAVE_OUT}")


def _check_fit(file: Hdf5File, array: Hdf5Array, facts: StoredColumn, like: FirstFile) -> None:
    """The rows are what those of the first file are."""
    shape, wanted = (array.dtype.str, array.row_shape), (facts.stored_dtype, facts.stored_shape)
    if facts.encoding in ("jpeg", "png"):
        size = _image_size(array)
        if not isinstance(size, str) and size[:2] != facts.shape[:2]:
            shape, wanted = (facts.encoding, size[:2]), (facts.encoding, facts.shape[:2])
        elif array.is_ragged == facts.ragged and array.dtype.kind == np.dtype(facts.stored_dtype).kind:
            shape = wanted  # the padding may differ: it is no part of the image
    if shape != wanted:
        here, there = (f"{dtype} {'×'.join(map(str, sizes)) or 'alone'}" for dtype, sizes in (shape, wanted))
        raise StoreError(f"{file.path}: a row of {array.name} is {here}, in {like.path} it is {there}", hint=LEAVE_OUT)


def find_columns(file: Hdf5File, layout: Hdf5Layout, options: Hdf5Options) -> tuple[list[StoredColumn], dict[str, str]]:
    """The columns of the first group with rows that can be used; and why others cannot, by their names."""
    rows = row_count(file, layout.group)
    known: dict[str, StoredColumn | str] = {}
    for name in layout.members:
        wanted = name.rpartition("/")[2] not in BOOKKEEPING if options.columns is None else name in options.columns
        if wanted or name in ENDS:  # where episodes end is needed, whatever was asked for
            known[name] = describe_rows(Hdf5Array(file, join(layout.group, name)), name, options.channels)
    roles = find_roles(name for name, facts in known.items() if _is_numbers(facts))
    needed = {name for role in CENTRAL_ROLES for name in roles.get(role, ())} | set(ENDS)
    columns: list[StoredColumn] = []
    left_out = {name: "a single value without rows" for name in layout.singles if name not in SUCCESSES}
    for name, facts in known.items():
        count, *shape = layout.members[name]
        if name in ENDS and layout.kind == "replay" and not (_is_numbers(facts) and math.prod(shape) == 1):
            text = f"{name} is {(count, *shape)}, one value for each of {rows:,} rows expected"
            raise StoreError(f"{file.path}: {text}")
        if isinstance(facts, str):
            left_out[name] = facts
        elif count == rows:
            columns.append(facts)
        elif facts.kind in ("image", "depth") or name in needed:
            if not options.defers:
                raise incomplete(file, join(layout.group, name), count, rows)
            columns.append(facts)
        elif name.rpartition("/")[2] not in SUCCESSES or count != 1:  # else it is of the whole episode
            left_out[name] = f"{count:,} rows, the episode has {rows:,}"
    _refuse_unknown(file, layout, options, columns, left_out)
    return columns, left_out


def _refuse_unknown(
    file: Hdf5File, layout: Hdf5Layout, options: Hdf5Options, columns: Sequence[StoredColumn], left_out: dict[str, str]
) -> None:
    """What was asked for by name must be there."""
    known = {each.name for each in columns}
    for name in options.columns or ():
        if name in left_out:
            raise StoreError(f"{file.path}: {name} cannot be a column: {left_out[name]}")
        if name not in known:
            raise StoreError(
                f"{file.path} has no column {name!r}", hint=name_hint(name, list(layout.members), "data sets:")
            )


def _is_numbers(facts: StoredColumn | str) -> bool:
    return isinstance(facts, StoredColumn) and facts.kind == "numbers"


def describe_rows(array: Hdf5Array, name: str, channels: ChannelOrder = "auto") -> StoredColumn | str:
    """A column, or why it cannot be one."""
    stored, dtype = array.row_shape, array.dtype
    native = dtype.newbyteorder("=").name

    def column(kind: str, shape: tuple[int, ...], name_of: str, encoding: str, turned: bool = False) -> StoredColumn:
        return StoredColumn(name, kind, shape, name_of, encoding, stored, dtype.str, turned, array.is_ragged)

    if not array.is_readable:
        return f"rows of different lengths, {array.why}"
    is_string = array.is_ragged or (dtype.kind in "SV" and not stored)
    is_byte = dtype.kind == "u" and dtype.itemsize == 1
    encoding = _encoded_as(array) if is_string or (is_byte and len(stored) == 1) else None
    if encoding is not None:
        size = _image_size(array)
        if isinstance(size, str):
            return size
        height, width, is_depth = size
        shape = (height, width, 1 if is_depth else 3)
        return column("depth" if is_depth else "image", shape, "uint16" if is_depth else "uint8", encoding)
    if is_string:
        return "neither JPEG nor PNG"
    if dtype.kind not in "biuf":
        return f"elements of {dtype}"
    is_plane = len(stored) == 2 or (len(stored) == 3 and stored[2] == 1)
    if is_byte and len(stored) == 3:
        order = _channel_order(stored, channels)
        if order == "both":
            return 'channels may be first or last: channels="last" or "first" (hdf5.channels=last) says which'
        if order != "none":
            turned = order == "first"
            return column("image", (*stored[1:], stored[0]) if turned else stored, "uint8", "raw", turned)
    if is_byte and len(stored) == 2 and _IMAGE_WORDS & set(_WORDS.split(name.lower())):
        return column("image", (*stored, 1), "uint8", "raw")
    if "depth" in name.lower() and is_plane and (native == "uint16" or _is_depth(native, stored)):
        return column("depth", (*stored[:2], 1), native, "raw")
    return column("numbers", stored, native, "numbers")


def _is_depth(native: str, stored: tuple[int, ...]) -> bool:
    return native == "float32" and min(stored[:2]) >= _SMALLEST_DEPTH_PX


def _channel_order(stored: tuple[int, ...], order: ChannelOrder) -> Literal["first", "last", "both", "none"]:
    """(H, W, C) and (C, H, W) distinguished by the axis that has a number of channels, or as asked for."""
    last, first = stored[2] in _CHANNEL_COUNTS, stored[0] in _CHANNEL_COUNTS
    if (order == "last" and last) or (order == "first" and first):
        return "last" if order == "last" else "first"
    return "both" if last and first else "last" if last else "first" if first else "none"


def _encoded_as(array: Hdf5Array) -> Literal["jpeg", "png"] | None:
    """By the first bytes of the first rows; a row may be broken."""
    for row in range(min(array.count, _FIRST_ROWS)):
        try:
            head = next(array.encoded(row, row + 1, array.file.size_bytes))
        except StoreCorrupt:
            continue
        if head[:2] == b"\xff\xd8":
            return "jpeg"
        if head[:8] == b"\x89PNG\r\n\x1a\n":
            return "png"
    return None


def _image_size(array: Hdf5Array) -> tuple[int, int, bool] | str:
    """(height, width, 16 bits of depth?) by the header of the first image that is whole, or why there is none."""
    problem = "it has no rows"
    for row in range(min(array.count, _FIRST_ROWS)):
        try:
            data = memoryview(next(array.encoded(row, row + 1, LARGEST_IMAGE_BYTES)))
            data = data[: image_bytes(data)]
            if png.is_png(data):
                header = png.probe(data)
                return header.height, header.width, header.is_depth
            info = jpeg.probe(data)
            return info.height, info.width, False
        except (ImageError, LimitExceeded, StoreCorrupt) as error:
            problem = error.message
    return f"no image among its first rows is whole: {problem}"
