"""`LoadPlan`: how a store is best loaded on this machine, what that costs, and how fast it will be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock._src.plan.view_choice import ViewKind
from penstock._src.system.units import format_bytes, format_duration_ns, format_size

Strategy = Literal["small_dataset", "medium_dataset", "large_dataset"]

PRELOAD_SHARE = 0.5
STREAM_FACTOR = 2.0
ABOUT_AS_FAST = 1.25

_STRATEGY_TEXT = {
    "small_dataset": "preload: all of it is decoded once and kept in memory",
    "medium_dataset": "load lazily, and keep what fits in memory",
    "large_dataset": "stream, or keep decoded images on disk",
}


def strategy_for(needed: float, available: float) -> Strategy:
    """small: below half of the memory there is; large: twice of it, or more; medium: between."""
    if needed < PRELOAD_SHARE * available:
        return "small_dataset"
    return "medium_dataset" if needed < STREAM_FACTOR * available else "large_dataset"


@dataclass(frozen=True)
class LoadOption:
    """One way of loading: what it takes and what it gives. All figures are predictions."""

    view: ViewKind
    share: float
    """The part of all images that the view holds."""
    memory_bytes: Mapping[str, int]
    """What the loader holds at its peak, by part."""
    disk_bytes: int
    fill_s: float
    """What filling the view takes, once."""
    samples_per_s: float
    """Once the view is filled."""
    why_not: str = ""
    """Why it cannot be used; empty where it can."""
    label: str = ""
    """What it is, where it is no view of a `Loader`."""
    code: str = ""
    """What to write for it then."""

    @property
    def peak_bytes(self) -> int:
        return sum(self.memory_bytes.values())

    @property
    def fill_text(self) -> str:
        return "–" if not self.fill_s else format_duration_ns(self.fill_s * 1e9)

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        if self.view == "off":
            return "no view"
        if self.view == "disk":
            return "view on disk"
        return "view in memory" if self.share >= 1 else f"view in memory of {self.share:.0%}"


@dataclass(frozen=True)
class LoadPlan:
    """What `penstock.Loader(store, plan=plan)` obeys. Made by `penstock.plan_loading`."""

    path: str
    kind: str
    rows: int
    episodes: int
    samples: int
    window: str
    batch_size: int
    image_size: tuple[int, int] | None
    stored_bytes: int
    decoded_bytes: int
    """All images of the window's columns at the size of a batch, and all numbers."""
    batch_bytes: int
    engine_bytes: int
    """What an engine process takes at most; the predictions are those of threads."""
    budget_bytes: int
    available_bytes: int
    memory_limit: str
    """Which limit of this machine rules."""
    strategy: Strategy
    threads: int
    slots: int
    """Batches that are in memory at a time."""
    prefetch: int
    """Of those, how many are made ahead of the training step."""
    chosen: LoadOption
    options: tuple[LoadOption, ...]
    reasons: tuple[str, ...]
    opening: str = ""
    """What to write for the store."""

    @property
    def peak_bytes(self) -> int:
        """What the loader will hold, besides what the process held before."""
        return self.chosen.peak_bytes

    @property
    def samples_per_s(self) -> float:
        return self.chosen.samples_per_s

    @property
    def loader_options(self) -> dict[str, Any]:
        """The options of `Loader` that the plan decides."""
        return {
            "batch_size": self.batch_size,
            "image_size": self.image_size,
            "memory": self.budget_bytes,
            "view": self.chosen.view,
            "threads": self.threads,
            "prefetch": self.prefetch,
        }

    @property
    def code(self) -> str:
        """What to write instead of `plan=`."""
        chosen = {**self.loader_options, "memory": f"{self.budget_bytes >> 20}MiB"}
        words = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        window = "" if self.window == "Window()" else f"penstock.{self.window}, "
        return f"penstock.Loader(store, {window}{words})"

    def to_json(self) -> dict[str, Any]:
        derived = {"peak_bytes": self.peak_bytes, "samples_per_s": self.samples_per_s, "code": self.code}
        return {**asdict(self), **derived}

    def lines(self) -> list[tuple[str, str]]:
        """(label, text) for people: what it is, what it costs, what fits, what to run."""
        size = "full size" if self.image_size is None else f"{self.image_size[0]}×{self.image_size[1]}"
        lines = [
            ("data", f"{self.kind}, {self.rows:,} rows, episodes: {self.episodes:,}, {format_size(self.stored_bytes)}"),
            ("sample", f"{self.window} · {self.samples:,} samples · images {size}"),
            ("decoded", f"{format_bytes(self.decoded_bytes)} at that size"),
            ("memory", f"{format_bytes(self.available_bytes)} available ({self.memory_limit}), budget "
             f"{format_bytes(self.budget_bytes)}"),
            ("strategy", f"{self.strategy}: {_STRATEGY_TEXT[self.strategy]}"),
            ("threads", f"{self.threads}, {self.slots} batches of {format_bytes(self.batch_bytes)} in memory"),
            ("engine", f"torch tensors come from a process of its own, which takes {format_bytes(self.engine_bytes)}"),
        ]  # fmt: skip
        lines += [("because", reason) for reason in self.reasons]
        return lines

    def __repr__(self) -> str:
        return (
            f"LoadPlan({self.path!r}: {self.strategy}, view={self.chosen.view!r}, {self.threads} threads, "
            f"{format_bytes(self.peak_bytes)}, {self.samples_per_s:,.0f} samples/s)"
        )


def choose(options: Sequence[LoadOption], samples: int, epochs: int) -> LoadOption:
    """The option that ends `epochs` passes first, filling its view included; of those that are about as fast the one
    that comes first. Behind a view in memory that holds all images nothing else is looked at: what comes there is a new
    view on disk, which could only be slower."""
    usable = [each for each in options if not each.why_not]
    whole = next((n for n, each in enumerate(usable) if each.view == "ram" and each.share >= 1), len(usable))
    usable = usable[: whole + 1]
    seconds = [each.fill_s + epochs * samples / max(each.samples_per_s, 1e-9) for each in usable]
    return next(each for each, own in zip(usable, seconds, strict=True) if own <= ABOUT_AS_FAST * min(seconds))
