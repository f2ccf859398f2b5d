"""One episode out of a store: blocks of rows go through a few recycled buffers to the cameras and the table."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.camera import PictureChanged, Shot
from penstock.conversion.cameras.image_pass import UNUSABLE, PicturePass, make_worker, sampled_rows
from penstock.conversion.cameras.lane import Crew
from penstock.conversion.inputs.input import Run
from penstock.conversion.inputs.store_columns import StoreCamera, StoreColumns
from penstock.conversion.mapping.columns_by_name import SUCCESS
from penstock.conversion.settings import Settings
from penstock.errors import ImageError, PenstockError
from penstock.plan.conversion_memory import MemoryPlan
from penstock.stores.store import Picture as StoredImage
from penstock.stores.store import Store

if TYPE_CHECKING:
    from penstock.conversion.commit.episode import EpisodeWriter

_CHANGED = "convert the part before and the part after on their own, or choose another video setting"


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be used, and why."""

    camera: str
    name: str
    row: int
    reason: str


class BadImages(Exception):
    """The pass met images that cannot be used; the rows have to be chosen again without them."""

    def __init__(self, found: Sequence[BadImage]) -> None:
        super().__init__(f"{len(found)} unusable images")
        self.found = tuple(found)


@dataclass(frozen=True)
class EpisodeRows:
    """Which rows of a store become the episode; for each camera, rows that show the image before."""

    rows: NDArray[np.int64]
    held: Mapping[str, frozenset[int]] = field(default_factory=dict)
    success: bool = False  # what is known of the episode as a whole


@dataclass(frozen=True)
class Pass:
    """The means of a pass; `before_bytes` and `share_bytes` say where the episode lies in the whole store."""

    settings: Settings
    memory: MemoryPlan
    fps: int
    before_bytes: int
    share_bytes: int
    run: Run


def stream_episode(store: Store, columns: StoreColumns, rows: EpisodeRows, episode: EpisodeWriter, means: Pass) -> None:
    """Write the rows as one episode (not yet committed); raises BadImages when some cannot be used."""
    bad: list[BadImage] = []
    threads = means.memory.threads
    workers = [make_worker(each, episode, means.settings.encoding, means.fps, threads) for each in columns.cameras]
    try:
        with Crew(threads) as crew:
            # No method: `PicturePass` would hold the stream and its buffers until the garbage collector comes.
            note_bad = partial(_note_bad, columns.cameras, bad)
            images = PicturePass(columns.cameras, workers, episode, crew, threads, bad, note_bad)
            _Stream(store, columns, rows, episode, means, images, crew, bad).run()
    finally:
        for worker in workers:
            worker.close()
    if bad:
        raise BadImages(bad)


def block_row_bytes(cameras: Sequence[StoreCamera]) -> int:
    """One row of all cameras in a buffer."""
    return sum(camera.row_bytes for camera in cameras)


class _Buffers:
    """A few buffers that go round: whoever takes one waits until one is back."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self._free: queue.Queue[NDArray[np.uint8]] = queue.Queue()
        self.size_bytes = size_bytes
        for _ in range(count):
            self._free.put(np.empty(size_bytes, np.uint8))

    def take(self) -> NDArray[np.uint8]:
        return self._free.get()

    def give(self, buffer: NDArray[np.uint8]) -> None:
        self._free.put(buffer)


class _Stream:
    """The state of one pass; lives as long as `stream_episode`."""

    def __init__(
        self,
        store: Store,
        columns: StoreColumns,
        rows: EpisodeRows,
        episode: EpisodeWriter,
        means: Pass,
        images: PicturePass,
        crew: Crew,
        bad: list[BadImage],
    ) -> None:
        self._store, self._columns, self._rows, self._episode, self._pass = store, columns, rows, episode, means
        self._images, self._crew, self._bad = images, crew, bad
        count = len(rows.rows)
        self._sampled = frozenset(sampled_rows(range(count), means.settings.image_samples).tolist()) if count else ()
        self._row_bytes = block_row_bytes(columns.cameras)
        size_bytes = max(means.memory.fetch_bytes // 2, self._row_bytes)
        self._buffers = _Buffers(2, size_bytes) if columns.cameras else None

    def run(self) -> None:
        self._crew.statistics.put(_load_arrow, lambda: None)
        count = len(self._rows.rows)
        step = self._pass.memory.rows_per_flush or max(count, 1)
        for start in range(0, count, step):
            stop = min(start + step, count)
            for low, high in self._blocks(start, stop):
                self._read_images(low, high)
                self._moved(high)
            self._write_rows(start, stop)
            self._moved(stop)
            self._pass.run.on_rows(stop)
        self._images.finish()

    def _moved(self, done: int) -> None:
        share = self._pass.share_bytes * done // max(len(self._rows.rows), 1)
        self._pass.run.on_moved(self._pass.before_bytes + share)

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Rows that fit into a buffer, up to where a chunk ends: it is then unpacked once."""
        if self._buffers is None:
            return
        most = max(1, self._buffers.size_bytes // self._row_bytes)
        rows = self._rows.rows
        while start < stop:
            end = min(start + most, stop)
            if end < stop:
                begins = np.ones(end - start, np.bool_)  # of the rows after the first, and of the one behind the block
                for camera in self._columns.cameras:
                    runs = camera.source.runs(rows[start : end + 1])
                    begins &= runs[1:] != runs[:-1]
                end = start + 1 + int(np.flatnonzero(begins)[-1]) if begins.any() else end
            yield start, end
            start = end

    def _read_images(self, low: int, high: int) -> None:
        """Read the rows of all cameras into one buffer, and hand their images on."""
        assert self._buffers is not None
        buffer = self._buffers.take()
        try:
            shots: list[list[Shot]] = []
            offset = 0
            rows: list[int] = self._rows.rows[low:high].tolist()
            for owner, camera in enumerate(self._columns.cameras):
                size_bytes = len(rows) * camera.row_bytes
                found = camera.source.read_block(rows, buffer[offset : offset + size_bytes])
                offset += size_bytes
                shots.append(self._shots(owner, camera, low, found))
        except BaseException:
            self._buffers.give(buffer)
            raise
        give = self._buffers.give
        self._images.put(shots, lambda: give(buffer))

    def _shots(
        self, owner: int, camera: StoreCamera, low: int, found: Sequence[StoredImage | ImageError]
    ) -> list[Shot]:
        held = self._rows.held.get(camera.key, frozenset())
        shots: list[Shot] = []
        for position, stored in enumerate(found, low):
            row = int(self._rows.rows[position])
            if row in held:
                if shots:
                    shots[-1] = shots[-1]._replace(repeats=shots[-1].repeats + 1)
                else:
                    self._images.repeat(owner, 1)
                continue
            try:
                if isinstance(stored, ImageError):
                    raise stored
                image = camera.image(stored)
                self._images.checks[owner](image, self._store.row_number(row))
            except PictureChanged as error:
                text = error.message.replace("message", "row", 1)
                raise ImageError(f"{self._store.path}: {text}", hint=_CHANGED) from error
            except UNUSABLE as error:
                _note_bad(self._columns.cameras, self._bad, owner, row, error)
                continue
            shots.append(Shot(row, image, 0))
            if position in self._sampled:
                self._images.sample(owner, row, image)
        return shots

    def _write_rows(self, start: int, stop: int) -> None:
        columns: dict[str, Any] = dict(self._images.take_images())
        if not self._columns.has_rows:  # the rows are counted by the images
            self._crew.writing.drain()
        if self._bad:
            return
        rows = self._rows.rows[start:stop]
        columns |= {column.key: column.read(self._store, rows) for column in self._columns.numbers}
        if self._columns.has_success:
            columns[SUCCESS] = np.zeros((stop - start, 1), np.bool_)
            columns[SUCCESS][-1] = self._rows.success and stop == len(self._rows.rows)
        self._episode.write_rows(columns, rows=stop - start)


def _note_bad(cameras: Sequence[StoreCamera], bad: list[BadImage], owner: int, row: int, error: PenstockError) -> None:
    bad.append(BadImage(cameras[owner].key, cameras[owner].name, row, error.message))


def _load_arrow() -> None:
    """The first flush will need it; loading it meanwhile costs the pass nothing."""
    import pyarrow.parquet  # noqa: F401
