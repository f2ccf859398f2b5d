"""Whatever a type looks like, the decoder returns what the rosbags library serialised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rosbags.typesys import Stores, get_typestore

from penstock._src.recordings.messages.decode import RosDecoder
from penstock._src.recordings.messages.definitions import FieldType, parse_msg
from penstock._src.recordings.messages.standard_types import standard_definitions
from tests.recordings.messages.oracle import Field, Oracle, Types, messages, plain, text_of, type_sets

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def decoder_of(oracle: Oracle) -> RosDecoder:
    definitions = parse_msg(text_of(oracle.types, ros1=oracle.ros1), oracle.name)
    return RosDecoder(definitions, oracle.name, "ros1" if oracle.ros1 else "cdr")


@st.composite
def cases(draw: st.DrawFn, *, ros1: bool) -> tuple[Oracle, dict[str, Any], bytes]:
    oracle = Oracle(draw(type_sets(ros1=ros1)), ros1=ros1)
    values = draw(messages(oracle.types, list(oracle.types)[-1]))
    return oracle, values, oracle.serialise(values, little_endian=draw(st.booleans()))


def paths_of(types: Types, name: str, values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Every field of a message that a path can name, with the field that lies there."""
    found: list[tuple[str, Any]] = []
    for field in types[name]:
        value = values[field.name]
        found.append((prefix + field.name, value))
        if field.base in types and not field.array:
            found += paths_of(types, field.base, value, f"{prefix}{field.name}.")
        elif field.array and len(value):
            found.append((f"{prefix}{field.name}[-1]", value[-1]))
            found.append((f"{prefix}{field.name}[1:]", value[1:]))
            if field.base in types:
                found += paths_of(types, field.base, value[0], f"{prefix}{field.name}[0].")
    return found


@pytest.mark.parametrize("ros1", [True, False])
def test_whole_messages_come_back(ros1: bool) -> None:
    @SLOW
    @given(cases(ros1=ros1))
    def check(case: tuple[Oracle, dict[str, Any], bytes]) -> None:
        oracle, values, payload = case
        decoder = decoder_of(oracle)
        assert plain(decoder.decode(payload)) == oracle.expected(oracle.name.rsplit("/", 1)[-1], values)

    check()


@pytest.mark.parametrize("ros1", [True, False])
def test_any_choice_of_paths_in_any_order_reads_what_the_whole_message_holds(ros1: bool) -> None:
    @SLOW
    @given(cases(ros1=ros1), st.data())
    def check(case: tuple[Oracle, dict[str, Any], bytes], data: st.DataObject) -> None:
        oracle, values, payload = case
        name = oracle.name.rsplit("/", 1)[-1]
        known = dict(paths_of(oracle.types, name, oracle.expected(name, values)))
        paths = data.draw(st.lists(st.sampled_from(sorted(known)), max_size=5))
        read = decoder_of(oracle).reader(paths)
        for _ in range(2):  # the second time meets what the first one remembered
            assert [plain(value) for value in read(memoryview(payload))] == [known[path] for path in paths]

    check()


@pytest.mark.parametrize("little_endian", [True, False])
def test_every_alignment_of_every_primitive(little_endian: bool) -> None:
    """A string of every length before every primitive, single, in an array, in a sequence and in a message."""
    for base in ("uint8", "int16", "float32", "float64", "int64", "string"):
        types = {
            "T0": [Field("a", "uint8", ""), Field("b", base, "")],
            "T1": [
                Field("s", "string", ""),
                Field("one", base, ""),
                Field("t", "string", ""),
                Field("some", base, "[]"),
                Field("u", "string", ""),
                Field("three", base, "[3]"),
                Field("v", "string", ""),
                Field("message", "T0", ""),
                Field("list", "T0", "[]"),
                Field("pair", "T0", "[2]"),
                Field("end", "uint8", ""),
            ],
        }
        oracle = Oracle(types, ros1=False)
        decoder = decoder_of(oracle)
        last = decoder.reader(["end"])
        value: Any = "xy" if base == "string" else 7
        for length in range(9):
            for count in range(3):
                inner = {"a": 3, "b": value}
                values = {
                    "s": "x" * length,
                    "one": value,
                    "t": "y" * count,
                    "some": [value] * count,
                    "u": "z" * (length // 2),
                    "three": [value] * 3,
                    "v": "",
                    "message": inner,
                    "list": [inner] * count,
                    "pair": [inner] * 2,
                    "end": 99,
                }
                payload = oracle.serialise(values, little_endian=little_endian)
                assert plain(decoder.decode(payload)) == values
                assert last(payload) == (99,)


def _default(kind: FieldType, definitions: Any, store: Any, *, ros1: bool) -> tuple[Any, Any]:
    """A value for rosbags and the value that we expect, for a field of a standard type."""
    if kind.array is None:
        return _default_item(kind, definitions, store, ros1=ros1)
    count = min(2, kind.bound or 2) if kind.array == -1 else kind.array
    items = [_default_item(FieldType(kind.kind, kind.name), definitions, store, ros1=ros1) for _ in range(count)]
    theirs: Any = [item[0] for item in items]
    if kind.kind == "primitive" and kind.name not in ("time", "duration"):
        theirs = np.array(theirs, dtype={"byte": "int8", "char": "uint8"}.get(kind.name, kind.name))
    return theirs, [item[1] for item in items]


def _default_item(kind: FieldType, definitions: Any, store: Any, *, ros1: bool) -> tuple[Any, Any]:
    if kind.kind == "string":
        return "abc", "abc"
    if kind.name in ("time", "duration") or kind.name.startswith("builtin_interfaces/"):
        last = kind.name.rsplit("/", 1)[-1].title()
        return store.types[f"builtin_interfaces/msg/{last}"](5, 6), 5_000_000_006
    if kind.kind == "primitive":
        return (True, True) if kind.name == "bool" else (7, 7)
    message = definitions[kind.name]
    pairs = {field.name: _default(field.type, definitions, store, ros1=ros1) for field in message.fields}
    theirs = {name + "_" * (name in ("from", "in", "is")): pair[0] for name, pair in pairs.items()}
    if not message.fields:
        return store.types[kind.name](), {}
    return store.types[kind.name](**theirs), {name: pair[1] for name, pair in pairs.items()}


@pytest.mark.parametrize("distro", ["ros1", "ros2"])
def test_every_standard_type_comes_back(distro: Any) -> None:
    ros1 = distro == "ros1"
    store = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)
    definitions = standard_definitions(distro)
    checked = 0
    for name in store.fielddefs:
        if name in ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration"):
            continue
        if any(field.type.kind == "wstring" for field in definitions[name].fields):
            continue
        theirs, ours = _default_item(FieldType("message", name), definitions, store, ros1=ros1)
        payload = bytes(store.serialize_ros1(theirs, name) if ros1 else store.serialize_cdr(theirs, name))
        decoder = RosDecoder(definitions, name, "ros1" if ros1 else "cdr")
        assert plain(decoder.decode(payload)) == ours, name
        if decoder.has_header:
            assert decoder.header_stamp_ns(payload[:12]) == 5_000_000_006
        checked += 1
    assert checked > 100
