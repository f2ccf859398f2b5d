"""One group of inputs into one worker output with finished videos, which is published when it is whole.

The same on a node of a cluster and in a shard of a batch job. An attempt that is killed leaves a directory that nobody
reads; the group is done again in another one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock._src.conversion.commit.groups import Group
from penstock._src.conversion.commit.join import GROUP
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.commit.writing import InputProgress, JobInputs, SerialWriter
from penstock._src.conversion.inputs.input import DatasetSpec, Input, InputRef, OpenOptions, open_input
from penstock._src.conversion.shards import place
from penstock._src.conversion.stop import StopSignals
from penstock._src.system import memory as process_memory
from penstock._src.system.budget import Budget
from penstock.errors import BudgetExceeded, Interrupted, OutputFailed, PenstockError

_TELL_EVERY_S = 1.0
_WATCH_EVERY_S = 0.2
_LOOK_EVERY_S = 0.5
OnMoved = Callable[[int, int], None]


@dataclass(frozen=True)
class GroupRequest:
    """One group to convert: its inputs, what the data set settles for them, and the options."""

    group: Group
    refs: tuple[InputRef, ...]
    spec: DatasetSpec
    attempt: Path
    budget_bytes: int
    threads: int
    strict: bool
    keep_going: bool
    inputs: int  # of the whole job
    skip: Mapping[int, str] = field(default_factory=dict)  # inputs that are left out, and why
    more_memory_follows: bool = False  # an input over the budget ends the attempt: the next one has more
    node: str = ""

    def to_json(self) -> dict[str, Any]:
        refs = [[each.kind, str(each.path)] for each in self.refs]
        skip = {str(number): reason for number, reason in self.skip.items()}
        plain = {"refs": refs, "spec": self.spec.to_json(), "attempt": str(self.attempt), "skip": skip}
        return {**vars(self), "group": list(self.group), **plain}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> GroupRequest:
        return GroupRequest(
            **{
                **tree,
                "group": Group(*tree["group"]),
                "refs": tuple(InputRef(kind, path) for kind, path in tree["refs"]),
                "spec": DatasetSpec.from_json(tree["spec"]),
                "attempt": Path(tree["attempt"]),
                "skip": {int(number): reason for number, reason in tree["skip"].items()},
            }
        )


@dataclass(frozen=True)
class GroupResult:
    """What became of a group, in a few hundred bytes; the rest lies in the journal of the worker output."""

    group: int
    node: str
    seconds: float
    bytes_in: int
    episodes: int
    frames: int
    peak_bytes: int  # what the process held at most, beyond `base_bytes` of `write_group`
    predicted_bytes: int
    budget_bytes: int
    failed: Mapping[str, Mapping[str, str | None]]  # by the number of the input

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> GroupResult:
        return GroupResult(**tree)


class StopFile(StopSignals):
    """Hears a request to stop in the directory that the tasks share."""

    def __init__(self, work: Path) -> None:
        super().__init__()
        self._work = work
        self._looked_s = 0.0

    def check(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            self.is_requested = self.is_requested or place.is_asked_to_stop(self._work)
        super().check()


class Reporter:
    """Says now and then, beside the attempt, how far it is and what it holds.

    A process that holds more than `limit_bytes` beyond `base_bytes` is ended.
    """

    def __init__(self, request: GroupRequest, *, base_bytes: int = 0, limit_bytes: int | None = None) -> None:
        self._request, self._base_bytes, self._limit_bytes = request, base_bytes, limit_bytes
        self._moved: dict[int, int] = {}
        self.number = request.group.first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-progress", daemon=True)

    def moved(self, number: int, done_bytes: int) -> None:
        self.number = number
        self._moved[number] = done_bytes

    @property
    def held_bytes(self) -> int:
        return max(0, process_memory.rss_bytes() - self._base_bytes)

    def tell(self, **more: Any) -> None:
        known = {"input": self.number, "moved": dict(self._moved), "bytes": self.held_bytes}
        place.write_progress(self._request.attempt, {**known, "node": self._request.node, **more})

    def __enter__(self) -> Reporter:
        self.tell()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        place.end_progress(self._request.attempt)

    def _run(self) -> None:
        told_s = time.monotonic()
        while not self._ended.wait(_WATCH_EVERY_S):
            if self._limit_bytes is not None and self.held_bytes > self._limit_bytes:
                # The other tasks of this machine have their own share: this process ends before it takes theirs.
                self.tell(over_bytes=self.held_bytes)
                os.kill(os.getpid(), signal.SIGKILL)
            if time.monotonic() - told_s >= _TELL_EVERY_S:
                told_s = time.monotonic()
                self.tell()


class _GroupWriter:
    """The worker output of a group, begun with its first input that can be opened."""

    def __init__(self, request: GroupRequest, stop: StopSignals) -> None:
        self.request, self.stop = request, stop
        entries = [InputProgress(found, 0) for found in request.refs]
        groups = (request.group,)
        self.inputs = JobInputs(entries, first=request.group.first, groups=groups, videos_by_group=True)
        self.writer: DataSetWriter | None = None
        self.predicted_bytes = 0

    def take(self, number: int, found: InputRef, on_moved: OnMoved) -> None:
        request = self.request
        options = OpenOptions(
            request.spec.settings,
            request.budget_bytes,
            request.threads,
            request.strict,
            check_stop=self.stop.check,
            rows_before=0 if self.writer is None else self.writer.frames,
            inputs=max(2, request.inputs),
        )
        with open_input(found, options, request.spec) as source:
            self.predicted_bytes = max(self.predicted_bytes, source.memory.peak_bytes)
            budget = Budget(request.budget_bytes)
            writing = SerialWriter(
                self._writer_for(source), self.inputs, budget, self.stop, on_moved=on_moved, on_rows=lambda text: None
            )
            writing.take(source, number)

    def _writer_for(self, source: Input) -> DataSetWriter:
        if self.writer is None:
            self.writer = DataSetWriter(
                self.request.attempt,
                fps=source.fps,
                features=source.features,
                robot_type=source.robot_type,
                identity={"before": 0, GROUP: self.request.group.number},
                is_worker_output=True,
                video_file_bytes=(self.request.spec.settings.files.video_mb or 200) * 2**20,
            )
        return self.writer

    def finish(self) -> None:
        if self.writer is None:  # no input could be opened: the result says why
            self.request.attempt.mkdir(parents=True)
        else:
            self.writer.finish_files()

    def leave(self) -> None:
        if self.writer is not None:
            self.writer.abandon()


def write_group(request: GroupRequest, stop: StopSignals, on_moved: OnMoved, *, base_bytes: int = 0) -> GroupResult:
    """Convert and publish a group; what is wrong with an input is raised, or with `keep_going` part of the result.

    `base_bytes` of the process are not penstock's.
    """
    began_s = time.perf_counter()
    made, failed = _GroupWriter(request, stop), {}
    with process_memory.PeakMeter() as meter:
        try:
            for number, found in zip(request.group.inputs, request.refs, strict=True):
                if number in request.skip:
                    failed[number] = {"kind": "RecordingError", "message": request.skip[number], "hint": None}
                    continue
                try:
                    made.take(number, found, on_moved)
                except PenstockError as error:
                    if not request.keep_going or _ends_the_group(request, error):
                        raise
                    failed[number] = error_to_json(error)
            made.finish()
        except BaseException:
            made.leave()
            place.discard(request.attempt)
            raise
    writer = made.writer
    result = GroupResult(
        group=request.group.number,
        node=request.node or os.uname().nodename,
        seconds=round(time.perf_counter() - began_s, 3),
        bytes_in=request.group.size_bytes,
        episodes=0 if writer is None else writer.episodes,
        frames=0 if writer is None else writer.frames,
        peak_bytes=max(0, meter.tree_peak_bytes - base_bytes),
        predicted_bytes=made.predicted_bytes,
        budget_bytes=request.budget_bytes,
        failed={str(number): error for number, error in failed.items()},
    )
    if not place.publish(request.attempt, result.to_json()):
        first = place.read_result(request.attempt.parent, request.group.number)
        result = replace(result, **{name: first[name] for name in ("node", "failed", "episodes", "frames")})
    return result


def _ends_the_group(request: GroupRequest, error: PenstockError) -> bool:
    """Errors that no other input would escape, or that another attempt does not have."""
    return isinstance(error, (Interrupted, OutputFailed)) or (
        request.more_memory_follows and isinstance(error, BudgetExceeded)
    )


def error_to_json(error: PenstockError) -> dict[str, str | None]:
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
