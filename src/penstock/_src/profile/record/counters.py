"""`count` and `gauge`: how much (bytes read, images decoded), and how full (queue depth), over all processes."""

from __future__ import annotations

from math import isfinite
from time import perf_counter_ns

from penstock._src.profile.numbers import real_number, whole_number
from penstock._src.profile.record import spans
from penstock._src.profile.record.buffer import ThreadBuffer
from penstock._src.profile.record.layout import B_RESET_NS, P_LEVELS_RESET_NS, P_LOST_COUNTERS, P_LOST_GAUGES
from penstock.errors import UsageError


def count(name: str, n: int = 1) -> None:
    """Add to a counter; the snapshot sums over all threads and processes."""
    if not spans._is_enabled:
        return
    if type(n) is not int:
        n = whole_number(n, "count(name, n)")
    buffer = _buffer()
    place = buffer.counters.get(name) or buffer.add_counter(name)
    try:
        buffer.words[place or P_LOST_COUNTERS] += n if place else 1
    except ValueError:
        raise UsageError(f"count({name!r}, n): the sum is beyond 64 bits", hint="count in a larger unit") from None


def gauge(name: str, value: float) -> None:
    """Tell the present value of something that goes up and down; one that is no finite number tells nothing."""
    if not spans._is_enabled or not isfinite(value := real_number(value, "gauge(name, value)")):
        return
    buffer = _buffer()
    level = buffer.gauges.get(name) or buffer.add_gauge(name)
    if level is None:
        buffer.words[P_LOST_GAUGES] += 1
    else:
        level.set(buffer.page, value, perf_counter_ns())


def _buffer() -> ThreadBuffer:
    """That of the calling thread, with nothing in it from before a reset."""
    buffer = spans.own_buffer()
    if buffer.words[P_LEVELS_RESET_NS] != buffer.board_words[B_RESET_NS]:
        buffer.clear_levels()
    return buffer
