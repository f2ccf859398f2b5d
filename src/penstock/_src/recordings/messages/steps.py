"""The steps of a walk over one serialised message; decode.py strings them together.

A step is a closure `(body, position, out) -> position`: it moves over one field or run of fields and puts what is
wanted into `out` by its name. Every length that a message claims is checked against the bytes left before anything is
allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import MessageError

Step = Callable[[memoryview, int, dict[str, Any]], int]

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

    order: str
    aligned: bool
    terminated: bool
    body_offset: int
    byte_code: str
    time_codes: str

    def code(self, name: str) -> str:
        """The struct code of a primitive (not of time and duration, which are two numbers)."""
        return self.byte_code if name == "byte" else _SCALARS[name][0]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The numpy type of a primitive's array, native where the byte order is."""
        return np.dtype(self.order + _SCALARS[name][1] if name != "byte" else "u1")

    def time_struct(self, name: str) -> Struct:
        """Seconds and nanoseconds: durations of ROS 1 are signed, its times are not."""
        return Struct(self.order + ("ii" if name == "duration" else self.time_codes))


# ROS 1 declares byte as a signed and ROS 2 as an unsigned octet; the seconds of a time are unsigned only in ROS 1.
ROS1 = Dialect("<", False, False, 0, "b", "II")
CDR_LITTLE = Dialect("<", True, True, 4, "B", "iI")
CDR_BIG = Dialect(">", True, True, 4, "B", "iI")


class StepField(NamedTuple):
    """The field that a step reads: its name in `out` (None: it is moved over), and what errors call it."""

    name: str | None
    label: str
    dialect: Dialect

    def short(self, body: memoryview, position: int, needed_bytes: int) -> MessageError:
        left_bytes, at = max(0, len(body) - position), position + self.dialect.body_offset
        return MessageError(
            f"{self.label}: needs {needed_bytes:,} bytes at byte {at:,} of the message, {left_bytes:,} are left",
            hint="the message is cut, or was written with another definition of its type",
        )

    def mask(self, align: int) -> tuple[int, int]:
        """(up, mask): a position is aligned as (position + up) & mask."""
        return (align - 1, -align) if self.dialect.aligned else (0, -1)


def run(field: StepField, align: int, codes: str, names: Sequence[str]) -> Step:
    """Neighbouring fields of fixed size; `codes` have a value for each name, and x for what is moved over."""
    up, mask = field.mask(align)
    layout = Struct(field.dialect.order + codes)
    unpack, size = layout.unpack_from, layout.size

    def skip(body: memoryview, position: int, out: dict[str, Any]) -> int:
        return ((position + up) & mask) + size

    def step(body: memoryview, position: int, out: dict[str, Any]) -> int:
        position = (position + up) & mask
        try:
            out.update(zip(names, unpack(body, position), strict=True))
        except StructError:
            raise field.short(body, position, size) from None
        return position + size

    return step if names else skip


def time(field: StepField, kind: str) -> Step:
    """Seconds and nanoseconds as one number."""
    up, mask = field.mask(4)
    unpack = field.dialect.time_struct(kind).unpack_from
    name = field.name or ""

    def step(body: memoryview, position: int, out: dict[str, Any]) -> int:
        position = (position + up) & mask
        try:
            seconds, nanoseconds = unpack(body, position)
        except StructError:
            raise field.short(body, position, 8) from None
        out[name] = seconds * NS_PER_S + nanoseconds
        return position + 8

    return step


def message(field: StepField, steps: Sequence[Step]) -> Step:
    """All of a message inside of another one."""
    name = field.name or ""

    def step(body: memoryview, position: int, out: dict[str, Any]) -> int:
        inner = out[name] = {}
        for each in steps:
            position = each(body, position, inner)
        return position

    return step


Counter = Callable[[memoryview, int], tuple[int, int]]


def _counter(field: StepField, fixed: int | None) -> Counter:
    """How many items an array has, and where the first one may begin."""
    if fixed is not None:
        return lambda body, position: (fixed, position)
    up, mask = field.mask(4)
    unpack = Struct(field.dialect.order + "I").unpack_from

    def read(body: memoryview, position: int) -> tuple[int, int]:
        position = (position + up) & mask
        try:
            (count,) = unpack(body, position)
        except StructError:
            raise field.short(body, position, 4) from None
        return count, position + 4

    return read


def text(field: StepField) -> Step:
    """One string; bytes that are not UTF-8 show as \\xNN, since a bad frame name must not cost the message."""
    size_of = _counter(field, None)
    name, terminated = field.name, field.dialect.terminated

    def step(body: memoryview, position: int, out: dict[str, Any]) -> int:
        size, position = size_of(body, position)
        end = position + size
        if end > len(body):
            raise field.short(body, position, size)
        if name is not None:
            last = end - 1 if terminated and size and not body[end - 1] else end
            out[name] = str(body[position:last], "utf-8", "backslashreplace")
        return end

    return step


def texts(field: StepField, fixed: int | None) -> Step:
    """An array of strings. The last one seen is remembered by its bytes, as joint names hardly ever change."""
    count_of = _counter(field, fixed)
    one = text(field)
    name = field.name
    remembered: tuple[int, bytes, list[str]] = (0, b"", [])

    def step(body: memoryview, position: int, out: dict[str, Any]) -> int:
        nonlocal remembered
        phase, seen, items = remembered  # padding between strings depends on where the first one lies
        if seen and position % 4 == phase and body[position : position + len(seen)] == seen:
            if name is not None:
                out[name] = items.copy()
            return position + len(seen)
        begin = position
        count, position = count_of(body, position)
        if count * 4 > len(body) - position:
            raise field.short(body, position, count * 4)
        items = []
        for _ in range(count):
            position = one(body, position, out)
            if name is not None:
                items.append(out[name])
        if position - begin <= MAX_REMEMBERED_BYTES:
            remembered = (begin % 4, bytes(body[begin:position]), items)
        if name is not None:
            out[name] = items.copy()
        return position

    return step


def numbers(field: StepField, kind: str, fixed: int | None) -> Step:
    """An array of primitives as a view into the message: a numpy array, or a memoryview for bytes."""
    count_of = _counter(field, fixed)
    octets = kind in ("uint8", "byte", "char")
    dtype = field.dialect.dtype(kind)
    size = dtype.itemsize
    up, mask = field.mask(size)
    name = field.name
    frombuffer = np.frombuffer

    def step(body: memoryview, position: int, out: dict[str, Any]) -> int:
        count, position = count_of(body, position)
        if not count:
            # Padding belongs to the first item: an empty sequence has none.
            if name is not None:
                out[name] = body[:0] if octets else np.empty(0, dtype)
            return position
        position = (position + up) & mask
        end = position + count * size
        if end > len(body):
            raise field.short(body, position, count * size)
        if name is not None:
            out[name] = body[position:end] if octets else frombuffer(body, dtype, count, position)
        return end

    return step


def times(field: StepField, kind: str, fixed: int | None) -> Step:
    """An array of times as a list of numbers."""
    return _items(field, fixed, 8, (time(field._replace(name=""), kind),), lambda item: item[""])


def messages(field: StepField, fixed: int | None, least_bytes: int, steps: Sequence[Step]) -> Step:
    """An array of messages as a list of dicts; `least_bytes`: how few bytes one of them can take."""
    return _items(field, fixed, least_bytes, steps, lambda item: item)


def _items(
    field: StepField,
    fixed: int | None,
    least_bytes: int,
    steps: Sequence[Step],
    value_of: Callable[[dict[str, Any]], Any],
) -> Step:
    count_of = _counter(field, fixed)
    name = field.name

    def step(body: memoryview, position: int, out: dict[str, Any]) -> int:
        count, position = count_of(body, position)
        if count * least_bytes > len(body) - position:
            raise field.short(body, position, count * least_bytes)
        items: list[Any] = []
        for _ in range(count if least_bytes else 0):
            item: dict[str, Any] = {}
            for each in steps:
                position = each(body, position, item)
            if name is not None:
                items.append(value_of(item))
        if name is not None:
            out[name] = items
        return position

    return step
