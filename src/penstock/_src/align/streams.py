"""A stream: the timestamps of one topic, and how its messages are to be paired with rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.rate import Rate, measure_rate
from penstock.errors import AlignError

Policy = Literal["nearest", "hold", "linear", "slerp"]
Missing = Literal["reject", "trim", "hold"]

# Differences of two times must fit into 64 bits; ±146 years around 1970 leaves room for that.
FARTHEST_NS = 2**62 - 1


@dataclass(frozen=True, eq=False)
class TopicStream:
    """One topic as the aligner sees it: times in file order, and the rules of pairing.

    `tolerance_ns=None` means 1.5 times the longer of the row period and the stream's own period.
    `offset_ns` is added to every time: negative when the stamps are late. A static stream has a message for every row:
    the last one before it, else the first.
    """

    name: str
    times_ns: NDArray[np.int64]
    policy: Policy = "nearest"
    tolerance_ns: int | None = None
    offset_ns: int = 0
    missing: Missing = "trim"
    is_static: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "times_ns", _as_times(self.name, self.times_ns, self.offset_ns))

    @property
    def interpolates(self) -> bool:
        """True when a row takes two messages and a weight."""
        return self.policy in ("linear", "slerp")


def _as_times(name: str, times: Any, offset_ns: int) -> NDArray[np.int64]:
    array = np.asarray(times, np.int64)
    if array.size:
        for extreme in (int(array.min()), int(array.max())):
            if abs(extreme) > FARTHEST_NS or abs(extreme + offset_ns) > FARTHEST_NS:
                raise AlignError(
                    f"{name}: a message has the time {extreme:,} ns (offset {offset_ns:,} ns), "
                    "more than 146 years away from 1970",
                    hint="the clock that stamped it was not set; try time: log",
                )
    return array


class OrderedTimes(NamedTuple):
    """A stream's own times (offset not added) from early to late; `order` is None when the file has them so."""

    times_ns: NDArray[np.int64]
    order: NDArray[np.int64] | None
    out_of_order: int
    duplicate_times: int
    rate: Rate | None

    def numbers(self, positions: NDArray[np.intp]) -> NDArray[np.int32]:
        """Message numbers, as the file counts them, of positions in time order."""
        if self.order is None:
            return positions.astype(np.int32)
        return self.order[positions].astype(np.int32)


def in_time_order(times_ns: NDArray[np.int64]) -> OrderedTimes:
    """Sort by time (equal times keep their file order) and count what was out of order or twice there."""
    steps_ns = np.diff(times_ns)
    backwards = int(np.count_nonzero(steps_ns < 0))
    order = None
    if backwards:
        order = np.argsort(times_ns, kind="stable")
        times_ns = times_ns[order]
        steps_ns = np.diff(times_ns)
    duplicates = int(np.count_nonzero(steps_ns == 0))
    return OrderedTimes(times_ns, order, backwards, duplicates, measure_rate(times_ns))
