"""IDL definitions give the same types as the .msg files they were generated from."""

from __future__ import annotations

import pytest

from penstock._src.recordings.messages.definitions import parse_msg
from penstock._src.recordings.messages.idl import parse_idl
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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("module a { struct T { uint8 x; }", "cannot be read"),
        ("union U switch (long) { case 1: long x; };", "cannot be read"),
        ("enum C { RED }; struct T { C c; };", "is not defined"),
        ("struct T { uint8 x[2][2]; };", "cannot be read"),
        ("struct T { " + "sequence<" * 100_000, "cannot be read"),
        ("module a {" * 100_000, "cannot be read"),
        ("struct T { uint8 x[99999999999999999999999]; };", "allowed is 1 to"),
        ("struct T { T again; };", "contains itself"),
        ("/* " * 300_000, "cannot be read"),
        ("@a(" + "(" * 500_000, "cannot be read"),
        ("", "cannot be read"),
        ("struct T { " + "uint8 x; uint8 x; };", "two fields of one name"),
    ],
)
def test_hostile_idl_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_idl(text, "T")
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 400
