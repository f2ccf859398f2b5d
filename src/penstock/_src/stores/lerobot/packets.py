"""The frames of an episode as they lie in its video file: whether they can be moved, and their bytes in blocks."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot.read.frames import EpisodeFrames
from penstock._src.media.mp4.index import VideoIndex
from penstock._src.media.mp4.tree import Box
from penstock._src.media.video import decode
from penstock._src.stores.store import PacketBlock, Packets
from penstock._src.system.files import ByteSource, ReadErrors, open_source
from penstock.errors import VideoError

_ENTRY_BYTES = 78  # of a visual sample entry before the boxes inside it
_COMPRESSOR_NAME = slice(42, 74)
# What a file says about its own bit rate and padding; with it the description would differ between episodes.
_DROPPED_BOXES = ("btrt", "free", "skip")
_CONFIGURATION = {"h264": ("avcC", 4, 0x03), "hevc": ("hvcC", 21, 0x03)}  # where the size of a length field stands
_MOST_UNITS = 256
# Kinds of NAL units that hold an image with which decoding can begin.
_H264_IDR = 5
_HEVC_BLA, _HEVC_IDR, _HEVC_CRA = (16, 17, 18), (19, 20), 21


# Decoders keep to one thread each: the bytes must not depend on how many cores there are.
_DECODER_THREADS = 1


class EpisodePackets(Packets):
    """The frames that `FrameFinder` found."""

    def __init__(self, frames: EpisodeFrames) -> None:
        self._frames = frames
        self.codec, self.count = frames.index.codec, frames.count
        self.key_rows = np.flatnonzero(frames.index.key[frames.samples])

    @property
    def description(self) -> bytes:
        return description(self._frames.index)

    @property
    def pixel_format(self) -> str:
        return decode.pixel_format(self._frames.path)

    def blocks(self, block_bytes: int) -> Generator[PacketBlock, None, None]:
        return move(self._frames, block_bytes)

    def decoded(self, rows: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        first = self._frames.first
        numbers = range(first + rows.start, first + rows.stop) if isinstance(rows, range) else [first + r for r in rows]
        return (rgb for _, rgb in decode.frames(self._frames.path, numbers, _DECODER_THREADS))


def why_not_movable(frames: EpisodeFrames) -> str | None:
    """The reason for which the samples of an episode cannot stand in another file as they are, or None."""
    index, samples = frames.index, np.sort(frames.samples)
    if index.codec not in _CONFIGURATION and (np.diff(frames.samples) < 0).any():
        return f"frames are stored in another order than they are shown (B-frames of {index.codec})"
    if not index.key[samples[0]]:
        return "the episode does not begin with a key frame"
    if (np.diff(samples) != 1).any():
        if (np.diff(frames.samples) > 0).all():
            return "frames that are not shown lie between its frames"
        return "frames of another episode, or frames that are not shown, lie between its frames (B-frames, open GOP)"
    if int(index.sizes[samples].min(initial=1)) < 1:
        return "a frame has no bytes"
    if index.codec in _CONFIGURATION and not _begins_anew(frames):
        return "the first frame needs frames before it, though it is marked as a key frame"
    return None


def description(index: VideoIndex) -> bytes:
    """The sample description for another file: codec and colours as they are, without what is about the old file."""
    stsd = Box(index.path, "stsd", index.description, 8, len(index.description), 0)
    entry = next(stsd.children(at=8), None)
    if entry is None or len(entry) < _ENTRY_BYTES:
        raise stsd.error("has no whole sample entry")
    head = bytearray(entry.data[entry.start : entry.start + _ENTRY_BYTES])
    head[_COMPRESSOR_NAME] = bytes(32)
    body = bytes(head)
    for child in entry.children(at=_ENTRY_BYTES):
        if child.kind not in _DROPPED_BOXES:
            body += _box(child.kind, child.data[child.start : child.end])
    return _box("stsd", struct.pack(">II", 0, 1) + _box(entry.kind, body))


def move(frames: EpisodeFrames, block_bytes: int) -> Generator[PacketBlock, None, None]:
    """The samples of an episode in blocks, in the order of the file: neighbours are read by one call, a frame that is
    shown twice only once.
    """
    index, samples = frames.index, np.sort(frames.samples)
    offsets, sizes, keys = index.offsets[samples], index.sizes[samples].astype(np.int64), index.key[samples]
    again = np.zeros(len(samples), np.bool_)
    shifts = _shifts(frames)
    if shifts is not None:
        keys = keys & _begins_closed(shifts)
    else:
        again[1:] = (offsets[1:] == offsets[:-1]) & (sizes[1:] == sizes[:-1]) & keys[1:] & keys[:-1]
    starts = np.flatnonzero(~again)
    repeats = np.diff(np.append(starts, len(samples))) - 1
    offsets, sizes, keys = offsets[starts], sizes[starts], keys[starts]
    with open_source(frames.path, _ERRORS) as source:
        at = 0
        while at < len(starts):
            stop = _block_end(offsets, sizes, at, block_bytes)
            # Not held here: the block is gone before the next is read.
            yield PacketBlock(
                _read(source, offsets[at:stop].tolist(), sizes[at:stop].tolist()),
                keys[at:stop].tolist(),
                repeats[at:stop].tolist(),
                None if shifts is None else shifts[at:stop].tolist(),
            )
            at = stop


def _shifts(frames: EpisodeFrames) -> NDArray[np.int64] | None:
    """How many places after its own in the file each sample of the episode is shown; None where none is moved."""
    shown = np.empty(frames.count, np.int64)
    shown[frames.samples - frames.samples.min()] = np.arange(frames.count)
    shifts = shown - np.arange(frames.count)
    return shifts if shifts.any() else None


def _begins_closed(shifts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which samples no later one is shown before: a reader that seeks to such a key frame finds all that it shows.

    Key frames of open GOPs are left out: frames that are shown before them need older ones, which readers skip. The
    first of the episode was found to begin anew.
    """
    shown = shifts + np.arange(len(shifts))
    closed = np.ones(len(shown), np.bool_)
    closed[1:-1] = shown[1:-1] < np.minimum.accumulate(shown[::-1])[::-1][2:]
    return closed


def _block_end(offsets: NDArray[np.int64], sizes: NDArray[np.int64], at: int, block_bytes: int) -> int:
    """The end of a run of neighbours that fits into a block; one sample always does."""
    stop = at + 1
    held = int(sizes[at])
    while stop < len(sizes) and int(offsets[stop]) == int(offsets[at]) + held:
        if held + int(sizes[stop]) > block_bytes:
            break
        held += int(sizes[stop])
        stop += 1
    return stop


class _PacketErrors(ReadErrors):
    def cannot_read(self, path: Path, offset: int, error: Exception) -> Exception:
        why = error.strerror if isinstance(error, OSError) else error
        return VideoError(f"{path}: byte {offset:,}: cannot be read: {why}")

    def ends(self, path: Path, offset: int, n_bytes: int, got_bytes: int) -> Exception:
        return VideoError(
            f"{path}: ends at byte {offset + got_bytes:,}, a frame reaches to byte {offset + n_bytes:,}",
            hint="the file is cut; fetch it again",
        )


_ERRORS = _PacketErrors(VideoError)


def _read(source: ByteSource, offsets: list[int], sizes: list[int]) -> list[memoryview]:
    view = memoryview(bytearray(sum(sizes)))
    source.read_into(view, offsets[0])
    pieces, at = [], 0
    for size in sizes:
        pieces.append(view[at : at + size])
        at += size
    return pieces


def _begins_anew(frames: EpisodeFrames) -> bool:
    """H.264, HEVC: whether no decoder needs anything older than the first sample for any frame of the episode.

    H.264 begins anew with an IDR frame. In HEVC, frames that are shown before a CRA or BLA frame may refer to older
    ones; and where frames are reordered, a decoder behind other frames takes a CRA frame for one that goes on.
    """
    index, first = frames.index, int(frames.samples.min())
    kind = _first_unit(frames, first)
    if index.codec == "h264":
        return kind == _H264_IDR
    if kind in _HEVC_IDR:
        return True
    is_reordered = bool((np.diff(index.pts) < 0).any())
    is_first_shown = int(frames.samples[0]) == first
    return kind in (_HEVC_BLA if is_reordered else (*_HEVC_BLA, _HEVC_CRA)) and is_first_shown


def _first_unit(frames: EpisodeFrames, sample: int) -> int | None:
    """H.264, HEVC: the kind of the first unit of a sample that holds a coded image."""
    index = frames.index
    length_bytes = _length_bytes(index)
    at, end = int(index.offsets[sample]), int(index.offsets[sample]) + int(index.sizes[sample])
    with open_source(frames.path, _ERRORS) as source:
        for _ in range(_MOST_UNITS):
            head = source.read(at, length_bytes + 1)
            if at + length_bytes >= end or len(head) <= length_bytes:
                return None
            kind = head[length_bytes]
            if index.codec == "h264" and 1 <= kind & 31 <= 5:
                return kind & 31
            if index.codec == "hevc" and (kind >> 1) & 63 < 32:
                return (kind >> 1) & 63
            at += length_bytes + int.from_bytes(head[:length_bytes], "big")
    return None


def _length_bytes(index: VideoIndex) -> int:
    name, at, mask = _CONFIGURATION[index.codec]
    stsd = Box(index.path, "stsd", index.description, 8, len(index.description), 0)
    entry = next(stsd.children(at=8), None)
    box = None if entry is None else entry.find(name, at=_ENTRY_BYTES)
    if box is None:
        raise stsd.error(f"{index.codec} without {name}")
    return (box.unpack(">B", at)[0] & mask) + 1


def _box(kind: str, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + kind.encode("latin-1") + body
