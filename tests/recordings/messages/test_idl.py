"""IDL definitions give the same types as the .msg files they were generated from."""

from __future__ import annotations

import pytest
from rosbags.typesys import get_types_from_idl

from penstock._src.recordings.messages.definitions import parse_msg
from penstock._src.recordings.messages.idl import parse_idl
from penstock._src.recordings.messages.standard_types import from_rosbags
from penstock.errors import SchemaError

TEXT = """
// generated from rosidl_adapter/resource/msg.idl.em
#include "other_msgs/msg/Thing.idl"

module pkg {
  module msg {
    typedef double double__9[9];
    typedef other_msgs::msg::Thing Thing__2[2];
    module Sample_Constants {
      const uint8 KIND = 3;
      @verbatim (language="comment", text= "two" "\\n" "lines")
      const string NAME = "a;b";
      const unsigned long LENGTH = 4;
    };
    @verbatim (language="comment", text=
      "A sample (of everything) }; " "\\"quoted\\"")
    struct Sample {
      @verbatim (language="comment", text="first")
      other_msgs::msg::Thing thing;
      boolean flag;
      octet raw;
      char letter;
      int8 i8; uint8 u8; int16 i16; uint16 u16; int32 i32; uint32 u32; int64 i64; uint64 u64;
      short s; unsigned short us; long l; unsigned long ul; long long ll; unsigned long long ull;
      float f;
      @unit (value="m")
      double d;
      string text; string<10> short_text; wstring wide;
      sequence<double> many; sequence<string, 5> names; sequence<other_msgs::msg::Thing> things;
      double__9 covariance;
      Thing__2 pair;
      @default (value=7)
      uint8 with_default;
    };
  };
};
================================================================================
IDL: other_msgs/msg/Thing
module other_msgs { module msg { struct Thing { uint8 structure_needs_at_least_one_member; }; }; };
"""

SAME = """
other_msgs/Thing thing
bool flag
byte raw
char letter
int8 i8
uint8 u8
int16 i16
uint16 u16
int32 i32
uint32 u32
int64 i64
uint64 u64
int16 s
uint16 us
int32 l
uint32 ul
int64 ll
uint64 ull
float32 f
float64 d
string text
string<=10 short_text
wstring wide
float64[] many
string[<=5] names
other_msgs/Thing[] things
float64[9] covariance
other_msgs/Thing[2] pair
uint8 with_default 7
===
MSG: other_msgs/Thing
"""


def test_idl_and_msg_give_the_same_types() -> None:
    from_idl, from_msg = parse_idl(TEXT, "pkg/msg/Sample"), parse_msg(SAME, "pkg/msg/Sample")
    assert {name: message.fields for name, message in from_idl.items()} == {
        name: message.fields for name, message in from_msg.items()
    }


def test_constants_belong_to_their_struct() -> None:
    constants = parse_idl(TEXT, "pkg/msg/Sample")["pkg/msg/Sample"].constants
    assert [(c.name, c.type, c.value) for c in constants] == [
        ("KIND", "uint8", "3"),
        ("NAME", "string", '"a;b"'),
        ("LENGTH", "uint32", "4"),
    ]


def test_the_rosbags_library_reads_the_same() -> None:
    # rosbags reads neither wide strings nor preprocessor lines.
    text = TEXT.split("====")[0].replace("wstring wide", "string wide").replace("#include", "//")
    theirs = get_types_from_idl(text)["pkg/msg/Sample"][1]
    thing = "\nmodule other_msgs { module msg { struct Thing { uint8 x; }; }; };"
    ours = parse_idl(text + thing, "pkg/msg/Sample")["pkg/msg/Sample"].fields
    assert [(f.name, f.type) for f in ours] == [(name, from_rosbags(desc, ros1=False)) for name, desc in theirs]


def test_enums_and_named_lengths() -> None:
    text = """module pkg { module msg { enum Colour { RED, @value(2) GREEN };
        module T_Constants { const long N = 3; };
        struct T { Colour colour; uint8 data[pkg::msg::T_Constants::N]; sequence<uint8, T_Constants::N> few; }; }; };"""
    fields = parse_idl(text, "pkg/msg/T")["pkg/msg/T"].fields
    assert [str(field.type) for field in fields] == ["uint32", "uint8[3]", "uint8[<=3]"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("module a { struct T { uint8 x; }", "ends too early"),
        ("struct T { wchar c; };", "'wchar' is not supported"),
        ("struct T { long double c; };", "'long double' is not supported"),
        ("union U switch (long) { case 1: long x; };", "'union' is not supported"),
        ("struct T { uint8 x[2][2]; };", "array of arrays"),
        ("struct T { " + "sequence<" * 100_000, "sequence of sequences"),
        ("module a {" * 100_000, "nest more than 32"),
        ("struct T { uint8 x[1 << 99]; };", "expected ']'"),
        ("struct T { uint8 x[99999999999999999999999]; };", "expected a length"),
        ("struct T { uint8 x[4294967296]; };", "allowed is 1 to"),
        ("struct T { uint8 x[-1]; };", "expected a length"),
        ("struct T { T again; };", "contains itself"),
        ("/* " * 300_000, "cannot be read"),
        ('@a("' + "x" * 1000, "cannot be read"),
        ("@a(" + "(" * 500_000, "ends too early"),
        ("", "is not defined"),
        ("struct T { " + "uint8 x; uint8 x; };", "two fields named"),
    ],
)
def test_hostile_idl_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_idl(text, "T")
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 400
