"""`gpu_span(name)`: how long the device works on a stage, by CUDA events that are read later, never waited for.

A host's clock around the same lines sees kernels being launched, not done. Where CUDA is not in use, the host works
itself and its clock is right: the stage is an ordinary span then.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeVar, cast

from penstock._src.profile.record.histogram import Histogram
from penstock._src.profile.record.machine import tell_machine
from penstock._src.profile.record.spans import NoSpan, Span, decorate, is_enabled, record, span
from penstock._src.profile.stats import SpanEvent, SpanStats, ThreadEvents

MOST_WAITING = 256
"""Stages whose events may be under way at once; a further one is left out and counted as lost."""

MOST_KEPT = 4096
_MOST_READ = 8  # at each call, so that no step pays for many
_F = TypeVar("_F", bound=Callable[..., Any])


class DeviceTimeline:
    """The last stages of one device.

    A stage never begins before the host has asked for it, and begins at once where the device is idle: the latest
    beginning that this allows for the device's clock is where it stands on the host's.
    """

    def __init__(self) -> None:
        # (name, when the host asked, its beginning on the device's clock from the first stage on, duration)
        self._stages: deque[tuple[str, int, int, int]] = deque(maxlen=MOST_KEPT)
        self._last: Any = None
        self._last_ns = 0

    def add(self, name: str, began: Any, asked_ns: int, duration_ns: int) -> None:
        """Take a stage that is over. Distances are those between neighbours: the device tells them as 32-bit floats."""
        if self._last is not None:
            self._last_ns += round(self._last.elapsed_time(began) * 1e6)
        self._last = began
        self._stages.append((name, asked_ns, self._last_ns, duration_ns))

    def events(self) -> tuple[SpanEvent, ...]:
        """The stages by time; those that begin inside others are deeper."""
        zero_ns = max((asked_ns - begin_ns for _, asked_ns, begin_ns, _ in self._stages), default=0)
        found: list[SpanEvent] = []
        open_ends: list[int] = []
        for name, _, begin_ns, duration_ns in sorted(self._stages, key=lambda each: (each[2], -each[3])):
            start_ns = zero_ns + begin_ns
            while open_ends and open_ends[-1] <= start_ns:
                open_ends.pop()
            found.append(SpanEvent(name, start_ns, duration_ns, len(open_ends)))
            open_ends.append(start_ns + duration_ns)
        return tuple(found)


class _Open(NamedTuple):
    """A stage under way on a device."""

    name: str
    device: int
    asked_ns: int
    began: Any

    def __exit__(self, *error: object) -> None:
        _stages.waiting.append((self, _recorded(_cuda())))


class _Stages:
    """Stages of this process: those under way, and what is known of those that are over."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: deque[tuple[_Open, Any]] = deque()
        self.clear()

    def clear(self) -> None:
        """Forget stages that are over; those under way are still taken in when they are."""
        self.found: dict[str, Histogram] = {}
        self.timelines: dict[int, DeviceTimeline] = {}
        self.lost = 0

    def begin(self, cuda: Any, name: str) -> _Open | None:
        """None where there is no room for another."""
        self.read(_MOST_READ)
        if len(self.waiting) >= MOST_WAITING:
            self.lost += 1
            return None
        return _Open(name, int(cuda.current_device()), perf_counter_ns(), _recorded(cuda))

    def read(self, most: int) -> None:
        """Take in stages that are over, oldest first, up to the first that is still under way."""
        with self.lock:
            while most and self.waiting and self.waiting[0][1].query():
                stage, ended = self.waiting.popleft()
                most -= 1
                duration_ns = round(stage.began.elapsed_time(ended) * 1e6)
                self.found.setdefault(stage.name, Histogram()).add(duration_ns)
                timeline = self.timelines.setdefault(stage.device, DeviceTimeline())
                timeline.add(stage.name, stage.began, stage.asked_ns, duration_ns)


_stages = _Stages()
_local = threading.local()  # what is open in a thread, the innermost last


def _in_child() -> None:
    # A child of fork cannot ask the device about its parent's events.
    global _stages, _local
    _stages, _local = _Stages(), threading.local()


os.register_at_fork(after_in_child=_in_child)


def _recorded(cuda: Any) -> Any:
    """An event of now, on the current stream."""
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


def _cuda() -> Any:
    """torch.cuda where this process uses a device already; asking neither imports torch nor wakes a device."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


class gpu_span:
    """Time a stage by the device's clock, on the stream that is current; a context manager, and a decorator.

    As a span, it can be entered from any thread and again inside itself.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> gpu_span:
        vars(_local).setdefault("stages", []).append(self._begin() if is_enabled() else None)
        return self

    def _begin(self) -> _Open | Span | NoSpan | None:
        cuda = _cuda()
        if cuda is None:
            host = span(self._name)
            host.__enter__()
            return host
        torch = sys.modules.get("torch")
        if torch is not None and torch.is_autocast_enabled():
            tell_machine(autocast=True)  # nobody needs the advice to try it then
        # A graph that is captured would keep the events as its own.
        return None if cuda.is_current_stream_capturing() else _stages.begin(cuda, self._name)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        stages = vars(_local).get("stages")
        if stage := stages.pop() if stages else None:
            stage.__exit__(kind, error, trace)

    def __call__(self, function: _F) -> _F:
        return cast(_F, decorate(lambda: self, lambda start, ns: record(self._name, ns, start), function))


def stats() -> tuple[SpanStats, ...]:
    """The stages of this process that are over by now, the longest in all first."""
    _stages.read(MOST_WAITING)
    with _stages.lock:
        found = [
            SpanStats(name=name, **vars(each.durations()), self_ns=each.total_ns, process=os.getpid(), thread="CUDA")
            for name, each in _stages.found.items()
        ]
    return tuple(sorted(found, key=lambda each: (-each.total_ns, each.name)))


def events() -> tuple[ThreadEvents, ...]:
    """The last stages of each device that are over, by time, as a thread of this process would have them."""
    with _stages.lock:
        found = {device: timeline.events() for device, timeline in sorted(_stages.timelines.items())}
    return tuple(
        ThreadEvents(os.getpid(), "", f"GPU {device}" if device else "GPU", each)
        for device, each in found.items()
        if each
    )


def lost() -> int:
    """Stages that were left out."""
    return _stages.lost


def begin_anew() -> None:
    """The record was reset: stages that are over are forgotten."""
    _stages.read(MOST_WAITING)
    _stages.clear()
