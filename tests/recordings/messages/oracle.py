"""Random message types with random values, and their bytes as the rosbags library writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

INTEGER_BITS = {
    "int8": 8,
    "uint8": 8,
    "int16": 16,
    "uint16": 16,
    "int32": 32,
    "uint32": 32,
    "int64": 64,
    "uint64": 64,
    "byte": 8,
    "char": 8,
}
DTYPES = {"byte": "int8", "char": "uint8", "bool": "bool"}
SCALARS = [*INTEGER_BITS, "bool", "float32", "float64", "string"]
TIMES = ("time", "duration")


@dataclass(frozen=True)
class Field:
    name: str
    base: str  # a primitive, "string", "time", "duration", or the name of another type of the same package
    array: str  # "", "[]", "[3]" or "[<=4]"

    @property
    def count_range(self) -> tuple[int, int]:
        if self.array == "[]":
            return 0, 5
        if self.array.startswith("[<="):
            return 0, int(self.array[3:-1])
        return (int(self.array[1:-1]),) * 2


Types = dict[str, list[Field]]


@st.composite
def type_sets(draw: st.DrawFn, *, ros1: bool) -> Types:
    """Up to four types, each of which may hold those before it; the last one is the message."""
    types: Types = {}
    arrays = ["", "", "[]", "[1]", "[3]"] + ([] if ros1 else ["[<=4]"])
    bases = SCALARS + (list(TIMES) if ros1 else [])
    for number in range(draw(st.integers(1, 4))):
        choices = bases + [name for name in types if types[name]] * 4
        types[f"T{number}"] = [
            Field(f"f{place}", draw(st.sampled_from(choices)), draw(st.sampled_from(arrays)))
            for place in range(draw(st.integers(1, 6)))
        ]
    return types


def text_of(types: Types, *, ros1: bool) -> str:
    """The concatenated definition as a recording holds it, the message's own first."""
    names = list(types)[::-1]
    parts = []
    for place, name in enumerate(names):
        title = "" if not place else f"MSG: pkg/{name}\n"
        parts.append(title + "".join(f"{field.base}{field.array} {field.name}\n" for field in types[name]))
    return ("=" * 80 + "\n").join(parts)


def scalar_values(base: str) -> st.SearchStrategy[Any]:
    if base in INTEGER_BITS:
        bits = INTEGER_BITS[base]
        signed = base.startswith("int") or base == "byte"
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return st.integers(low, high)
    if base == "bool":
        return st.booleans()
    if base == "string":
        return st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
    if base in TIMES:
        return st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, 999_999_999))
    return st.floats(allow_nan=False, width=32 if base == "float32" else 64)


@st.composite
def messages(draw: st.DrawFn, types: Types, name: str) -> dict[str, Any]:
    """Plain values for a type: numbers, texts, (seconds, nanoseconds) for times, lists and dicts."""

    def one(base: str) -> Any:
        return draw(messages(types, base)) if base in types else draw(scalar_values(base))

    def value(field: Field) -> Any:
        if not field.array:
            return one(field.base)
        return [one(field.base) for _ in range(draw(st.integers(*field.count_range)))]

    return {field.name: value(field) for field in types[name]}


class Oracle:
    """The rosbags library's view of a set of types."""

    def __init__(self, types: Types, *, ros1: bool) -> None:
        self.types = types
        self.ros1 = ros1
        self.name = f"pkg/msg/{list(types)[-1]}"
        self.store = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)
        self.store.register(get_types_from_msg(text_of(types, ros1=ros1), self.name))

    def build(self, name: str, values: dict[str, Any]) -> Any:
        def one(base: str, value: Any) -> Any:
            if base in self.types:
                return self.build(base, value)
            if base in TIMES:
                return self.store.types[f"builtin_interfaces/msg/{base.title()}"](*value)
            return value

        built = {}
        for field in self.types[name]:
            value = values[field.name]
            if not field.array:
                built[field.name] = one(field.base, value)
            elif field.base in self.types or field.base in (*TIMES, "string"):
                built[field.name] = [one(field.base, item) for item in value]
            else:
                built[field.name] = np.array(value, dtype=DTYPES.get(field.base, field.base))
        return self.store.types[f"pkg/msg/{name}"](**built)

    def serialise(self, values: dict[str, Any], *, little_endian: bool = True) -> bytes:
        message = self.build(self.name.rsplit("/", 1)[-1], values)
        if self.ros1:
            return bytes(self.store.serialize_ros1(message, self.name))
        return bytes(self.store.serialize_cdr(message, self.name, little_endian=little_endian))

    def expected(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """The values as our decoder gives them once `plain` has turned views into lists."""

        def one(base: str, value: Any) -> Any:
            if base in self.types:
                return self.expected(base, value)
            if base in TIMES:
                return value[0] * 1_000_000_000 + value[1]
            return value

        found = {}
        for field in self.types[name]:
            value = values[field.name]
            found[field.name] = [one(field.base, item) for item in value] if field.array else one(field.base, value)
            # ROS 2 declares byte as an unsigned octet; arrays of bytes come as memoryviews in both.
            if field.base == "byte" and field.array:
                found[field.name] = [item % 256 for item in value]
            elif field.base == "byte" and not self.ros1:
                found[field.name] = value % 256
        return found


def plain(value: Any) -> Any:
    """Views as lists, for comparison."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, memoryview | np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value
