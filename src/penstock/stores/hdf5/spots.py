"""Where the rows of a column lie in one file: offset, chunks, way; asked of a file with few questions."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ImageError, LimitExceeded, StoreCorrupt, StoreError
from penstock.media.image import jpeg, png
from penstock.stores.hdf5.array import Hdf5Array
from penstock.stores.hdf5.file import Hdf5File, library_errors
from penstock.stores.hdf5.layout import join, row_count
from penstock.stores.hdf5.read import picture_bytes
from penstock.stores.hdf5.trial_child import look_at, quietly
from penstock.stores.roles import ACTIONS, ENDS

if TYPE_CHECKING:
    import h5py

Line = dict[str, Any]

LARGEST_PICTURE_BYTES = 64 << 20  # encoded
LONGEST_TEXT_BYTES = 1 << 20  # of one row
_REMEMBERED = 7  # kinds of storage of one column
_FIRST_ROWS = 16  # looked at for one whose picture is whole
_LEAVE_OUT = "episodes=[…] opens the others, columns=[…] does without the column"
ENDS_DIFFER = "files that tell the ends of episodes by other columns are no one store: open them one by one"


@dataclass(frozen=True)
class Asked:
    """What the user said when the store was opened."""

    channels: Any = "auto"
    mask: str | None = None
    columns: tuple[str, ...] | None = None
    allow_external: bool = False
    only: tuple[int, ...] | None = None
    """Groups by number, where a single file is opened in part."""


@dataclass(frozen=True)
class Facts:
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

    @property
    def stored_row_bytes(self) -> int:
        return math.prod(self.stored_shape) * np.dtype(self.stored_dtype).itemsize


@dataclass(frozen=True)
class Like:
    """What the first file with rows is; the others must agree."""

    path: str
    kind: str
    columns: tuple[Facts, ...]
    group: str
    """Its first episode."""
    tree: dict[str, list[str]]
    """The names in every group under that, by its path from there."""

    def as_plain(self) -> Line:
        return asdict(self)


def facts_from(plain: Line) -> Facts:
    """Back from JSON."""
    return Facts(**{**plain, "shape": tuple(plain["shape"]), "stored_shape": tuple(plain["stored_shape"])})


def like_from(plain: Line) -> Like:
    columns = tuple(facts_from(each) for each in plain["columns"])
    return Like(**{**plain, "columns": columns})


@dataclass(frozen=True)
class Spot:
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

    def as_plain(self) -> list[Any]:
        return [
            self.offset, self.row_bytes, self.chunk_rows, self.chunk_bytes, self.stored_bytes, self.way, self.why
        ]  # fmt: skip


class SpotFinder:
    """Spots of columns; a data set that is stored as the one of the file before was needs few questions."""

    def __init__(self) -> None:
        self._stored: dict[str, list[tuple[Any, ...]]] = {}  # by column: type, layout, chunks, filters, and the spot
        self._groups: dict[str, Any] = {}
        self._has_user_block = False

    def of_group(self, file: Hdf5File, group: str, rows: int, like: Like) -> list[list[Any]]:
        """One spot per column, each of `rows` rows, or an error that says what does not fit."""
        self._has_user_block = file.has_user_block
        return [self._spot(file, group, facts, rows, like).as_plain() for facts in like.columns]

    def _spot(self, file: Hdf5File, group: str, facts: Facts, rows: int, like: Like) -> Spot:
        name = join(group, facts.name)
        node = self._node(file, name)
        if node is None:
            hint = ENDS_DIFFER if like.kind == "replay" and facts.name in ENDS else _LEAVE_OUT
            raise StoreError(f"{file.path}: there is no {name}, which {like.path} has", hint=hint)
        with library_errors(file.path, f"{name} cannot be opened"):
            same = self._as_before(file, node, facts, rows)
        if same is not None:
            return same
        array = Hdf5Array(file, name, texts=facts.kind == "text")
        if array.count != rows:
            raise StoreError(
                f"{file.path}: {name} has {array.count:,} rows, the episode has {rows:,}",
                hint=f"the recording is incomplete; {_LEAVE_OUT}",
            )
        _check_fit(file, array, facts, like)
        found = self._found(file, array, rows)
        with library_errors(file.path, f"{name} cannot be opened"):
            if not array.is_ragged and found.way != "library":
                self._stored[facts.name] = [(*_storage(node), found), *self._stored.get(facts.name, [])[:_REMEMBERED]]
        return found

    def rows(self, file: Hdf5File, group: str) -> int:
        """Rows of an episode: those of its actions, or of its first data set."""
        import h5py

        self._groups = {}
        for name in ACTIONS:
            node = self._node(file, join(group, name))
            if node is None:
                continue
            with library_errors(file.path, f"{join(group, name)} cannot be opened"):
                # The shape of a virtual data set lies in other files: that is refused elsewhere, or allowed.
                if node.get_create_plist().get_layout() != h5py.h5d.VIRTUAL and node.shape:
                    return int(node.shape[0])
        return row_count(file, group)

    def names(self, file: Hdf5File, group: str) -> set[str]:
        """The members of a group; none where there is no such group."""
        import h5py

        found: list[bytes] = []
        node = self._group(file, group)
        if isinstance(node, h5py.h5g.GroupID):
            with library_errors(file.path, f"{group or '/'} cannot be listed"):
                node.links.iterate(found.append)
        return {name.decode("utf-8", "surrogateescape") for name in found}

    def _group(self, file: Hdf5File, name: str) -> Any:
        if self._groups.get(name) is None:
            self._groups[name] = file.find(name or "/")
        return self._groups[name]

    def _node(self, file: Hdf5File, name: str) -> Any:
        """The data set, by way of groups that were found before."""
        import h5py

        above, _, base = name.rpartition("/")
        parent = self._group(file, above)
        with library_errors(file.path, f"{name} cannot be found"):
            key = base.encode("utf-8", "surrogateescape")
            if not isinstance(parent, h5py.h5g.GroupID) or not parent.links.exists(key):
                return None
            is_hard = parent.links.get_info(key).type == h5py.h5l.TYPE_HARD
            found = h5py.h5o.open(parent, key) if is_hard else file.find(name)
        return found if isinstance(found, h5py.h5d.DatasetID) else None

    def _as_before(self, file: Hdf5File, node: Any, facts: Facts, rows: int) -> Spot | None:
        """The spot, where type, shape and storage are those of the data set before; else None: look closely."""
        import h5py

        if self._has_user_block:
            return None
        kind, *storage = _storage(node)
        known = (each for each in self._stored.get(facts.name, ()) if list(each[1:4]) == storage and each[0] == kind)
        found = next(known, None)
        is_encoded = facts.encoding in ("jpeg", "png")
        if found is None or node.shape[0] != rows or (node.shape[1:] != facts.stored_shape and not is_encoded):
            return None
        _, _, chunks, filters, spot = found
        if chunks is None:
            offset = node.get_offset()
            row_bytes = math.prod(node.shape[1:]) * kind.get_size()  # texts and JPEGs: wider here than in other files
            if offset is None or offset + rows * row_bytes > file.size_bytes:
                return None
            if is_encoded and _size_of(os.pread(file.descriptor, row_bytes, offset)) != facts.shape[:2]:
                return None
            return Spot(int(offset), row_bytes, 1, 0, rows * row_bytes, spot.way, spot.why)
        if is_encoded:
            return None
        data = h5py.Dataset(node)
        data.fillvalue  # noqa: B018 - a damaged one crashes the library: here, not in the parent
        for row in {0, rows - 1}:
            node.get_chunk_info_by_coord((row // chunks[0] * chunks[0],) + (0,) * (len(chunks) - 1))
        stored = int(node.get_storage_size()) if filters else rows * spot.row_bytes
        return Spot(-1, spot.row_bytes, spot.chunk_rows, spot.chunk_bytes, stored, spot.way, spot.why)

    def _found(self, file: Hdf5File, array: Hdf5Array, rows: int) -> Spot:
        data = file.dataset(array.name)
        if array.offset < 0:
            quietly(look_at, data.id, False)  # whatever crashes here does not crash the parent
        taken = array.path_taken
        stored = _stored_bytes(file, data, array, rows)
        chunk_rows, chunk_bytes = (1, 0) if taken.way in ("file", "chunks") else (array.chunk_rows, array.chunk_bytes)
        return Spot(array.offset, array.row_bytes, chunk_rows, chunk_bytes, stored, taken.way, taken.why)


def _storage(node: Any) -> tuple[Any, ...]:
    """(type, layout, chunk, filters) of a data set that lies in its own file."""
    import h5py

    plist = node.get_create_plist()
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL or plist.get_external_count():
        return (None, None, None, None)
    filters = tuple(plist.get_filter(i)[0] for i in range(plist.get_nfilters()))
    return node.get_type(), layout, plist.get_chunk() if layout == h5py.h5d.CHUNKED else None, filters


def _check_fit(file: Hdf5File, array: Hdf5Array, facts: Facts, like: Like) -> None:
    """The rows are what those of the first file are."""
    shape, wanted = (array.dtype.str, array.row_shape), (facts.stored_dtype, facts.stored_shape)
    if facts.encoding in ("jpeg", "png"):
        size = picture_size(array)
        if not isinstance(size, str) and size[:2] != facts.shape[:2]:
            shape, wanted = (facts.encoding, size[:2]), (facts.encoding, facts.shape[:2])
        elif array.is_ragged == facts.ragged and array.dtype.kind == np.dtype(facts.stored_dtype).kind:
            shape = wanted  # the padding may differ: it is no part of the picture
    if facts.kind == "text" and array.is_ragged == facts.ragged and array.dtype.kind in "SO" and not array.row_shape:
        shape = wanted  # the longest may be longer here
    if shape != wanted:
        here, there = (f"{dtype} {'×'.join(map(str, sizes)) or 'alone'}" for dtype, sizes in (shape, wanted))
        raise StoreError(f"{file.path}: a row of {array.name} is {here}, in {like.path} it is {there}", hint=_LEAVE_OUT)


def _stored_bytes(file: Hdf5File, data: h5py.Dataset, array: Hdf5Array, rows: int) -> int:
    if array.chunks is None or not file.filters(data):
        return rows * array.row_bytes
    with library_errors(file.path, f"the size of {array.name} cannot be read"):
        return int(data.id.get_storage_size())


def picture_size(array: Hdf5Array) -> tuple[int, int, bool] | str:
    """(height, width, 16 bits of depth?) by the header of the first picture that is whole."""
    problem = "it has no rows"
    for row in range(min(array.count, _FIRST_ROWS)):
        try:
            if array.is_ragged:
                data = next(iter(array.ragged(row, row + 1, LARGEST_PICTURE_BYTES))).data
            else:
                data = array.rows(row, row + 1).reshape(-1).view(np.uint8).data
            return _picture_header(data)
        except (ImageError, LimitExceeded, StoreCorrupt) as error:
            problem = error.message
    return f"no picture among its first rows is whole: {problem}"


def _picture_header(data: memoryview | bytes) -> tuple[int, int, bool]:
    data = data[: picture_bytes(memoryview(data))]
    if png.is_png(data):
        header = png.probe(data)
        return header.height, header.width, header.is_depth
    info = jpeg.probe(data)
    return info.height, info.width, False


def _size_of(data: bytes) -> tuple[int, int] | None:
    try:
        return _picture_header(data)[:2]
    except (ImageError, LimitExceeded):
        return None
