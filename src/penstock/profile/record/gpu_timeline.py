"""When a device did its last stages, on the host's clock: found from CUDA events alone, without waiting for any."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from penstock.profile.snapshot import Event

MOST_KEPT = 4096
# The device tells distances as 32-bit floats of milliseconds: within a minute they are good to four microseconds.
_FAR_NS = 60_000_000_000


class Moment(Protocol):
    """A CUDA event that is over."""

    def elapsed_time(self, end_event: Moment, /) -> float:
        """Milliseconds from this event to another one of the same device."""


class _Stage(NamedTuple):
    name: str
    asked_ns: int
    begin_ns: int  # on the device's clock, which begins with the first stage
    duration_ns: int


class DeviceTimeline:
    """The last stages of one device.

    A stage never begins before the host has asked for it, and begins at once where the device is idle: the latest
    beginning that this allows for the device's clock is where it stands on the host's.
    """

    def __init__(self) -> None:
        self._stages: deque[_Stage] = deque(maxlen=MOST_KEPT)
        self._base: Moment | None = None
        self._base_ns = 0

    def add(self, name: str, began: Moment, asked_ns: int, duration_ns: int) -> bool:
        """Take a stage that is over; whether `began` is kept, as what later ones are measured from."""
        distance_ns = 0 if self._base is None else round(self._base.elapsed_time(began) * 1e6)
        begin_ns = self._base_ns + distance_ns
        self._stages.append(_Stage(name, asked_ns, begin_ns, duration_ns))
        if self._base is not None and distance_ns < _FAR_NS:
            return False
        self._base, self._base_ns = began, begin_ns
        return True

    def events(self, since_ns: int = 0) -> tuple[Event, ...]:
        """The stages that ended after `since_ns`, by time; those inside others are deeper."""
        stages = list(self._stages)
        zero_ns = max((each.asked_ns - each.begin_ns for each in stages), default=0)
        found: list[Event] = []
        open_ends: list[int] = []
        for each in sorted(stages, key=lambda each: (each.begin_ns, -each.duration_ns)):
            start_ns = zero_ns + each.begin_ns
            end_ns = start_ns + each.duration_ns
            while open_ends and open_ends[-1] <= start_ns:
                open_ends.pop()
            if end_ns >= since_ns:
                found.append(Event(each.name, start_ns, each.duration_ns, len(open_ends)))
            open_ends.append(end_ns)
        return tuple(found)
