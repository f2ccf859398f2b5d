"""Images in the rows of a LeRobot data set: by byte offset where parquet holds them plainly, else by blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot.features import Feature
from penstock._src.media.image import depth, tiff
from penstock._src.stores.caches import Lru, open_file, prefetch_all
from penstock._src.stores.lerobot.parquet_pages import NotPlain, value_places
from penstock._src.stores.lerobot.rows import BLOCK_BYTES, BLOCKS_KEPT, Footer, RowTable
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock._src.system.files import ByteSource, Prefetch
from penstock._src.system.units import format_bytes
from penstock.errors import DataSetCorrupt, ImageError, LimitExceeded, StoreCorrupt, StoreError

_PAGE_ROWS = 1024  # Arrow looks at the size of a page that often, so a page may hold so many images
FILE_SHIFT = 40  # a key: the number of the file above, the place in it below


def check_rows(rows: Sequence[int], count: int, where: str) -> None:
    """Refuse rows that do not exist: a negative one would be counted from the end."""
    if len(rows) and not 0 <= (least := min(rows)) <= (most := max(rows)) < count:
        raise StoreError(f"{where}: row {least if least < 0 else most:,} was requested, there are {count:,}")


def read_packet(file: ByteSource, offset: int, size: int, scratch: Scratch, row: int, column: str) -> NDArray[np.uint8]:
    """The stored bytes of an image; `row` and `column` name it where the file ends before."""
    data: Any = scratch.take(size)
    try:
        file.read_into(data, offset)
    except StoreCorrupt as error:
        if error.__cause__ is not None:
            raise  # the disk, not the file
        raise DataSetCorrupt(
            f"{file.path}: row {row:,}, {column}: {size:,} bytes at byte {offset:,} go beyond the file",
            hint="the file was cut while it was open; fetch it again",
        ) from error
    return data  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Places:
    """Where the images of one row group lie in their file; without offsets, only the library finds them."""

    offsets: NDArray[Any] | None
    sizes: NDArray[np.uint32] | None

    @property
    def n_bytes(self) -> int:
        return 64 + (0 if self.offsets is None or self.sizes is None else self.offsets.nbytes + self.sizes.nbytes)


class ImageFileSource(ImageSource):
    """The images of one image feature."""

    def __init__(
        self, table: RowTable, feature: Feature, dtype: str, indexes: Lru[Any], files: Lru[ByteSource], mean_bytes: int
    ) -> None:
        self._table = table
        self._key = feature.key
        self._shape = feature.shape[:2]
        self._depth_dtype = np.dtype(dtype) if feature.is_depth else None
        self._indexes = indexes
        self._files = files
        self._mean_bytes = mean_bytes
        self.scratch_bytes = 4 * mean_bytes

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        check_rows(rows, int(self._table.spans.starts[-1]), f"{self._key!r}")
        files, places = self._table.spans.locate(np.asarray(rows, np.int64))
        held, start, stop = -1, 0, 0
        for row, file, place in zip(rows, files.tolist(), places.tolist(), strict=True):
            if file != held or not start <= place < stop:
                footer = self._table.footer(file)
                group = footer.group_of(place)
                values_at = self._places(file, footer, group)
                held, start, stop = file, footer.group_start(group), int(footer.ends[group])
                opened = self._opened(str(footer.path))
            if values_at.offsets is None or values_at.sizes is None:
                data = self._from_block(row, file, place)
            else:
                offset, size = values_at.offsets.item(place - start), values_at.sizes.item(place - start)
                data = read_packet(opened, offset, size, scratch, row, repr(self._key))
            yield data if self._depth_dtype is None else self._depth(row, data)

    def prefetch(self, rows: Sequence[int]) -> Prefetch | None:
        files, places = self._table.spans.locate(np.asarray(rows, np.int64))
        asked: dict[int, tuple[ByteSource, list[tuple[int, int]]]] = {}
        for file, place in zip(files.tolist(), places.tolist(), strict=True):
            try:
                footer = self._table.footer(file)
                source = self._opened(str(footer.path))
                if not source.is_remote:
                    return None
                group = footer.group_of(place)
                found = self._places(file, footer, group)
            except DataSetCorrupt:
                continue  # said when the row is read
            if found.offsets is not None and found.sizes is not None:
                within = place - footer.group_start(group)
                wanted = asked.setdefault(file, (source, []))[1]
                wanted.append((found.offsets.item(within), found.sizes.item(within)))
        return prefetch_all(list(asked.values()))

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        files, places = self._table.spans.locate(rows)
        return np.asarray((files << FILE_SHIFT) | places, np.int64)

    def runs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of a packed row group go together: reading one passes over those before it."""
        files, places = self._table.spans.locate(rows)
        group = np.full(len(rows), -1, np.int64)
        for file in np.unique(files).tolist():
            here = files == file
            try:
                footer = self._table.footer(file)
            except DataSetCorrupt:
                continue  # reported when a row of it is read
            groups = np.searchsorted(footer.ends, places[here], side="right")
            packed = np.array([not leaf.is_plain for leaf in footer.leaves.get(self._key, ())], np.bool_)
            if len(packed) == len(footer.ends):
                group[here] = np.where(packed[groups], groups, -1)
        new = (group < 0) | (np.diff(group, prepend=-2) != 0) | (np.diff(files, prepend=-1) != 0)
        return np.asarray(np.cumsum(new) - 1, np.int64)

    def probe(self) -> tuple[str, str, str]:
        """(encoding, way, why) by the footer of the first file and the first bytes of an image in it."""
        file, place = int(self._table.spans.file[0]), int(self._table.spans.first[0])
        footer = self._table.footer(file)
        group = footer.group_of(place)
        places = self._places(file, footer, group)
        if places.offsets is not None:
            offset = int(places.offsets[place - footer.group_start(group)])
            begin = self._opened(str(footer.path)).read(offset, 4)
            return _encoding(begin), "file", "images lie in parquet as they are; each is read by its byte offset"
        try:
            first = self._table.peek(self._key, file, footer.group_start(group))
        except DataSetCorrupt:
            first = None  # reported when a row is read
        size = format_bytes(footer.leaves[self._key][group].n_bytes)
        why = f"packed in row groups of {size} or so: an image unpacks those before it"
        return _encoding(first if isinstance(first, bytes) else b""), "table", why

    def _opened(self, path: str) -> ByteSource:
        return self._files.get(path, lambda: open_file(path))

    def _places(self, file: int, footer: Footer, group: int) -> Places:
        places: Places = self._indexes.get((self._key, file, group), lambda: self._find(footer, group))
        return places

    def _find(self, footer: Footer, group: int) -> Places:
        leaves = footer.leaves.get(self._key)
        if leaves is None:
            raise DataSetCorrupt(f"{footer.path}: the column {self._key!r} of info.json is missing")
        leaf = leaves[group]
        rows = int(footer.ends[group]) - footer.group_start(group)
        if leaf.is_plain:
            file = self._opened(str(footer.path))
            try:
                offsets, sizes = value_places(file, leaf.start, leaf.n_bytes, rows, leaf.levels)
            except NotPlain:
                pass  # written in another way than the footer promises: the library knows more of them
            else:
                self.scratch_bytes = max(self.scratch_bytes, int(sizes.max(initial=0)))
                small = file.size_bytes < 1 << 32
                return Places(offsets.astype(np.uint32) if small else offsets, sizes)
        held = min(leaf.n_bytes, int(_PAGE_ROWS * footer.row_bytes.get(self._key, 0.0)))
        self.scratch_bytes = max(self.scratch_bytes, (BLOCKS_KEPT + 2) * max(BLOCK_BYTES, self._mean_bytes) + held)
        return Places(None, None)

    def _from_block(self, row: int, file: int, place: int) -> NDArray[np.uint8]:
        first, values = self._table.block(self._key, file, place)
        data = values[place - first]
        if data is None:
            raise DataSetCorrupt(f"{self._table.path(file)}: row {row:,}, {self._key!r}: the image is not in the file")
        return np.frombuffer(data, np.uint8)

    def _depth(self, row: int, data: NDArray[np.uint8]) -> ImageArray:
        try:
            pixels: NDArray[Any] = depth.decode(data.data)
        except (ImageError, LimitExceeded) as error:
            raise DataSetCorrupt(f"row {row:,}, {self._key!r}: {error.message}", hint=error.hint) from error
        if pixels.shape != self._shape or not np.can_cast(pixels.dtype, self._depth_dtype or pixels.dtype):
            raise DataSetCorrupt(
                f"row {row:,}, {self._key!r} is {pixels.dtype} {pixels.shape}, the column {self._depth_dtype} "
                f"{self._shape}"
            )
        return pixels.astype(self._depth_dtype, copy=False)


def _encoding(begin: bytes) -> str:
    """What an image is, by its first bytes; LeRobot itself writes PNG."""
    return "jpeg" if begin[:2] == b"\xff\xd8" else "tiff" if tiff.is_tiff(begin[:4]) else "png"
