"""The boxes of the MP4 files that penstock writes (ISO/IEC 14496-12), laid out byte by byte.

Nothing here depends on the time or the machine: the same samples give the same bytes.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import VideoError

PROLOGUE_BYTES = 44  # of what stands before the first sample
_TICKS = 512  # of a frame
_MAX_SIDE_PX = 0xFFFF  # the sample entry has 16 bits for each side
_UNITY_MATRIX = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
_OTI_JPEG = 0x6C  # ISO/IEC 10918-1 in the registry of MPEG-4 object types
_VISUAL_STREAM = 4


@dataclass(frozen=True)
class Track:
    """What the index says about the track besides its samples."""

    stsd: bytes
    width: int
    height: int
    fps: int

    def __post_init__(self) -> None:
        if not (1 <= self.width <= _MAX_SIDE_PX and 1 <= self.height <= _MAX_SIDE_PX):
            raise VideoError(f"a video of {self.width}×{self.height} pixels cannot be written")
        if self.fps < 1:
            raise VideoError(f"a video needs a whole frame rate of at least 1, got {self.fps}")

    @property
    def timescale(self) -> int:
        """Ticks per second."""
        return self.fps * _TICKS


def prologue() -> bytes:
    """ftyp and the header of an mdat whose size is written at the end, when it is known."""
    ftyp = _box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isomiso2mp41")
    return ftyp + struct.pack(">I4sQ", 1, b"mdat", 0)  # size 1: the true size follows in 64 bits


def mdat_size_field(samples_end_bytes: int | None) -> tuple[int, bytes]:
    """Where the size of mdat lies, and what must stand there when the samples end at this byte; None: not known yet."""
    size = 0 if samples_end_bytes is None else samples_end_bytes - (PROLOGUE_BYTES - 16)
    return PROLOGUE_BYTES - 8, struct.pack(">Q", size)


def moov(track: Track, offsets: array[int], sizes: array[int], keys: bytearray, shifts: array[int]) -> bytes:
    """The index of a whole file; `shifts`, where frames are reordered, says how many places after its own in the file
    each sample is shown. Then samples are shown `delay` frames late, and an edit begins the video with the first one.
    """
    count = len(sizes)
    duration = count * _TICKS
    shift = np.frombuffer(shifts, np.int32).astype(np.int64)
    delay = int(-shift.min(initial=0))
    edit = _edit(duration, delay * _TICKS) if delay else b""
    composition = _composition((shift + delay) * _TICKS) if delay else b""
    mdia = _box(
        b"mdia",
        _times(b"mdhd", track.timescale, duration, struct.pack(">HH", 0x55C4, 0)),  # language "und"
        _full(b"hdlr", 0, 0, struct.pack(">I4s12x", 0, b"vide"), b"penstock\0"),
        _box(
            b"minf",
            _full(b"vmhd", 0, 1, bytes(8)),
            _box(b"dinf", _full(b"dref", 0, 0, struct.pack(">I", 1), _full(b"url ", 0, 1))),
            _sample_table(track, offsets, sizes, keys, composition),
        ),
    )
    mvhd_tail = struct.pack(">IH10x", 0x10000, 0x100) + _UNITY_MATRIX + bytes(24) + struct.pack(">I", 2)
    return _box(
        b"moov",
        _times(b"mvhd", track.timescale, duration, mvhd_tail),
        _box(b"trak", _track_header(track, duration), edit, mdia),
    )


def mjpeg_stsd(width: int, height: int) -> bytes:
    """JPEG frames are declared as an MPEG-4 visual stream of object type 0x6C, as FFmpeg declares them."""
    decoder = _descriptor(4, struct.pack(">BBIII", _OTI_JPEG, _VISUAL_STREAM << 2 | 1, 0, 0, 0))
    es = _descriptor(3, struct.pack(">HB", 1, 0) + decoder + _descriptor(6, b"\x02"))
    return visual_stsd(b"mp4v", width, height, _full(b"esds", 0, 0, es))


def visual_stsd(name: bytes, width: int, height: int, record: bytes) -> bytes:
    """The sample description of a coded video, with the box that describes its codec."""
    entry = (
        bytes(6)
        + struct.pack(">H16x", 1)
        + struct.pack(">HHII4xH32xHh", width, height, 72 << 16, 72 << 16, 1, 24, -1)
        + record
    )
    return _full(b"stsd", 0, 0, struct.pack(">I", 1), _box(name, entry))


def _sample_table(track: Track, offsets: array[int], sizes: array[int], keys: bytearray, composition: bytes) -> bytes:
    count = len(sizes)
    offset = np.frombuffer(offsets, np.int64)
    size = np.frombuffer(sizes, np.uint32)
    starts = _chunk_starts(offset, size, track.fps)
    tables = [
        track.stsd,
        _full(b"stts", 0, 0, struct.pack(">III", 1, count, _TICKS)),
        composition,
    ]
    key = np.frombuffer(keys, np.uint8)
    if not key.all():
        key_numbers = np.flatnonzero(key) + 1
        tables.append(_full(b"stss", 0, 0, struct.pack(">I", len(key_numbers)), key_numbers.astype(">u4").tobytes()))
    tables += [
        _full(b"stsc", 0, 0, _sample_to_chunk(starts, count)),
        _full(b"stsz", 0, 0, struct.pack(">II", 0, count), size.astype(">u4").tobytes()),
        _full(b"co64", 0, 0, struct.pack(">I", len(starts)), offset[starts].astype(">u8").tobytes()),
    ]
    return _box(b"stbl", *tables)


def _composition(late: NDArray[np.int64]) -> bytes:
    """ctts: by how many ticks each sample is shown after it is decoded; equal neighbours share one entry."""
    changes = np.ones(len(late), np.bool_)
    changes[1:] = late[1:] != late[:-1]
    first = np.flatnonzero(changes)
    entries = np.column_stack([np.diff(np.append(first, len(late))), late[first]])
    return _full(b"ctts", 0, 0, struct.pack(">I", len(first)), entries.astype(">u4").tobytes())


def _edit(duration: int, start: int) -> bytes:
    """edts: what is shown begins at a time of the track, so that the first frame is shown at 0."""
    version = int(duration > 0xFFFF_FFFF)
    entry = struct.pack(">Qqhh" if version else ">Iihh", duration, start, 1, 0)
    return _box(b"edts", _full(b"elst", version, 0, struct.pack(">I", 1), entry))


def _chunk_starts(offset: NDArray[np.int64], size: NDArray[np.uint32], fps: int) -> NDArray[np.int64]:
    """A chunk is a run of neighbouring samples, at most one second long, because players buffer by chunks."""
    breaks = np.ones(len(offset), np.bool_)
    breaks[1:] = offset[1:] != offset[:-1] + size[:-1]
    run_starts = np.flatnonzero(breaks)
    within_run = np.arange(len(offset)) - np.repeat(run_starts, np.diff(np.append(run_starts, len(offset))))
    return np.flatnonzero(within_run % fps == 0)


def _sample_to_chunk(starts: NDArray[np.int64], count: int) -> bytes:
    """Chunks of equal length in a row share one entry."""
    lengths = np.diff(np.append(starts, count))
    changes = np.ones(len(lengths), np.bool_)
    changes[1:] = lengths[1:] != lengths[:-1]
    first = np.flatnonzero(changes)
    entries = np.column_stack([first + 1, lengths[first], np.ones(len(first), np.int64)])
    return struct.pack(">I", len(first)) + entries.astype(">u4").tobytes()


def _track_header(track: Track, duration: int) -> bytes:
    version = int(duration > 0xFFFF_FFFF)
    times = struct.pack(">QQIIQ" if version else ">IIIII", 0, 0, 1, 0, duration)
    size = struct.pack(">II", track.width << 16, track.height << 16)
    return _full(b"tkhd", version, 3, times, bytes(16), _UNITY_MATRIX, size)


def _times(name: bytes, timescale: int, duration: int, tail: bytes) -> bytes:
    """mvhd and mdhd: creation and change times (always zero: files must not depend on the clock), scale, duration."""
    version = int(duration > 0xFFFF_FFFF)
    return _full(name, version, 0, struct.pack(">QQIQ" if version else ">IIII", 0, 0, timescale, duration), tail)


def _box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), name) + body


def _full(name: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return _box(name, struct.pack(">I", version << 24 | flags), *parts)


def _descriptor(tag: int, body: bytes) -> bytes:
    return struct.pack(">BB", tag, len(body)) + body
