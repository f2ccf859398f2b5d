"""Where every frame of an MP4 file lies: offset, size, time and key flag, from the index alone.

With it a frame is read by one positional read, outside any library. The parser trusts nothing: every count is held
against the bytes that are really there before an array is made: a damaged or hostile file costs an error, not memory.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.content import foreign_content
from penstock._src.media.mp4.tree import Box
from penstock._src.system.files import ByteSource, ReadErrors, as_path, open_source
from penstock.errors import LimitExceeded, VideoError

MAX_INDEX_BYTES = 256 * 1024 * 1024
MAX_SAMPLES = 16_000_000
"""Six days at 30 frames a second; an index of that length takes 350 MB."""

_MAX_TICKS = 1 << 60  # sums of times stay far from the end of 64 bits
_CODEC_BY_ENTRY = {
    "avc1": "h264", "avc3": "h264", "hev1": "hevc", "hvc1": "hevc", "av01": "av1", "vp08": "vp8", "vp09": "vp9",
    "jpeg": "mjpeg", "mjpa": "mjpeg", "mjpb": "mjpeg", "png ": "png",
}  # fmt: skip
_CODEC_BY_OBJECT_TYPE = {0x20: "mpeg4", 0x21: "h264", 0x23: "hevc", 0x6C: "mjpeg", 0x6D: "png"}


ERRORS = ReadErrors(VideoError)


@dataclass(frozen=True)
class VideoIndex:
    """The samples of the first video track, in decoding order."""

    path: str
    codec: str
    """As FFmpeg names it ("mjpeg", "h264", "hevc", "av1"), or the four letters of the sample entry."""
    width: int
    height: int
    timescale: int
    count: int
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int32]
    pts: NDArray[np.int64]
    """Presentation times in units of 1/timescale, after the edit list."""
    key: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    """False for samples that the edit list keeps only for decoding (before its start, after its end)."""
    duration_s: float
    """What the samples last together."""
    fps: float
    description: bytes = b""
    """The sample description (the whole stsd box) as it stands in the file."""

    def presentation_order(self) -> NDArray[np.int64]:
        """Sample numbers of the shown frames in the order in which they are seen."""
        shown = np.flatnonzero(self.shown)
        order: NDArray[np.int64] = shown[np.argsort(self.pts[shown], kind="stable")]
        return order


def read_index(path: str | os.PathLike[str]) -> VideoIndex:
    """Read the index of an MP4 (or QuickTime) file; nothing but the index is read.

    >>> index = read_index("cam.mp4")                                                # doctest: +SKIP
    >>> open_source("cam.mp4").read(index.offsets[7], index.sizes[7])                # doctest: +SKIP
    """
    moov, file_bytes = _open_moov(path)
    try:
        return _parse_track(moov, _video_track(moov), file_bytes)
    except (ValueError, IndexError, OverflowError) as error:  # of numpy: tables of other lengths than they claim
        raise moov.error(f"its tables contradict each other: {error}") from error


def read_codec(path: str | os.PathLike[str]) -> str:
    """The codec of an MP4 file as `read_index` names it, without a look at its samples."""
    moov, _ = _open_moov(path)
    return _sample_entry(_video_track(moov).need("mdia", "minf", "stbl", "stsd"))[0]


def _open_moov(path: str | os.PathLike[str]) -> tuple[Box, int]:
    """The index of a file, not yet looked at, and the size of the file."""
    name = str(as_path(path))
    try:
        with open_source(path, ERRORS) as source:
            moov_offset, moov = _read_moov(source, name, source.size_bytes)
            return Box(name, "moov", moov, 0, len(moov), moov_offset), source.size_bytes
    except VideoError:
        if (foreign := foreign_content(name, "mp4")) is not None:
            raise VideoError(f"{name} is {foreign.what}, not a video", hint=foreign.hint) from None
        raise


def _read_moov(source: ByteSource, name: str, file_bytes: int) -> tuple[int, bytes]:
    position = 0
    while len(head := source.read(position, 16)) >= 8:
        size, kind = struct.unpack_from(">I4s", head)
        header = 8
        if size == 1 and len(head) == 16:
            (size,) = struct.unpack_from(">Q", head, 8)
            header = 16
        elif size == 0:
            size = file_bytes - position
        if kind == b"moof":
            raise VideoError(f"{name}: byte {position:,}: a fragmented MP4, whose index is scattered", hint=_REMUX)
        if position == 0 and not kind.isascii():
            raise VideoError(f"{name}: not an MP4 file: it starts with {head.hex(' ')}")
        if size < header or position + size > file_bytes:
            raise VideoError(
                f"{name}: byte {position:,}: box {kind.decode('latin-1')!r} claims {size:,} bytes, "
                f"the file has {file_bytes - position:,} left",
                hint="the file is cut or damaged",
            )
        if kind == b"moov":
            if size > MAX_INDEX_BYTES:
                raise LimitExceeded(f"{name}: an index of {size:,} bytes", size=size, limit=MAX_INDEX_BYTES)
            return position + header, source.read_exactly(position + header, size - header)
        position += size
    raise VideoError(
        f"{name}: no index (moov) in {file_bytes:,} bytes",
        hint="the file is not an MP4, or its writer was stopped before the end",
    )


_REMUX = "ffmpeg -i IN -c copy OUT.mp4 rewrites it with one index"


def _video_track(moov: Box) -> Box:
    if moov.find("mvex") is not None:
        raise VideoError(f"{moov.path}: a fragmented MP4, whose index is scattered over the file", hint=_REMUX)
    for trak in moov.children():
        if trak.kind != "trak":
            continue
        handler = trak.find("mdia", "hdlr")
        if handler is not None and len(handler) >= 12 and handler.letters(8) == "vide":
            return trak
    raise VideoError(f"{moov.path}: the file has no video track")


def _parse_track(moov: Box, trak: Box, file_bytes: int) -> VideoIndex:
    timescale = _timescale(trak.need("mdia", "mdhd"))
    stbl = trak.need("mdia", "minf", "stbl")
    stsd = stbl.need("stsd")
    codec, width, height = _sample_entry(stsd)
    sizes = _sample_sizes(stbl)
    offsets = _sample_offsets(stbl, sizes)
    outside = (offsets < 0) | (offsets > file_bytes) | (offsets + sizes > file_bytes)  # a sum alone may overflow
    if outside.any():
        number = int(np.flatnonzero(outside)[0])
        raise VideoError(
            f"{moov.path}: sample {number} lies at bytes {int(offsets[number]):,}…"
            f"{int(offsets[number] + sizes[number]):,}, the file has {file_bytes:,}",
            hint="the file is cut or damaged",
        )
    dts, end = _decode_times(stbl, len(sizes))
    pts, shown = _edited(moov, trak, timescale, _composition_times(stbl, dts))
    return VideoIndex(
        path=moov.path,
        codec=codec,
        width=width,
        height=height,
        timescale=timescale,
        count=len(sizes),
        offsets=offsets,
        sizes=sizes.astype(np.int32),
        pts=pts,
        key=_key_flags(stbl, len(sizes)),
        shown=shown,
        duration_s=end / timescale,
        fps=float(Fraction(len(sizes) * timescale, end)) if end > 0 else 0.0,
        description=struct.pack(">I4s", 8 + len(stsd), b"stsd") + stsd.data[stsd.start : stsd.end],
    )


def _sample_entry(stsd: Box) -> tuple[str, int, int]:
    entry = next(stsd.children(at=8), None)
    if entry is None:
        raise stsd.error("has no sample entry")
    width, height = entry.unpack(">HH", 24)
    codec = _CODEC_BY_ENTRY.get(entry.kind, entry.kind)
    if entry.kind == "mp4v":
        esds = entry.find("esds", at=78)
        codec = _CODEC_BY_OBJECT_TYPE.get(_object_type(esds), "mpeg4") if esds is not None else "mpeg4"
    return codec, width, height


def _object_type(esds: Box) -> int:
    """The object type of the decoder: descriptor 3 (stream) holds descriptor 4 (decoder), whose first byte it is."""
    at = 4
    for _ in range(2):
        tag, at = esds.unpack(">B", at)[0], at + 1
        for _ in range(4):  # the length takes up to four bytes, the last without its high bit
            (byte,) = esds.unpack(">B", at)
            at += 1
            if byte < 0x80:
                break
        if tag == 4:
            return esds.unpack(">B", at)[0]
        (flags,) = esds.unpack(">B", at + 2)
        at += 3 + (2 if flags & 0x80 else 0) + (2 if flags & 0x20 else 0)
        if flags & 0x40:
            at += 1 + esds.unpack(">B", at)[0]
    return 0


def _sample_sizes(stbl: Box) -> NDArray[np.int64]:
    stsz = stbl.need("stsz")
    size, count = stsz.unpack(">II", 4)
    if count > MAX_SAMPLES:
        raise LimitExceeded(f"{stbl.path}: the index claims {count:,} samples", size=count, limit=MAX_SAMPLES)
    return np.full(count, size, np.int64) if size else stsz.table(">u4", 1, at=8)[:, 0]


def _sample_offsets(stbl: Box, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    count = len(sizes)
    co64 = stbl.find("co64")
    chunk_offsets = (co64.table(">u8", 1) if co64 is not None else stbl.need("stco").table(">u4", 1))[:, 0]
    stsc = stbl.need("stsc")
    runs = stsc.table(">u4", 3)
    if count == 0:
        return np.zeros(0, np.int64)
    first = runs[:, 0]
    if first[0] != 1 or (runs[:, 2] != 1).any():
        raise stsc.error("the track changes its sample description midway, or does not begin with its first chunk")
    per_chunk = np.repeat(runs[:, 1], np.diff(np.append(first, len(chunk_offsets) + 1)))
    ends = np.minimum(np.cumsum(per_chunk), count)  # at most 2^26 chunks of 2^32 samples: no overflow
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    shift = chunk_offsets - before[starts]
    return np.asarray(np.repeat(shift, ends - starts) + before[:-1], np.int64)


def _decode_times(stbl: Box, count: int) -> tuple[NDArray[np.int64], int]:
    """Decoding time of each sample, and where the last one ends."""
    durations = _spread(stbl.need("stts"), count)
    if len(durations) < count:
        raise stbl.error(f"gives times for {len(durations):,} of {count:,} samples")
    times = np.concatenate([np.zeros(1, np.int64), np.cumsum(durations)])
    return times[:-1], int(times[-1])


def _composition_times(stbl: Box, dts: NDArray[np.int64]) -> NDArray[np.int64]:
    ctts = stbl.find("ctts")
    if ctts is None:
        return dts
    shifts = _spread(ctts, len(dts)).astype(np.uint32).view(np.int32)  # version 0 files hold negative ones, too
    return dts + np.pad(shifts.astype(np.int64), (0, len(dts) - len(shifts)))


def _spread(table: Box, count: int) -> NDArray[np.int64]:
    """The values of at most `count` samples from a table of (number of samples, value)."""
    runs = table.table(">u4", 2)
    ends = np.minimum(np.cumsum(runs[:, 0]), count)
    return np.repeat(runs[:, 1], np.diff(ends, prepend=0))


def _edited(
    moov: Box, trak: Box, timescale: int, pts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    elst = trak.find("edts", "elst")
    if elst is None:
        return pts, np.ones(len(pts), np.bool_)
    (version,) = elst.unpack(">B")
    (count,) = elst.unpack(">I", 4)
    layout, row_bytes = (">QqI", 20) if version == 1 else (">IiI", 12)
    edits = [elst.unpack(layout, 8 + row_bytes * k) for k in range(min(count, 3))]
    delay = 0
    if edits and edits[0][1] == -1:  # an empty edit: the track starts later
        delay = edits[0][0] * timescale // _timescale(moov.need("mvhd"))
        edits = edits[1:]
        count -= 1
    if count > 1:
        raise elst.error(f"{count:,} edits: the video is a cut of several pieces")
    duration, media_time, _ = edits[0] if edits else (0, 0, 0)
    if not 0 <= media_time < _MAX_TICKS or delay >= _MAX_TICKS:
        raise elst.error(f"an edit that begins at {media_time} after a pause of {delay} ticks")
    shown = pts >= media_time
    if duration:  # 0: to the end; one tick of the movie's clock is allowed for rounding
        shown_ticks = (duration + 1) * timescale // _timescale(moov.need("mvhd"))
        shown &= pts - media_time < min(shown_ticks, _MAX_TICKS)
    return pts - media_time + delay, shown


def _timescale(header: Box) -> int:
    """Ticks per second, of a track or of the movie."""
    (version,) = header.unpack(">B")
    (timescale,) = header.unpack(">I", 20 if version == 1 else 12)
    if timescale < 1:
        raise header.error("a time scale of 0")
    return timescale


def _key_flags(stbl: Box, count: int) -> NDArray[np.bool_]:
    stss = stbl.find("stss")
    if stss is None:
        return np.ones(count, np.bool_)
    numbers = stss.table(">u4", 1)[:, 0]
    if (numbers < 1).any():
        raise stss.error("names a key frame before the first")
    key = np.zeros(count, np.bool_)
    key[numbers - 1] = True
    return key
