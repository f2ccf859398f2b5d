"""Definition texts: what recordings really hold, and what they should never hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.recordings.messages.decode import RosDecoder
from penstock._src.recordings.messages.definitions import FieldDef, FieldType, normalise_type, parse_msg
from penstock._src.recordings.messages.idl import parse_idl
from penstock.errors import SchemaError


def types_of(text: str, name: str = "pkg/T") -> dict[str, str]:
    return {field.name: str(field.type) for field in parse_msg(text, name)[normalise_type(name)].fields}


def test_every_form_of_field() -> None:
    text = """
        # comment
        int32 plain
        float64[] sequence   # why
        float64[3] fixed
        uint8[<=5] bounded
        string<=10 short
        string<=10[<=5] shorts
        wstring wide
        int32 with_default 42
        string text_default "a # b = c"
        float64[] list_default [1.0, 2.0]
        time stamp
        duration length
        \tbyte  spaced\t
    """
    assert types_of(text) == {
        "plain": "int32",
        "sequence": "float64[]",
        "fixed": "float64[3]",
        "bounded": "uint8[<=5]",
        "short": "string<=10",
        "shorts": "string[<=5]",
        "wide": "wstring",
        "with_default": "int32",
        "text_default": "string",
        "list_default": "float64[]",
        "stamp": "time",
        "length": "duration",
        "spaced": "byte",
    }


def test_constants_are_no_fields() -> None:
    message = parse_msg("int32 A=1\nstring B = x # not a comment\nfloat32 C =-1.5\nuint8 d\n", "pkg/T")["pkg/msg/T"]
    assert message.fields == (FieldDef("d", FieldType("primitive", "uint8")),)


def test_windows_line_ends_and_annotations_are_read() -> None:
    assert types_of("\ufeffint8 a\r\n@verbatim\r\nint8 b\r\n") == {"a": "int8", "b": "int8"}


def test_references_without_package_find_their_neighbours() -> None:
    text = (
        "Header header\nOther near\nfar_msgs/Other far\nfar_msgs/msg/Deep deep\n"
        "===\nMSG: std_msgs/Header\nuint32 seq\n===\nMSG: pkg/Other\nuint8 a\n"
        "===\nMSG: far_msgs/Other\nDeep inner\n===\nMSG: far_msgs/Deep\nuint8 b\n"
    )
    found = parse_msg(text, "pkg/T")
    assert [field.type.name for field in found["pkg/msg/T"].fields] == [
        "std_msgs/msg/Header",
        "pkg/msg/Other",
        "far_msgs/msg/Other",
        "far_msgs/msg/Deep",
    ]
    assert found["far_msgs/msg/Other"].fields[0].type.name == "far_msgs/msg/Deep"


def test_a_dependency_given_twice_counts_once() -> None:
    text = "Other a\n===\nMSG: pkg/Other\nuint8 a\n===\nMSG: pkg/Other\nuint8 a\n"
    assert set(parse_msg(text, "pkg/T")) == {"pkg/msg/T", "pkg/msg/Other"}


def test_times_need_no_definition() -> None:
    decoder = RosDecoder(
        parse_msg("builtin_interfaces/Time t\nbuiltin_interfaces/Duration[] d", "pkg/T"), "pkg/T", "cdr"
    )
    payload = b"\0\1\0\0" + b"\1\0\0\0\2\0\0\0" + b"\1\0\0\0" + b"\xff\xff\xff\xff\3\0\0\0"
    assert decoder.decode(payload) == {"t": 1_000_000_002, "d": [-999_999_997]}


def test_a_service_becomes_its_event() -> None:
    for name in ("pkg/srv/Add", "pkg/srv/Add_Event"):
        found = parse_msg("int64 a\n---\nint64 sum\nstring why\n", name)
        decoder = RosDecoder(found, "pkg/srv/Add_Event", "cdr")
        assert [field.name for field in decoder.message.fields] == ["info", "request", "response"]


def chain(depth: int) -> str:
    return "".join(f"T{n} next\n===\nMSG: pkg/T{n}\n" for n in range(depth)) + "uint8 end\n"


def wide_tower(height: int, arms: int, array: str = "") -> str:
    """Every type holds the next one several times, so that the whole expands exponentially."""
    parts = ["".join(f"T{n + 1}{array} f{arm}\n" for arm in range(arms)) for n in range(height)] + ["uint8 end\n"]
    return parts[0] + "".join(f"===\nMSG: pkg/T{n}\n{part}" for n, part in enumerate(parts[1:], 1))


HOSTILE = {
    "contains itself": "T again\n",
    "contains itself, through pkg/msg/T → pkg/msg/A → pkg/msg/T": "A a\n===\nMSG: pkg/A\nT t\n",
    "is not defined, needed by": "Nowhere a\n",
    "nests more than 32": chain(33),
    "has 2,000,002 characters": "a\n" * 1_000_001,
    "more than 10,000 fields": "".join(f"uint8 f{n}\n" for n in range(10_001)),
    "expands to more than 20,000": wide_tower(8, 10),
    "would take at least": wide_tower(10, 1, "[4000000000]"),
    "is not a field": "uint8\n",
    "is not a field: 'uint8 ü'": "uint8 ü\n",
    "a second field": "uint8 a\nuint8 a\n",
    "allowed is 1 to": "uint8[0] a\n",
    "is not a field: 'uint8[99999999999] a'": "uint8[99999999999] a\n",
    "with the length 9999999999": "uint8[9999999999] a\n",
    "is not a type name": "===\nMSG: ../../etc/passwd\nuint8 a\n",
    "expected 'MSG: <type>'": "uint8 a\n===\nuint8 b\n",
    "'---' has no place": "uint8 a\n---\nuint8 b\n---\nuint8 c\n",
    "only strings have a bound": "uint8<=3 a\n",
    "is not the name of a type": "a//b c\n",
    "300 characters, the limit is 255": f"uint8 {'a' * 300}\n",
    "the bound of": "uint8[<=] a\n",
}


@pytest.mark.parametrize("problem", HOSTILE)
def test_hostile_definitions_are_refused_with_the_reason(problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        decoder = RosDecoder(parse_msg(HOSTILE[problem], "pkg/T"), "pkg/T", "ros1")
        decoder.decode(bytes(100))
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["", "a b", "x" * 300, "../x", "a/\0", "a/b\n"])
def test_hostile_type_names_are_refused(name: str) -> None:
    with pytest.raises(SchemaError, match="not the name of a message type"):
        parse_msg("uint8 a", name)


def test_a_tower_of_sequences_costs_no_more_than_its_text() -> None:
    decoder = RosDecoder(parse_msg(wide_tower(30, 10, "[]"), "pkg/T"), "pkg/T", "cdr")
    assert decoder.decode(b"\0\1\0\0" + bytes(40)) == {f"f{arm}": [] for arm in range(10)}


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab/[]<=> \t\n#-:@3Tuint8strgMSG\"'\\{}();,"), max_size=200))
def test_random_text_is_a_definition_or_a_schema_error(text: str) -> None:
    for parse in (parse_msg, parse_idl):
        try:
            parse(text, "pkg/T")
        except SchemaError:
            pass
