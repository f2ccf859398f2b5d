"""The steps of a walk over one serialised message; decode.py strings them together.

A step is a closure `(body, position, values) -> position`: it moves over one field or run of fields and appends what is
wanted to `values`. Every length that a message claims is checked against the bytes left before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import MessageError

Step = Callable[[memoryview, int, list[Any]], int]

NS_PER_S = 1_000_000_000
# Joint names repeat in every message: a list that serialises to at most this many bytes is remembered.
MAX_REMEMBERED_BYTES = 16_384

_SCALARS: Mapping[str, tuple[str, str]] = {
    "bool": ("?", "?"),
    "char": ("B", "u1"),
    "int8": ("b", "i1"),
    "uint8": ("B", "u1"),
    "int16": ("h", "i2"),
    "uint16": ("H", "u2"),
    "int32": ("i", "i4"),
    "uint32": ("I", "u4"),
    "int64": ("q", "i8"),
    "uint64": ("Q", "u8"),
    "float32": ("f", "f4"),
    "float64": ("d", "f8"),
}


class Dialect(NamedTuple):
    """How one serialisation writes what the definitions declare."""

    name: str
    order: str
    aligned: bool
    terminated: bool
    body_offset: int
    byte_code: str
    time_codes: str
    duration_codes: str

    def code(self, name: str) -> str:
        """The struct code of a primitive (not of time and duration, which are two numbers)."""
        return self.byte_code if name == "byte" else _SCALARS[name][0]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The numpy type of a primitive's array, native where the byte order is."""
        return np.dtype(self.order + _SCALARS[name][1])


# ROS 1 declares byte as a signed and ROS 2 as an unsigned octet; the seconds of a time are unsigned only in ROS 1.
ROS1 = Dialect("ros1", "<", False, False, 0, "b", "II", "ii")
CDR_LITTLE = Dialect("cdr", "<", True, True, 4, "B", "iI", "iI")
CDR_BIG = Dialect("cdr", ">", True, True, 4, "B", "iI", "iI")


class Location(NamedTuple):
    """The field that a step reads, for error messages."""

    label: str
    body_offset: int

    def short(self, body: memoryview, position: int, needed_bytes: int) -> MessageError:
        left_bytes = max(0, len(body) - position)
        return MessageError(
            f"{self.label}: needs {needed_bytes:,} bytes at byte {position + self.body_offset:,} of the message, "
            f"{left_bytes:,} are left",
            hint="the message is cut, or was written with another definition of its type",
        )

    def over_bound(self, count: int, bound: int) -> MessageError:
        return MessageError(f"{self.label}: holds {count:,} values, its definition allows {bound:,}")


class FieldOffset(NamedTuple):
    """What lies before a field: align (position + up) & mask, then move over `skip` bytes."""

    up: int = 0
    mask: int = -1
    skip: int = 0


def lead_for(align: int, skip_bytes: int = 0) -> FieldOffset:
    return FieldOffset(align - 1, -align, skip_bytes)


def skip_run(lead: FieldOffset) -> Step:
    up, mask, skip = lead

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        return ((position + up) & mask) + skip

    return step


def read_run(lead: FieldOffset, layout: Struct, location: Location) -> Step:
    up, mask, skip = lead
    unpack, size = layout.unpack_from, layout.size

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        position = ((position + up) & mask) + skip
        try:
            values += unpack(body, position)
        except StructError:
            raise location.short(body, position, size) from None
        return position + size

    return step


def fold_time() -> Step:
    """The last two values are seconds and nanoseconds: make them one number of nanoseconds."""

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        nanoseconds = values.pop()
        values[-1] = values[-1] * NS_PER_S + nanoseconds
        return position

    return step


def fold_message(keys: Sequence[str]) -> Step:
    """The last values are the fields of a message: make them one dict."""
    names, count = tuple(keys), len(keys)

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        first = len(values) - count
        message = dict(zip(names, values[first:], strict=True))
        del values[first:]
        values.append(message)
        return position

    return step


Counter = Callable[[memoryview, int], tuple[int, int]]


def count_step(
    dialect: Dialect, lead: FieldOffset, fixed: int | None, bound: int | None, location: Location
) -> Counter:
    """How many items an array has, and where the first one may begin."""
    up, mask, skip = lead
    unpack = Struct(dialect.order + "I").unpack_from

    if fixed is not None:
        return lambda body, position: (fixed, ((position + up) & mask) + skip)

    def read(body: memoryview, position: int) -> tuple[int, int]:
        position = ((position + up) & mask) + skip
        try:
            (count,) = unpack(body, position)
        except StructError:
            raise location.short(body, position, 4) from None
        if bound is not None and count > bound:
            raise location.over_bound(count, bound)
        return count, position + 4

    return read


def text(dialect: Dialect, lead: FieldOffset, bound: int | None, location: Location, *, keep: bool) -> Step:
    """One string; bytes that are not UTF-8 show as \\xNN, since a bad frame name must not cost the message."""
    up, mask, skip = lead
    unpack = Struct(dialect.order + "I").unpack_from
    terminated = dialect.terminated

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        position = ((position + up) & mask) + skip
        size: int
        try:
            (size,) = unpack(body, position)
        except StructError:
            raise location.short(body, position, 4) from None
        position += 4
        end = position + size
        if end > len(body):
            raise location.short(body, position, size)
        if keep:
            last = end - 1 if terminated and size and not body[end - 1] else end
            value = str(body[position:last], "utf-8", "backslashreplace")
            if bound is not None and last - position > bound:
                raise location.over_bound(last - position, bound)
            values.append(value)
        return end

    return step


def texts(
    dialect: Dialect, lead: FieldOffset, fixed: int | None, bound: int | None, location: Location, *, keep: bool
) -> Step:
    """An array of strings. The last one seen is remembered by its bytes, as joint names hardly ever change."""
    count_of = count_step(dialect, lead, fixed, bound, location)
    up, mask, skip = lead
    unpack = Struct(dialect.order + "I").unpack_from
    item_up, item_mask = (3, -4) if dialect.aligned else (0, -1)
    terminated = dialect.terminated
    remembered: tuple[bytes, list[str]] = (b"", [])

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        nonlocal remembered
        begin = ((position + up) & mask) + skip
        seen, names = remembered
        if seen and body[begin : begin + len(seen)] == seen:
            if keep:
                values.append(names.copy())
            return begin + len(seen)
        count, position = count_of(body, position)
        if count * 4 > len(body) - position:
            raise location.short(body, position, count * 4)
        names = []
        for _ in range(count):
            position = (position + item_up) & item_mask
            try:
                (size,) = unpack(body, position)
            except StructError:
                raise location.short(body, position, 4) from None
            position += 4
            end = position + size
            if end > len(body):
                raise location.short(body, position, size)
            if keep:
                last = end - 1 if terminated and size and not body[end - 1] else end
                names.append(str(body[position:last], "utf-8", "backslashreplace"))
            position = end
        if position - begin <= MAX_REMEMBERED_BYTES:
            remembered = (bytes(body[begin:position]), names)
        if keep:
            values.append(names.copy())
        return position

    return step


def wide_text(dialect: Dialect, lead: FieldOffset, location: Location, *, keep: bool) -> Step:
    """One wstring: its length in characters, then UTF-16 in units of four bytes (old Fast DDS) or two (all others).

    Nothing in the message says which. A four-byte unit that holds UTF-16 has an empty upper half, and text in two-byte
    units read as four does not, unless every second character is NUL.
    """
    up, mask, skip = lead
    unpack = Struct(dialect.order + "I").unpack_from
    wide, narrow = np.dtype(dialect.order + "u4"), np.dtype(dialect.order + "u2")
    codec = "utf-16-le" if dialect.order == "<" else "utf-16-be"

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        position = ((position + up) & mask) + skip
        count: int
        try:
            (count,) = unpack(body, position)
        except StructError:
            raise location.short(body, position, 4) from None
        position += 4
        end = position + 2 * count
        if end > len(body):
            raise location.short(body, position, 2 * count)
        units: np.ndarray[Any, Any] | None = None
        if count and end + 2 * count <= len(body):
            units = np.frombuffer(body, wide, count, position)
            if int(units.max()) > 0xFFFF:
                units = None
            else:
                end += 2 * count
        if keep:
            raw = bytes(body[position:end]) if units is None else units.astype(narrow).tobytes()
            values.append(raw.decode(codec, "backslashreplace"))
        return end

    return step


def numbers(
    dialect: Dialect,
    lead: FieldOffset,
    name: str,
    fixed: int | None,
    bound: int | None,
    location: Location,
    *,
    keep: bool,
) -> Step:
    """An array of primitives as a view into the message: a numpy array, or a memoryview for bytes."""
    count_of = count_step(dialect, lead, fixed, bound, location)
    octets = name in ("uint8", "byte", "char")
    dtype = np.dtype("u1") if octets else dialect.dtype(name)
    size = dtype.itemsize
    item_up, item_mask = (size - 1, -size) if dialect.aligned and fixed is None else (0, -1)
    frombuffer = np.frombuffer

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        count, position = count_of(body, position)
        if not count:
            # Padding belongs to the first item: an empty sequence has none.
            if keep:
                values.append(body[:0] if octets else np.empty(0, dtype))
            return position
        position = (position + item_up) & item_mask
        end = position + count * size
        if end > len(body):
            raise location.short(body, position, count * size)
        if keep:
            values.append(body[position:end] if octets else frombuffer(body, dtype, count, position))
        return end

    return step


class Element(NamedTuple):
    """How to move over one message of an array: its steps, and how few bytes it can take.

    stride: (alignment, bytes) when every element takes the same bytes, so that many can be skipped in one move.
    """

    skip: tuple[Step, ...]
    read: tuple[Step, ...]
    least_bytes: int
    stride: tuple[int, int] | None


def skip_messages(
    dialect: Dialect, lead: FieldOffset, fixed: int | None, bound: int | None, location: Location, element: Element
) -> Step:
    count_of = count_step(dialect, lead, fixed, bound, location)
    move = _mover(element, location)

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        count, position = count_of(body, position)
        return move(body, position, count)

    return step


def _mover(element: Element, location: Location) -> Callable[[memoryview, int, int], int]:
    """Moves over a number of messages."""
    least_bytes, stride, steps = element.least_bytes, element.stride, element.skip
    nothing: list[Any] = []

    def move(body: memoryview, position: int, count: int) -> int:
        if count * least_bytes > len(body) - position:
            raise location.short(body, position, count * least_bytes)
        if not count or not least_bytes:
            return position
        if stride is not None:
            align, size = stride
            return ((position + align - 1) & -align) + count * size
        for _ in range(count):
            for step in steps:
                position = step(body, position, nothing)
        return position

    return move


def read_messages(
    dialect: Dialect, lead: FieldOffset, fixed: int | None, bound: int | None, location: Location, element: Element
) -> Step:
    """An array of messages (or of times) as a list."""
    count_of = count_step(dialect, lead, fixed, bound, location)
    least_bytes, steps = element.least_bytes, element.read

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        count, position = count_of(body, position)
        if count * least_bytes > len(body) - position:
            raise location.short(body, position, count * least_bytes)
        items: list[Any] = []
        for _ in range(count):
            for inner in steps:
                position = inner(body, position, items)
        values.append(items)
        return position

    return step


def pick_message(
    dialect: Dialect, lead: FieldOffset, fixed: int | None, location: Location, element: Element, index: int
) -> Step:
    """What is wanted of one message of an array; all others are skipped."""
    count_of = count_step(dialect, lead, fixed, None, location)
    move = _mover(element, location)
    steps = element.read

    def step(body: memoryview, position: int, values: list[Any]) -> int:
        count, position = count_of(body, position)
        chosen = index + count if index < 0 else index
        if not 0 <= chosen < count:
            raise MessageError(f"{location.label}[{index}] does not exist: the message holds {count:,} of them")
        position = move(body, position, chosen)
        for inner in steps:
            position = inner(body, position, values)
        return move(body, position, count - chosen - 1)

    return step
