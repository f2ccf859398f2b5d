"""What `penstock bench load` measures, and what came out: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._src.load.sampling.clip import Clip
from penstock._src.load.sampling.window import Sampling, Transition, Window
from penstock._src.load.settings import threads_for
from penstock._src.stores.store import Store
from penstock.errors import UsageError

VIEWS = ("off", "ram", "disk")
BATCH_SIZES = (64, 128, 256, 512)
COLD = "off, cold"


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    path: str
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    views: tuple[str, ...] = VIEWS
    cold: bool = False
    window: str = "auto"
    image_size: tuple[int, int] | None = (224, 224)
    memory: str | int = "2GiB"
    threads: int | str = "auto"
    seconds: float = 3.0
    fill_seconds: float = 120.0
    episodes: Sequence[int] | str | None = None
    most_rows: int | None = None
    """Only so many rows from the first on are opened."""
    view_bytes: int | None = None
    """At most for a view in RAM, where more would fit."""
    options: Mapping[str, Any] | None = None
    """Of `penstock.open`."""


@dataclass(frozen=True)
class Point:
    """One batch size with one view."""

    view: str
    batch_size: int
    batches: int
    seconds: float
    """Of these batches; but for cold ones the clock begins when the loader is warm."""
    first_batch_s: float
    p95_ms: float
    batch_bytes: int
    peak_bytes: int
    """Anonymous memory of the process and its children, sampled while the point ran, and views in RAM."""
    view_hits: float | None
    """The part of the images that a view answered."""
    remote_requests: int = 0
    """To an object store or a web server, while these batches were made."""
    remote_bytes: int = 0
    remote_wait_s: float = 0.0
    """How long all requests took, added up."""
    remote_latency_s: float = 0.0
    """How long they took until their answers began, added up."""

    @property
    def samples_per_s(self) -> float:
        return self.batches * self.batch_size / self.seconds

    @property
    def ms_per_batch(self) -> float:
        return 1e3 * self.seconds / self.batches

    @property
    def mb_per_s(self) -> float:
        """Of batches as they are handed out."""
        return self.batches * self.batch_bytes / self.seconds / 1e6

    @property
    def requests_per_s(self) -> float:
        return self.remote_requests / self.seconds

    @property
    def remote_mb_per_s(self) -> float:
        """Of stored bytes, as they came over the network."""
        return self.remote_bytes / self.seconds / 1e6

    @property
    def remote_bytes_per_sample(self) -> float:
        return self.remote_bytes / (self.batches * self.batch_size)


@dataclass(frozen=True)
class SkippedPoint:
    """A point that was not measured, and why."""

    view: str
    batch_size: int | None
    reason: str


@dataclass(frozen=True)
class FillTime:
    """How long a view took to fill."""

    view: str
    rows: int
    n_bytes: int
    seconds: float


@dataclass(frozen=True)
class LoadBench:
    """All points of one store."""

    sample: str
    samples: int
    threads: int
    memory_bytes: int
    start_bytes: int
    """What the process held before the first loader."""
    points: tuple[Point, ...]
    left_out: tuple[SkippedPoint, ...]
    fillings: tuple[FillTime, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """1 when nothing could be measured."""
        return 0 if self.points else 1


def window_for(text: str, store: Store) -> Sampling:
    """`transition`, `row`, `chunk:N`, `clip:N`, or `auto`: transitions where there are rewards or ends, else rows."""
    if text == "auto":
        text = "transition" if {"reward", "terminal"} & set(store.roles) else "row"
    kind, _, number = text.partition(":")
    if kind == "row" and not number:
        return Window()
    if kind == "transition" and not number:
        return Transition()
    if kind == "clip" and number.isdecimal() and int(number) > 0:
        return Clip(int(number))
    if kind == "chunk" and number.isdecimal() and int(number) > 0:
        action = store.roles.get("action")
        if action is None:
            raise UsageError(f"{store.path}: no column is known to be the action, so there are no chunks of it",
                             hint="--window row")  # fmt: skip
        return Window({action: range(int(number))})
    raise UsageError(f"window {text!r}", hint="transition, row, chunk:20, clip:5 or auto")


def check(plan: Plan) -> None:
    """Refuse a plan that cannot be measured."""
    unknown = [view for view in plan.views if view not in VIEWS]
    if unknown or not plan.views:
        raise UsageError(f"view {unknown[0]!r}" if unknown else "no view is asked for", hint=f"of {', '.join(VIEWS)}")
    if not plan.batch_sizes or min(plan.batch_sizes) < 1:
        raise UsageError(f"batch sizes {list(plan.batch_sizes)}: they must be 1 or more")
    for name, values in (("batch size", plan.batch_sizes), ("view", plan.views)):
        if len(set(values)) != len(values):
            raise UsageError(f"a {name} is there twice: {' '.join(str(value) for value in values)}")
    if not plan.seconds > 0 or not plan.fill_seconds > 0:
        raise UsageError(f"{plan.seconds:g} s per point and {plan.fill_seconds:g} s to fill: they must be above 0")
    threads_for(plan.threads)
