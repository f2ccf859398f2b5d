"""`Snapshot`: everything a profile knew at one moment, frozen; JSON there and back (RUN.json)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock._src.profile.record.histogram import Durations, middle_ns, pairs_of
from penstock._src.profile.schema import decode, encode_fields, replacing
from penstock.errors import UsageError

VERSION = 3
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SpanStats(Durations):
    """One span under its parents (`path`, outermost first) in one thread, or, merged, by name alone.

    `total_ns` holds the children, `self_ns` does not. Where calls of several rows are merged, `total_ns` holds the time
    of a call inside a call of the same name (recursion, tasks at once) only once; the durations of such inner calls are
    `nested_ns`.
    """

    name: str
    path: tuple[str, ...] = ()
    process: int = 0
    thread: str = ""
    self_ns: int = 0
    nested_ns: int = 0

    @property
    def mean_ns(self) -> float:
        """The mean duration of all calls, also of those inside a call of the same name."""
        return (self.total_ns + self.nested_ns) / self.count if self.count else 0.0


def grouped(values: Iterable[T], name_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Values by their names, in the order in which these come."""
    found: dict[str, list[T]] = {}
    for each in values:
        found.setdefault(name_of(each), []).append(each)
    return found


def merge_by_name(spans: Iterable[SpanStats]) -> list[SpanStats]:
    """One for each name, all figures summed. A call inside a call of the same name adds to all but the total."""
    return [_merged(name, alike) for name, alike in grouped(spans, lambda each: each.name).items()]


def _merged(name: str, spans: list[SpanStats]) -> SpanStats:
    inner_ns = sum(each.total_ns for each in spans if name in each.path)
    counts: Counter[int] = Counter()
    for each in spans:
        counts.update(dict(each.histogram))
    return SpanStats(
        name=name,
        count=sum(each.count for each in spans),
        total_ns=sum(each.total_ns for each in spans) - inner_ns,
        self_ns=sum(each.self_ns for each in spans),
        nested_ns=sum(each.nested_ns for each in spans) + inner_ns,
        min_ns=min((each.min_ns for each in spans if each.count), default=0),
        max_ns=max(each.max_ns for each in spans),
        histogram=pairs_of(counts),
    )


@dataclass(frozen=True)
class GaugeStats:
    """A level that goes up and down (queue depth): the newest value of any thread, and all of them summed up."""

    last: float
    mean: float
    min: float
    max: float
    count: int


class StepPoint(NamedTuple):
    """A step of the series; where the series is thinned, the mean of a few steps that begin with this one."""

    step: int
    start_ns: int
    duration_ns: int
    wait_ns: int


@dataclass(frozen=True, kw_only=True)
class StepStats(Durations):
    """The training steps between marks; `wait_ns` of a step is the time that its loop waited for data."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    wait_total_ns: int = 0
    series: tuple[StepPoint, ...] = ()
    steps_per_point: int = 1
    batches: int = 0
    """That its loop took and used, where a loader tells."""
    cpu_total_ns: int = 0
    """What the thread of the loop worked on them."""

    @property
    def wait_mean_ns(self) -> float:
        return self.wait_total_ns / self.count if self.count else 0.0

    @property
    def wait_share(self) -> float:
        """The part of all step time that was spent waiting for data, 0 to 1."""
        return self.wait_total_ns / self.total_ns if self.total_ns else 0.0


@dataclass(frozen=True)
class EpochStats:
    """One epoch: from the mark before it (or its first step) to its own; its steps and their waits."""

    epoch: int
    start_ns: int
    duration_ns: int
    steps: int
    steps_ns: int
    wait_ns: int


class MemoryPoint(NamedTuple):
    """Memory at a moment: resident of the main process; proportional of it and all its children."""

    time_ns: int
    rss_bytes: int
    tree_pss_bytes: int


class SpanEvent(NamedTuple):
    """One finished call of a span, on the clock of `time.perf_counter_ns`; depth 0 has no parent."""

    name: str
    start_ns: int
    duration_ns: int
    depth: int


@dataclass(frozen=True)
class ThreadEvents:
    """The last calls of one thread, oldest first; threads that have ended may have left some of them."""

    process: int
    process_name: str
    thread: str
    events: tuple[SpanEvent, ...]


# What a loader tells of itself; a field that is None is not known

PENSTOCK_LOADER = "penstock.Loader"
TORCH_LOADER = "torch.utils.data.DataLoader"
FETCH_NS, FETCH_CPU = "fetch_ns", "fetch_cpu_ns"
"""Counters: how long samples and batches of an attached DataLoader took; what CPUs worked for them."""


def own_counter(name: str, number: int) -> str:
    """That counter, of one loader alone."""
    return f"{name} of loader {number}"


@dataclass(frozen=True)
class ViewInfo:
    """The view that answers for images of one column."""

    where: str
    """"ram" or "disk"."""
    capacity: int
    """Images."""
    filled: int


@dataclass(frozen=True)
class ImageInfo:
    """One image column, by what decides which changes apply to it."""

    column: str
    rows: int
    view_row_bytes: int
    """Of one image in a view; 0 where it can have none."""
    on_device: bool
    """Whether it is decoded on the GPU."""
    is_jpeg: bool
    can_scale: bool
    """Whether `exact=False` would decode it smaller."""
    view: ViewInfo | None = None


@dataclass(frozen=True)
class StoreInfo:
    """One store of a loader, and what opens it again."""

    path: str
    kind: str = ""
    weight: float = 1.0
    """In a mixture."""
    open_options: Mapping[str, Any] | None = None
    """None where only the process that made the store can open it."""


@dataclass(frozen=True)
class LoaderInfo:
    """How a loader is set up, what a batch of it needs, and what it gave so far."""

    kind: str | None = None
    text: str | None = None
    """Its `repr`."""
    batch_size: int | None = None
    """Samples that this process takes of a batch."""
    batches: int | None = None
    """Of an epoch."""
    memory_available_bytes: int | None = None
    cores: int | None = None
    threads: int | None = None

    # A DataLoader of torch
    number: int | None = None
    """By which its counters are named, where it has some of its own."""
    workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    is_stream: bool | None = None
    """Whether every worker goes through all of the data set, unless that divides itself."""
    starts: int | None = None
    """Passes that began, all but the very first."""
    start_wait_ms: float | None = None
    """For the first batch of one of these."""

    # A loader of penstock
    options: Mapping[str, Any] | None = None
    """What it was asked for, without the store and the window."""
    stores: tuple[StoreInfo, ...] = ()
    length: int | None = None
    """Of a mixture."""
    window: Mapping[str, Any] | None = None
    engine: str | None = None
    """"thread" or "process": where its batches are made."""
    device: str | None = None
    cuda: bool | None = None
    """Whether the process has a GPU."""
    resize: str | None = None
    images: tuple[ImageInfo, ...] = ()
    images_per_batch: float | None = None
    """That are asked for."""
    made_per_batch: float | None = None
    """That were decoded or copied; a batch needs an image once."""
    hit_share: float | None = None
    """Of these, the part that a view answered for."""
    stored_bytes_per_batch: float | None = None
    memory_bytes: int | None = None
    memory_left_bytes: int | None = None
    cache_free_bytes: int | None = None

    # What it gave, and what the profiler adds of the training steps
    batches_handed: int | None = None
    step_batches: int | None = None
    """That went into training steps."""
    ended: bool | None = None

    @property
    def processes(self) -> int:
        """That share each batch."""
        shard = (self.options or {}).get("shard")
        return int(shard[1]) if shard else 1

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not known is left out."""
        return {name: value for name, value in encode_fields(self).items() if value not in (None, [])}


# Everything


@dataclass(frozen=True)
class Snapshot:
    """What a profile knew at one moment; times are those of `time.perf_counter_ns`, one clock for all processes."""

    spans: tuple[SpanStats, ...] = ()
    counters: Mapping[str, int] = field(default_factory=Counter)
    """By name; one that nobody counted since the last reset is 0."""
    gauges: Mapping[str, GaugeStats] = field(default_factory=dict)
    steps: StepStats = field(default_factory=StepStats)
    epochs: tuple[EpochStats, ...] = ()
    memory: tuple[MemoryPoint, ...] = ()
    gpu: tuple[SpanStats, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    loaders: tuple[LoaderInfo, ...] = ()
    events: tuple[ThreadEvents, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    process: int = 0
    start_ns: int = 0
    taken_ns: int = 0
    taken_at: float = 0.0

    @property
    def duration_ns(self) -> int:
        """From the beginning (or the last reset) to the moment of the snapshot."""
        return self.taken_ns - self.start_ns

    def by_name(self) -> dict[str, SpanStats]:
        """The spans of all threads and processes merged by name, the largest total first."""
        merged = merge_by_name(self.spans)
        return {each.name: each for each in sorted(merged, key=lambda each: (-each.total_ns, each.name))}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"penstock_profile": VERSION, **encode_fields(self)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Snapshot:
        """The snapshot that `to_dict` wrote; UsageError where it is something else."""
        if not isinstance(data, Mapping) or "penstock_profile" not in data:
            raise UsageError("this is no profile of penstock: the key 'penstock_profile' is missing")
        if data["penstock_profile"] != VERSION:
            raise UsageError(f"the profile has version {data['penstock_profile']!r}, this penstock reads {VERSION}")
        found: Snapshot = decode(Snapshot, data)
        return replace(found, counters=Counter(found.counters))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON; a file of that name is replaced in one go."""
        with replacing(path, "the profile") as scratch:
            scratch.write_text(json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False), encoding="utf-8")
        return Path(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Snapshot:
        """Read what `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{os.fspath(path)}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{os.fspath(path)}: is no JSON: {error}") from error
        try:
            return Snapshot.from_dict(data)
        except UsageError as error:
            raise UsageError(f"{os.fspath(path)}: {error.message}") from error

    def __repr__(self) -> str:
        return (
            f"Snapshot({len(self.spans)} spans in {len(self.events)} threads, {self.steps.count:,} steps, "
            f"{self.duration_ns / 1e9:.3f} s)"
        )


# What happened between two snapshots of one run


def between(before: Snapshot, after: Snapshot) -> Snapshot:
    """What happened from one snapshot to a later one of the same run: its spans and steps alone.

    Threads come and go, and a new one goes on with the sums of one that has ended: only what all of them did together
    can be told apart.
    """
    if after.start_ns != before.start_ns or after.process != before.process:
        return after  # it was reset in between: everything in it is new
    steps = StepStats(
        count=max(0, after.steps.count - before.steps.count),
        total_ns=max(0, after.steps.total_ns - before.steps.total_ns),
        wait_total_ns=max(0, after.steps.wait_total_ns - before.steps.wait_total_ns),
    )
    spans, gpu = _newer(before.spans, after.spans), _newer(before.gpu, after.gpu)
    return Snapshot(
        spans=spans, gpu=gpu, steps=steps, process=after.process, start_ns=before.taken_ns, taken_ns=after.taken_ns
    )


def sums(snapshot: Snapshot) -> Snapshot:
    """What `between` needs of a snapshot, without its series and events: small enough to keep several."""
    steps = replace(snapshot.steps, series=())
    return replace(snapshot, steps=steps, epochs=(), memory=(), machine={}, loaders=(), events=())


def _newer(before: Iterable[SpanStats], after: Iterable[SpanStats]) -> tuple[SpanStats, ...]:
    known = {each.name: each for each in merge_by_name(before)}
    found = [_less(new, known[new.name]) if new.name in known else new for new in merge_by_name(after)]
    return tuple(each for each in found if each.count > 0)


def _less(after: SpanStats, before: SpanStats) -> SpanStats:
    counts = Counter(dict(after.histogram))
    counts.subtract(dict(before.histogram))
    pairs = pairs_of(counts)
    min_ns, max_ns = after.min_ns, after.max_ns
    if pairs:
        # The extremes of the time between are not known, but the buckets at its ends are: they bound the percentiles.
        low_ns, high_ns = (round(middle_ns(pairs[end][0])) for end in (0, -1))
        min_ns, max_ns = max(low_ns, min_ns), max(low_ns, min(high_ns, max_ns))
    return replace(
        after,
        count=after.count - before.count,
        total_ns=max(0, after.total_ns - before.total_ns),
        self_ns=max(0, after.self_ns - before.self_ns),
        nested_ns=max(0, after.nested_ns - before.nested_ns),
        min_ns=min_ns,
        max_ns=max_ns,
        histogram=pairs,
    )
