"""The device's clock on the host's: found without waiting, exact wherever the device was idle once."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.profile.record.gpu import MOST_KEPT, DeviceTimeline
from tests.profile.made import MS


class _Moment:
    """A moment of a device's clock, told as a device tells it: 32-bit milliseconds between two of them."""

    def __init__(self, device_ns: int) -> None:
        self.device_ns = device_ns

    def elapsed_time(self, end_event: _Moment, /) -> float:
        return float(struct.unpack("f", struct.pack("f", (end_event.device_ns - self.device_ns) / 1e6))[0])


def test_stages_lie_where_the_device_did_them() -> None:
    timeline, ahead_ns = DeviceTimeline(), 7_777_777
    # The host asks for three stages at once; the device does one after the other.
    for n in range(3):
        timeline.add("forward", _Moment(100 * MS + ahead_ns + n * 10 * MS), 100 * MS + n * MS, 10 * MS)
    events = timeline.events()
    assert [event.start_ns for event in events] == [100 * MS, 110 * MS, 120 * MS]
    assert {event.depth for event in events} == {0}


def test_a_late_start_is_mended_by_the_first_idle_moment() -> None:
    timeline = DeviceTimeline()
    timeline.add("queued", _Moment(50 * MS), 20 * MS, MS)  # waited 30 ms for work that nobody timed
    timeline.add("at once", _Moment(90 * MS), 90 * MS, MS)
    assert [event.start_ns for event in timeline.events()] == [50 * MS, 90 * MS]


def test_hours_do_not_cost_precision() -> None:
    timeline = DeviceTimeline()
    step_ns = 900 * MS + 123_000
    for n in range(20_000):  # five hours
        timeline.add("step", _Moment(n * step_ns), n * step_ns, MS)
    events = timeline.events()
    assert len(events) == MOST_KEPT
    gaps = [after.start_ns - before.start_ns for before, after in pairwise(events)]
    assert max(abs(gap - step_ns) for gap in gaps) < 10_000


def test_stages_inside_others_are_deeper() -> None:
    timeline = DeviceTimeline()
    timeline.add("inner", _Moment(12 * MS), 12 * MS, 2 * MS)
    timeline.add("outer", _Moment(10 * MS), 10 * MS, 9 * MS)
    timeline.add("later", _Moment(30 * MS), 30 * MS, MS)
    assert [(event.name, event.depth) for event in timeline.events()] == [("outer", 0), ("inner", 1), ("later", 0)]


_stages = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 15)), min_size=1, max_size=40)


@settings(max_examples=40)
@given(_stages, st.integers(-(10**12), 10**12))
def test_no_stage_begins_before_it_was_asked_for(stages: list[tuple[int, int]], clock_ns: int) -> None:
    timeline, asked_ns, free_ns = DeviceTimeline(), 0, 0
    wanted = []
    for pause, length in stages:
        asked_ns += pause * MS
        begin_ns = max(asked_ns, free_ns)
        free_ns = begin_ns + length * MS
        timeline.add("s", _Moment(begin_ns + clock_ns), asked_ns, length * MS)
        wanted.append((begin_ns, asked_ns))
    found = [event.start_ns for event in timeline.events()]
    late_ns = {start_ns - begin_ns for start_ns, (begin_ns, _) in zip(found, wanted, strict=True)}
    # The first stage found the device idle, so the clock is exact, but for the device's float.
    assert max(abs(each) for each in late_ns) < 10_000
