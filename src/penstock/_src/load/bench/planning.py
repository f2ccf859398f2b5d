"""`plan_loading`: measures a part of a store for some seconds, and predicts memory and samples/s for all of it.

plan = penstock.plan_loading("datasets/run", batch_size=64)
loader = penstock.Loader(penstock.open("datasets/run"), plan=plan)
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from penstock._src.load.bench.measure import bench_load
from penstock._src.load.bench.points import COLD, LoadBench, Point, window_for
from penstock._src.load.bench.points import Plan as BenchPlan
from penstock._src.load.loader import Loader
from penstock._src.load.memory_split import ENGINE_BYTES
from penstock._src.load.sampling.window import Sampling
from penstock._src.load.settings import HELD_SLOTS
from penstock._src.load.views import cache
from penstock._src.load.views.choose_views import full_bytes_of, share_on_disk
from penstock._src.load.vqa.planning import vqa_options
from penstock._src.plan.load_plan import LoadOption, LoadPlan, choose, strategy_for
from penstock._src.plan.view_choice import LEAST_SHARE, is_enough_on_disk, share_in_memory
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Store
from penstock._src.stores.vqa.store import VQAStore
from penstock._src.system.cache_directory import has_directory
from penstock._src.system.limits import MemoryLimit, read_memory_limit
from penstock._src.system.units import MIB, format_bytes, parse_bytes
from penstock.errors import LimitExceeded, StoreError, UsageError

EPOCHS = 10
"""What a training usually makes at least; a view that pays only later is not proposed."""
_BUDGET_SHARE = 0.5  # of the memory that is available, where nothing is asked for: the training needs some, too
_PART_BYTES = 192 * MIB  # of images in the part that is measured: several times what processors cache
_PART_BATCHES = 8


def plan_loading(
    data: str | os.PathLike[str] | Store,
    batch_size: int = 64,
    *,
    window: Sampling | str = "auto",
    image_size: tuple[int, int] | None = (224, 224),
    memory: str | int | None = None,
    threads: int | str = "auto",
    epochs: int = EPOCHS,
    seconds: float = 1.0,
    **options: Any,
) -> LoadPlan:
    """Measure the first rows of a path or an open store, and plan how all of it is loaded within `memory`.

    `memory` is half of what is available unless it is given. `options` go to `penstock.open`. The measuring takes some
    seconds for each of three ways: no view, a view in memory, a view on disk.
    """
    if epochs < 1:
        raise UsageError(f"epochs={epochs}: a training makes at least one pass")
    path, options = _reopening(data, options)
    limit = read_memory_limit()
    budget_bytes = int(limit.available_bytes * _BUDGET_SHARE) if memory is None else parse_bytes(memory)
    with ExitStack() as held:
        store = held.enter_context(open_store(path, **options))
        sampling = window_for(window, store) if isinstance(window, str) else window
        samples = sampling.bind(store).count
        settings = _Settings(path, sampling, min(batch_size, max(samples, 1)), image_size, budget_bytes, threads)
        whole = held.enter_context(settings.loader(store))
        images = _ViewBytes(sum(full_bytes_of(whole._sources)), share_on_disk(whole._sources))
        bench = _measured(settings, store, whole, images, limit, seconds, options)
        candidates = _options(bench, whole, images)
        chosen = choose(candidates, samples, epochs)
        if isinstance(store, VQAStore):
            candidates += vqa_options(path, settings.batch_size, image_size, budget_bytes, seconds, options)
        numbers = sum(c.row_bytes for c in store.columns.values() if c.kind == "numbers") * store.rows
        decoded_bytes = images.n_bytes + numbers
        reasons = _reasons(candidates, chosen, epochs, images, bench)
        if settings.batch_size < batch_size:
            reasons.insert(0, f"a batch has {samples:,} samples: there are no more")
        return LoadPlan(
            path=path,
            kind=store.kind,
            rows=store.rows,
            episodes=store.episodes,
            samples=samples,
            window=repr(sampling),
            batch_size=settings.batch_size,
            image_size=image_size,
            stored_bytes=store.stored_bytes,
            decoded_bytes=decoded_bytes,
            batch_bytes=whole.memory_split.slot_bytes,
            engine_bytes=ENGINE_BYTES,
            budget_bytes=budget_bytes,
            available_bytes=limit.available_bytes,
            memory_limit=limit.available_ruled_by,
            strategy=strategy_for(decoded_bytes, budget_bytes / _BUDGET_SHARE),
            threads=whole.memory_split.threads,
            slots=whole.memory_split.slots,
            prefetch=whole.memory_split.slots - HELD_SLOTS,
            chosen=chosen,
            options=tuple(candidates),
            reasons=tuple(reasons),
            opening=f"penstock.open({path!r}{''.join(f', {name}={value!r}' for name, value in options.items())})",
        )


def _reopening(data: str | os.PathLike[str] | Store, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path and the words that open the data: a store that is open is measured through another one."""
    if not isinstance(data, Store):
        return os.fspath(data), options
    reopening = data.reopening()
    if reopening is None or options:
        hint = "give its path, and the options of penstock.open"
        raise UsageError(f"{data.path}: this store cannot be opened a second time", hint=hint)
    return str(reopening[0]), {name: value for name, value in reopening[1].items() if value is not None}


@dataclass(frozen=True)
class _Settings:
    """What everything is measured with."""

    path: str
    window: Sampling
    batch_size: int
    image_size: tuple[int, int] | None
    memory: int
    threads: int | str

    def loader(self, store: Store) -> Loader:
        return Loader(
            store, self.window, self.batch_size, self.image_size, self.memory, view="off", threads=self.threads,
            output="numpy",
        )  # fmt: skip


@dataclass(frozen=True)
class _ViewBytes:
    """What a view of all images takes, and the part of it that lies on disk already."""

    n_bytes: int
    on_disk: float


def _measured(
    settings: _Settings, store: Store, whole: Loader, images: _ViewBytes, limit: MemoryLimit, seconds: float,
    options: dict[str, Any],
) -> LoadBench:  # fmt: skip
    """A view in memory, one on disk, and none, over as many rows as are enough.

    Filling a view reads all files of the part: what is measured behind it finds them in the page cache, as an epoch
    after the first does. Data that the cache cannot hold are measured without it.
    """
    views = ("ram", "disk", "off") if images.n_bytes and has_directory() else ("off",)
    row_bytes = max(images.n_bytes // max(store.rows, 1), 1)
    samples_per_row = whole.samples / max(store.rows, 1)
    rows = max(_PART_BYTES // row_bytes, int(_PART_BATCHES * settings.batch_size / max(samples_per_row, 1e-9)))
    rows = min(rows, store.rows)
    share = share_in_memory([images.n_bytes], whole.memory_split.left_bytes)
    plan = BenchPlan(
        path=settings.path, batch_sizes=(settings.batch_size,), views=views, window="given",
        image_size=settings.image_size, memory=settings.memory, threads=settings.threads, seconds=seconds,
        cold=store.stored_bytes > limit.available_bytes, most_rows=rows, options=options or None,
        view_bytes=int(share * row_bytes * rows) if 0 < share < 1 else None,
    )  # fmt: skip
    bench = bench_load(plan, window=settings.window)
    if not any(point.view == "off" for point in bench.points):
        raise StoreError(f"{settings.path}: nothing can be measured: {bench.left_out[-1].reason}")
    return bench


def _options(bench: LoadBench, whole: Loader, images: _ViewBytes) -> list[LoadOption]:
    """No view first, then the views in the order in which they are preferred."""
    points = {point.view: point for point in bench.points}
    off, cold = points["off"], points.get(COLD)
    split = whole.memory_split
    batches_bytes = split.slots * split.slot_bytes
    numbers_bytes = split.table_bytes + split.index_bytes
    fixed = {
        "batches": batches_bytes,
        "numbers and indexes": numbers_bytes,
        "threads and libraries": max(0, off.peak_bytes - bench.start_bytes - batches_bytes - numbers_bytes),
    }
    without = LoadOption("off", 0.0, fixed, 0, 0.0, (cold or off).samples_per_s)
    share = share_in_memory([images.n_bytes], split.left_bytes)
    views = [
        _with_view(points[view], off, without, bench, split.left_bytes, share, images)
        for view in ("ram", "disk") if view in points
    ]  # fmt: skip
    if is_enough_on_disk(images.on_disk, share):
        views.reverse()
    return [without, *views]


def _with_view(
    point: Point,
    off: Point,
    without: LoadOption,
    bench: LoadBench,
    left_bytes: int,
    share: float,
    images: _ViewBytes,
) -> LoadOption:
    filling = next(each for each in bench.fillings if each.view == point.view)
    bytes_per_s = filling.n_bytes / max(filling.seconds, 1e-9)
    if point.view == "disk":
        missing_bytes = int((1 - images.on_disk) * images.n_bytes)
        why_not = _why_no_room(images.n_bytes) if missing_bytes else ""
        own = LoadOption("disk", 1.0, without.memory_bytes, images.n_bytes, 0.0, point.samples_per_s, why_not)
        return replace(own, fill_s=missing_bytes / bytes_per_s)
    view_bytes = int(share * images.n_bytes)
    why_not = ""
    if not share:
        why_not = f"{format_bytes(max(left_bytes, 0))} are left for it, less than {LEAST_SHARE:.0%} of the images"
    # Measured with a view that holds as large a part: what a sample takes that it answers, and one that it does not.
    hits = point.view_hits or 1.0
    answered_s = max(1 / point.samples_per_s - (1 - hits) / off.samples_per_s, 0.0) / hits
    seconds = share * answered_s + (1 - share) / without.samples_per_s
    held = {**without.memory_bytes, "view": view_bytes}
    return LoadOption("ram", share, held, 0, view_bytes / bytes_per_s, 1 / seconds, why_not)


def _why_no_room(disk_bytes: int) -> str:
    try:
        with cache.CacheDirectory(cache.views_directory()) as directory:
            directory.check_room(disk_bytes, "the view")
    except LimitExceeded as error:
        return error.message
    return ""


def _reasons(
    options: list[LoadOption], chosen: LoadOption, epochs: int, images: _ViewBytes, bench: LoadBench
) -> list[str]:
    off = options[0]
    rate = f"{off.samples_per_s:,.0f} samples/s"
    if not images.n_bytes:
        reasons = [f"there is nothing to decode: {rate} without a view"]
    elif chosen is off:
        reasons = [f"decoding every time reaches {rate}, and no view pays within {epochs} epochs"]
    else:
        ratio = chosen.samples_per_s / off.samples_per_s
        once = f"takes {chosen.fill_text} to fill once" if chosen.fill_s else "is filled already"
        reasons = [f"{chosen.name} gives {ratio:.1f}× the samples/s of decoding every time, and {once}"]
    if any(point.view == COLD for point in bench.points):
        reasons.append("the files are larger than the memory there is: each epoch reads them from disk")
    return reasons + [f"{each.name}: {each.why_not}" for each in options if each.why_not]
