"""What a loader tells of the training loop: each `next` is a data wait, and from one to the following is a step.

    feeding = LoaderPass(loader)
    start_ns = feeding.ask()
    batch = ...
    feeding.take(start_ns, batch is not None)

Code that calls `mark_step()` says itself what a step is; then the loader tells the wait alone. Else the place in the
code that asks tells loops apart, so that the batches of a validation are no training steps. A pass that begins and ends
inside a step of another one, a validation every so many steps, is no part of that step.
"""

from __future__ import annotations

import sys
import threading
import weakref
from time import perf_counter_ns, thread_time_ns
from types import CodeType, FrameType

from penstock.profile.record import spans
from penstock.profile.record.counters import count
from penstock.profile.record.loader_ids import loader_ids
from penstock.profile.record.marks import add_wait, marks
from penstock.profile.record.track import Loop, Passed, Track


class _Local(threading.local):
    """What the calling thread is doing."""

    is_ahead = False
    samples = 0

    def __init__(self) -> None:
        self.under_way: list[weakref.ref[LoaderPass]] = []


_local = _Local()
_NOT_THE_LOOP = ("penstock.", "torch.utils.data")
_inside: dict[int, CodeType] = {}  # code of these, by its id, which is its own while it is kept


def work_ahead() -> None:
    """The calling thread prepares batches for the loop: what it waits for is no data wait."""
    _local.is_ahead = True


def is_ahead() -> bool:
    """Whether the calling thread prepares batches for the loop."""
    return _local.is_ahead


def begin_sample() -> None:
    """What the calling thread does now is a sample that is counted."""
    _local.samples += 1


def end_sample() -> None:
    """The sample is complete."""
    _local.samples -= 1


def is_in_sample() -> bool:
    """Whether the calling thread is inside a sample that is counted: what it asks for is a part of that one."""
    return _local.samples > 0


def _is_inside(frame: FrameType) -> bool:
    """Whether code is penstock's, or torch's loader."""
    if id(frame.f_code) in _inside:
        return True
    if not str(frame.f_globals.get("__name__")).startswith(_NOT_THE_LOOP):
        return False
    _inside[id(frame.f_code)] = frame.f_code
    return True


class _Inside:
    """What a pass that began inside steps of others has told so far; those steps as they were then."""

    __slots__ = ("batches", "began_cpu_ns", "began_ns", "cpu_ns", "steps", "thread", "wait_ns", "waits")

    def __init__(self, began_ns: int, around: list[LoaderPass]) -> None:
        self.began_ns, self.began_cpu_ns = began_ns, thread_time_ns()
        self.thread = threading.get_ident()
        self.steps = [(weakref.ref(each), each.turn, each.apart_ns, each.cpu_from_ns) for each in around]
        self.waits = self.wait_ns = self.batches = self.cpu_ns = 0

    def set_apart(self, now_ns: int) -> list[tuple[LoaderPass, int]]:
        """The steps that still go on, and how much of each was this pass, beyond passes that were inside it."""
        found = []
        for step, turn, apart_ns, cpu_from_ns in self.steps:
            each = step()
            if each is not None and each.turn == turn:
                apart_ns += now_ns - self.began_ns
                found.append((each, apart_ns - each.apart_ns))
                each.apart_ns = apart_ns
                each.cpu_from_ns = cpu_from_ns + thread_time_ns() - self.began_cpu_ns
        return found


class LoaderPass:
    """A loop over a loader, pass by pass."""

    __slots__ = (
        "__weakref__", "_code", "_has_given", "_inside", "_loop", "apart_ns", "cpu_from_ns", "leader", "loader", "turn"
    )  # fmt: skip

    def __init__(self, loader: object = None) -> None:
        self._inside: _Inside | None = None
        self.loader = 0 if loader is None else loader_ids.of(loader)
        self.leader: Track | None = None
        """The steps that a pass over another loader tells, under way in the same loop, and that this one follows."""
        self.turn = 0
        """Even while the loop has a batch, odd while it waits for one; never twice the same."""
        self.apart_ns = self.cpu_from_ns = 0
        self._has_given = False
        self._loop = Loop("", 0, True)
        self._code: CodeType | None = None

    def ask(self) -> int:
        """The loop asks for a batch: the step before it is over."""
        start_ns = perf_counter_ns()
        if spans.is_enabled():
            self.turn |= 1
            if self._has_given:
                count("batches_used")
                # The CPU time is what the step keeps from the loader; several threads may share the iterator.
                cpu_ns = max(0, thread_time_ns() - self.cpu_from_ns)
                if self._inside is not None:
                    self._inside.batches += 1
                    self._inside.cpu_ns += cpu_ns
                marks().feed_step(start_ns, cpu_ns, self._loop, self)
            self._look_who_asks()
            if not self._has_given:
                marks().end_feed(self._loop, self)  # of a pass before, which may have been left in its midst
                self._begin(start_ns)
        return start_ns

    def take(self, start_ns: int, is_batch: bool) -> None:
        """The loop gets it, or learns that there is none."""
        if not spans.is_enabled():
            return
        if is_batch:
            self._has_given = True
            self.turn = (self.turn | 1) + 1
            self.cpu_from_ns = thread_time_ns()
            wait_ns = perf_counter_ns() - start_ns
            if self._inside is not None:
                self._inside.waits += 1
                self._inside.wait_ns += wait_ns
            add_wait(start_ns, wait_ns, self._loop, self)
        elif self._has_given:
            self._has_given = False
            marks().end_feed(self._loop, self)
            self._end(is_freed=False)
            self.leader = None

    def _look_who_asks(self) -> None:
        """The innermost code that is neither penstock's nor torch's loader, and whether gradients are computed there;
        mostly the same as before."""
        frame = sys._getframe(2)
        while frame.f_back is not None and _is_inside(frame):
            frame = frame.f_back
        is_grad = getattr(sys.modules.get("torch"), "is_grad_enabled", None)  # a thread may be importing it just now
        is_training = is_grad is None or bool(is_grad())
        code, line, loop = frame.f_code, frame.f_lineno, self._loop
        if code is not self._code or line != loop.line or is_training != loop.is_training:
            self._code = code
            self._loop = Loop(code.co_filename, line, is_training, code.co_firstlineno, self.loader)

    def _begin(self, start_ns: int) -> None:
        """A pass begins, perhaps inside steps of others that this thread is at."""
        known = (each() for each in _local.under_way)
        living = [each for each in known if each is not None and each is not self and each._has_given]
        _local.under_way = [weakref.ref(each) for each in (*living, self)]
        around = [each for each in living if not each.turn & 1 and each.loader != self.loader]
        self._inside = _Inside(start_ns, around) if around else None

    def _end(self, is_freed: bool) -> None:
        inside, self._inside = self._inside, None
        if inside is None:
            return
        spent = inside.set_apart(perf_counter_ns())
        if spent:
            told = inside.waits, inside.wait_ns, inside.batches, inside.cpu_ns
            marks().take_out(Passed(self._loop, inside.began_ns, self.leader, *told), spent, is_freed)

    def __del__(self) -> None:
        # Left in its midst. One batch alone is for the step: `next(iter(other))`.
        inside = self._inside
        if inside is not None and inside.waits > 1 and inside.thread == threading.get_ident() and spans.is_enabled():
            self._end(is_freed=True)
