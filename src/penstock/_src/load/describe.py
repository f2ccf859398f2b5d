"""A loader's description of itself, for the profiler."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock._src.load.engine.source import ImageColumn, SampleSource
from penstock._src.load.views.view import View
from penstock._src.profile.stats import (
    PENSTOCK_LOADER,
    ImageInfo,
    LoaderInfo,
    StoreInfo,
    ViewInfo,
)
from penstock._src.stores.store import Store
from penstock._src.system.cache_directory import cache_directory
from penstock._src.system.limits import read_cpu_limit, read_memory_limit
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock._src.load.loader import Loader

_MOST_EPISODES = 20_000  # by number in a description; beyond, it would be larger than the rest of a run's file


def describe(loader: Loader) -> LoaderInfo:
    """How a loader is set up, what a batch of it needs, and what it takes to make it again."""
    options, split, mix, counts = loader._options, loader.memory_split, loader._mix, loader._counts
    n_batches, made = counts["batches"], counts["view_hits"] + counts["images_made"]
    per_batch, stored = _needs(loader)
    return LoaderInfo(
        kind=PENSTOCK_LOADER,
        text=repr(loader),
        options=_options(options),
        stores=tuple(_store(each.store, weight) for each, weight in zip(loader._sources, mix.weights, strict=True)),
        length=mix.length,
        window=loader.window.describe(),
        batches=len(loader),
        batch_size=_batch_size(loader),
        threads=split.threads,
        engine=loader._engine_kind,
        cores=read_cpu_limit().count,
        device=str(options["device"] or "cpu"),
        cuda=_cuda(),
        resize=options["resize"],
        images=tuple(_image(loader, source, column) for source in loader._sources for column in source.images),
        images_per_batch=per_batch,
        made_per_batch=made / n_batches if n_batches else None,
        hit_share=counts["view_hits"] / made if made else None,
        stored_bytes_per_batch=stored,
        memory_bytes=split.limit_bytes,
        memory_left_bytes=max(split.left_bytes, 0),
        memory_available_bytes=read_memory_limit().available_bytes,
        cache_free_bytes=_cache_free(),
        batches_handed=n_batches,
    )


def _batch_size(loader: Loader) -> int:
    """Of this process."""
    return loader._batches.batch_size // loader._shard.world


def _needs(loader: Loader) -> tuple[float, float]:
    """Of a batch: (images, stored bytes of them), each source by its part of the samples."""
    images = stored = 0.0
    for source, weight in zip(loader._sources, loader._mix.weights, strict=True):
        samples = _batch_size(loader) * weight / sum(loader._mix.weights)
        for column in source.images:
            steps = samples * sum(output.steps or 1 for output in column.outputs)
            images += steps
            stored += steps * column.column.stored_bytes / max(source.store.rows, 1)
    return images, stored


def _cache_free() -> int | None:
    """Bytes that the disk of the cache directory has left for a view; None where there is no such place."""
    try:
        place = cache_directory()
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free
    except (OSError, PenstockError):
        return None


def _image(loader: Loader, source: SampleSource, column: ImageColumn) -> ImageInfo:
    fit = column.fit
    return ImageInfo(
        column=column.name,
        rows=source.store.rows,
        view_row_bytes=column.view_row_bytes,
        on_device=loader._encoded(column),
        is_jpeg=column.is_jpeg,
        can_scale=column.is_jpeg and fit.exact and replace(fit, exact=False).reduction > 1,
        view=_view(source.views.get(column.name)),
    )


def _view(view: View | None) -> ViewInfo | None:
    if view is None or view.is_closed:
        return None
    return ViewInfo("ram" if view.path is None else "disk", view.capacity, view.n_filled)


def _cuda() -> bool:
    torch = sys.modules.get("torch")  # not imported for a question: who has a GPU has it imported
    return bool(torch is not None and torch.cuda.is_available())


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the loader was asked for, as JSON can hold it."""
    plain = {name: value for name, value in options.items() if name not in ("store", "window")}
    plain["view"] = options["view"] if isinstance(options["view"], str) else "given"
    plain["memory"] = options["memory"] if isinstance(options["memory"], str | int) else options["memory"].limit_bytes
    plain["device"] = None if options["device"] is None else str(options["device"])
    plain["shard"] = None if options["shard"] is None else list(options["shard"])
    return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else _plain(value.tolist())


def _store(store: Store, weight: float) -> StoreInfo:
    """What opens a store again; `open_options` is None where that is only possible in this process."""
    again = store.reopening()
    if again is None or len(again[1].get("episodes") or ()) > _MOST_EPISODES:
        return StoreInfo(str(store.path), store.kind, weight, None)
    return StoreInfo(str(again[0]), store.kind, weight, again[1])
