"""A payload that is cut or flipped gives a value or a MessageError, and never a large allocation."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._src.recordings.messages.decode import RosDecoder
from penstock._src.recordings.messages.definitions import parse_msg
from penstock._src.recordings.messages.standard_types import standard_definitions
from penstock.errors import ConfigError, MessageError, SchemaError
from tests.recordings.messages.oracle import Oracle, messages, text_of, type_sets

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def decoder_of(text: str, encoding: Any = "ros1") -> RosDecoder:
    return RosDecoder(parse_msg(text, "pkg/T"), "pkg/T", encoding)


@pytest.mark.parametrize("ros1", [True, False])
def test_cut_or_flipped_messages_never_raise_anything_but_a_message_error(ros1: bool) -> None:
    @SLOW
    @given(type_sets(ros1=ros1), st.data())
    def check(types: Any, data: st.DataObject) -> None:
        oracle = Oracle(types, ros1=ros1)
        payload = bytearray(oracle.serialise(data.draw(messages(types, list(types)[-1]))))
        decoder = RosDecoder(parse_msg(text_of(types, ros1=ros1), oracle.name), oracle.name, "ros1" if ros1 else "cdr")
        last = decoder.reader([types[list(types)[-1]][-1].name])
        for _ in range(20):
            broken = payload[: data.draw(st.integers(0, len(payload)))]
            for place in data.draw(st.lists(st.integers(0, max(0, len(broken) - 1)), max_size=3)):
                if broken:
                    broken[place] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
            for read in (decoder.decode, last):
                try:
                    read(bytes(broken))
                except MessageError:
                    pass

    check()


@pytest.mark.parametrize("encoding", ["ros1", "cdr"])
@pytest.mark.parametrize("field", ["uint8[]", "float64[]", "string", "string[]", "Inner[]"])
def test_a_false_length_is_refused_before_anything_is_allocated(encoding: str, field: str) -> None:
    decoder = decoder_of(f"{field} a\n===\nMSG: pkg/Inner\nuint8 x\nstring y", encoding)
    head = b"\0\1\0\0" if encoding == "cdr" else b""
    payload = head + struct.pack("<I", 0xFFFFFFFF) + b"\1\0\0\0" * 8
    tracemalloc.start()
    with pytest.raises(MessageError, match=r"T\.a: needs [0-9,]+ bytes at byte .* are left"):
        decoder.decode(payload)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_short_message_names_the_field_what_it_needs_and_what_is_left() -> None:
    decoder = decoder_of("float64 a\nfloat64[4] b\nstring c")
    with pytest.raises(MessageError, match=r"pkg/msg/T\.a: needs 8 bytes at byte 0 of the message, 3 are left"):
        decoder.decode(bytes(3))
    with pytest.raises(MessageError, match=r"pkg/msg/T\.b: needs 32 bytes at byte 8 of the message, 12 are left"):
        decoder.reader(["b"])(bytes(20))
    with pytest.raises(MessageError, match=r"T\.c: needs 255 bytes at byte 44 of the message, 1 are left"):
        decoder.reader(["c"])(bytes(40) + b"\xff\0\0\0x")


def test_a_short_message_never_names_the_field_of_another_part_of_one_type() -> None:
    decoder = decoder_of("Inner first\nInner second\n===\nMSG: pkg/Inner\nfloat64 x")
    with pytest.raises(MessageError, match=r"pkg/msg/Inner\.x: needs 8 bytes at byte 8 of the message, 4 are left"):
        decoder.decode(bytes(12))


def test_cdr_offsets_in_errors_count_the_header() -> None:
    with pytest.raises(MessageError, match=r"needs 4 bytes at byte 4 of the message, 0 are left"):
        decoder_of("uint32 a", "cdr").decode(b"\0\1\0\0")


@pytest.mark.parametrize("head", [b"", b"\0\1\0", b"\0\2\0\0", b"\0\3\0\0", b"\0\7\0\0", b"\0\x0a\0\0", b"\1\1\0\0"])
def test_other_encapsulations_are_refused(head: bytes) -> None:
    decoder = decoder_of("std_msgs/Header h\nuint8 a\n===\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp", "cdr")
    for read in (decoder.decode, decoder.header_stamp_ns, decoder.reader(["a"])):
        with pytest.raises(MessageError, match="CDR"):
            read(head + (bytes(20) if len(head) == 4 else b""))


def test_text_that_is_not_utf8_stays_readable() -> None:
    assert decoder_of("string s").decode(b"\2\0\0\0\xe9x") == {"s": "\\xe9x"}
    assert decoder_of("string[] s").decode(b"\1\0\0\0\2\0\0\0\xe9x") == {"s": ["\\xe9x"]}


def test_cdr_strings_without_terminator_or_of_length_zero_are_read() -> None:
    decoder = decoder_of("string s\nstring t", "cdr")
    assert decoder.decode(b"\0\1\0\0" + struct.pack("<I4sI", 4, b"abcd", 0)) == {"s": "abcd", "t": ""}


def test_a_type_with_wide_strings_is_refused() -> None:
    with pytest.raises(SchemaError, match="wide string"):
        decoder_of("wstring w\nuint32 after", "cdr")


def test_empty_messages_take_one_byte_in_cdr_and_none_in_ros1() -> None:
    text = "Nothing a\nNothing[2] b\nuint8 c\n===\nMSG: pkg/Nothing\n"
    assert decoder_of(text, "cdr").decode(b"\0\1\0\0\0\0\0\7") == {"a": {}, "b": [{}, {}], "c": 7}
    assert decoder_of(text, "ros1").reader(["a", "c"])(b"\7") == ({}, 7)
    with pytest.raises(SchemaError, match="array of empty messages"):
        decoder_of(text, "ros1").decode(b"\7")
    for payload in (b"\0\1\0\0", b"\0\1\0\0\0", b"\0\1\0\0\0\0\0\0"):
        empty = RosDecoder(standard_definitions("ros2"), "std_msgs/msg/Empty", "cdr")
        assert empty.decode(payload) == {}


def test_an_endless_list_of_empty_messages_costs_no_time() -> None:
    decoder = decoder_of("Nothing[] a\nuint8 b\n===\nMSG: pkg/Nothing\n")
    assert decoder.reader(["b"])(b"\xff\xff\xff\xff\7") == (7,)


def test_a_header_is_read_from_its_first_bytes_alone() -> None:
    ros1 = RosDecoder(standard_definitions("ros1"), "sensor_msgs/Image", "ros1")
    assert ros1.header_stamp_ns(struct.pack("<III", 9, 0xFFFFFFFF, 2)) == 0xFFFFFFFF * 10**9 + 2
    ros2 = RosDecoder(standard_definitions("ros2"), "sensor_msgs/msg/Image", "cdr")
    assert ros2.header_stamp_ns(b"\0\1\0\0" + struct.pack("<iI", -1, 2)) == -(10**9) + 2
    assert ros2.header_stamp_ns(b"\0\0\0\0" + struct.pack(">iI", 1, 2)) == 10**9 + 2
    with pytest.raises(MessageError, match="needs 8 bytes at byte 4 of the message, 2 are left"):
        ros1.header_stamp_ns(bytes(6))


def test_a_type_without_header_has_no_header_time() -> None:
    decoder = RosDecoder(standard_definitions("ros2"), "std_msgs/msg/String", "cdr")
    assert not decoder.has_header
    with pytest.raises(SchemaError, match="does not begin with a std_msgs/Header"):
        decoder.header_stamp_ns(bytes(16))


def test_views_point_into_the_payload() -> None:
    payload = bytearray(struct.pack("<I2dI3s", 2, 1.0, 2.0, 3, b"abc"))
    numbers, data = decoder_of("float64[] a\nuint8[] b").reader(["a", "b"])(memoryview(payload))
    payload[4:12] = struct.pack("<d", 5.0)
    payload[-3:] = b"xyz"
    assert (numbers.tolist(), bytes(data)) == ([5.0, 2.0], b"xyz")


def test_a_list_that_was_handed_out_can_be_changed_without_harm() -> None:
    read = decoder_of("string[] a").reader(["a"])
    payload = struct.pack("<II1sI2s", 2, 1, b"x", 2, b"yz")
    read(payload)[0].append("mine")
    assert read(payload) == (["x", "yz"],)


def test_fields_behind_the_last_wanted_one_may_be_missing() -> None:
    assert decoder_of("uint8 a\nstring b").reader(["a"])(b"\5") == (5,)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("positon", "did you mean 'position'"),
        ("header.stamp.sec", "a time in nanoseconds"),
        ("position.x", "has no field 'x'"),
        ("header[0]", "no array"),
        ("pos ition", "character 4"),
        ("position[", "character 9"),
        ("position[1:2:0]", "character 10"),
        ("a..b", "character 3"),
    ],
)
def test_a_wrong_path_says_what_is_wrong(path: str, problem: str) -> None:
    decoder = RosDecoder(standard_definitions("ros2"), "sensor_msgs/msg/JointState", "cdr")
    with pytest.raises(ConfigError) as caught:
        decoder.reader([path])
    assert problem in str(caught.value)


def test_an_array_of_messages_needs_an_index() -> None:
    decoder = RosDecoder(standard_definitions("ros2"), "geometry_msgs/msg/PoseArray", "cdr")
    with pytest.raises(ConfigError, match=r"poses\[0\]\.position"):
        decoder.reader(["poses.position"])
    with pytest.raises(MessageError, match=r"poses\[2\] does not exist: the message holds 0"):
        decoder.reader(["poses[2].position"])(b"\0\1\0\0" + bytes(8) + struct.pack("<IxxxxI", 1, 0))


def test_unknown_encodings_are_refused() -> None:
    with pytest.raises(SchemaError, match="'protobuf'"):
        decoder_of("uint8 a", "protobuf")
