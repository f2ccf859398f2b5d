"""The clock of a data set: its timestamps are row / fps, which should last as long as its rows did in the recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.align.rate import NS_PER_S

# How far a data set's clock may be from the recording's before a note says so, and before it is not written.
_NOTED = 0.02
LARGEST_DIFFERENCE = 0.05


class Clock(NamedTuple):
    """How long rows last: in the recording, and by the timestamps of the data set."""

    recorded_ns: int
    stated_ns: int

    @property
    def apart_ns(self) -> int:
        return abs(self.stated_ns - self.recorded_ns)

    @property
    def difference(self) -> float:
        """By which share of the recorded time the two differ."""
        return self.apart_ns / self.recorded_ns if self.recorded_ns else 0.0 if not self.stated_ns else float("inf")

    def exceeds(self, share: float, slack_ns: int) -> bool:
        """Whether the two differ by more than a share, and by more than the grain of the timeline explains."""
        return self.apart_ns > slack_ns and self.apart_ns > share * self.recorded_ns


def clock_of(times_ns: NDArray[np.int64], fps: int) -> Clock:
    """The clock of rows that follow each other in one episode."""
    if times_ns.size < 2:
        return Clock(0, 0)
    return Clock(int(times_ns[-1] - times_ns[0]), (int(times_ns.size) - 1) * NS_PER_S // fps)


def worst_clock(times_ns: NDArray[np.int64], fps: int) -> Clock:
    """The clock up to the row whose timestamp is furthest off: a rate that changes can give the right length."""
    if times_ns.size < 2:
        return Clock(0, 0)
    recorded_ns = times_ns - times_ns[0]
    stated_ns = np.arange(times_ns.size) * NS_PER_S // fps
    row = int(np.abs(stated_ns - recorded_ns).argmax())
    return Clock(int(recorded_ns[row]), int(stated_ns[row]))


def is_wrong(times_ns: NDArray[np.int64], fps: int, slack_ns: int) -> bool:
    """Whether a row of an episode has a timestamp that is off by more than 5 % of the episode."""
    apart_ns = worst_clock(times_ns, fps).apart_ns
    return apart_ns > slack_ns and apart_ns > LARGEST_DIFFERENCE * clock_of(times_ns, fps).recorded_ns


def clock_notes(episodes: Sequence[NDArray[np.int64]], fps: int, slack_ns: int) -> list[str]:
    """What to say of the row times of episodes whose clock is noticeably off."""
    clocks = [clock_of(each, fps) for each in episodes]
    clock = Clock(sum(each.recorded_ns for each in clocks), sum(each.stated_ns for each in clocks))
    wrong = [each for each in episodes if is_wrong(each, fps, slack_ns)]
    if wrong and not clock.exceeds(LARGEST_DIFFERENCE, slack_ns):
        return [drift_text(wrong[0], fps)]
    if not clock.exceeds(_NOTED, slack_ns):
        return []
    recorded_s, stated_s = clock.recorded_ns / NS_PER_S, clock.stated_ns / NS_PER_S
    rows_hz = f"at {fps * clock.stated_ns / clock.recorded_ns:.2f} Hz" if clock.recorded_ns else "all at once"
    return [
        f"the data set states {fps} fps, the rows come {rows_hz}: {recorded_s:.3f} s become {stated_s:.3f} s, its "
        f"timestamps differ from the recording's by {clock.difference:.1%}"
    ]


def drift_text(times_ns: NDArray[np.int64], fps: int) -> str:
    worst = worst_clock(times_ns, fps)
    return (
        f"what was recorded {worst.recorded_ns / NS_PER_S:.3f} s after the first row gets the timestamp "
        f"{worst.stated_ns / NS_PER_S:.3f} s at {fps} fps: the rate of the rows changes"
    )
