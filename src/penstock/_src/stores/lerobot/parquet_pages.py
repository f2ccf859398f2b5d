"""What parquet files say in their pages and at the beginning of a large footer, read without the library.

Where the values of a plain byte column lie: page headers and lengths, never the values. How many rows a file has, and
with which value a column begins.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.files import ByteSource, open_source

_HEADER_BYTES = (256, 16 * 1024, 256 * 1024)  # statistics may make a header long; most are short
_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_PLAIN = 0
_SMALL_BYTES = 64 << 10  # larger footers are read whole
_READ_BYTES = (64 << 10, 1 << 20)  # of a footer: its schema and the first row group
_MAGIC = b"PAR1"
_MOST_DEPTH = 16
_BINARY, _LIST, _SET, _STRUCT = 8, 9, 10, 12


class NotPlain(Exception):
    """The pages are written in another way; the library must read them."""


def value_places(
    source: ByteSource, start: int, n_bytes: int, count: int, levels: int
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """(offset, size) of every value of a column chunk that holds `count` byte strings, none of them missing.

    Nothing that the file says leads outside the chunk.
    """
    offsets = np.empty(count, np.int64)
    sizes = np.empty(count, np.uint32)
    position, end, n_found = start, start + n_bytes, 0
    while n_found < count:
        values, position, first = _page(source, position, end, levels)
        if values > count - n_found or values < 1:
            raise NotPlain(f"a page of {values} values, {count - n_found} are left")
        for number in range(n_found, n_found + values):
            head = source.read(first, 4)
            size = int.from_bytes(head, "little")
            if len(head) < 4 or first + 4 + size > position:
                raise NotPlain(f"value {number} leaves its page")
            offsets[number] = first + 4
            sizes[number] = size
            first += 4 + size
        n_found += values
    return offsets, sizes


def _page(source: ByteSource, position: int, end: int, levels: int) -> tuple[int, int, int]:
    """(values, end of the page, first value) of the data page at a position."""
    header, body = _header(source, position, end)
    page_bytes = _whole_number(header.get(3))
    stop = body + page_bytes
    if stop > end:
        raise NotPlain("a page leaves its column chunk")
    kind = header.get(1)
    if kind == _DATA_PAGE:
        described = _inner(header.get(5))
        values = _whole_number(described.get(1))
        first = body + _levels_v1(source, body, stop, values, levels)
    elif kind == _DATA_PAGE_V2:
        described = _inner(header.get(8))
        values = _whole_number(described.get(1))
        if _whole_number(described.get(2)):
            raise NotPlain("values are missing")
        described[2] = described.get(4, -1)
        first = body + _whole_number(described.get(5)) + _whole_number(described.get(6))
    else:
        raise NotPlain(f"a page of kind {kind}")
    if described.get(2) != _PLAIN or first > stop:
        raise NotPlain(f"encoding {described.get(2)}")
    return values, stop, first


def _levels_v1(source: ByteSource, body: int, stop: int, values: int, levels: int) -> int:
    """Bytes of the definition levels; raises where one says that a value is missing."""
    if levels == 0:
        return 0
    size = int.from_bytes(source.read(body, 4), "little")
    if size > min(stop - body - 4, 1 << 20):
        raise NotPlain("definition levels leave their page")
    data = source.read(body + 4, size)
    try:
        _check_levels(data, values, levels)
    except IndexError:
        raise NotPlain("definition levels end before the values") from None
    return 4 + size


def _check_levels(data: bytes, values: int, levels: int) -> None:
    """Runs and packed groups of levels: all of them must be that of a value that is there."""
    width = levels.bit_length()
    seen, at = 0, 0
    while seen < values:
        run, at = varint(data, at)
        if run & 1:  # groups of eight levels, packed
            packed = (run >> 1) * width
            if not packed or len(data) < at + packed:
                raise NotPlain("definition levels end before the values")
            bits = np.unpackbits(np.frombuffer(data, np.uint8, packed, at), bitorder="little")
            read = bits.reshape(-1, width) @ (1 << np.arange(width))
            if (read[: values - seen] != levels).any():
                raise NotPlain("values are missing")
            seen, at = seen + (run >> 1) * 8, at + packed
        else:
            if run == 0 or at >= len(data) or data[at] != levels:
                raise NotPlain("values are missing")
            seen, at = seen + (run >> 1), at + 1


def _header(source: ByteSource, position: int, end: int) -> tuple[dict[int, object], int]:
    for size in _HEADER_BYTES:
        data = source.read(position, min(size, end - position))
        try:
            header, used = _numbers(data, 0, 0)
        except (IndexError, struct.error):
            if len(data) < size:
                break
            continue
        return header, position + used
    raise NotPlain("a page header that does not end")


def _numbers(data: bytes, at: int, depth: int) -> tuple[dict[int, object], int]:
    """The numbers and structs of a struct by field, and where it ends; what else is there is stepped over."""
    fields: dict[int, object] = {}
    number = 0
    while True:
        number, kind, at = _field(data, at, number)
        if kind == 0:
            return fields, at
        if kind == _STRUCT and depth < _MOST_DEPTH:
            fields[number], at = _numbers(data, at, depth + 1)
        elif kind in (4, 5, 6):
            fields[number], at = zigzag(data, at)
        else:
            at = _skip(data, at, kind, depth)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of Thrift's compact protocol, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise NotPlain("a number of more than 64 bits")


def zigzag(data: bytes, at: int) -> tuple[int, int]:
    """As `varint`, with a sign."""
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _whole_number(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise NotPlain(f"{value!r} is not a size")
    return value


def _inner(value: object) -> dict[int, object]:
    if not isinstance(value, dict):
        raise NotPlain("a page without its own header")
    return value


def beginning_of_large(path: Path, column: str) -> tuple[int, int] | None:
    """(smallest value of an int64 column in the first row group, rows of the file) of a file with a large footer.

    A file of small episodes has a thousand row groups; reading the description of all of them takes a library 30 MB.
    None for all others, and where the footer does not say it; nothing that it says leads outside of the file.
    """
    if not path.is_file():
        return None
    with open_source(path) as source:
        size = source.size_bytes
        tail = source.read(max(size - 8, 0), 8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or not _SMALL_BYTES < length <= size - 12:
            return None
        for n_bytes in _READ_BYTES:
            data = source.read(size - 8 - length, min(length, n_bytes))
            try:
                return _row_range(data, column)
            except (IndexError, struct.error):
                if len(data) == length:
                    return None
            except NotPlain:
                return None
    return None


def _row_range(data: bytes, column: str) -> tuple[int, int] | None:
    rows = -1
    at, number = 0, 0
    while True:
        number, kind, at = _field(data, at, number)
        if kind == 0:
            return None
        if number == 3 and kind == 6:  # before the row groups, which are field 4
            rows, at = zigzag(data, at)
        elif number == 4 and kind == _LIST:
            count, at = _list(data, at)
            low = _smallest(data, at, column) if count else None
            return None if low is None or rows < 0 else (low, rows)
        else:
            at = _skip(data, at, kind, 0)


def _smallest(data: bytes, at: int, column: str) -> int | None:
    """`min_value` of a column in the statistics of the row group that begins here."""
    number, kind, at = _field(data, at, 0)
    if (number, kind) != (1, _LIST):
        return None
    count, at = _list(data, at)
    for _ in range(count):
        chunk, at = _struct(data, at, (3,), 0)
        described, _ = _struct(data, chunk[3][0], (3, 12), 0) if 3 in chunk else ({}, 0)
        if 3 in described and 12 in described and _path(data, described[3][0]) == [column.encode()]:
            statistics, _ = _struct(data, described[12][0], (6,), 0)
            if 6 not in statistics:
                return None
            size, start = varint(data, statistics[6][0])
            return int(struct.unpack("<q", data[start : start + size])[0])
    return None


def _path(data: bytes, at: int) -> list[bytes]:
    count, at = _list(data, at)
    names = []
    for _ in range(min(count, 2)):
        size, at = varint(data, at)
        names.append(data[at : at + size])
        at += size
    return names


def _field(data: bytes, at: int, before: int) -> tuple[int, int, int]:
    """(number, kind, place of the value) of the next field; kind 0 ends the struct."""
    byte = data[at]
    at += 1
    if byte >> 4:
        return before + (byte >> 4), byte & 15, at
    if byte == 0:
        return before, 0, at
    number, at = zigzag(data, at)
    return number, byte & 15, at


def _struct(data: bytes, at: int, wanted: Sequence[int], depth: int) -> tuple[dict[int, tuple[int, int]], int]:
    """(place, kind) of the wanted fields of a struct, and where it ends."""
    fields: dict[int, tuple[int, int]] = {}
    number = 0
    while True:
        number, kind, at = _field(data, at, number)
        if kind == 0:
            return fields, at
        if number in wanted:
            fields[number] = at, kind
        at = _skip(data, at, kind, depth)


def _list(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    return (byte >> 4, at + 1) if byte >> 4 < 15 else varint(data, at + 1)


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    if depth > _MOST_DEPTH:
        raise NotPlain("structs within structs")
    if kind in (1, 2):
        return at
    if kind == 3:
        return at + 1
    if kind in (4, 5, 6):
        return varint(data, at)[1]
    if kind == 7:
        return at + 8
    if kind == _BINARY:
        size, at = varint(data, at)
        return at + size
    if kind in (_LIST, _SET):
        element = data[at] & 15
        count, at = _list(data, at)
        for _ in range(count):
            # A boolean in a list takes a byte; a field of that kind takes none.
            at = at + 1 if element in (1, 2) else _skip(data, at, element, depth + 1)
        return at
    if kind == _STRUCT:
        return _struct(data, at, (), depth + 1)[1]
    raise NotPlain(f"Thrift type {kind}")
