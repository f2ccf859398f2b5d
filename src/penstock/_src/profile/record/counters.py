"""`count` and `gauge`: how much (bytes read, images decoded), and how full (queue depth), over all processes."""

from __future__ import annotations

from math import isfinite
from time import perf_counter_ns

from penstock._src.profile.numbers import real_number, whole_number
from penstock._src.profile.record import layout as at
from penstock._src.profile.record import spans


def count(name: str, n: int = 1) -> None:
    """Add to a counter; the snapshot sums over all threads and processes."""
    if spans._is_enabled:
        buffer = spans.own_buffer()
        if place := buffer.level(name, at.COUNTER):
            buffer.doubles[place + at.L_SUM] += whole_number(n, "count(name, n)")


def gauge(name: str, value: float) -> None:
    """Tell the present value of something that goes up and down; one that is no finite number tells nothing."""
    if not spans._is_enabled or not isfinite(value := real_number(value, "gauge(name, value)")):
        return
    buffer = spans.own_buffer()
    if place := buffer.level(name, at.GAUGE):
        doubles = buffer.doubles
        doubles[place + at.L_LAST], doubles[place + at.L_TIME] = value, float(perf_counter_ns())
        doubles[place + at.L_SUM] += value
        doubles[place + at.L_LEAST] = min(doubles[place + at.L_LEAST], value)
        doubles[place + at.L_MOST] = max(doubles[place + at.L_MOST], value)
        doubles[place + at.L_COUNT] += 1
