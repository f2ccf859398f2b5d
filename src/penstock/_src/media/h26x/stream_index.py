"""What one scan of an H.264 or H.265 stream finds, message by message: key frames, order, parameter sets, damage."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.h26x import h264, h265
from penstock._src.media.h26x.nal import MissingSet, PictureFormat, StreamCodec, annex_b, length_prefixed, nal_units
from penstock._src.media.h26x.stream_order import KEY, LEADING, REORDERED, H264Pictures, H265Pictures
from penstock.errors import VideoError

UNUSABLE, MISSING = 8, 16
BEFORE_KEY = "comes before the first key frame"

_MAX_VERSIONS = 1000
_MAX_REASONS = 1000

_MODULES: Mapping[StreamCodec, ModuleType] = {"h264": h264, "h265": h265}


@dataclass(frozen=True, eq=False)
class ParameterSets:
    """The parameter sets that are in force at a picture."""

    codec: StreamCodec
    units: tuple[bytes, ...]
    active: h264.H264Sps | h265.H265Sps

    @property
    def picture(self) -> PictureFormat:
        return self.active.picture

    @property
    def stream_bytes(self) -> bytes:
        """What a decoder must be given before a picture that comes without them."""
        return annex_b(self.units)

    def stsd(self) -> bytes:
        """The sample description of an MP4 file with this stream."""
        module = _MODULES[self.codec]
        kinds = [(module.unit_type(unit), unit) for unit in self.units]
        units = {kind: [unit for each, unit in kinds if each == kind] for kind in module.PARSERS}
        return bytes(module.describe(units, self.active))


@dataclass(frozen=True, eq=False)
class StreamIndex:
    """One entry per message: flags, and which of `sets` are in force."""

    codec: StreamCodec
    flags: NDArray[np.uint8]
    versions: NDArray[np.uint16]
    sets: tuple[ParameterSets, ...]
    reasons: Mapping[int, str]  # of the first damaged messages

    @property
    def nbytes(self) -> int:
        return self.flags.nbytes + self.versions.nbytes + sum(len(unit) for each in self.sets for unit in each.units)

    @property
    def first_picture(self) -> PictureFormat:
        """What the first picture that can be decoded looks like."""
        key = np.flatnonzero((self.flags & (KEY | UNUSABLE)) == KEY)[0]
        return self.sets[int(self.versions[key])].picture

    def has(self, bit: int) -> NDArray[np.bool_]:
        """The messages that have a flag."""
        is_set: NDArray[np.bool_] = (self.flags & bit) != 0
        return is_set

    @property
    def delay(self) -> int:
        """How many further messages a decoder may need before it shows a picture."""
        return max((each.picture.reorder for each in self.sets), default=0)

    def key_at_or_before(self, number: int) -> int | None:
        """The usable key frame from which a decoder reaches the message."""
        keys = np.flatnonzero((self.flags[: number + 1] & (KEY | UNUSABLE)) == KEY)
        return int(keys[-1]) if len(keys) else None

    def rest_of_group(self, number: int) -> range:
        """The messages that are lost with this one: all up to the next key frame; with B-frames, those before, too."""
        after = np.flatnonzero(self.has(KEY)[number + 1 :])
        stop = number + 1 + int(after[0]) if len(after) else len(self.flags)
        keys = np.flatnonzero(self.has(KEY)[: number + 1])
        start = int(keys[-1]) if len(keys) else 0
        return range(start if bool(self.has(REORDERED)[start:stop].any()) else number, stop)

    def why(self, number: int) -> str:
        """Why a message cannot be used."""
        if number in self.reasons:
            return self.reasons[number]
        key = self.key_at_or_before(number)
        if key is None and not self.has(KEY)[: number + 1].any():
            return BEFORE_KEY
        group = self.rest_of_group(number)
        cause = next((each for each in sorted(self.reasons, reverse=True) if each < group.stop), None)
        return "cannot be decoded" if cause is None else depends_on(cause)


def depends_on(number: int) -> str:
    return f"cannot be decoded without message {number:,}"


def to_sample(codec: StreamCodec, data: bytes) -> bytes:
    """A message's picture as a sample of an MP4 file: parameter sets lie in the sample description instead."""
    module = _MODULES[codec]
    return length_prefixed(unit for unit in nal_units(data) if module.unit_type(unit) not in module.NOT_IN_SAMPLES)


class StreamScanner:
    """Takes the messages of a stream one after the other; `finish` gives the index."""

    def __init__(self, codec: StreamCodec) -> None:
        self.codec: StreamCodec = codec
        self._tracker: H264Pictures | H265Pictures = H264Pictures() if codec == "h264" else H265Pictures()
        self._flags = array("B")
        self._versions = array("H")
        self._sets: list[ParameterSets] = []
        self._known: dict[tuple[tuple[bytes, ...], int], int] = {}
        self._reasons: dict[int, str] = {}
        self._group = 0  # where the pictures of the present key frame begin
        self._has_key_frame = False  # a key frame has come
        self._broken = True  # nothing can be decoded until the next key frame
        self._restarted = True  # nothing before the last key frame can be decoded

    def add(self, data: bytes | None, problem: str | None = None) -> None:
        """The next message; without data it is missing, `problem` says why it could not be read."""
        number = len(self._flags)
        flags = version = 0
        try:
            if data is None:
                flags = MISSING if problem is None else 0
                raise VideoError(problem or "is lost")
            picture, sps = self._tracker.take(nal_units(data))
            version = self._version(sps)
            flags = picture
        except MissingSet as error:
            self._break(number, flags, error.message if self._has_key_frame else None)
            return
        except VideoError as error:
            self._break(number, flags, error.message)
            return
        if flags & KEY:
            self._restarted = self._broken
            self._broken = False
            self._has_key_frame = True
            self._end_group(number)
        elif self._broken:
            flags |= UNUSABLE
        if flags & LEADING and self._restarted:
            flags |= UNUSABLE
        self._flags.append(flags)
        self._versions.append(version)

    def finish(self) -> StreamIndex:
        self._end_group(len(self._flags))
        return StreamIndex(
            self.codec,
            np.frombuffer(self._flags, np.uint8) if self._flags else np.zeros(0, np.uint8),
            np.frombuffer(self._versions, np.uint16) if self._versions else np.zeros(0, np.uint16),
            tuple(self._sets),
            self._reasons,
        )

    def _break(self, number: int, flags: int, reason: str | None) -> None:
        self._broken = True
        self._tracker.restart()
        if reason is not None and len(self._reasons) < _MAX_REASONS:
            self._reasons[number] = reason
        self._flags.append(flags | UNUSABLE)
        self._versions.append(self._versions[-1] if number else 0)

    def _end_group(self, stop: int) -> None:
        """Pictures that are shown out of order cannot be identified when one of them is missing."""
        group = memoryview(self._flags)[self._group : stop]
        if any(flags & REORDERED for flags in group) and any(flags & UNUSABLE for flags in group):
            for place in range(len(group)):
                # Leading pictures that cannot be decoded stand for nothing else.
                group[place] |= UNUSABLE
        group.release()
        self._group = stop

    def _version(self, sps: h264.H264Sps | h265.H265Sps) -> int:
        units = self._tracker.units
        place = self._known.get((units, sps.number))
        if place is None:
            if len(self._sets) >= _MAX_VERSIONS:
                raise VideoError("its parameter sets change all the time")
            place = len(self._sets)
            self._known[units, sps.number] = place
            self._sets.append(ParameterSets(self.codec, units, sps))
        return place
