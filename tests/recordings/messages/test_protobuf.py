"""Protobuf messages read by the descriptors in the file: the same values as the protobuf library, or a MessageError."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.recordings.messages.protobuf import ProtobufDecoder
from penstock._src.recordings.values.vectors import VectorReader, default_path
from penstock.errors import ConfigError, MessageError, SchemaError
from tests.recordings.messages.proto import FOXGLOVE, Types

TYPES = Types(FOXGLOVE)


def decoder(name: str, types: Types = TYPES) -> ProtobufDecoder:
    return ProtobufDecoder(types.descriptors, name)


def one(text: str, *, syntax: str = "proto3", **others: str) -> Types:
    return Types({"t.T": text, **{f"t.{name}": each for name, each in others.items()}}, syntax=syntax)


# Values


def test_a_value_that_is_not_in_the_message_is_its_default() -> None:
    read = decoder("foxglove.PoseInFrame").reader(["pose.position.x", "pose.orientation.w", "frame_id", "timestamp"])
    assert read(b"") == (0.0, 0.0, "", 0)
    pose = TYPES.new("foxglove.PoseInFrame", pose={"position": {"x": 1.5}}).SerializeToString()
    assert read(pose) == (1.5, 0.0, "", 0)


def test_an_optional_number_that_is_not_there_is_no_number() -> None:
    message = TYPES.new("foxglove.JointStates", joints=[{"name": "a", "position": 0.0}, {"name": "b"}])
    position = decoder("foxglove.JointStates").reader(["joints[0].position", "joints[1].position"])
    there, absent = position(message.SerializeToString())
    assert there == 0.0 and math.isnan(absent)


def test_defaults_of_proto2_are_those_of_the_descriptor() -> None:
    types = one(
        "double a = 1 default -1.5; int32 b = 2 default -3; string c = 3 default hé; bool d = 4 default true; "
        "bytes e = 5 default \\001a; float f = 6 default inf; uint64 g = 7",
        syntax="proto2",
    )
    found = decoder("t.T", types).decode(b"")
    assert (found["a"], found["b"], found["c"], found["d"]) == (-1.5, -3, "hé", True)
    assert (bytes(found["e"]), found["f"], found["g"]) == (b"\x01a", math.inf, 0)


def test_joints_go_by_their_names_in_whatever_order_they_come() -> None:
    read = VectorReader(decoder("foxglove.JointStates"), "joints[0:2].position")
    first = TYPES.new("foxglove.JointStates", joints=[{"name": "a", "position": 1}, {"name": "b", "position": 2}])
    second = TYPES.new("foxglove.JointStates", joints=[{"name": "b", "position": 4}, {"name": "a", "position": 3}])
    assert read(first.SerializeToString()).tolist() == [1, 2]
    assert read(second.SerializeToString()).tolist() == [3, 4]
    assert read.dimension_names == ("a", "b")


def test_what_is_meant_by_a_place_are_its_coordinates() -> None:
    for name, expected in (("LocationFix", ("latitude", "longitude", "altitude")), ("Odometry", None)):
        of_type = decoder(f"foxglove.{name}")
        read = VectorReader(of_type, str(default_path(of_type.type_name, of_type.definitions)))
        assert read(b"").size == (3 if expected else 13)
        assert expected in (None, read.dimension_names)


def test_slices_and_indices_take_what_they_name() -> None:
    types = one(
        "repeated double q = 1; repeated t.In m = 2; repeated string s = 3", In="int32 a = 1; repeated float b = 2"
    )
    message = types.new("t.T", q=range(10), m=[{"a": k, "b": [k, k + 1]} for k in range(4)], s=["x", "y"])
    payload = message.SerializeToString()
    paths = ["q[2:5]", "q[-1]", "m[1].a", "m[-1].b", "m[1:3].a", "s", "s[1]"]
    part, last, a, b, both, texts, text = decoder("t.T", types).reader(paths)(payload)
    assert (part.tolist(), last, a, b.tolist(), both, texts, text) == (
        [2, 3, 4],
        9.0,
        1,
        [3, 4],
        [1, 2],
        ["x", "y"],
        "y",
    )
    with pytest.raises(MessageError, match="does not exist"):
        decoder("t.T", types).reader(["m[4].a"])(payload)
    with pytest.raises(ConfigError, match=r"m\[0\]\.a"):
        decoder("t.T", types).reader(["m.a"])


def test_what_a_type_holds_of_itself_is_left_out() -> None:
    types = one("t.T next = 1; repeated t.T more = 2; double v = 3; t.Other o = 4", Other="t.T back = 1; int32 k = 2")
    found = decoder("t.T", types).decode(types.new("t.T", v=2.5, next={"v": 1}, o={"k": 3}).SerializeToString())
    assert found == {"v": 2.5, "o": {"k": 3}}


def test_times_of_other_makes_are_times() -> None:
    types = one("t.Header header = 1; double v = 2", Header="t.Time stamp = 3", Time="int64 sec = 1; int32 nsec = 2")
    stamped = types.new("t.T", header={"stamp": {"sec": 5, "nsec": 6}}, v=1).SerializeToString()
    found = decoder("t.T", types)
    assert found.has_header and found.header_stamp_ns(stamped) == 5_000_000_006


def test_known_times_need_not_be_described() -> None:
    types = one("google.protobuf.Timestamp timestamp = 1; google.protobuf.Duration d = 2")
    payload = types.new("t.T", timestamp={"seconds": 1}, d={"seconds": -1, "nanos": -5}).SerializeToString()
    del types.files.file[:2]
    assert decoder("t.T", types).decode(payload) == {"timestamp": 1_000_000_000, "d": -1_000_000_005}


# Random types and messages, against the protobuf library

SCALARS = {
    "double": st.floats(allow_nan=False), "float": st.floats(width=32, allow_nan=False), "bool": st.booleans(),
    "string": st.text(max_size=5), "bytes": st.binary(max_size=5),
    **{kind: st.integers(-(1 << 31), (1 << 31) - 1) for kind in ("int32", "sint32", "sfixed32")},
    **{kind: st.integers(0, (1 << 32) - 1) for kind in ("uint32", "fixed32")},
    **{kind: st.integers(-(1 << 63), (1 << 63) - 1) for kind in ("int64", "sint64", "sfixed64")},
    **{kind: st.integers(0, (1 << 64) - 1) for kind in ("uint64", "fixed64")},
}  # fmt: skip


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, list[tuple[str, str, int, str]]]:
    """Types that hold only later ones: (label, kind, number, option) of the fields f0, f1, …"""
    found: dict[str, list[tuple[str, str, int, str]]] = {}
    count = draw(st.integers(1, 4))
    for place in range(count):
        kinds = [*SCALARS, "google.protobuf.Timestamp", *(f"t.T{later}" for later in range(place + 1, count))]
        numbers = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=6, unique=True))
        found[f"t.T{place}"] = [
            (draw(st.sampled_from(("", "repeated"))), draw(st.sampled_from(kinds)), number,
             draw(st.sampled_from(("", "unpacked"))))
            for number in numbers
        ]  # fmt: skip
    return found


def _text(fields: list[tuple[str, str, int, str]]) -> str:
    return "; ".join(
        f"{label} {kind} f{place} = {number} "
        + (option if label and kind in SCALARS and kind not in ("string", "bytes") else "")
        for place, (label, kind, number, option) in enumerate(fields)
    )


def _message(draw: st.DrawFn, schema: dict[str, list[tuple[str, str, int, str]]], name: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for place, (label, kind, _, _) in enumerate(schema[name]):
        if draw(st.integers(0, 3)) == 0:
            continue
        values = []
        for _ in range(draw(st.integers(0, 3)) if label else 1):
            if kind == "google.protobuf.Timestamp":
                values.append({"seconds": draw(st.integers(-(10**9), 10**9)), "nanos": draw(st.integers(0, 10**9 - 1))})
            else:
                values.append(draw(SCALARS[kind]) if kind in SCALARS else _message(draw, schema, kind))
        made[f"f{place}"] = values if label else values[0]
    return made


def _expected(message: Any) -> dict[str, Any]:
    """What the library says, in the terms of penstock."""

    def plain(value: Any) -> Any:
        if not hasattr(value, "DESCRIPTOR"):
            return value
        if value.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
            return value.seconds * 10**9 + value.nanos
        return _expected(value)

    return {
        field.name: [plain(each) for each in getattr(message, field.name)]
        if hasattr(getattr(message, field.name), "extend")
        else plain(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return bytes(value) if isinstance(value, memoryview) else value


def _paths(value: Any, path: str) -> list[tuple[str, Any]]:
    """Each value inside of a message with its path."""
    found = [(path, value)] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        found += _paths(each, f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".strip("."))
    return found


@settings(max_examples=150)
@given(st.data())
def test_random_messages_have_the_values_that_the_library_gives_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    types = Types({name: _text(fields) for name, fields in schema.items()})
    message = types.new("t.T0", **_message(data.draw, schema, "t.T0"))
    payload = message.SerializeToString()
    expected = _expected(message)
    found = decoder("t.T0", types)
    assert _plain(found.decode(payload)) == expected
    for path, value in _paths(expected, ""):
        assert _plain(found.reader([path])(payload)[0]) == value, path
    every = [path for path, _ in _paths(expected, "")]
    assert [_plain(value) for value in found.reader(every)(payload)] == [value for _, value in _paths(expected, "")]


@settings(max_examples=150)
@given(st.data())
def test_messages_that_were_joined_are_what_the_library_makes_of_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    types = Types({name: _text(fields) for name, fields in schema.items()})
    parts = [types.new("t.T0", **_message(data.draw, schema, "t.T0")).SerializeToString() for _ in range(2)]
    joined = types.new("t.T0")
    joined.ParseFromString(b"".join(parts))
    assert _plain(decoder("t.T0", types).decode(b"".join(parts))) == _expected(joined)


@settings(max_examples=200)
@given(st.data())
def test_damaged_messages_are_read_or_refused(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    types = Types({name: _text(fields) for name, fields in schema.items()})
    payload = bytearray(types.new("t.T0", **_message(data.draw, schema, "t.T0")).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(payload)))
        payload[place : place + 1] = data.draw(st.binary(max_size=2))
    try:
        decoder("t.T0", types).decode(bytes(payload))
    except MessageError:
        pass


# Maps and oneofs


def test_maps_are_arrays_of_keys_and_values() -> None:
    types = one("repeated t.T.MEntry m = 1")
    entry = types.files.file[2].message_type[0].nested_type.add(name="MEntry")
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=1)
    entry.options.map_entry = True
    message = types.new("t.T")
    message.m["left"] = 2.5
    found = decoder("t.T", types)
    assert found.decode(message.SerializeToString()) == {"m": [{"key": "left", "value": 2.5}]}
    assert found.reader(["m[0].value"])(message.SerializeToString()) == (2.5,)


def test_enums_are_their_numbers_and_oneofs_plain_fields() -> None:
    types = one("int32 a = 1; string b = 2; enum level = 3")
    file = types.files.file[2]
    file.message_type[0].oneof_decl.add(name="choice")
    file.message_type[0].field[0].oneof_index = file.message_type[0].field[1].oneof_index = 0
    level = file.enum_type.add(name="Level")
    for number, name in enumerate(("LOW", "HIGH")):
        level.value.add(name=name, number=number)
    file.message_type[0].field[2].type_name = ".t.Level"
    payload = types.new("t.T", b="x", level=1).SerializeToString()
    assert decoder("t.T", types).decode(payload) == {"a": 0, "b": "x", "level": 1}


# Broken and hostile


@pytest.mark.parametrize("payload", [b"\x09\x00", b"\xff" * 12, b"\x80", b"\x00\x00", b"\x0f", b"\x12\x03abc"])
def test_a_broken_message_is_refused(payload: bytes) -> None:
    types = one("double a = 1; repeated double b = 2; repeated int32 c = 3")
    with pytest.raises(MessageError, match="cannot be read"):
        decoder("t.T", types).decode(payload)


def test_a_stamp_beyond_all_time_is_refused() -> None:
    payload = TYPES.new("foxglove.PoseInFrame", timestamp={"seconds": (1 << 63) - 1}).SerializeToString()
    with pytest.raises(MessageError, match="64-bit time"):
        decoder("foxglove.PoseInFrame").header_stamp_ns(payload)


def _tower(height: int, width: int, label: str = "") -> Types:
    """Each type holds the next one `width` times."""
    types = {
        f"t.T{place}": "; ".join(f"{label} t.T{place + 1} f{k} = {k + 1}" for k in range(width))
        for place in range(height)
    }
    return Types({**types, f"t.T{height}": "double v = 1"})


def test_hostile_descriptors_are_refused() -> None:
    missing = one("t.Other o = 1")
    numbered = one("double a = 1")
    numbered.files.file[2].message_type[0].field[0].number = 1 << 29
    for types, name, reason in (
        (one("double a = 1; double b = 1"), "t.T", "cannot be read"),
        (missing, "t.T", "cannot be read"),
        (numbered, "t.T", "cannot be read"),
        (_tower(40, 1), "t.T0", "32 messages deep"),
        (_tower(8, 10), "t.T0", "more than 20,000 fields"),
        (one("double a = 1"), "t.Absent", "do not describe"),
    ):
        with pytest.raises(SchemaError, match=reason):
            decoder(name, types)
    for data in (b"\x01\x02", b"\x0a\xff\xff\xff\x7f", b"\x0a" * 3000):
        with pytest.raises(SchemaError, match="cannot be read"):
            ProtobufDecoder(data, "t.T")
    with pytest.raises(SchemaError, match="the limit is 4,194,304"):
        ProtobufDecoder(bytes(5 << 20), "t.T")


def test_types_that_hold_each_other_many_times_are_described_once() -> None:
    found = decoder("t.T0", _tower(30, 10, "repeated"))
    assert found.decode(b"")["f9"] == []
    assert found.decode(b"\x0a\x00")["f0"][0]["f9"] == []


@settings(max_examples=200)
@given(st.data())
def test_damaged_descriptors_are_read_or_refused(data: st.DataObject) -> None:
    broken = bytearray(TYPES.descriptors)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(broken) - 1))
        broken[place : place + 1] = data.draw(st.binary(max_size=2))
    try:
        ProtobufDecoder(bytes(broken), "foxglove.Odometry").decode(b"")
    except SchemaError:
        pass


def test_one_sentence_says_how_to_install_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "descriptors"
    path.write_bytes(TYPES.descriptors)
    code = (
        "import sys; sys.modules['google'] = None; sys.modules['google.protobuf'] = None\n"
        "from penstock._src.recordings.messages.protobuf import ProtobufDecoder\n"
        f"ProtobufDecoder(open({str(path)!r}, 'rb').read(), 'foxglove.Pose')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = run.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "SchemaError: reading protobuf messages needs the package 'protobuf': pip install 'penstock[protobuf]'"
    )
