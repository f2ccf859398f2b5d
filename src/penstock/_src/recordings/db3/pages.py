"""The leaf pages of a SQLite file, read without SQLite, for files that are cut or broken.

SQLite reaches rows through the inner pages of a table, and those are written late: of a recording of 77 MB whose copy
was cut in half, SQLite reaches none of 2,996 whole rows, since the root names a page behind the cut. Leaves tell by
themselves what they hold, so this module reads leaves and the chains of their long rows, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from penstock._src.recordings.codecs import MAX_CHUNK_BYTES
from penstock._src.recordings.recovery.scan_bytes import FileBytes

HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_TABLE_LEAF, _INDEX_LEAF = 0x0D, 0x0A
_USUAL_PAGE_BYTES = 4096
# Tables of a bag have at most six columns.
_MAX_COLUMNS = 16
_LONGEST_INDEX_ENTRY_BYTES = 64
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

Value = int | float | str | bytes | None


def extent(header: bytes) -> tuple[int, int]:
    """Page size and file size that the header of a SQLite file claims; 0 for what cannot be believed."""
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
        return 0, 0
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    # The number of pages is valid only when these two counters agree.
    is_valid = header[24:28] == header[92:96]
    return page_bytes, int.from_bytes(header[28:32], "big") * page_bytes if is_valid else 0


@dataclass(frozen=True)
class PageCell:
    """One entry of a leaf: where it lies, its row id (0 in an index), its size, and the serial types of its values."""

    page: int
    place: int
    rowid: int
    payload_bytes: int
    body_at: int
    types: tuple[int, ...]


class SqlitePages:
    """The pages of a SQLite file; a page that is cut is read as far as it goes."""

    def __init__(self, source: FileBytes) -> None:
        self._source = source
        header = source.at(0, HEADER_BYTES)
        page_bytes, self.claimed_bytes = extent(header)
        self.header_is_whole = page_bytes in [1 << power for power in range(9, 17)]
        self.page_bytes = page_bytes if self.header_is_whole else _USUAL_PAGE_BYTES
        self._usable = self.page_bytes - (header[20] if self.header_is_whole and header[20] <= 32 else 0)
        self._page_count = -(-source.size_bytes // self.page_bytes)

    def rows(self) -> Iterator[PageCell]:
        """The rows in all table leaves, whichever table they are of, in the order of the file."""
        return self._cells(_TABLE_LEAF)

    def index_entries(self) -> Iterator[tuple[Value, ...]]:
        """The short entries in all index leaves."""
        for cell in self._cells(_INDEX_LEAF):
            values = self.values(cell) if cell.payload_bytes <= _LONGEST_INDEX_ENTRY_BYTES else None
            if values is not None:
                yield values

    def row_at(self, page: int, place: int) -> PageCell | None:
        """The row of a cell that `rows` gave."""
        return self._cell(self._page(page), page, place, is_row=True)

    def values(self, cell: PageCell) -> tuple[Value, ...] | None:
        """The values of a cell, None where a page that holds some of it is missing."""
        payload = self._payload(cell)
        if payload is None:
            return None
        values: list[Value] = []
        at = _varint(payload, 0)[0] or 0
        for kind in cell.types:
            values.append(_value(kind, payload[at : at + _width(kind)]))
            at += _width(kind)
        return tuple(values)

    def _page(self, number: int) -> bytes:
        return self._source.at((number - 1) * self.page_bytes, self.page_bytes)

    def _cells(self, kind: int) -> Iterator[PageCell]:
        for number in range(1, self._page_count + 1):
            data = self._page(number)
            header_at = HEADER_BYTES if number == 1 else 0
            if len(data) < header_at + 8 or data[header_at] != kind:
                continue
            (count,) = struct.unpack_from(">H", data, header_at + 3)
            first = header_at + 8
            for at in range(first, min(first + 2 * count, len(data) - 1), 2):
                (place,) = struct.unpack_from(">H", data, at)
                if first + 2 * count <= place < self.page_bytes:
                    cell = self._cell(data, number, place, is_row=kind == _TABLE_LEAF)
                    if cell is not None:
                        yield cell

    def _cell(self, data: bytes, page: int, place: int, *, is_row: bool) -> PageCell | None:
        payload_bytes, at = _varint(data, place)
        if payload_bytes is None or not 0 < payload_bytes <= min(MAX_CHUNK_BYTES, self._source.size_bytes):
            return None
        rowid, body_at = _varint(data, at) if is_row else (0, at)
        head_bytes, at = _varint(data, body_at)
        if rowid is None or head_bytes is None or not 1 < head_bytes <= 128:
            return None
        types: list[int] = []
        while at < body_at + head_bytes:
            kind, at = _varint(data, at)
            if kind is None or kind in (10, 11) or len(types) == _MAX_COLUMNS:
                return None
            types.append(kind)
        if at != body_at + head_bytes or head_bytes + sum(map(_width, types)) != payload_bytes:
            return None
        rowid -= (rowid >> 63) << 64
        return PageCell(page, place, rowid, payload_bytes, body_at, tuple(types))

    def _payload(self, cell: PageCell) -> bytes | None:
        data, size = self._page(cell.page), cell.payload_bytes
        most = self._usable - 35
        if size <= most:
            payload = data[cell.body_at : cell.body_at + size]
            return payload if len(payload) == size else None
        least = (self._usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (self._usable - 4)
        end = cell.body_at + (local if local <= most else least)
        parts = [data[cell.body_at : end]]
        missing = size - (end - cell.body_at)
        pointer = data[end : end + 4]
        while missing > 0:
            page, n_bytes = int.from_bytes(pointer, "big"), min(missing, self._usable - 4)
            if len(pointer) < 4 or not 1 < page <= self._page_count:
                return None
            part = self._source.at((page - 1) * self.page_bytes, 4 + n_bytes)
            if len(part) < 4 + n_bytes:
                return None
            pointer = part[:4]
            parts.append(part[4:])
            missing -= n_bytes
        return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    """A number of one to nine bytes, and where it ends; None where the data end first."""
    value = 0
    for count in range(9):
        if not 0 <= at + count < len(data):
            return None, at
        byte = data[at + count]
        if count == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    return None, at


def _width(kind: int) -> int:
    return (kind - 12) // 2 if kind >= 12 else _INTEGER_BYTES.get(kind, 8 if kind == 7 else 0)


def _value(kind: int, data: bytes) -> Value:
    if kind == 0:
        return None
    if kind in _INTEGER_BYTES:
        return int.from_bytes(data, "big", signed=True)
    if kind == 7:
        return float(struct.unpack(">d", data)[0])
    if kind in (8, 9):
        return kind - 8
    return data.decode("utf-8", errors="replace") if kind % 2 else data
