"""`mark_epoch`: keeps the sums at the ends of the last epochs, so that the table of one epoch alone can be shown."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns

from penstock.profile.record import spans
from penstock.profile.record.board import after_fork
from penstock.profile.record.difference import between, sums
from penstock.profile.record.marks import marks
from penstock.profile.record.numbers import whole
from penstock.profile.record.session import snapshot as take
from penstock.profile.snapshot import Snapshot

_KEPT = 17  # ends: sixteen epochs lie between them

_ends: deque[tuple[int, Snapshot]] = deque(maxlen=_KEPT)


def mark_epoch(number: int | None = None) -> None:
    """An epoch ends here (numbered on from 0 unless told)."""
    if spans.is_enabled():
        now_ns = perf_counter_ns()
        told = None if number is None else whole(number, "mark_epoch(number)")
        epoch = marks().mark_epoch(told, now_ns)
        _ends.append((epoch, sums(take(events=False))))


def of_epoch(epoch: int) -> Snapshot | None:
    """What was recorded in an epoch, the last one of that number; None where that is not known any more."""
    ends = list(_ends)
    for place in range(len(ends) - 1, -1, -1):
        if ends[place][0] == epoch:
            if place:
                return between(ends[place - 1][1], ends[place][1])
            return ends[0][1] if len(ends) < _KEPT else None
    return None


after_fork(_ends.clear)
