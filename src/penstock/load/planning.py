"""`plan_loading`: measures a part of a store for some seconds, and predicts memory and samples/s for all of it.

    plan = penstock.plan_loading("datasets/run", batch_size=64)
    loader = penstock.Loader(penstock.open("datasets/run"), plan=plan)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.errors import LimitExceeded, StoreError
from penstock.load import cache
from penstock.load.bench import bench_load
from penstock.load.bench_plan import LoadBench, Point, window_for
from penstock.load.bench_plan import Plan as BenchPlan
from penstock.load.loader import Loader
from penstock.load.settings import HELD_SLOTS
from penstock.load.window import Sampling
from penstock.plan.load_plan import LoadOption, LoadPlan, ViewKind, choose, strategy_for
from penstock.stores.opening import open_store
from penstock.stores.store import Store
from penstock.system.cache_directory import has_directory
from penstock.system.limits import read_memory_limit
from penstock.system.units import MIB, format_bytes, parse_bytes

EPOCHS = 10
"""What a training usually makes at least; a view that pays only later is not proposed."""
_BUDGET_SHARE = 0.5  # of the memory that is available, where nothing is asked for: the training needs some, too
_PROBE_BYTES = 96 * MIB  # of images in the part that is measured
_PROBE_BATCHES = 4
_VIEW_BYTES_PER_ROW = 1  # of the table that says which rows are there


def plan_loading(
    path: str | os.PathLike[str],
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
    """Measure a few episodes of a store, and plan how all of it is loaded within `memory`.

    `memory` is half of what is available unless it is given. `options` go to `penstock.open`. The measuring takes some
    seconds for each of three ways: no view, a view in memory, a view on disk.
    """
    limit = read_memory_limit()
    budget_bytes = int(limit.available_bytes * _BUDGET_SHARE) if memory is None else parse_bytes(memory)
    with ExitStack() as held:
        store = held.enter_context(open_store(path, **options))
        sampling = window_for(window, store) if isinstance(window, str) else window
        probe = _Probe(store, sampling, batch_size, image_size, budget_bytes, threads)
        with probe.loader() as whole:
            shares = whole.shares
            image_bytes = probe.view_bytes(whole)
            samples = whole.samples
        bench = probe.run(Path(path), options, seconds, image_bytes)
        found = _options(bench, probe, whole, image_bytes)
        numbers = sum(c.row_bytes for c in store.columns.values() if c.kind == "numbers") * store.rows
        chosen = choose(found, samples, epochs)
        return LoadPlan(
            path=str(path),
            kind=store.kind,
            rows=store.rows,
            episodes=store.episodes,
            samples=samples,
            window=repr(sampling),
            batch_size=batch_size,
            image_size=image_size,
            stored_bytes=store.stored_bytes,
            decoded_bytes=image_bytes + numbers,
            batch_bytes=shares.slot_bytes,
            budget_bytes=budget_bytes,
            available_bytes=limit.available_bytes,
            memory_limit=limit.available_ruled_by,
            strategy=strategy_for(image_bytes + numbers, budget_bytes / _BUDGET_SHARE),
            threads=shares.threads,
            slots=shares.slots,
            prefetch=shares.slots - HELD_SLOTS,
            chosen=chosen,
            options=tuple(found),
            reasons=tuple(_reasons(found, chosen, epochs, bench)),
        )


class _Probe:
    """The part of a store that is measured, and the settings that everything is measured with."""

    def __init__(
        self, store: Store, window: Sampling, batch_size: int, image_size: tuple[int, int] | None, memory: int,
        threads: int | str,
    ) -> None:  # fmt: skip
        self.store, self.window, self.batch_size = store, window, batch_size
        self.image_size, self.memory, self.threads = image_size, memory, threads

    def loader(self) -> Loader:
        return Loader(
            self.store, self.window, self.batch_size, self.image_size, self.memory, view="off", threads=self.threads,
            output="numpy",
        )  # fmt: skip

    def view_bytes(self, loader: Loader) -> int:
        """A view of all images."""
        row_bytes = sum(each.view_row_bytes for source in loader._sources for each in source.pictures)
        return row_bytes * self.store.rows

    def run(self, path: Path, options: Mapping[str, Any], seconds: float, image_bytes: int) -> LoadBench:
        """No view, a view in memory and one on disk, over as many episodes as are enough."""
        views: tuple[str, ...] = ("off", "ram", "disk") if image_bytes and has_directory() else ("off",)
        plan = BenchPlan(
            path=str(path), batch_sizes=(self.batch_size,), views=views, window="given", image_size=self.image_size,
            memory=self.memory, threads=self.threads, seconds=seconds, episodes=self._episodes(image_bytes),
            options=options or None,
        )  # fmt: skip
        bench = bench_load(plan, window=self.window)
        if not bench.points:
            raise StoreError(f"{path}: nothing can be measured: {bench.left_out[0].reason}")
        return bench

    def _episodes(self, image_bytes: int) -> list[int] | None:
        """Whole episodes with about `_PROBE_BYTES` of images, and some batches of samples at least."""
        starts, store = self.store.episode_starts, self.store
        row_bytes = max(image_bytes // max(store.rows, 1), 1)
        least = max(_PROBE_BYTES // row_bytes, _PROBE_BATCHES * self.batch_size)
        for count in range(1, store.episodes):
            if starts[count] >= least and self._samples(count) >= _PROBE_BATCHES * self.batch_size:
                return [store.episode_number(position) for position in range(count)]
        return None

    def _samples(self, episodes: int) -> int:
        """Of the first episodes, by their share of the rows: windows may take less than one sample per row."""
        bound = self.window.bind(self.store)
        return int(bound.count * self.store.episode_starts[episodes] / max(self.store.rows, 1))


def _options(bench: LoadBench, probe: _Probe, whole: Loader, image_bytes: int) -> list[LoadOption]:
    points = {point.view: point for point in bench.points}
    off = points["off"]
    shares = whole.shares
    batches_bytes = shares.slots * shares.slot_bytes
    numbers_bytes = shares.table_bytes + shares.index_bytes
    measured_bytes = off.peak_bytes - bench.start_bytes
    fixed = {
        "batches": batches_bytes,
        "numbers and indexes": numbers_bytes,
        "threads and libraries": max(0, measured_bytes - batches_bytes - numbers_bytes),
    }
    found = [LoadOption("off", 0.0, fixed, 0, 0.0, off.samples_per_s)]
    for view in ("ram", "disk"):
        if view in points:
            found.append(_with_view(view, points[view], off, bench, probe, fixed, image_bytes))
    return found


def _with_view(
    view: ViewKind, point: Point, off: Point, bench: LoadBench, probe: _Probe, fixed: Mapping[str, int],
    image_bytes: int,
) -> LoadOption:  # fmt: skip
    table_bytes = _VIEW_BYTES_PER_ROW * probe.store.rows
    left_bytes = probe.memory - sum(fixed.values()) - table_bytes
    filling = next(each for each in bench.fillings if each.view == view)
    bytes_per_s = filling.n_bytes / max(filling.seconds, 1e-9)
    disk_bytes = image_bytes if view == "disk" else 0
    share = 1.0 if view == "disk" else min(1.0, max(0, left_bytes) / max(image_bytes, 1))
    why_not = ""
    if share <= 0:
        why_not = f"the budget of {format_bytes(probe.memory)} has no room for it"
    if view == "disk":
        why_not = _why_no_room(disk_bytes)
    seconds = share / point.samples_per_s + (1 - share) / off.samples_per_s
    held = {**fixed, "view": int(share * image_bytes) + table_bytes} if view == "ram" else dict(fixed)
    return LoadOption(view, share, held, disk_bytes, share * image_bytes / bytes_per_s, 1 / seconds, why_not)


def _why_no_room(disk_bytes: int) -> str:
    try:
        with cache.CacheDirectory(cache.views_directory()) as directory:
            directory.check_room(disk_bytes, "the view")
    except LimitExceeded as error:
        return error.message
    return ""


def _reasons(found: list[LoadOption], chosen: LoadOption, epochs: int, bench: LoadBench) -> list[str]:
    off = found[0]
    if chosen is off:
        rate = f"{off.samples_per_s:,.0f} samples/s"
        text = f"decoding every time reaches {rate}, and no view pays within {epochs} epochs"
        return [text, *(f"{each.name}: {each.why_not}" for each in found if each.why_not)]
    ratio = chosen.samples_per_s / off.samples_per_s
    return [
        f"{chosen.name} gives {ratio:.1f}× the samples/s of decoding every time, and takes {chosen.fill_s:,.0f} s to "
        f"fill once",
        *(f"{each.name}: {each.why_not}" for each in found if each.why_not),
    ]
