"""The wire format of protobuf messages: where each field lies, and the numbers in it; nothing is copied.

The protobuf library copies every `bytes` field, so that an image would be held twice; here it is a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import MessageError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_LONGEST_VARINT_BYTES = 10
_U64 = (1 << 64) - 1


class Scalar(NamedTuple):
    """How one kind of number is written: its wire type, its numpy type, and whether the sign is the lowest bit."""

    wire: int
    dtype: str
    zigzag: bool = False


# By the names that .proto files give them.
SCALARS = {
    "double": Scalar(FIXED64, "<f8"),
    "float": Scalar(FIXED32, "<f4"),
    "int64": Scalar(VARINT, "<i8"),
    "uint64": Scalar(VARINT, "<u8"),
    "int32": Scalar(VARINT, "<i4"),
    "fixed64": Scalar(FIXED64, "<u8"),
    "fixed32": Scalar(FIXED32, "<u4"),
    "bool": Scalar(VARINT, "?"),
    "uint32": Scalar(VARINT, "<u4"),
    "enum": Scalar(VARINT, "<i4"),
    "sfixed32": Scalar(FIXED32, "<i4"),
    "sfixed64": Scalar(FIXED64, "<i8"),
    "sint32": Scalar(VARINT, "<i4", zigzag=True),
    "sint64": Scalar(VARINT, "<i8", zigzag=True),
}
_UNPACK = {"<f8": Struct("<d").unpack_from, "<f4": Struct("<f").unpack_from}
_UNPACK |= {f"<{sign}{size}": Struct("<" + code).unpack_from
            for sign, size, code in (("i", 4, "i"), ("u", 4, "I"), ("i", 8, "q"), ("u", 8, "Q"))}  # fmt: skip


def fields(body: memoryview, position: int, end: int, where: str) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, where its content begins, where it ends) of the fields between two positions."""
    while position < end:
        at = position
        tag = body[at]
        position = at + 1
        if tag >= 0x80:
            tag, position = varint(body, at, end, where)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise _broken(where, at, f"field number 0 with wire type {wire} cannot stand there")
        begin, position = _content(body, position, end, wire, where)
        yield number, wire, begin, position


def varint(body: memoryview, position: int, end: int, where: str) -> tuple[int, int]:
    """A number of up to 64 bits, and the position behind it."""
    if position < end and body[position] < 0x80:
        return body[position], position + 1
    begin = position
    value = shift = 0
    stop = min(end, begin + _LONGEST_VARINT_BYTES)
    while position < stop:
        byte = body[position]
        position += 1
        if byte < 0x80:
            return (value | byte << shift) & _U64, position
        value |= (byte & 0x7F) << shift
        shift += 7
    reason = "it is cut inside a number" if stop == end else f"a number has over {_LONGEST_VARINT_BYTES} bytes"
    raise _broken(where, begin, reason)


def _content(body: memoryview, position: int, end: int, wire: int, where: str) -> tuple[int, int]:
    """Where the content of a field begins and ends."""
    if wire == FIXED64:
        begin, stop = position, position + 8
    elif wire == BYTES:
        size, begin = varint(body, position, end, where)
        stop = begin + size
    elif wire == VARINT:
        return position, varint(body, position, end, where)[1]
    elif wire == FIXED32:
        begin, stop = position, position + 4
    else:
        raise _broken(where, position, f"wire type {wire} is not read (3 and 4 are the groups of old .proto files)")
    if stop > end:
        raise _broken(where, begin, f"{stop - begin:,} bytes are needed, {end - begin:,} are left")
    return begin, stop


def number_at(body: memoryview, begin: int, end: int, scalar: Scalar, where: str) -> Any:
    """One number, as the Python type that its kind has."""
    if scalar.wire != VARINT:
        return _UNPACK[scalar.dtype](body, begin)[0]
    value = varint(body, begin, end, where)[0]
    if scalar.dtype == "?":
        return value != 0
    if scalar.zigzag:
        value = (value >> 1 ^ -(value & 1)) & _U64
    bits = 32 if scalar.dtype[-1] == "4" else 64
    value &= (1 << bits) - 1
    return value - (1 << bits) if scalar.dtype[1] == "i" and value >> (bits - 1) else value


def numbers_of(raw: memoryview, scalar: Scalar, where: str) -> NDArray[Any]:
    """An array of numbers that lie one behind the other; a view where they have a fixed size."""
    if scalar.wire != VARINT:
        dtype = np.dtype(scalar.dtype)
        if len(raw) % dtype.itemsize:
            raise MessageError(f"{where}: {len(raw):,} bytes are not an array of numbers of {dtype.itemsize} bytes")
        return np.frombuffer(raw, dtype)
    values = _varints(raw, where)
    if scalar.dtype == "?":
        return np.asarray(values != 0)
    if scalar.zigzag:
        values = values >> np.uint64(1) ^ (~(values & np.uint64(1)) + np.uint64(1))
    unsigned = values.astype("<u4" if scalar.dtype[-1] == "4" else "<u8")
    return unsigned.view(scalar.dtype)


def _varints(raw: memoryview, where: str) -> NDArray[np.uint64]:
    octets = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    if octets.size and (not ends.size or ends[-1] != octets.size - 1):
        raise MessageError(f"{where}: the array of {len(raw):,} bytes is cut inside a number")
    begins = np.concatenate(([0], ends[:-1] + 1)) if ends.size else ends
    longest = int((ends - begins).max(initial=-1)) + 1
    if longest > _LONGEST_VARINT_BYTES:
        raise MessageError(f"{where}: a number has over {_LONGEST_VARINT_BYTES} bytes")
    values = np.zeros(ends.size, np.uint64)
    for place in range(longest):
        own = np.flatnonzero(begins + place <= ends)
        part = (octets[begins[own] + place] & np.uint8(0x7F)).astype(np.uint64)
        values[own] |= part << np.uint64(7 * place)
    return values


def _broken(where: str, position: int, reason: str) -> MessageError:
    return MessageError(
        f"{where}: byte {position:,} of the message: {reason}",
        hint="the message is cut, or was written with another definition of its type",
    )
