"""One file of a replay buffer: its transitions, where their parts go in a batch, and what loading it cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.batch_tasks import begin_job
from penstock._src.load.engine.job import BatchJob, BatchPart
from penstock._src.load.engine.source import SampleSource, Shaping
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.replay.columns import ReplayColumns, ReplayRequest, columns_for, cut_at, sizes_for
from penstock._src.load.sampling.transition import own_next
from penstock._src.load.views import choose_views
from penstock._src.load.views.view import View
from penstock._src.stores.opening import open_store
from penstock._src.stores.roles import TERMINALS
from penstock._src.stores.store import Store
from penstock._src.system.budget import Reservation
from penstock._src.system.units import format_bytes
from penstock.errors import StoreError

_BLOCK_SAMPLES = 1 << 13


class ReplayFile:
    """The transitions 0…count-1 of one store."""

    def __init__(self, store: Store, columns: ReplayColumns, source: SampleSource, count: int) -> None:
        self.store, self.columns, self.source, self.count = store, columns, source, count
        self.unused = source.bound.count - count
        """Transitions of the file that are not taken."""
        self.reservations: list[Reservation] = []
        self.notes: tuple[str, ...] = (*store.notes, *source.numbers.describe())
        if columns.terminal is None:
            self.notes += (f"no column is called {' or '.join(TERMINALS)}: not_done is always 1; terminal=… names one",)
        self._views: list[View] = []

    @property
    def image_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(channels, height, width) of every camera in a batch."""
        by_name = {column.name: column.shape for column in self.source.images}
        return tuple(by_name[name] for name in self.columns.images)

    def fill(self) -> None:
        """Read the numbers."""
        self.source.numbers.fill()

    def attach_views(self, choice: str, left_bytes: int) -> int:
        """Give cameras a view; what those in memory take."""
        self._views, notes = choose_views.attach_views([self.source], choice, left_bytes)
        self.notes += tuple(notes)
        return choose_views.held_bytes(self._views)

    def targets(self, arrays: dict[str, NDArray[Any]], size: int) -> dict[str, NDArray[Any]]:
        """The arrays that the engine fills, by its names: images straight into the batch, numbers beside it, for
        they come in the file's own types."""
        targets: dict[str, NDArray[Any]] = {}
        for number, name in enumerate(self.columns.images):
            targets[name] = arrays[f"image {number}"]
            targets[f"next.{name}"] = arrays[f"next image {number}"]
        for output in self.source.number_outputs:
            column = self.store.column(output.column)
            targets[output.name] = np.empty((size, *column.shape), column.dtype)
        return targets

    def place_numbers(
        self, targets: dict[str, NDArray[Any]], places: NDArray[np.int64], arrays: dict[str, NDArray[Any]]
    ) -> None:
        """Numbers of this file's samples into the batch, as float32."""
        columns = self.columns

        def put(target: str, values: NDArray[Any]) -> None:
            arrays[target][places] = values[places].reshape(len(places), -1)

        put("joint", _joined([targets[name] for name in columns.joint]))
        put("next joint", _joined([targets[f"next.{name}"] for name in columns.joint]))
        put("action", targets[columns.action])
        put("reward", targets[columns.reward])
        if columns.terminal is None:
            arrays["not_done"][places] = 1.0
        else:
            ends = targets[columns.terminal]
            put("not_done", (ends == 0) | (ends != ends))  # a NaN says nothing, here as where episodes are cut

    def close(self) -> None:
        for view in self._views:
            view.close()
        self.store.close()
        for reservation in self.reservations:
            reservation.release()


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def load_file(
    path: Path, request: ReplayRequest, shaping: Shaping, table_limit_bytes: int, limit: int, options: dict[str, Any]
) -> ReplayFile:
    """Open a file for its first `limit` transitions; of the others no numbers are read."""
    options = dict(options)
    file = _opened(path, request, shaping, table_limit_bytes, limit, options.pop("episodes", None), options)
    bound = file.source.bound
    if bound.count <= limit:
        return file
    last = int(file.store.episode_of(bound.rows_of(np.array([limit - 1])))[0])
    if last + 1 == file.store.episodes or file.columns.terminal != file.store.roles.get("terminal"):
        return file  # episodes that a given terminal makes are not known to the store
    first = [file.store.episode_number(position) for position in range(last + 1)]
    file.close()
    part = _opened(path, request, shaping, table_limit_bytes, limit, first, options)
    part.unused += bound.count - part.source.bound.count
    return part


def _opened(
    path: Path,
    request: ReplayRequest,
    shaping: Shaping,
    table_limit_bytes: int,
    limit: int,
    episodes: Sequence[int] | None,
    options: dict[str, Any],
) -> ReplayFile:
    store = open_store(path, episodes=episodes, **options)
    try:
        file = file_of(store, columns_for(store, request), shaping, table_limit_bytes, limit)
        for column in file.source.images:
            if column.dtype != "uint8":
                raise StoreError(f"{path}: {column.name} is {column.dtype}, images of uint8 are expected")
        _check_following(store, file.columns, file.source)
        return file
    except BaseException:
        store.close()
        raise


def file_of(store: Store, columns: ReplayColumns, shaping: Shaping, table_limit_bytes: int, limit: int) -> ReplayFile:
    """The first `limit` transitions of a store that is open; the same in every process."""
    if columns.terminal is not None and columns.terminal != store.roles.get("terminal"):
        cut_at(store, columns.terminal)
    source = SampleSource(columns.window().bind(store), sizes_for(store, shaping), table_limit_bytes)
    return ReplayFile(store, columns, source, min(source.bound.count, limit))


def fill_batch(
    arrays: dict[str, NDArray[Any]], files: Sequence[ReplayFile], numbers: NDArray[np.int64], pool: ThreadPool
) -> None:
    """Transitions by their numbers over all files, into the arrays of a batch; raises where a row cannot be read."""
    ends = np.cumsum([file.count for file in files])
    holders = np.searchsorted(ends, numbers, side="right")
    jobs: list[tuple[ReplayFile, NDArray[np.int64], BatchJob]] = []
    try:
        for which in np.unique(holders).tolist():
            file, places = files[which], np.flatnonzero(holders == which)
            samples = numbers[places] - (int(ends[which]) - file.count)
            job = BatchJob(len(numbers), file.targets(arrays, len(numbers)), {})
            jobs.append((file, places, job))
            begin_job(job, [BatchPart(file.source, places, samples)], pool)
        for _, _, job in jobs:
            job.wait()
    except BaseException:
        for _, _, job in jobs:
            job.cancel_and_wait()  # the caller may use the arrays again
        raise
    for file, places, job in jobs:
        if job.failures:
            others = "num_traj=… loads the transitions before it, episodes=[…] those of other episodes"
            raise job.failures[0].raised(others) from job.failures[0].error
        file.place_numbers(job.arrays, places, arrays)
        job.arrays = {}  # threads may know the job for a moment longer than the caller its batch


def _check_following(store: Store, columns: ReplayColumns, source: SampleSource) -> None:
    """What follows in columns of its own goes into arrays of the same shape."""
    shapes: dict[str, tuple[int, ...]] = {column.name: column.shape for column in source.images}
    following = own_next(store)
    for name in (*columns.images, *columns.joint):
        after = following.get(name, name)
        one, two = (shapes.get(each, store.column(each).shape) for each in (name, after))
        if one != two:
            is_size = name in shapes and one[0] == two[0]
            hint = "image_size=(height, width) brings both to one size" if is_size else None
            raise StoreError(
                f"{store.path}: {after} is {two}, but {name}, whose next row it holds, is {one}", hint=hint
            )


def moments(files: Sequence[ReplayFile]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the actions of all samples, block by block; what is not finite is left out."""
    width = int(np.prod(files[0].store.column(files[0].columns.action).shape, dtype=np.int64))
    count, mean, squares = (np.zeros(width, np.float64) for _ in range(3))
    for file in files:
        column = file.store.column(file.columns.action)
        for first in range(0, file.count, _BLOCK_SAMPLES):
            samples = np.arange(first, min(first + _BLOCK_SAMPLES, file.count), dtype=np.int64)
            raw = np.empty((len(samples), *column.shape), column.dtype)
            file.source.numbers.gather(column.name, file.source.bound.rows_of(samples), raw)
            values = raw.reshape(len(samples), width).astype(np.float64)
            good = np.isfinite(values)
            values[~good] = 0.0
            n = good.sum(axis=0)
            here = values.sum(axis=0) / np.maximum(n, 1)
            spread = (good * (values - here) ** 2).sum(axis=0)
            total = np.maximum(count + n, 1)
            # Two parts joined: their own squares, and those of the distance between their means.
            squares += spread + (here - mean) ** 2 * count * n / total
            mean += (here - mean) * n / total
            count += n
    return mean, np.sqrt(squares / np.maximum(count, 1))


def load_text(file: ReplayFile, size: int, room: int, limit: int | None, grown_bytes: int) -> str:
    """What was loaded, what was left out and why, and what it costs."""
    store = file.store
    lines = [f"loaded {store.path}: {file.count:,} transition{'s' if file.count != 1 else ''}, {size:,} in the buffer"]
    without_next = store.rows - file.source.bound.count
    lines.append(
        f"  rows     {store.rows:,} in {store.episodes:,} episode{'s' if store.episodes != 1 else ''}"
        + (f"; without a next row: {without_next:,}, at ends of episodes that are not terminal" if without_next else "")
    )
    if file.unused:
        reason = f"max_size leaves room for {room:,}" if limit is None or room < limit else f"num_traj={limit:,}"
        lines.append(f"  not used {file.unused:,} more transitions of the file: {reason}")
    numbers = file.source.numbers.in_memory_bytes
    lines.append(
        f"  memory   {format_bytes(numbers)} of numbers, without images; the process grew by "
        f"{format_bytes(max(grown_bytes, 0))}"
    )
    for column in file.source.images:
        stored = "×".join(str(side) for side in column.column.shape[:2])
        size_text = "×".join(str(side) for side in column.fit.size)
        lines.append(f"  images {column.name} {stored} → {size_text} {_where(file, column.name)}")
    return "\n".join([*lines, *(f"  note: {note}" for note in file.notes)])


def _where(file: ReplayFile, name: str) -> str:
    view = file.source.views.get(name)
    column = file.store.column(name)
    way = f"read from disk when sampled ({'through h5py, slower' if column.is_read_by_library else column.way})"
    if view is None:
        return way
    return f"{way}, then kept in {'memory' if view.path is None else 'the cache on disk'}: {view.capacity:,} rows"
