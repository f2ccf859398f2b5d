"""Whether a topic has a message for every row: judged where it is recorded, and from when to when that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.align import measure_rate, usual_tolerance_ns
from penstock.align.clock import LARGEST_DIFFERENCE, clock_of
from penstock.align.rate import NS_PER_S
from penstock.conversion.settings import FIXED, Settings
from penstock.recordings.recording import Recording, Topic

_FEWEST = 10  # messages of a topic with values for the rows; in short recordings one for every third row
_SHARE = 0.5  # of the rows that must be left where a topic starts late or ends early
_MOST_ROWS = 100_000  # of a fixed timeline that are looked at


class Density(NamedTuple):
    """What the rows find of one topic; rows outside of its own range are trimmed, those inside are lost."""

    messages: int  # in the time of the rows
    needed: int
    rows: int
    inside: range  # the rows in its own range
    served: int  # of these

    def is_enough(self, share: float) -> bool:
        """Whether it is recorded for half of the rows, and has a message for a share of those."""
        return self.messages >= self.needed and self.covers(self.inside) and self.served >= share * len(self.inside)

    def covers(self, inside: range) -> bool:
        return len(inside) > 0 and len(inside) >= _SHARE * self.rows

    def reason(self, inside: range | None = None) -> str:
        """Why it is not enough, or not with the rows that other topics leave."""
        if self.messages < self.needed:
            if self.messages < 2:
                return "only 1 message" if self.messages else "no message between the first and the last row"
            return f"too sparse for a row each: {self.messages:,} messages for {self.rows:,} rows"
        left = self.inside if inside is None else inside
        if not self.covers(left):
            return f"it would leave only {len(left):,} of {self.rows:,} rows, as it starts late or ends early"
        return f"too sparse for a row each: {len(self.inside) - self.served:,} of {len(self.inside):,} rows find none"


@dataclass(frozen=True, eq=False)
class RowTimes:
    """When the rows of a recording will be, before it is known what they take."""

    times_ns: NDArray[np.int64]
    timeline: str | None  # the topic that makes them
    tolerance_ns: int | None
    arrival_ns: int  # the usual time between two of them
    holds: bool = False  # whether a row that finds no message takes the last one

    def density(self, recording: Recording, topic: Topic) -> Density:
        """What these rows find of a topic, by its receive times."""
        rows = int(self.times_ns.size)
        needed = max(2, min(_FEWEST, -(-rows // 3)))
        if topic.name == self.timeline:
            return Density(topic.count, min(needed, topic.count), rows, range(rows), rows)
        times_ns = np.sort(recording.times_ns(topic))
        tolerance_ns = self._tolerance_ns(times_ns)
        if tolerance_ns is None or not rows:
            return Density(min(topic.count, 1), needed, rows, range(0), 0)
        inside = _within(self.times_ns, times_ns, tolerance_ns)
        row_ns = self.times_ns[inside.start : inside.stop]
        after = np.minimum(np.searchsorted(times_ns, row_ns), times_ns.size - 1)
        before = np.maximum(after - 1, 0)
        away_ns = np.minimum(np.abs(times_ns[after] - row_ns), np.abs(row_ns - times_ns[before]))
        served = len(inside) if self.holds else int(np.count_nonzero(away_ns <= tolerance_ns))
        return Density(len(_within(times_ns, self.times_ns, tolerance_ns)), needed, rows, inside, served)

    def _tolerance_ns(self, times_ns: NDArray[np.int64]) -> int | None:
        """As the alignment will have it; None for a topic without a rate."""
        rate = measure_rate(times_ns)
        if rate is None or self.tolerance_ns is not None:
            return None if rate is None else self.tolerance_ns
        return usual_tolerance_ns(self.arrival_ns, rate)


def _within(times_ns: NDArray[np.int64], others_ns: NDArray[np.int64], tolerance_ns: int) -> range:
    """Which times lie between the first and the last of others, or close to these."""
    first = np.searchsorted(times_ns, int(others_ns[0]) - tolerance_ns)
    stop = np.searchsorted(times_ns, int(others_ns[-1]) + tolerance_ns, side="right")
    return range(int(first), int(stop))


def row_times(recording: Recording, settings: Settings, cameras: Iterable[Topic], numbers: Iterable[Topic]) -> RowTimes:
    """The rows by the timeline that is set, by the first camera while all have images, or by the steadiest topic."""
    timeline = None
    if settings.timeline == FIXED:
        times_ns = _fixed(recording, settings.fps)
    elif settings.timeline is not None:
        timeline = recording.topic(settings.timeline)
    elif of_cameras := [np.sort(recording.times_ns(topic)) for topic in cameras]:
        begin_ns, end_ns = max(int(each[0]) for each in of_cameras), min(int(each[-1]) for each in of_cameras)
        first = of_cameras[0]
        shared = first[(first >= begin_ns) & (first <= end_ns)]
        times_ns = shared if shared.size else first
    elif (timeline := steadiest(recording, numbers)) is None:
        times_ns = _fixed(recording, settings.fps)
    if timeline is not None:
        times_ns = np.sort(recording.times_ns(timeline))
    rate = measure_rate(times_ns)
    name = None if timeline is None else timeline.name
    arrival_ns = 0 if rate is None else rate.arrival_ns
    return RowTimes(times_ns, name, settings.tolerance, arrival_ns, settings.missing == "hold")


def _fixed(recording: Recording, fps: int | None) -> NDArray[np.int64]:
    span_ns = max(recording.end_ns - recording.start_ns, 0)
    count = min(_MOST_ROWS, span_ns * (fps or 10) // NS_PER_S + 1)
    return np.linspace(recording.start_ns, recording.end_ns, count).astype(np.int64)


def steadiest(recording: Recording, topics: Iterable[Topic]) -> Topic | None:
    """The topic that makes the best rows: recorded the longest, without holes, at a whole rate, the most even."""
    best: tuple[tuple[float, ...], Topic] | None = None
    for topic in topics:
        times_ns = np.sort(recording.times_ns(topic))
        rate = measure_rate(times_ns)
        if rate is None:
            continue
        clock = clock_of(times_ns, max(1, round(rate.hz)))
        right = not clock.exceeds(LARGEST_DIFFERENCE, 0)
        covered = clock.recorded_ns / max(recording.end_ns - recording.start_ns, 1)
        uneven = float(np.abs(np.diff(times_ns) - rate.period_ns).mean()) / rate.period_ns
        score = (float(right), round(covered, 1), -round(uneven, 2), rate.hz)
        if best is None or score > best[0]:
            best = score, topic
    return None if best is None else best[1]
