"""The file of a view: sizes to the byte, rows spread evenly, headers that are compared and never believed."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.views import view_file
from penstock._src.load.views.view_file import HEADER_BYTES, checksum, layout_of, layout_within, rows_of, slots_of
from penstock.errors import LimitExceeded, UsageError
from tests.load.view_rows import spec_of


@settings(max_examples=80)
@given(
    rows=st.integers(1, 5000),
    side=st.integers(1, 40),
    channels=st.sampled_from([1, 3, 4]),
    limit=st.integers(0, 2_000_000) | st.integers(3, 480).map(lambda pages: pages * 4096 - 1),
    checked=st.booleans(),
)
def test_a_view_is_the_largest_that_its_limit_allows(
    rows: int, side: int, channels: int, limit: int, checked: bool
) -> None:
    spec = spec_of(size=(side, side + 1), channels=channels)
    try:
        layout = layout_within(spec, rows, limit, checked=checked)
    except LimitExceeded as error:
        assert error.limit == limit < error.size == layout_of(spec, rows, 1, checked=checked).n_bytes
        return
    assert 1 <= layout.capacity <= rows
    assert layout.n_bytes <= limit and layout.n_bytes % 4096 == 0
    needed = HEADER_BYTES + layout.capacity * (5 + spec.row_bytes)  # mark and checksum, or mark and owner
    needed += layout.spare * (1 + spec.row_bytes)
    assert needed <= layout.n_bytes < needed + 2 * 4096 + 24
    if layout.capacity < rows:
        assert layout_of(spec, rows, layout.capacity + 1, checked=checked).n_bytes > limit


def test_tables_and_rows_do_not_overlap() -> None:
    for capacity in (1, 7, 8, 4096, 5001):
        for encoding, entry in (("raw", 4), ("jpeg", 16)):
            layout = layout_of(spec_of(encoding=encoding), 9999, capacity, checked=True)
            assert HEADER_BYTES + capacity <= layout.table_at and layout.table_at % 8 == 0
            assert layout.table_at + entry * capacity <= layout.rows_at and layout.rows_at % 4096 == 0


@settings(max_examples=150)
@given(data=st.data())
def test_rows_have_one_place_each_spread_evenly_and_there_is_a_way_back(data: st.DataObject) -> None:
    n_rows = data.draw(st.integers(1, 400))
    capacity = data.draw(st.integers(1, n_rows))
    rows = np.arange(n_rows)
    slots = slots_of(rows, n_rows, capacity)
    kept = np.flatnonzero(slots >= 0)
    assert slots[kept].tolist() == list(range(capacity))
    assert rows_of(np.arange(capacity), n_rows, capacity).tolist() == kept.tolist()
    gaps = np.diff(kept)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1
    assert kept[0] <= -(-n_rows // capacity) and n_rows - 1 - kept[-1] <= n_rows // capacity


def test_rows_outside_the_store_have_no_place() -> None:
    rows = np.array([-5, -1, 0, 9, 10, 1 << 40])
    assert slots_of(rows, 10, 10).tolist() == [-1, -1, 0, 9, -1, -1]
    assert (slots_of(rows[[0, 1, 4, 5]], 10, 3) == -1).all()


def test_a_trillion_rows_do_not_overflow() -> None:
    layout = layout_within(spec_of(size=(1, 1), channels=1), view_file.MAX_ROWS, None, checked=False)
    rows = np.array([0, view_file.MAX_ROWS // 2, view_file.MAX_ROWS - 1])
    slots = slots_of(rows, layout.rows, layout.capacity)
    assert slots[-1] == layout.capacity - 1 and (slots >= -1).all()


def test_every_changed_byte_of_a_header_is_noticed() -> None:
    spec = spec_of(column="kamera 📷 <script>")
    layout = layout_of(spec, 100, 50, checked=True)
    header = view_file.pack_header(spec, layout, "token")
    assert len(header) == HEADER_BYTES
    assert view_file.read_token(header, spec, layout) == ("token", "")
    for place in range(HEADER_BYTES):
        changed = bytearray(header)
        changed[place] ^= 1 << place % 8
        token, wrong = view_file.read_token(bytes(changed), spec, layout)
        assert not token and wrong
    assert view_file.read_token(header[:-1], spec, layout)[1]


@pytest.mark.parametrize("text", [b"[]", b"null", b"{", b'{"token": 5}', b"\xff\xfe", b"[" * 3000, b"1" * 5000])
def test_a_header_that_is_sound_but_says_something_else_is_refused(text: bytes) -> None:
    rest = struct.pack("<I", len(text)) + text.ljust(HEADER_BYTES - 16, b"\0")
    header = view_file.MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest
    spec = spec_of()
    token, wrong = view_file.read_token(header, spec, layout_of(spec, 9, 9, checked=True))
    assert not token and wrong
    assert view_file.read_capacity(header, spec, 9) is None


def test_a_header_with_another_layout_is_refused() -> None:
    spec, layout = spec_of(), layout_of(spec_of(), 100, 50, checked=True)
    header = view_file.pack_header(spec, layout, "token")
    for other in (layout_of(spec, 100, 49, checked=True), layout_of(spec, 99, 50, checked=True)):
        assert not view_file.read_token(header, spec, other)[0]
    for changes in ({"fingerprint": "x"}, {"exact": True}, {"size": (12, 8)}, {"resize": "area"}):
        assert not view_file.read_token(header, spec_of(**changes), layout)[0]
    assert json.loads(header[16:].rstrip(b"\0"))["spec"]["column"] == "cam"


@settings(max_examples=80)
@given(data=st.data())
def test_the_checksum_sees_any_changed_byte_page_and_place(data: st.DataObject) -> None:
    n_bytes = data.draw(st.sampled_from([1, 7, 8, 4096, 4104, 12288, 12289, 20000]))
    row = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, dtype=np.uint8)
    right = checksum(row, 3)
    assert right == checksum(row.copy(), 3) != checksum(row, 4)
    shifted = np.frombuffer(b"x" + row.tobytes(), np.uint8)[1:]
    assert checksum(shifted, 3) == right, "where the bytes lie in memory is no part of it"
    changed = row.copy()
    changed[data.draw(st.integers(0, n_bytes - 1))] ^= data.draw(st.integers(1, 255))
    assert checksum(changed, 3) != right
    if n_bytes >= 12288:
        lost, swapped = row.copy(), row.copy()
        lost[4096:8192] = 0
        swapped[:4096], swapped[4096:8192] = row[4096:8192], row[:4096]
        assert checksum(lost, 3) != right != checksum(swapped, 3)


def test_zeros_that_nobody_wrote_never_match() -> None:
    for n_bytes in (1, 8, 288, 4096, 150_528):
        assert checksum(np.zeros(n_bytes, np.uint8), 0) != 0


@pytest.mark.parametrize(
    "changes",
    [
        {"size": (0, 5)},
        {"size": (5, 20_000)},
        {"channels": 2},
        {"encoding": "png"},
        {"quality": 0},
        {"encoding": "jpeg", "channels": 4},
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        spec_of(**changes)


def test_everything_that_pixels_depend_on_names_another_file() -> None:
    spec = spec_of()
    layout = layout_of(spec, 100, 100, checked=True)
    others = [
        spec_of(**changes)
        for changes in (
            {"column": "cam2"}, {"fingerprint": "beef"}, {"size": (12, 8)}, {"channels": 1}, {"exact": True},
            {"encoding": "jpeg"}, {"encoding": "jpeg", "quality": 80}, {"resize": "area"},
        )
    ]  # fmt: skip
    keys = {view_file.key_of(each, layout) for each in [spec, *others]}
    keys |= {view_file.key_of(spec, layout_of(spec, 101, 100, checked=True))}
    keys |= {view_file.key_of(spec, layout_of(spec, 100, 99, checked=True))}
    assert len(keys) == len(others) + 3
    assert view_file.key_of(spec_of(quality=80), layout) == view_file.key_of(spec, layout), "raw rows have no quality"


def test_a_name_too_long_for_a_header_is_refused() -> None:
    with pytest.raises(UsageError, match="too long"):
        view_file.pack_header(spec_of(column="📷" * 3000), layout_of(spec_of(), 1, 1, checked=False), "t")
    view_file.pack_header(spec_of(column="📷" * 300), layout_of(spec_of(), 1, 1, checked=False), "t")
