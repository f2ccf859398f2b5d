"""`gpu_span(name)`: how long the device works on a stage, by CUDA events that are read later, never waited for.

    with gpu_span("20_train_forward_pass"):
        loss = policy(batch)

A host's clock around the same lines sees kernels being launched, not done. Where CUDA is not in use, the host works
itself and its clock is right: the stage is an ordinary span then, and `clock()` says which of the two it was.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from penstock._src.profile.record.decorator import decorate
from penstock._src.profile.record.histogram import Histogram
from penstock._src.profile.record.machine import tell_machine
from penstock._src.profile.record.spans import Span, awaited, is_enabled, span
from penstock._src.profile.stats import SpanEvent, SpanStats, ThreadEvents

MOST_WAITING = 256
"""Stages whose events may be under way at once; a further one is left out and counted as lost."""

MOST_KEPT = 4096
# The device tells distances as 32-bit floats of milliseconds: within a minute they are good to four microseconds.
_FAR_NS = 60_000_000_000
_MOST_READ = 8  # at each call, so that no step pays for many
_F = TypeVar("_F", bound=Callable[..., Any])


class FinishedEvent(Protocol):
    """A CUDA event that is over."""

    def elapsed_time(self, end_event: FinishedEvent, /) -> float:
        """Milliseconds from this event to another one of the same device."""


class _Done(NamedTuple):
    """A stage that is over."""

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
        self._stages: deque[_Done] = deque(maxlen=MOST_KEPT)
        self._base: FinishedEvent | None = None
        self._base_ns = 0

    def add(self, name: str, began: FinishedEvent, asked_ns: int, duration_ns: int) -> bool:
        """Take a stage that is over; whether `began` is kept, as what later ones are measured from."""
        distance_ns = 0 if self._base is None else round(self._base.elapsed_time(began) * 1e6)
        begin_ns = self._base_ns + distance_ns
        self._stages.append(_Done(name, asked_ns, begin_ns, duration_ns))
        if self._base is not None and distance_ns < _FAR_NS:
            return False
        self._base, self._base_ns = began, begin_ns
        return True

    def events(self, since_ns: int = 0) -> tuple[SpanEvent, ...]:
        """The stages that ended after `since_ns`, by time; those inside others are deeper."""
        stages = list(self._stages)
        zero_ns = max((each.asked_ns - each.begin_ns for each in stages), default=0)
        found: list[SpanEvent] = []
        open_ends: list[int] = []
        for each in sorted(stages, key=lambda each: (each.begin_ns, -each.duration_ns)):
            start_ns = zero_ns + each.begin_ns
            end_ns = start_ns + each.duration_ns
            while open_ends and open_ends[-1] <= start_ns:
                open_ends.pop()
            if end_ns >= since_ns:
                found.append(SpanEvent(each.name, start_ns, each.duration_ns, len(open_ends)))
            open_ends.append(end_ns)
        return tuple(found)


class _Open(NamedTuple):
    """A stage under way on a device."""

    device: int
    asked_ns: int
    began: Any


class _Stages:
    """Stages of this process: those under way, and what is known of those that are over."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: deque[tuple[str, _Open, Any]] = deque()
        self.free: dict[int, list[Any]] = {}  # by device; making an event costs more than recording it
        self.found: dict[str, Histogram] = {}
        self.timelines: dict[int, DeviceTimeline] = {}
        self.lost = 0

    def begin(self, cuda: Any) -> _Open | None:
        """An event recorded now, on the current stream; None where there is no room for it."""
        self.read(_MOST_READ)
        if len(self.waiting) >= MOST_WAITING:
            with self.lock:
                self.lost += 1
            return None
        device = int(cuda.current_device())
        return _Open(device, perf_counter_ns(), self._recorded(cuda, device))

    def end(self, cuda: Any, name: str, stage: _Open) -> None:
        if int(cuda.current_device()) == stage.device:
            self.waiting.append((name, stage, self._recorded(cuda, stage.device)))
        else:  # the stage has changed the device: no time lies between the events
            with self.lock:
                self.lost += 1

    def _recorded(self, cuda: Any, device: int) -> Any:
        with self.lock:
            free = self.free.setdefault(device, [])
            event = free.pop() if free else cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, most: int, *, is_kept: bool = True) -> None:
        """Take in stages that are over, oldest first, up to the first that is still under way; or forget them."""
        with self.lock:
            while most and self.waiting and self.waiting[0][2].query():
                name, stage, ended = self.waiting.popleft()
                most -= 1
                if is_kept:
                    duration_ns = round(stage.began.elapsed_time(ended) * 1e6)
                    self.found.setdefault(name, Histogram()).add(duration_ns)
                    timeline = self.timelines.setdefault(stage.device, DeviceTimeline())
                    if timeline.add(name, stage.began, stage.asked_ns, duration_ns):
                        self.free[stage.device].append(ended)
                        continue
                self.free[stage.device] += [stage.began, ended]


_stages = _Stages()
_left_by_fork: list[_Stages] = []  # events are the parent's: a child neither uses nor destroys them


def _in_child() -> None:
    global _stages
    _left_by_fork.append(_stages)
    _stages = _Stages()


os.register_at_fork(after_in_child=_in_child)


def _cuda() -> Any:
    """torch.cuda where this process uses a device already; asking neither imports torch nor wakes a device."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def clock() -> str:
    """What times a `gpu_span` that begins now: "CUDA events" or "host". Snapshots say so: `machine["gpu_clock"]`."""
    return "host" if _cuda() is None else "CUDA events"


_used: set[str] = set()


def _see_clock() -> None:
    """Which clock a stage uses, for those who read the profile."""
    name = clock()
    if name not in _used:
        _used.add(name)
        tell_machine(gpu_clock=" and ".join(sorted(_used - {"autocast"})))


def _see_autocast() -> None:
    """Whether this stage computes in mixed precision: nobody needs the advice to try it then."""
    torch = sys.modules["torch"]
    if "autocast" not in _used and torch.is_autocast_enabled():
        _used.add("autocast")
        known = getattr(torch, "get_autocast_dtype", None)  # since torch 2.4, which warns of the other
        kind = known("cuda") if known is not None else torch.get_autocast_gpu_dtype()
        tell_machine(autocast=str(kind).removeprefix("torch."))


class gpu_span:
    """Time a stage by the device's clock, on the stream that is current; a context manager, and a decorator.

    As a span, it can be entered from any thread and again inside itself.
    """

    __slots__ = ("_name", "_open")

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: dict[int, list[_Open | Span | None]] = {}  # by thread, the innermost last

    def __enter__(self) -> gpu_span:
        stage = self._begin() if is_enabled() else None
        self._open.setdefault(threading.get_ident(), []).append(stage)
        return self

    def _begin(self) -> _Open | Span | None:
        cuda = _cuda()
        _see_clock()
        if cuda is None:
            host = cast(Span, span(self._name))
            host.__enter__()
            return host
        _see_autocast()
        # A graph that is captured would keep the events as its own.
        return None if cuda.is_current_stream_capturing() else _stages.begin(cuda)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        thread = threading.get_ident()
        of_thread = self._open.get(thread)
        stage = of_thread.pop() if of_thread else None
        if not of_thread:
            self._open.pop(thread, None)
        if isinstance(stage, _Open):
            _stages.end(_cuda(), self._name, stage)
        elif stage is not None:
            stage.__exit__(kind, error, trace)

    def __call__(self, function: _F) -> _F:
        return cast(_F, decorate(self, self._awaited, function))

    async def _awaited(self, waited_for: Awaitable[Any]) -> Any:
        """By the host's clock as `@span` does, for other code runs meanwhile; each on its own by the device's."""
        if _cuda() is not None:
            with gpu_span(self._name):
                return await waited_for
        if is_enabled():
            _see_clock()
        return await awaited(self._name, waited_for)


def stats() -> tuple[SpanStats, ...]:
    """The stages of this process that are over by now, the longest in all first."""
    _stages.read(MOST_WAITING)
    with _stages.lock:
        found = [
            SpanStats(name=name, **vars(each.durations()), self_ns=each.total_ns, process=os.getpid(), thread="CUDA")
            for name, each in _stages.found.items()
        ]
    return tuple(sorted(found, key=lambda each: (-each.total_ns, each.name)))


def events(since_ns: int = 0) -> tuple[ThreadEvents, ...]:
    """The last stages of each device that are over, by time, as a thread of this process would have them."""
    _stages.read(MOST_WAITING)
    with _stages.lock:
        found = {device: timeline.events(since_ns) for device, timeline in sorted(_stages.timelines.items())}
    return tuple(
        ThreadEvents(os.getpid(), "", f"GPU {device}" if device else "GPU", each)
        for device, each in found.items()
        if each
    )


def lost() -> int:
    """Stages that were left out."""
    return _stages.lost


def reset() -> None:
    """Forget stages that are over; those under way are still taken in when they are."""
    _stages.read(MOST_WAITING, is_kept=False)
    with _stages.lock:
        _stages.found, _stages.lost = {}, 0
