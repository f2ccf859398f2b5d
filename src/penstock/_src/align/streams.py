"""A stream: the timestamps of one topic, and how its messages are to be paired with rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.rate import Rate, measure_rate
from penstock.errors import AlignError, ConfigError

Policy = Literal["nearest", "hold", "linear", "slerp"]
Missing = Literal["reject", "trim", "hold"]

POLICIES: tuple[str, ...] = get_args(Policy)
MISSING_POLICIES: tuple[str, ...] = get_args(Missing)

# Differences of two times must fit into 64 bits; ±146 years around 1970 leaves room for that.
FARTHEST_NS = 2**62 - 1


def check_whole_number(owner: str, name: str, value: object, *, least: int, most: int = FARTHEST_NS) -> None:
    """Refuse what is not an int (numpy's count too) from `least` to `most`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value <= most:  # type: ignore[operator]
        raise ConfigError(f"{owner}: {name} is {value!r}; expected a whole number from {least:,} to {most:,}")


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
        for key, value, known in (("policy", self.policy, POLICIES), ("missing", self.missing, MISSING_POLICIES)):
            if value not in known:
                raise ConfigError(f"{self.name}: {key} is {value!r}; expected one of {', '.join(known)}")
        if self.tolerance_ns is not None:
            check_whole_number(self.name, "tolerance_ns", self.tolerance_ns, least=0)
        check_whole_number(self.name, "offset_ns", self.offset_ns, least=-FARTHEST_NS)
        object.__setattr__(self, "times_ns", _as_times(self.name, self.times_ns, self.offset_ns))

    @property
    def interpolates(self) -> bool:
        """True when a row takes two messages and a weight."""
        return self.policy in ("linear", "slerp")

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {self.times_ns.size:,} times, {self.policy}, missing={self.missing})"


def _as_times(name: str, times: Any, offset_ns: int) -> NDArray[np.int64]:
    array = np.asarray(times)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(f"{name}: times_ns has dtype {array.dtype} and shape {array.shape}; expected 1-D integers")
    if array.size >= 2**31:
        raise AlignError(f"{name}: {array.size:,} messages; at most {2**31 - 1:,} can be numbered")
    if array.size:
        for extreme in (int(array.min()), int(array.max())):
            if abs(extreme) > FARTHEST_NS or abs(extreme + offset_ns) > FARTHEST_NS:
                raise AlignError(
                    f"{name}: a message has the time {extreme:,} ns (offset {offset_ns:,} ns), "
                    "more than 146 years away from 1970",
                    hint="the clock that stamped it was not set; try time: log",
                )
    return array.astype(np.int64, copy=False)


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
