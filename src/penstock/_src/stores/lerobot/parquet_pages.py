"""Where the values of a plain byte column lie in a parquet file: headers of pages and lengths are read, no values."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.files import ByteSource

_HEADER_BYTES = (256, 16 * 1024, 256 * 1024)  # statistics may make a header long; most are short
_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_PLAIN = 0
_MOST_DEPTH = 16
_TRUTHS, _NUMBERS, _BINARY, _STRUCT = (1, 2), (4, 5, 6), 8, 12  # types of Thrift's compact protocol


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
    """The numbers and structs of a struct by field, and where it ends; no other kinds lie in page headers."""
    if depth > _MOST_DEPTH:
        raise NotPlain("structs within structs")
    fields: dict[int, object] = {}
    number = 0
    while True:
        number, kind, at = _field(data, at, number)
        if kind == 0:
            return fields, at
        if kind == _STRUCT:
            fields[number], at = _numbers(data, at, depth + 1)
        elif kind in _NUMBERS:
            fields[number], at = zigzag(data, at)
        elif kind == _BINARY:
            size, at = varint(data, at)
            at += size
        elif kind not in _TRUTHS:  # those have no bytes
            raise NotPlain(f"Thrift type {kind}")


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
