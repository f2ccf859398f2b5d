"""The rate of a topic from its times, whatever they look like; and the clock of a data set, which should keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NS_PER_S = 1_000_000_000

_LONG = 4  # an interval of more than this many usual ones is a hole, or the pause between two bursts
_FAR = 10  # where intervals scatter anyway, a hole is this much longer than the usual one
_MOSTLY_HOLES = 10  # the time of a topic is this many times what its messages take at their rate
_STEADY = 20  # the mean interval of a steady topic lies within a twentieth of the usual one
_LONGEST_PAUSE_NS = 2 * NS_PER_S  # what is buffered is sent after this time at the latest
_SHORTEST_PERIOD_NS = 200_000  # no topic is sent faster: messages that are closer were buffered together


class Rate(NamedTuple):
    """How often messages come, holes left out.

    `period_ns` is one second divided by the rate, `arrival_ns` the usual time without a message: the period, or the
    pause between two bursts. `longest_ns` is the longest interval that is no hole; of a steady topic its period.
    """

    period_ns: int
    arrival_ns: int
    longest_ns: int

    @property
    def hz(self) -> float:
        return NS_PER_S / self.period_ns


def measure_rate(times_ns: NDArray[np.int64]) -> Rate | None:
    """The rate of a topic whose messages have these times, in any order; None without two different times.

    The usual interval is the mean of the middle half. A topic whose mean interval agrees with it is steady. Where
    intervals scatter or messages come in bursts, the rate is the number of messages by the time that they took.
    """
    steps_ns = np.diff(times_ns)
    if steps_ns.size and int(steps_ns.min()) < 0:
        steps_ns = np.diff(np.sort(times_ns))
    count, total_ns = int(steps_ns.size), int(steps_ns.sum())
    steps_ns = steps_ns[steps_ns > 0]
    if not steps_ns.size:
        return None
    usual_ns = _usual(steps_ns)
    long_ns = steps_ns[steps_ns > _LONG * usual_ns]
    bursts = _are_pauses(long_ns, count, total_ns, usual_ns)
    if not bursts and abs(_mean_without(long_ns, count, total_ns) - usual_ns) * _STEADY <= usual_ns:
        return Rate(usual_ns, usual_ns, usual_ns)
    typical_ns = _usual(long_ns) if bursts else usual_ns
    is_hole = steps_ns > _FAR * typical_ns
    period_ns = max(1, _mean_without(steps_ns[is_hole], count, total_ns))
    return Rate(period_ns, max(period_ns, typical_ns), int(steps_ns.max(where=~is_hole, initial=0)))


def rate_throughout(times_ns: NDArray[np.int64]) -> Rate | None:
    """The rate of a topic, None where it holds for less than a tenth of the time from the first to the last message.

    A log that says three things at once, and three others a minute later, has no rate that a person could use.
    """
    rate = measure_rate(times_ns)
    if rate is None or _MOSTLY_HOLES * (times_ns.size - 1) * rate.period_ns < int(np.ptp(times_ns)):
        return None
    return rate


def _are_pauses(long_ns: NDArray[np.int64], count: int, total_ns: int, usual_ns: int) -> bool:
    """Whether long intervals are what lies between bursts, and not holes in a steady topic.

    Bursts are small or follow each other quickly; a recorder pauses for seconds, after many messages.
    """
    if not long_ns.size:
        return False
    if usual_ns < _SHORTEST_PERIOD_NS:
        return True
    if long_ns.size < 3:
        return False
    if 10 * long_ns.size >= count:
        return True
    frequent = 20 * long_ns.size >= count or 2 * int(long_ns.sum()) > total_ns
    return frequent and _usual(long_ns) <= _LONGEST_PAUSE_NS


def _usual(steps_ns: NDArray[np.int64]) -> int:
    """The mean of the middle half.

    Receive times often alternate between two intervals (messages that arrive in pairs, cameras that are polled),
    where a median reports one of the two and a mean is bent by a single pause.
    """
    low, high = steps_ns.size // 4, steps_ns.size - steps_ns.size // 4
    middle_ns = np.partition(steps_ns, (low, high - 1))[low:high]
    return _rounded(int(middle_ns.sum()), middle_ns.size)


def _mean_without(steps_ns: NDArray[np.int64], count: int, total_ns: int) -> int:
    """The mean of `count` intervals that last `total_ns`, without some of them."""
    return _rounded(total_ns - int(steps_ns.sum()), count - steps_ns.size)


def _rounded(total_ns: int, count: int) -> int:
    return (2 * total_ns + count) // (2 * count)


# How far a data set's clock may be from the recording's before a note says so, and before it is not written.
_NOTED = 0.02
LARGEST_DIFFERENCE = 0.05


class RowClock(NamedTuple):
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


def clock_of(times_ns: NDArray[np.int64], fps: int) -> RowClock:
    """The clock of rows that follow each other in one episode."""
    if times_ns.size < 2:
        return RowClock(0, 0)
    return RowClock(int(times_ns[-1] - times_ns[0]), (int(times_ns.size) - 1) * NS_PER_S // fps)


def worst_clock(times_ns: NDArray[np.int64], fps: int) -> RowClock:
    """The clock up to the row whose timestamp is furthest off: a rate that changes can give the right length."""
    if times_ns.size < 2:
        return RowClock(0, 0)
    recorded_ns = times_ns - times_ns[0]
    stated_ns = np.arange(times_ns.size) * NS_PER_S // fps
    row = int(np.abs(stated_ns - recorded_ns).argmax())
    return RowClock(int(recorded_ns[row]), int(stated_ns[row]))


def is_wrong(times_ns: NDArray[np.int64], fps: int, slack_ns: int) -> bool:
    """Whether a row of an episode has a timestamp that is off by more than 5 % of the episode."""
    apart_ns = worst_clock(times_ns, fps).apart_ns
    return apart_ns > slack_ns and apart_ns > LARGEST_DIFFERENCE * clock_of(times_ns, fps).recorded_ns


def clock_notes(episodes: Sequence[NDArray[np.int64]], fps: int, slack_ns: int) -> list[str]:
    """What to say of the row times of episodes whose clock is noticeably off."""
    clocks = [clock_of(each, fps) for each in episodes]
    clock = RowClock(sum(each.recorded_ns for each in clocks), sum(each.stated_ns for each in clocks))
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
