"""SQLite files read page by page, without SQLite: rows of table leaves and their overflow chains, damage allowed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.recordings.codecs import MAX_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.recordings.recovery.scan_bytes import FileBytes

MAGIC = b"SQLite format 3\0"
_TABLE_LEAF, _INDEX_LEAF = 0x0D, 0x0A
_FIRST_PAGE_HEADER_BYTES = 100
_PAGE_SIZES = (4096, 1024, 2048, 8192, 16384, 32768, 65536, 512)
_GUESS_PAGES = 256
# Tables of a bag have at most six columns.
_MAX_COLUMNS = 16
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

Value = int | float | str | bytes | None


@dataclass(frozen=True)
class Row:
    """A row of some table: where its cell lies, its serial types, and how its payload is spread."""

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
        header = source.at(0, _FIRST_PAGE_HEADER_BYTES)
        self.header_is_whole = header.startswith(MAGIC) and len(header) == _FIRST_PAGE_HEADER_BYTES
        claimed = struct.unpack_from(">H", header.ljust(18, b"\0"), 16)[0]
        self.page_bytes = 65536 if claimed == 1 else claimed
        reserved = header[20] if self.header_is_whole and header[20] <= 32 else 0
        if self.page_bytes not in _PAGE_SIZES:
            self.page_bytes = self._guess_page_bytes()
        self._usable = self.page_bytes - reserved
        self.page_count = -(-source.size // self.page_bytes)
        self._used = bytearray(self.page_count // 8 + 1)

    def _guess_page_bytes(self) -> int:
        """The size with which the most rows make sense, for a file whose header is broken."""
        scores = []
        for page_bytes in _PAGE_SIZES:
            self.page_bytes = self._usable = page_bytes
            self.page_count = -(-self._source.size // page_bytes)
            pages = range(1, min(self.page_count, _GUESS_PAGES * 4096 // page_bytes) + 1)
            scores.append((sum(1 for page in pages for _ in self._rows(page)), page_bytes))
        return max(scores, key=lambda score: score[0])[1]

    def claimed_bytes(self) -> int:
        """The size that the header gives for the whole file; 0 where it cannot be believed."""
        header = self._source.at(0, _FIRST_PAGE_HEADER_BYTES)
        if not self.header_is_whole or header[24:28] != header[92:96]:
            return 0
        return int(struct.unpack_from(">I", header, 28)[0]) * self.page_bytes

    def rows(self) -> Iterator[Row]:
        """The rows in all table leaves, whichever table they are of, in the order of the file."""
        for page in range(1, self.page_count + 1):
            yield from self._rows(page)

    def row_at(self, page: int, place: int) -> Row | None:
        """The row of a cell that `rows` gave."""
        return self._row(self._page(page), page, place)

    def index_rows(self) -> Iterator[tuple[Value, ...]]:
        """The short entries in all index leaves."""
        for page in range(1, self.page_count + 1):
            data = self._page(page)
            if not data or data[0] != _INDEX_LEAF:
                continue
            for place in self._places(data, 0):
                payload, body_at = _varint(data, place)
                types = self._types(data, body_at) if payload is not None and payload <= 64 else None
                if types is not None:
                    values = self._values(data[body_at : body_at + (payload or 0)], types)
                    if values is not None:
                        yield values

    def _page(self, number: int) -> bytes:
        return self._source.at((number - 1) * self.page_bytes, self.page_bytes)

    def _rows(self, number: int) -> Iterator[Row]:
        data = self._page(number)
        header_at = _FIRST_PAGE_HEADER_BYTES if number == 1 else 0
        if len(data) <= header_at or data[header_at] != _TABLE_LEAF:
            return
        for place in self._places(data, header_at):
            row = self._row(data, number, place)
            if row is not None:
                yield row

    def _places(self, data: bytes, header_at: int) -> Iterator[int]:
        """Where the cells of a leaf lie."""
        if len(data) < header_at + 8:
            return
        (count,) = struct.unpack_from(">H", data, header_at + 3)
        first = header_at + 8
        for at in range(first, min(first + 2 * count, len(data) - 1), 2):
            (place,) = struct.unpack_from(">H", data, at)
            if first + 2 * count <= place < self.page_bytes:
                yield place

    def _row(self, data: bytes, page: int, place: int) -> Row | None:
        payload_bytes, at = _varint(data, place)
        if payload_bytes is None or not 0 < payload_bytes <= min(MAX_CHUNK_BYTES, self._source.size):
            return None
        rowid, body_at = _varint(data, at)
        if rowid is None:
            return None
        types = self._types(data, body_at)
        if types is None:
            return None
        head_bytes, _ = _varint(data, body_at)
        if (head_bytes or 0) + sum(_width(kind) for kind in types) != payload_bytes:
            return None
        return Row(page, place, _signed(rowid), payload_bytes, body_at, types)

    def _types(self, data: bytes, body_at: int) -> tuple[int, ...] | None:
        head_bytes, at = _varint(data, body_at)
        if head_bytes is None or not 1 < head_bytes <= 128:
            return None
        end = body_at + head_bytes
        types: list[int] = []
        while at < end:
            kind, at = _varint(data, at)
            if kind is None or kind in (10, 11) or len(types) == _MAX_COLUMNS:
                return None
            types.append(kind)
        return tuple(types) if at == end else None

    def values(self, row: Row, *, again: bool = False) -> tuple[Value, ...] | None:
        """The values of a row, None where a page that holds some of it is missing or was used before.

        `again`: the row was read before, so that its pages were used.
        """
        payload = self._payload(row, again)
        return None if payload is None else self._values(payload, row.types)

    def _values(self, payload: bytes, types: tuple[int, ...]) -> tuple[Value, ...] | None:
        head_bytes, _ = _varint(payload, 0)
        at = head_bytes or 0
        found: list[Value] = []
        for kind in types:
            end = at + _width(kind)
            if end > len(payload):
                return None
            found.append(_value(kind, payload[at:end]))
            at = end
        return tuple(found)

    def _payload(self, row: Row, again: bool) -> bytes | None:
        data = self._page(row.page)
        most = self._usable - 35
        if row.payload_bytes <= most:
            found = data[row.body_at : row.body_at + row.payload_bytes]
            return found if len(found) == row.payload_bytes else None
        least = (self._usable - 12) * 32 // 255 - 23
        local = least + (row.payload_bytes - least) % (self._usable - 4)
        local = local if local <= most else least
        end = row.body_at + local
        if len(data) < end + 4:
            return None
        parts = [data[row.body_at : end]]
        missing = row.payload_bytes - local
        (page,) = struct.unpack_from(">I", data, end)
        while missing > 0:
            taken = min(missing, self._usable - 4)
            part = self._overflow(page, taken, again)
            if part is None:
                return None
            parts.append(part[4:])
            missing -= taken
            (page,) = struct.unpack_from(">I", part)
        return b"".join(parts)

    def _overflow(self, page: int, n_bytes: int, again: bool) -> bytes | None:
        """The pointer and the first bytes of an overflow page; each belongs to one row alone."""
        if not 1 < page <= self.page_count:
            return None
        if self._used[page >> 3] >> (page & 7) & 1 and not again:
            return None
        data = self._source.at((page - 1) * self.page_bytes, 4 + n_bytes)
        if len(data) < 4 + n_bytes:
            return None
        self._used[page >> 3] |= 1 << (page & 7)
        return data


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


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _width(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return _INTEGER_BYTES.get(kind, 8 if kind == 7 else 0)


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
