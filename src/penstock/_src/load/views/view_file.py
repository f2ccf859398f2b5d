"""The file of a view: header, filled table, checksums, rows; how large it is, and what its first bytes say.

    0            header: magic, checksum of the header, JSON (never pickle), zeros up to 8,192 bytes
    8,192        filled table: one byte per row, 1 = there
                 of raw rows in memory: 4 bytes, the place of the row + 1, 0 = not there
    then         of raw rows on disk: the checksum of every row, 4 bytes
                 of raw rows in memory: places that are taken, and how far memory was made present, 8 bytes each
                 of JPEG rows: offset, size and checksum of every row, 16 bytes
    page border  rows: all of one size (raw), or one behind the other (JPEG); in memory and of JPEGs, as they came

Every number of the layout follows from the spec, the capacity and the medium: what a header claims is compared with
that, never believed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.units import format_bytes
from penstock.errors import LimitExceeded, UsageError

Encoding = Literal["raw", "jpeg"]
MAGIC = b"PENSVIEW"
VERSION = 1
HEADER_BYTES = 8192
PAGE_BYTES = 4096
PLACE = np.dtype([("offset", "<u8"), ("size", "<u4"), ("sum", "<u4")])
SUM = np.dtype("<u4")
MARK = np.dtype("<u4")
COUNT_BYTES = 8
_MOST_SPARE = 1024
MAX_SIDE_PX = 16384
MAX_ROWS = 1 << 40
_HEAD = struct.Struct("<8sII")  # magic, crc32 of all that follows, length of the JSON


@dataclass(frozen=True)
class ViewSpec:
    """What the pixels of a view are: which column, at which size, and how they are kept."""

    column: str
    fingerprint: str
    size: tuple[int, int]
    """(height, width)."""
    channels: int = 3
    exact: bool = False
    encoding: Encoding = "raw"
    quality: int = 90
    """Of JPEG rows, 1 to 100; raw rows do not have one."""
    resize: str = "linear"
    """How images of another size are brought to this one (see `load/engine/images.py`)."""

    def __post_init__(self) -> None:
        height, width = self.size
        if not (1 <= height <= MAX_SIDE_PX and 1 <= width <= MAX_SIDE_PX):
            raise UsageError(f"a view of {height}×{width} pixels: each side must be 1 to {MAX_SIDE_PX:,}")
        if self.encoding not in ("raw", "jpeg"):
            raise UsageError(f"unknown encoding {self.encoding!r} of a view", hint="use 'raw' or 'jpeg'")
        known = (1, 3, 4) if self.encoding == "raw" else (1, 3)
        if self.channels not in known:
            raise UsageError(f"a view of {self.channels} channels as {self.encoding}: {known} are possible")
        if not isinstance(self.quality, (int, np.integer)) or not 1 <= self.quality <= 100:
            raise UsageError(f"JPEG quality {self.quality!r} is outside 1…100")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one row."""
        return int(self.channels), int(self.size[0]), int(self.size[1])

    @property
    def row_bytes(self) -> int:
        """One row as pixels."""
        return math.prod(self.shape)

    def describe(self) -> dict[str, Any]:
        """Plain values for the header, and for the name of a file."""
        return {
            "column": self.column,
            "fingerprint": self.fingerprint,
            "size": list(self.shape[1:]),
            "channels": self.shape[0],
            "exact": bool(self.exact),
            "resize": self.resize,
            "encoding": self.encoding,
            "quality": self.quality if self.encoding == "jpeg" else None,
        }


@dataclass(frozen=True)
class ViewLayout:
    """Where everything lies in the file of a view, to the byte."""

    rows: int
    """Of the store."""
    capacity: int
    """Rows that have a place."""
    table_at: int
    """Where the checksums (raw, on disk), the count and the owners (raw, in memory) or the places (JPEG) begin."""
    rows_at: int
    n_bytes: int
    """The whole file; for JPEG rows the part in front of them, which is there from the beginning."""
    spare: int = 0
    """Places beyond the capacity."""


def layout_of(spec: ViewSpec, rows: int, capacity: int, *, checked: bool) -> ViewLayout:
    """The layout of a view with `capacity` places; `checked` files, those on disk, carry a checksum per row."""
    mark_bytes = MARK.itemsize if spec.encoding == "raw" and not checked else 1
    table_at = _up(HEADER_BYTES + mark_bytes * capacity, 8)
    # In memory, processes take places before they have rows for them, and two may make the same row.
    spare = min(_MOST_SPARE, capacity // 128) if spec.encoding == "raw" and not checked else 0
    table_bytes = COUNT_BYTES + capacity + spare
    if spec.encoding == "jpeg" or checked:
        table_bytes = capacity * (PLACE if spec.encoding == "jpeg" else SUM).itemsize
    rows_at = _up(table_at + table_bytes, PAGE_BYTES)
    # Whole pages: what a mapping really takes is what the file says.
    n_bytes = rows_at if spec.encoding == "jpeg" else _up(rows_at + (capacity + spare) * spec.row_bytes, PAGE_BYTES)
    return ViewLayout(rows, capacity, table_at, rows_at, n_bytes, spare)


def layout_within(spec: ViewSpec, rows: int, limit_bytes: int | None, *, checked: bool) -> ViewLayout:
    """The layout with the most places that is not larger than `limit_bytes`, header and tables included."""
    if not 1 <= rows <= MAX_ROWS:
        raise UsageError(f"a view of {rows:,} rows: there must be at least one, and at most {MAX_ROWS:,}")
    most = min(rows, (1 << 62) // rows, (1 << 32) - 2)  # so that row × capacity stays within 64 bits, a place in 32
    whole = layout_of(spec, rows, most, checked=checked)
    if limit_bytes is None or whole.n_bytes <= limit_bytes:
        return whole
    low, high = 0, most  # the size grows with the capacity: bisect
    while high - low > 1:
        middle = (low + high) // 2
        fits = layout_of(spec, rows, middle, checked=checked).n_bytes <= limit_bytes
        low, high = (middle, high) if fits else (low, middle)
    if not low:
        least = layout_of(spec, rows, 1, checked=checked).n_bytes
        raise LimitExceeded(
            f"a view of {spec.column!r} at {spec.size[0]}×{spec.size[1]} needs {format_bytes(least)} for one row, "
            f"the limit is {format_bytes(limit_bytes)}; all {rows:,} rows need {format_bytes(whole.n_bytes)}",
            size=least,
            limit=limit_bytes,
            hint="give the view more, or a smaller image_size",
        )
    return layout_of(spec, rows, low, checked=checked)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def slots_of(rows: NDArray[np.int64], n_rows: int, capacity: int) -> NDArray[np.int64]:
    """The place of each row, -1 where it has none: `capacity` of the rows are kept, spread evenly."""
    rows = np.asarray(rows, np.int64)
    inside = (rows >= 0) & (rows < n_rows)
    if capacity == n_rows:
        return np.where(inside, rows, np.int64(-1))
    slots = rows * capacity // n_rows
    # A row is kept when the next one would begin a new place: exactly one row of those that share a quotient.
    return np.where(inside & ((rows + 1) * capacity // n_rows > slots), slots, np.int64(-1))


def rows_of(slots: NDArray[np.int64], n_rows: int, capacity: int) -> NDArray[np.int64]:
    """The row that lies in each slot: the other way round."""
    return -(-(np.asarray(slots, np.int64) + 1) * n_rows // capacity) - 1


def pack_header(spec: ViewSpec, layout: ViewLayout, token: str) -> bytes:
    """The first bytes of a file; `token` distinguishes it from every other file of the same kind."""
    text = json.dumps(_claims(spec, layout, token), sort_keys=True).encode()
    if _HEAD.size + len(text) > HEADER_BYTES:
        raise UsageError(f"the name of column {spec.column[:40]!r}… is too long for a view ({len(text):,} bytes)")
    rest = struct.pack("<I", len(text)) + text.ljust(HEADER_BYTES - _HEAD.size, b"\0")
    return MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def _claims(spec: ViewSpec, layout: ViewLayout, token: str) -> dict[str, Any]:
    return {
        "version": VERSION,
        "made_by": _opencv_version(),
        "spec": spec.describe(),
        "rows": layout.rows,
        "capacity": layout.capacity,
        "table_at": layout.table_at,
        "rows_at": layout.rows_at,
        "n_bytes": layout.n_bytes,
        "token": token,
    }


def read_token(header: bytes, spec: ViewSpec, layout: ViewLayout) -> tuple[str, str]:
    """(token, "") of a header that says exactly what is expected, else ("", what is wrong with it)."""
    claims, wrong = _read_claims(header)
    token = claims.get("token")
    if wrong:
        return "", wrong
    if not isinstance(token, str) or claims != _claims(spec, layout, token):
        return "", "its header describes another view or another version"
    return token, ""


def read_capacity(header: bytes, spec: ViewSpec, rows: int, *, checked: bool = True) -> int | None:
    """How many places a file has, if its header says that it is a view of this spec."""
    claims, _ = _read_claims(header)
    capacity = claims.get("capacity")
    if type(capacity) is not int or not 1 <= capacity <= rows:
        return None
    return capacity if read_token(header, spec, layout_of(spec, rows, capacity, checked=checked))[0] else None


def _read_claims(header: bytes) -> tuple[dict[str, Any], str]:
    """(what the header says, ""), or ({}, what is wrong with it)."""
    if len(header) < HEADER_BYTES:
        return {}, f"it has {len(header):,} bytes, a header has {HEADER_BYTES:,}"
    magic, total, n_text = _HEAD.unpack_from(header)
    if magic != MAGIC:
        return {}, f"it starts with {magic!r}, not with {MAGIC!r}"
    if zlib.crc32(header[_HEAD.size - 4 : HEADER_BYTES]) != total:
        return {}, "the checksum of its header does not match"
    try:
        claims = json.loads(header[_HEAD.size : min(_HEAD.size + n_text, HEADER_BYTES)])
    except (ValueError, RecursionError):  # thousands of nested brackets
        return {}, "its header is not JSON"
    return (claims, "") if isinstance(claims, dict) else ({}, "its header is not a mapping of names to values")


def checksum(row: NDArray[np.uint8], slot: int) -> int:
    """32 bits over a row and its slot, never 0.

    Rows of whole 8-byte words are summed page by page, and the sums go through CRC-32: a fifth of the time of CRC-32
    over all bytes, and it still sees every changed byte, missing page and misplaced page.
    """
    n_words, odd = divmod(len(row), 8)
    if odd:
        return zlib.crc32(row.data, slot & 0xFFFFFFFF) or 1
    words = row.view(np.uint64)
    whole = n_words // 512 * 512
    sums = words[:whole].reshape(-1, 512).sum(axis=1, dtype=np.uint64)
    value = zlib.crc32(sums.tobytes(), slot & 0xFFFFFFFF)
    return zlib.crc32(words[whole:].tobytes(), value) or 1


def write_all(fd: int, data: memoryview | bytes, offset: int) -> None:
    """All of it: the system may write a part and refuse the rest with the next call."""
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def read_all(fd: int, into: NDArray[np.uint8], offset: int) -> bool:
    """Fill an array of bytes from the file; False where the file ends before, or the disk fails."""
    left = into.data
    try:
        while left:
            n_read = os.preadv(fd, [left], offset)
            if not n_read:
                return False
            left, offset = left[n_read:], offset + n_read
    except OSError:
        return False
    return True


def key_of(spec: ViewSpec, layout: ViewLayout) -> str:
    """The name of a view on disk: a digest of everything that its bytes depend on."""
    words = {**_claims(spec, layout, ""), "token": None}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def shared_name(spec: ViewSpec, rows: int) -> str:
    """The name under which processes look for a view in memory, whatever limit it was made with."""
    words = json.dumps([spec.describe(), rows, _opencv_version()], sort_keys=True)
    return "view-" + hashlib.sha256(words.encode()).hexdigest()[:40]


@contextmanager
def locked(fd: int, byte: int = 0, *, waits: bool = True) -> Iterator[None]:
    """A lock that belongs to an open file, not to a process: it excludes others that opened the file, and the
    system takes it back from a process that is killed. BlockingIOError where it does not wait."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK, _lock_of(fcntl.F_WRLCK, byte))
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_UNLCK, byte))


def try_lock(fd: int, byte: int) -> bool:
    """Take such a lock until the file is closed, if nobody has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_WRLCK, byte))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _lock_of(kind: int, byte: int) -> bytes:
    """struct flock: one byte of the file, which is only a name for the lock."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)


def _opencv_version() -> str:
    """OpenCV's version: its decoders and its resize may round differently, and a view that two versions filled would
    hold two kinds of pixels."""
    import cv2

    return "OpenCV " + ".".join(cv2.__version__.split(".")[:2])
