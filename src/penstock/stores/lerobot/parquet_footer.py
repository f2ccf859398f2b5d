"""The beginning of a large parquet footer: how many rows a file has, and with which value a column begins.

A file of small episodes has a thousand row groups; reading the description of all of them takes a library 30 MB.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from penstock.stores.lerobot.parquet_pages import NotPlain, varint, zigzag
from penstock.system.files import open_source

_SMALL_BYTES = 64 << 10  # whoever wants to know more may read such a footer whole
_READ_BYTES = (64 << 10, 1 << 20)  # of a footer: its schema and the first row group
_MAGIC = b"PAR1"
_MOST_DEPTH = 16
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12


def beginning_of_large(path: Path, column: str) -> tuple[int, int] | None:
    """(smallest value of an int64 column in the first row group, rows of the file) of a file with a large footer.

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
                return _look(data, column)
            except (IndexError, struct.error):
                if len(data) == length:
                    return None
            except NotPlain:
                return None
    return None


def _look(data: bytes, column: str) -> tuple[int, int] | None:
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
    found: dict[int, tuple[int, int]] = {}
    number = 0
    while True:
        number, kind, at = _field(data, at, number)
        if kind == 0:
            return found, at
        if number in wanted:
            found[number] = at, kind
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
