"""`LoaderInfo`: what a loader tells the profiler of itself, typed (`loaders` of RUN.json).

Whatever yields batches fills one in its `describe()`. A field that is None is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock._src.profile.schema import encode_fields

PENSTOCK_LOADER = "penstock.Loader"
TORCH_LOADER = "torch.utils.data.DataLoader"


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
    engine: str | None = None
    """"thread" or "process": where its batches are made."""
    device: str | None = None
    cuda: bool | None = None
    """Whether the process has a GPU."""
    exact: bool | None = None
    resize: str | None = None
    images: tuple[ImageInfo, ...] = ()
    images_per_batch: float | None = None
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
    ended: bool | None = None

    @property
    def processes(self) -> int:
        """That share each batch."""
        shard = (self.options or {}).get("shard")
        return int(shard[1]) if shard else 1

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not known is left out."""
        return {name: value for name, value in encode_fields(self).items() if value not in (None, [])}
