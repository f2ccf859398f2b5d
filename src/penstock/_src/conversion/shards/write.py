"""One group of inputs into one worker output with finished videos, which is published when it is whole.

The same on a node of a cluster and in a shard of a batch job. An attempt that is killed leaves a directory that nobody
reads; the group is done again in another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any, cast

from penstock._src.conversion.commit.groups import Group
from penstock._src.conversion.commit.join import GROUP
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.commit.writing import InputProgress, JobInputs, SerialWriter
from penstock._src.conversion.inputs.input import DatasetSpec, Input, InputRef, OpenOptions, open_input
from penstock._src.conversion.shards.choose_storage import shard_storage_of
from penstock._src.conversion.shards.shard_storage import Attempt, ShardStorage
from penstock._src.conversion.stop import StopSignals
from penstock._src.lerobot.write.sink import LeRobotSink
from penstock._src.system import memory as process_memory
from penstock._src.system.budget import Budget
from penstock._src.system.files import as_path
from penstock.errors import (
    BudgetExceeded,
    DataSetError,
    Interrupted,
    OutputFailed,
    PenstockError,
    RemoteError,
    RemoteTaken,
)

_WATCH_EVERY_S = 0.2
_FILES_OF_ATTEMPT = 1000  # names between those of attempts that write other bytes
_MOST_FILES = 9000
OnMoved = Callable[[int, int], None]


@dataclass(frozen=True)
class GroupRequest:
    """One group to convert: its inputs, what the data set settles for them, and the options."""

    group: Group
    refs: tuple[InputRef, ...]
    spec: DatasetSpec
    out: str
    attempt: str
    budget_bytes: int
    threads: int
    strict: bool
    keep_going: bool
    inputs: int  # of the whole job
    skip: Mapping[int, str] = field(default_factory=dict)  # inputs that are left out, and why
    more_memory_follows: bool = False  # an input over the budget ends the attempt: the next one has more
    node: str = ""
    group_shift: int = 0  # from the number of the group to the chunk of its videos

    @property
    def work(self) -> str:
        return self.attempt.rpartition("/")[0]

    def to_json(self) -> dict[str, Any]:
        refs = [[each.kind, str(each.path)] for each in self.refs]
        skip = {str(number): reason for number, reason in self.skip.items()}
        plain = {"refs": refs, "spec": self.spec.to_json(), "skip": skip}
        return {**vars(self), "group": list(self.group), **plain}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> GroupRequest:
        return GroupRequest(
            **{
                **tree,
                "group": Group(*tree["group"]),
                "refs": tuple(InputRef(kind, path) for kind, path in tree["refs"]),
                "spec": DatasetSpec.from_json(tree["spec"]),
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


class SharedStop(StopSignals):
    """Hears a request to stop in the storage that the tasks share."""

    def __init__(self, storage: ShardStorage, work: str) -> None:
        super().__init__()
        self._storage, self._work = storage, work
        self._looked_s = 0.0

    def check(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._storage.look_every_s / 2:
            self._looked_s = now_s
            self.is_requested = self.is_requested or self._storage.is_asked_to_stop(self._work)
        super().check()


class Reporter:
    """Says now and then, beside the attempt, how far it is and what it holds.

    A process that holds more than `limit_bytes` beyond `base_bytes` is ended.
    """

    def __init__(
        self, storage: ShardStorage, request: GroupRequest, *, base_bytes: int = 0, limit_bytes: int | None = None
    ) -> None:
        self._storage, self._request = storage, request
        self._base_bytes, self._limit_bytes = base_bytes, limit_bytes
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
        self._storage.write_progress(self._request.attempt, {**known, "node": self._request.node, **more})

    def __enter__(self) -> Reporter:
        self.tell()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._storage.end_progress(self._request.attempt)

    def _run(self) -> None:
        told_s = time.monotonic()
        while not self._ended.wait(_WATCH_EVERY_S):
            if self._limit_bytes is not None and self.held_bytes > self._limit_bytes:
                # The other tasks of this machine have their own share: this process ends before it takes theirs.
                self.tell(over_bytes=self.held_bytes)
                os.kill(os.getpid(), signal.SIGKILL)
            if time.monotonic() - told_s >= self._storage.look_every_s:
                told_s = time.monotonic()
                self.tell()


class _GroupWriter:
    """The worker output of a group, begun with its first input that can be opened."""

    def __init__(self, request: GroupRequest, stop: StopSignals, attempt: Attempt, first_file: int) -> None:
        self.request, self.stop, self._attempt, self._first_file = request, stop, attempt, first_file
        self._budget_bytes = request.budget_bytes - attempt.upload_bytes
        entries = [InputProgress(found, 0) for found in request.refs]
        groups = (request.group,)
        first, shift = request.group.first, request.group_shift
        self.inputs = JobInputs(entries, first=first, groups=groups, videos_by_group=True, group_shift=shift)
        self.writer: DataSetWriter | None = None
        self.predicted_bytes = 0

    def take(self, number: int, found: InputRef, on_moved: OnMoved) -> None:
        request = self.request
        options = OpenOptions(
            request.spec.settings,
            self._budget_bytes,
            request.threads,
            request.strict,
            check_stop=self.stop.check,
            rows_before=0 if self.writer is None else self.writer.frames,
            inputs=max(2, request.inputs),
        )
        with open_input(found, options, request.spec) as source:
            self.predicted_bytes = max(self.predicted_bytes, source.memory.peak_bytes)
            budget = Budget(self._budget_bytes)
            writing = SerialWriter(
                self._writer_for(source), self.inputs, budget, self.stop, on_moved=on_moved, on_rows=lambda text: None
            )
            writing.take(source, number)

    def _writer_for(self, source: Input) -> DataSetWriter:
        if self.writer is None:
            self.writer = DataSetWriter(
                self._attempt.root,
                fps=source.fps,
                features=source.features,
                robot_type=source.robot_type,
                identity={"before": 0, GROUP: self.request.group.number},
                is_worker_output=True,
                video_file_bytes=(self.request.spec.settings.files.video_mb or 200) * 2**20,
            )
            for video in cast(LeRobotSink, self.writer.sink).videos.values():
                video.first_file = self._first_file
            self._attempt.follow(self.writer, lambda: self.stop.is_requested)
        return self.writer

    def finish(self) -> None:
        if self.writer is None:  # no input could be opened: the result says why
            self._attempt.root.mkdir(parents=True)
        else:
            self.writer.finish_files()

    def leave(self) -> None:
        if self.writer is not None:
            self.writer.abandon()


def write_group(request: GroupRequest, stop: StopSignals, on_moved: OnMoved, *, base_bytes: int = 0) -> GroupResult:
    """Convert and publish a group; what is wrong with an input is raised, or with `keep_going` part of the result.

    `base_bytes` of the process are not penstock's.
    """
    storage = shard_storage_of(as_path(request.out))
    for first_file in range(0, _MOST_FILES, _FILES_OF_ATTEMPT):
        with contextlib.suppress(RemoteTaken), storage.attempt(request.attempt) as attempt:
            return _write_group(request, storage, attempt, stop, on_moved, base_bytes, first_file)
    raise DataSetError(f"{storage.where}: group {request.group.number:,} has other bytes at each attempt")


def _write_group(
    request: GroupRequest,
    storage: ShardStorage,
    attempt: Attempt,
    stop: StopSignals,
    on_moved: OnMoved,
    base_bytes: int,
    first_file: int,
) -> GroupResult:
    began_s = time.perf_counter()
    made, failed = _GroupWriter(request, stop, attempt, first_file), {}
    stop.also_check = attempt.check
    with process_memory.PeakMeter() as meter, contextlib.ExitStack() as held:
        held.callback(setattr, stop, "also_check", None)
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
    if not attempt.publish(result.to_json(), stop.check):
        (first,) = storage.read_results(request.work, [request.group.number])
        result = replace(result, **{name: (first or {})[name] for name in ("node", "failed", "episodes", "frames")})
    return result


def _ends_the_group(request: GroupRequest, error: PenstockError) -> bool:
    """Errors that no other input would escape, or that another attempt does not have."""
    return isinstance(error, (Interrupted, OutputFailed, RemoteTaken)) or is_of_output(request, error) or (
        request.more_memory_follows and isinstance(error, BudgetExceeded)
    )  # fmt: skip


def is_of_output(request: GroupRequest, error: PenstockError) -> bool:
    return isinstance(error, RemoteError) and f"{error.url}/".startswith(f"{request.out}/")


def error_to_json(error: PenstockError) -> dict[str, str | None]:
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
