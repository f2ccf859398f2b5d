"""JSON messages, which show their own fields: values by path, or an error that says what is wrong."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.recordings.messages.decoder import MessageDecoder
from penstock._src.recordings.messages.json_messages import MAX_JSON_BYTES, JsonDecoder
from penstock._src.recordings.values.images import EncodedImage, ImageReader, RawImage
from penstock._src.recordings.values.vectors import VectorReader, default_path
from penstock.errors import MessageError


def shown(*messages: Any, type_name: str = "pkg.T") -> MessageDecoder:
    """The decoder of a topic with these first messages."""
    return JsonDecoder(type_name, [coded(each) for each in messages])


def coded(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_values_are_read_by_their_paths() -> None:
    message = {
        "timestamp": {"sec": 5, "nsec": 6}, "q": [0, 1.5, 2], "name": "é", "on": True, "n": 3.0,
        "points": [{"x": 1, "y": 2, "z": 3}, {"x": 4, "y": 5, "z": 6}],
    }  # fmt: skip
    decoder, payload = shown(message), coded(message)
    read = decoder.reader(["q[1:3]", "q[-1]", "name", "on", "n", "points[1].z", "points[0:2].x", "timestamp"])
    part, *others = read(payload)
    assert (part.tolist(), others) == ([1.5, 2], [2.0, "é", True, 3, 6, [1, 4], 5_000_000_006])
    assert decoder.has_header and decoder.header_stamp_ns(payload) == 5_000_000_006
    assert VectorReader(decoder, "points[0:2]")(payload).tolist() == [1, 2, 3, 4, 5, 6]


def test_a_first_message_describes_what_nothing_else_does() -> None:
    first = {
        "pose": {"position": {"x": 1, "y": 2.5}},
        "q": [1, 2],
        "t": {"sec": 1, "nsec": 2},
        "names": ["a", "b"],
        "empty": [],
    }
    decoder = shown("no object", {}, first)
    later = {
        "pose": {"position": {"x": 0.25, "y": 0}},
        "q": [3.5, 4],
        "t": {"nsec": 2, "sec": 3},
        "names": [],
        "empty": [7],
    }
    found = decoder.reader(["pose.position.x", "q", "t", "names", "empty"])(coded(later))
    assert (found[0], found[1].tolist(), found[2:4], found[4].tolist()) == (0.25, [3.5, 4], (3_000_000_002, []), [7])
    assert default_path("pkg.T", shown({"q": [1, 2], "text": "a"}).definitions) == "q"
    assert default_path("pkg.T", shown({"timestamp": {"sec": 1, "nsec": 2}, "x": 1, "y": 2}).definitions) == "."


def test_messages_that_lack_fields_or_hold_nothing_there_show_them_together() -> None:
    first = {"q": [1], "at": {"x": 1}, "list": [], "seen": None}
    second = {"x": 2, "at": {"y": 3, "x": 4}, "list": [{"a": 1}], "seen": {"id": "no number"}}
    third = {"x": "a text", "list": [{"b": 2}], "last": True}
    decoder = shown(first, second, [third], third)
    assert [field.name for field in decoder.message.fields] == ["q", "at", "list", "seen", "x", "last"]
    read = decoder.reader(["x", "at.y", "list[0].b", "seen.id"])
    assert read(coded({"x": 5, "at": {"y": 6}, "list": [{"b": 7}], "seen": {"id": "z"}})) == (5, 6, 7, "z")
    with pytest.raises(MessageError, match=r"pkg\.T\.x is missing in this message"):
        read(coded(first))


def test_foxglove_images_are_the_bytes_that_base64_spells() -> None:
    data = base64.b64encode(b"\xff\xd8jpeg").decode()
    image = {"timestamp": {"sec": 1, "nsec": 2}, "data": data, "format": "jpeg"}
    frame = ImageReader(shown(image, type_name="foxglove.CompressedImage"))(memoryview(coded(image)))
    assert isinstance(frame, EncodedImage)
    assert (frame.format, bytes(frame.data)) == ("jpeg", b"\xff\xd8jpeg")
    raw = {"width": 2, "height": 1, "encoding": "rgb8", "step": 6, "data": base64.b64encode(b"abcdef").decode()}
    pixels = ImageReader(shown(raw, type_name="foxglove.RawImage"))(memoryview(coded(raw)))
    assert isinstance(pixels, RawImage)
    assert (pixels.height, pixels.width, pixels.step, bytes(pixels.data)) == (1, 2, 6, b"abcdef")


def test_null_is_what_json_makes_of_nan() -> None:
    decoder = shown({"q": [1.0], "x": None})
    q, x = decoder.reader(["q", "x"])(b'{"q": [null, 2, NaN], "x": null}')
    assert np.isnan(q).tolist() == [True, False, True] and math.isnan(x)


def test_read_as_a_whole_a_message_may_lack_fields() -> None:
    decoder = shown({"v": {"x": 1, "y": 2}, "name": "a", "x": 1})
    assert decoder.decode(b'{"name": null, "x": null}') == {"name": None, "x": None}
    assert decoder.decode(b'{"v": null}') == {"v": None}
    for message in (b'{"v": {"y": 1}}', b'{"v": {}}'):
        with pytest.raises(MessageError, match="missing"):
            decoder.reader(["v", "v.x"])(message)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"{", "cannot be read as JSON"),
        (b"\xff\xfe", "cannot be read as JSON"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"[1]", "is an array in this message, expected is an object"),
        (b"{}", r"pkg\.Image\.q is missing in this message"),
        (b'{"q": 1}', "q is a number in this message, expected is an array"),
        (b'{"q": ["1"]}', "q is a text in this message, expected is an array of float64"),
        (b'{"q": [true]}', "q is true or false in this message"),
        (b'{"q": [1' + b"0" * 400 + b"]}", "too large"),
        (b'{"q": [], "x": "1"}', "x is a text in this message, expected is a number"),
        (b'{"q": [], "x": 1' + b"0" * 400 + b"}", "too large"),
        (b'{"q": [], "x": 1, "t": {"sec": 1}}', "missing"),
        (b'{"q": [], "x": 1, "t": {"sec": 1e300, "nsec": 0}}', "expected is a time"),
        (b'{"q": [], "x": 1, "t": {"sec": 99999999999, "nsec": 0}}', "64-bit time"),
        (b'{"q": [], "x": 1, "t": {"sec": 1, "nsec": 0}, "data": "%%%"}', "not base64"),
        (b'{"q": [], "x": 1, "t": {"sec": 1, "nsec": 0}, "data": "", "v": 3}', "expected is an object"),
    ],
)
def test_a_message_of_another_shape_is_refused_with_the_reason(message: bytes, reason: str) -> None:
    first = {"q": [1], "x": 1, "t": {"sec": 1, "nsec": 2}, "data": "", "v": {"x": 1}}
    decoder = shown(first, type_name="pkg.Image")
    with pytest.raises(MessageError, match=reason):
        decoder.reader(["q", "x", "t", "data", "v.x"])(message)


def test_a_message_over_the_limit_is_not_parsed() -> None:
    with pytest.raises(MessageError, match="the limit is 33,554,432"):
        shown({"x": 1}).decode(bytes(MAX_JSON_BYTES + 1))


VALUES = st.recursive(
    st.floats(allow_nan=False) | st.text(max_size=4) | st.booleans() | st.integers(-(1 << 53), 1 << 53),
    lambda inner: (
        st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), inner, max_size=4)
        | st.lists(st.floats(allow_nan=False), max_size=4)
        | st.lists(st.text(max_size=3), max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), VALUES, min_size=1, max_size=5))
def test_what_a_message_shows_is_read_back(message: dict[str, Any]) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items() if plain(each) != {}}
        return value.tolist() if isinstance(value, np.ndarray) else value

    assert plain(shown(message).decode(coded(message))) == plain(message)


@given(st.binary(max_size=40), VALUES)
def test_any_message_is_read_or_refused(raw: bytes, other: Any) -> None:
    decoder = shown({"x": 1, "v": {"y": [1.0]}, "names": ["a"], "t": {"sec": 1, "nsec": 2}})
    for payload in (raw, coded(other), coded({"x": other}), coded({"v": other, "names": other, "t": other})):
        try:
            decoder.decode(payload)
        except MessageError:
            pass
