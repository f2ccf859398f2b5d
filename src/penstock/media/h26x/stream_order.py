"""Follows the pictures of a stream by their headers: key frames, the order in which they are shown, what is missing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from penstock.errors import VideoError
from penstock.media.h26x import h264, h265
from penstock.media.h26x.nal import MAX_SET_BYTES

KEY, REORDERED, LEADING = 1, 2, 4
"""Flags of a picture: decoding can begin at it; it is shown before one that came earlier; it is shown before its key
frame and predicted from pictures before that."""

_MOST_SPSS, _MOST_SETS = 31, 255  # what a sample description can hold
_CRA = 21
_REMEMBERED = 1024  # pictures that may still be predicted from: far more than any decoder keeps


@dataclass(frozen=True)
class Found:
    """One picture: its flags, and the sequence parameter set in force."""

    flags: int
    sps: Any


class _Sets:
    """The parameter sets that have come so far."""

    def __init__(self) -> None:
        self._units: dict[tuple[int, int], bytes] = {}
        self.units: tuple[bytes, ...] = ()
        self.spss: dict[int, Any] = {}
        self.ppss: dict[int, Any] = {}

    def _keep(self, kind: int, number: int, unit: bytes) -> None:
        if self._units.get((kind, number)) != unit:
            self._units[kind, number] = unit
            if len(self._units) > _MOST_SETS or len(self.spss) > _MOST_SPSS:
                raise VideoError(f"{len(self._units)} parameter sets, {len(self.spss)} of them for sequences")
            self.units = tuple(self._units[place] for place in sorted(self._units))

    def _check_size(self, unit: bytes) -> None:
        if len(unit) > MAX_SET_BYTES:
            raise VideoError(f"a parameter set of {len(unit):,} bytes, at most {MAX_SET_BYTES:,} are read")


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


class H264Pictures(_Sets):
    """Takes the units of one message after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._order = _Order()
        self._last_reference: int | None = None

    def restart(self) -> None:
        self._last_reference = None

    def take(self, units: list[bytes]) -> Found:
        heads: list[h264.SliceHead] = []
        for unit in units:
            kind = h264.unit_type(unit)
            if kind == h264.SPS:
                self._check_size(unit)
                sps = h264.parse_sps(unit)
                self.spss[sps.number] = sps
                self._keep(kind, sps.number, unit)
            elif kind == h264.PPS:
                self._check_size(unit)
                pps = h264.parse_pps(unit)
                self.ppss[pps.number] = pps
                self._keep(kind, pps.number, unit)
            elif kind in h264.PICTURE_TYPES and len(heads) < 3:
                head = h264.parse_slice(unit, self.spss, self.ppss)
                if head.starts_picture or not heads:
                    heads.append(head)
        first = _only_picture(heads, 2 if heads and heads[0].is_field else 1)
        return Found(KEY * first.is_key | REORDERED * self._follow(first), first.sps)

    def _follow(self, head: h264.SliceHead) -> bool:
        """Check that no picture is missing before this one; whether it is shown before one that came earlier."""
        if head.is_key:
            self._order.begin()
        elif self._last_reference is not None and not head.is_field and not head.sps.gaps_allowed:
            expected = (self._last_reference + 1) % (1 << head.sps.frame_num_bits)
            if head.frame_num != expected:
                raise VideoError(f"a picture is missing before it: it has number {head.frame_num}, not {expected}")
        if head.is_key or (head.is_reference and self._last_reference is not None):
            self._last_reference = head.frame_num
        if head.poc_lsb is None:
            return head.sps.poc_type == 1 and head.sps.picture.reorder > 0
        return self._order.place(head.poc_lsb, head.sps.poc_bits, anchors=head.is_reference)[1]


class H265Pictures(_Sets):
    """Takes the units of one message after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._order = _Order()
        self._begins = True  # the next key frame begins a sequence
        self._fresh = True  # nothing before the last key frame is needed
        self._seen: deque[int] = deque(maxlen=_REMEMBERED)

    def restart(self) -> None:
        self._begins = True

    def take(self, units: list[bytes]) -> Found:
        heads: list[h265.SliceHead] = []
        ended = False
        for unit in units:
            kind = h265.unit_type(unit)
            if not h265.is_base_layer(unit):
                continue
            if kind in h265.SET_TYPES:
                self._take_set(kind, unit)
            elif kind == h265.END_OF_SEQUENCE:
                ended = True
            elif kind in h265.PICTURE_TYPES and len(heads) < 3:
                head = h265.parse_slice(unit, self.spss, self.ppss)
                if head.starts_picture or not heads:
                    heads.append(head)
        first = _only_picture(heads, 1)
        if not first.shown:
            raise VideoError("holds a picture that is not shown")
        flags = KEY * (first.kind in h265.KEY_TYPES) | LEADING * (first.kind in h265.SKIPPED_LEADING_TYPES)
        flags |= REORDERED * self._follow(first)
        if first.kind in h265.KEY_TYPES or not self._begins:
            self._begins = ended
        return Found(flags, first.sps)

    def _take_set(self, kind: int, unit: bytes) -> None:
        self._check_size(unit)
        if kind == h265.VPS:
            number = h265.parse_vps(unit)
        elif kind == h265.SPS:
            sps = h265.parse_sps(unit)
            number = sps.number
            self.spss[number] = sps
        else:
            pps = h265.parse_pps(unit)
            number = pps.number
            self.ppss[number] = pps
        self._keep(kind, number, unit)

    def _follow(self, head: h265.SliceHead) -> bool:
        """Check that what the picture is predicted from has come; whether it is shown before one that came earlier."""
        is_key = head.kind in h265.KEY_TYPES
        if is_key:
            self._fresh = self._begins or head.kind != _CRA  # a CRA frame in the middle goes on counting
            if self._fresh:
                self._order.begin()
                self._seen.clear()
        referenced = head.kind >= 16 or head.kind % 2 == 1
        anchors = head.layer == 0 and referenced and head.kind not in h265.LEADING_TYPES
        place, late = self._order.place(head.poc_lsb, head.sps.poc_bits, anchors=anchors)
        skipped = head.kind in h265.SKIPPED_LEADING_TYPES and self._fresh
        if not is_key and not skipped:
            missing = sum(place + distance not in self._seen for distance in head.references)
            if missing and not self._begins:
                raise VideoError(f"a picture is missing before it: {missing} that it is predicted from")
        self._seen.append(place)
        return late


def _only_picture(heads: list[Any], most: int) -> Any:
    if not heads:
        raise VideoError("holds no picture")
    if not heads[0].starts_picture:
        raise VideoError("begins in the middle of a picture")
    if len(heads) > most:
        raise VideoError(f"holds {len(heads)} pictures or more, and one is expected")
    return heads[0]
