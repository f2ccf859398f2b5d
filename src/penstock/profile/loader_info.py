"""`LoaderInfo`: what a loader tells the profiler of itself, typed; JSON there and back (`subjects` of RUN.json).

Whatever yields batches fills one in its `describe()`. A field that is None was not told. `other` holds facts of a
user's own loader that are no fields here: they are kept in the file and shown on the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.errors import UsageError
from penstock.profile.file_values import Part, json_name, plain_value

PENSTOCK_LOADER = "penstock.Loader"
TORCH_LOADER = "torch.utils.data.DataLoader"

# Keys that a kind of loader always has in the file, with null or an empty list where there is nothing to tell.
_ALWAYS_WRITTEN = {
    PENSTOCK_LOADER: {"length", "made_per_batch", "hit_share", "cache_free_bytes", "pictures", "stores"},
    TORCH_LOADER: {
        "batch_size", "prefetch_factor", "samples", "batches", "start_wait_ms", "memory_available_bytes",
    },
}  # fmt: skip


@dataclass(frozen=True)
class ViewInfo:
    """The view that answers for images of one column."""

    where: str
    """"ram" or "disk"."""
    capacity: int
    """Images."""
    filled: int
    bytes: int


@dataclass(frozen=True)
class ImageInfo:
    """One image column: how it is stored, and what a batch takes of it."""

    column: str
    encoding: str
    way: str
    """How the store reads it."""
    stored: tuple[int, int]
    """Height and width, as is `size`."""
    size: tuple[int, int]
    steps: int
    """Images of one sample."""
    rows: int
    stored_bytes: float
    """Of one image, on average."""
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
    rows: int | None = None
    weight: float = 1.0
    """In a mixture."""
    open_options: Mapping[str, Any] | None = field(default=None, metadata={"json": "words"})
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
    samples: int | None = None
    """Of an epoch, in all processes."""
    memory_available_bytes: int | None = None
    cores: int | None = None
    threads: int | None = None

    # A DataLoader of torch
    workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    dataset: str | None = None
    """The class of it."""
    is_stream: bool | None = None
    """Whether every worker goes through all of the data set, unless that divides itself."""
    service_counter: str | None = None
    """The counter of what its samples and batches took."""
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
    rows: int | None = None
    slots: int | None = None
    device: str | None = None
    cuda: bool | None = None
    """Whether the process has a GPU."""
    exact: bool | None = None
    resize: str | None = None
    images: tuple[ImageInfo, ...] = field(default=(), metadata={"json": "pictures"})
    images_per_batch: float | None = field(default=None, metadata={"json": "pictures_per_batch"})
    """That are asked for."""
    made_per_batch: float | None = None
    """That were decoded or copied; a batch needs an image once."""
    hit_share: float | None = None
    """Of these, the part that a view answered for."""
    stored_bytes_per_batch: float | None = None
    batch_bytes: int | None = None
    memory_bytes: int | None = None
    memory_left_bytes: int | None = None
    cache_free_bytes: int | None = None

    # What it gave, and what the profiler adds of the training steps
    batches_handed: int | None = None
    step_batches: int | None = None
    """That went into training steps."""
    steps_waited_ms: float | None = None
    is_companion: bool | None = None
    """Whether the steps ask it beside another loader."""
    ended: bool | None = None

    other: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_fed(self) -> bool:
        """Whether training steps had batches of it."""
        return bool(self.step_batches or self.is_companion)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what was not told is left out."""
        always = _ALWAYS_WRITTEN.get(self.kind or "", set())
        written = {json_name(each): getattr(self, each.name) for each in fields(self) if each.name != "other"}
        told = {name: _written(value) for name, value in written.items() if name in always or value not in (None, ())}
        found: dict[str, Any] = plain_value({**told, **self.other})
        return found

    @staticmethod
    def from_json(data: Any, place: str = "") -> LoaderInfo:
        """What `to_json` wrote, or a table that a user's own loader tells; UsageError names the value that is wrong."""
        part = Part(data, place)
        known = {json_name(each) for each in fields(LoaderInfo)}
        other = Part({name: each.value for name, each in part.named() if name not in known}, place).facts()
        images = part.part("pictures").items() if "pictures" in data else []
        return part.made(
            LoaderInfo,
            images=tuple(map(_image_from, images)),
            stores=_stores_from(part.part("stores")) if "stores" in data else (),
            other=other,
        )


def _written(value: Any) -> Any:
    """A value of the file: nested descriptions become tables."""
    if isinstance(value, tuple) and value and not isinstance(value[0], int):
        return [_table(each) for each in value]
    return value


def _table(value: Any) -> dict[str, Any]:
    told = {json_name(each): getattr(value, each.name) for each in fields(value)}
    return {name: _table(each) if isinstance(each, ViewInfo) else each for name, each in told.items()}


def _image_from(part: Part) -> ImageInfo:
    view = part.part("view") if "view" in part.be("a table") else None
    seen = None if view is None or view.value is None else view.made(ViewInfo)
    return part.made(ImageInfo, view=seen)


def _stores_from(part: Part) -> tuple[StoreInfo, ...]:
    """Nothing where it cannot be read: that costs a new loader of the same data, not the judgement of the run."""
    try:
        return tuple(each.made(StoreInfo) for each in part.items())
    except UsageError:
        return ()
