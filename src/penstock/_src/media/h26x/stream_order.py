"""Follows the pictures of a stream by their headers: key frames, the order in which they are shown, what is missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from types import ModuleType
from typing import Any

from penstock._src.media.h26x import h264, h265
from penstock._src.media.h26x.nal import MAX_SET_BYTES
from penstock.errors import VideoError

KEY, REORDERED, LEADING = 1, 2, 4
"""Flags of a picture: decoding can begin at it; it is shown before one that came earlier; it is shown before its key
frame and predicted from pictures before that."""

_MOST_SPSS, _MOST_SETS = 31, 255  # what a sample description can hold
_CRA = 21
_REMEMBERED = 1024  # pictures that may still be predicted from: far more than any decoder keeps


class _Order:
    """Counts pictures in the order in which they are shown, from the few bits that each slice carries."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._high = self._low = 0
        self._latest: int | None = None

    def place(self, low: int, bits: int, *, anchors: bool) -> tuple[int, bool]:
        """The picture's place in the order, and whether one that came before it is shown after it."""
        half = 1 << (bits - 1)
        high = self._high
        if low < self._low and self._low - low >= half:
            high += 2 * half
        elif low > self._low and low - self._low > half:
            high -= 2 * half
        if anchors:
            self._high, self._low = high, low
        place = high + low
        late = self._latest is not None and place < self._latest
        self._latest = place if self._latest is None else max(self._latest, place)
        return place, late


class _Pictures(ABC):
    """Takes the units of one message after the other, and keeps the parameter sets that have come so far."""

    codec: ModuleType  # h264 or h265

    def __init__(self) -> None:
        self._units: dict[tuple[int, int], bytes] = {}
        self.units: tuple[bytes, ...] = ()
        self._sets: dict[int, dict[int, Any]] = {kind: {} for kind in self.codec.PARSERS}  # by kind, then by number
        self._order = _Order()

    @abstractmethod
    def restart(self) -> None:
        """What follows does not go on from what came before."""

    @abstractmethod
    def _flags(self, header: Any, ended: bool) -> int:
        """What the first slice of a picture tells; `ended`: the sequence ends behind it."""

    def take(self, units: list[bytes]) -> tuple[int, Any]:
        """The flags of the picture in a message, and the sequence parameter set in force."""
        codec, headers, ended = self.codec, list[Any](), False
        for unit in units:
            kind = codec.unit_type(unit)
            if not codec.is_base_layer(unit):
                continue
            if kind in codec.PARSERS:
                self._take_set(kind, unit)
            elif kind == codec.END_OF_SEQUENCE:
                ended = True
            elif kind in codec.PICTURE_TYPES and len(headers) < 3:
                header = codec.parse_slice(unit, self._sets[codec.SPS], self._sets[codec.PPS])
                if header.starts_picture or not headers:
                    headers.append(header)
        if not headers:
            raise VideoError("holds no image")
        if not headers[0].starts_picture:
            raise VideoError("begins in the middle of an image")
        if len(headers) > (2 if headers[0].is_field else 1):
            raise VideoError(f"holds {len(headers)} images or more, and one is expected")
        return self._flags(headers[0], ended), headers[0].sps

    def _take_set(self, kind: int, unit: bytes) -> None:
        if len(unit) > MAX_SET_BYTES:
            raise VideoError(f"a parameter set of {len(unit):,} bytes, at most {MAX_SET_BYTES:,} are read")
        parsed = self.codec.PARSERS[kind](unit)
        self._sets[kind][parsed.number] = parsed
        if self._units.get((kind, parsed.number)) != unit:
            self._units[kind, parsed.number] = unit
            spss = len(self._sets[self.codec.SPS])
            if len(self._units) > _MOST_SETS or spss > _MOST_SPSS:
                raise VideoError(f"{len(self._units)} parameter sets, {spss} of them for sequences")
            self.units = tuple(self._units[place] for place in sorted(self._units))


class H264Pictures(_Pictures):
    """H.264: pictures are counted by their frame numbers."""

    codec = h264

    def __init__(self) -> None:
        super().__init__()
        self._last_reference: int | None = None

    def restart(self) -> None:
        self._last_reference = None

    def _flags(self, header: h264.H264SliceHeader, ended: bool) -> int:
        return KEY * header.is_key | REORDERED * self._follow(header)

    def _follow(self, header: h264.H264SliceHeader) -> bool:
        """Check that no picture is missing before this one; whether it is shown before one that came earlier."""
        if header.is_key:
            self._order.begin()
        elif self._last_reference is not None and not header.is_field and not header.sps.gaps_allowed:
            expected = (self._last_reference + 1) % (1 << header.sps.frame_num_bits)
            if header.frame_num != expected:
                raise VideoError(f"an image is missing before it: it has number {header.frame_num}, not {expected}")
        if header.is_key or (header.is_reference and self._last_reference is not None):
            self._last_reference = header.frame_num
        if header.poc_lsb is None:
            return header.sps.poc_type == 1 and header.sps.picture.reorder > 0
        return self._order.place(header.poc_lsb, header.sps.poc_bits, anchors=header.is_reference)[1]


class H265Pictures(_Pictures):
    """H.265: a picture names those that it is predicted from."""

    codec = h265

    def __init__(self) -> None:
        super().__init__()
        self._begins = True  # the next key frame begins a sequence
        self._fresh = True  # nothing before the last key frame is needed
        self._seen: deque[int] = deque(maxlen=_REMEMBERED)

    def restart(self) -> None:
        self._begins = True

    def _flags(self, header: h265.H265SliceHeader, ended: bool) -> int:
        if not header.shown:
            raise VideoError("holds an image that is not shown")
        is_key = header.kind in h265.KEY_TYPES
        flags = KEY * is_key | LEADING * (header.kind in h265.SKIPPED_LEADING_TYPES) | REORDERED * self._follow(header)
        if is_key or not self._begins:
            self._begins = ended
        return flags

    def _follow(self, header: h265.H265SliceHeader) -> bool:
        """Check that what the picture is predicted from has come; whether it is shown before one that came earlier."""
        is_key = header.kind in h265.KEY_TYPES
        if is_key:
            self._fresh = self._begins or header.kind != _CRA  # a CRA frame in the middle goes on counting
            if self._fresh:
                self._order.begin()
                self._seen.clear()
        referenced = header.kind >= 16 or header.kind % 2 == 1
        anchors = header.layer == 0 and referenced and header.kind not in h265.LEADING_TYPES
        place, late = self._order.place(header.poc_lsb, header.sps.poc_bits, anchors=anchors)
        skipped = header.kind in h265.SKIPPED_LEADING_TYPES and self._fresh
        if not is_key and not skipped:
            missing = sum(place + distance not in self._seen for distance in header.references)
            if missing and not self._begins:
                raise VideoError(f"an image is missing before it: {missing} that it is predicted from")
        self._seen.append(place)
        return late
