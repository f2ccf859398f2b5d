"""One episode out of an HDF5 file: blocks of rows go through a few recycled buffers to the cameras and the table."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.camera import CameraWorker, PictureChanged, Shot
from penstock.conversion.cameras.image_pass import UNUSABLE, PicturePass, make_worker, sampled_rows
from penstock.conversion.cameras.lane import Crew
from penstock.conversion.inputs.hdf5_columns import FileColumns, PictureColumn, PictureForm
from penstock.conversion.inputs.hdf5_mapping import SUCCESS
from penstock.conversion.inputs.input import Run
from penstock.conversion.settings import Settings
from penstock.errors import ImageError, PenstockError, StoreCorrupt, StoreError
from penstock.plan.conversion_memory import MemoryPlan
from penstock.stores.hdf5.array import Hdf5Array
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.layout import join

if TYPE_CHECKING:
    from penstock.conversion.commit.episode import EpisodeWriter

ALIGNMENT_BYTES = 64  # of a camera's share of a buffer


@dataclass(frozen=True)
class BadPicture:
    """A picture that cannot be used, and why."""

    camera: str
    name: str
    row: int
    reason: str


class BadPictures(Exception):
    """The pass met pictures that cannot be used; the rows have to be chosen again without them."""

    def __init__(self, found: Sequence[BadPicture]) -> None:
        super().__init__(f"{len(found)} unusable pictures")
        self.found = tuple(found)


@dataclass(frozen=True)
class EpisodeRows:
    """Which rows of a group become the episode; for each camera, rows that show the picture before."""

    group: str
    picks: NDArray[np.int64]
    held: Mapping[str, frozenset[int]] = field(default_factory=dict)
    success: bool = False  # what is known of the episode as a whole


@dataclass(frozen=True)
class Pass:
    """The means of a pass; `before_bytes` and `share_bytes` say where the episode lies in the whole file."""

    settings: Settings
    memory: MemoryPlan
    fps: int
    before_bytes: int
    share_bytes: int
    run: Run


def stream_episode(
    file: Hdf5File, columns: FileColumns, rows: EpisodeRows, episode: EpisodeWriter, going: Pass
) -> None:
    """Write the rows as one episode (not yet committed); raises BadPictures when some cannot be used."""
    arrays = open_arrays(file, columns, rows.group)
    bad: list[BadPicture] = []
    encoding, threads = going.settings.encoding, going.memory.threads
    workers = [make_worker(each.camera, episode, encoding, going.fps, threads) for each in columns.cameras]
    try:
        with Crew(threads) as crew:
            _Stream(columns, arrays, rows, episode, going, workers, crew, bad).run()
    finally:
        for worker in workers:
            worker.close()
    if bad:
        raise BadPictures(bad)


def open_arrays(file: Hdf5File, columns: FileColumns, group: str) -> dict[str, Hdf5Array]:
    """The data sets of one group; each must be what the first group's was."""
    arrays: dict[str, Hdf5Array] = {}
    for name in columns.names():
        arrays[name] = Hdf5Array(file, join(group, name))
    for camera in columns.cameras:
        array, member = arrays[camera.member.name], camera.member
        same = array.is_ragged == member.ragged and str(array.dtype) == member.dtype
        if member.content in ("pixels", "depth"):
            same = same and array.row_shape == member.row_shape
        if not same:
            raise StoreError(
                f"{file.path}: {array.name} is {array.dtype} {array.row_shape}, "
                f"in the first episode {member.dtype} {member.row_shape}",
                hint="convert such episodes on their own",
            )
    for column in columns.numbers:
        for part in column.parts:
            array = arrays[part.name]
            values = int(np.prod(array.row_shape, dtype=np.int64))
            if values != part.values or array.dtype.kind not in "biuf":
                raise StoreError(
                    f"{file.path}: {array.name} has {values:,} values of {array.dtype} a row, "
                    f"in the first episode {part.values:,}"
                )
    return arrays


def buffer_bytes(cameras: Sequence[PictureColumn]) -> int:
    """One row of all cameras in a buffer."""
    return sum(_aligned(camera.longest_bytes) for camera in cameras)


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
        columns: FileColumns,
        arrays: Mapping[str, Hdf5Array],
        rows: EpisodeRows,
        episode: EpisodeWriter,
        going: Pass,
        workers: Sequence[CameraWorker],
        crew: Crew,
        bad: list[BadPicture],
    ) -> None:
        self._columns, self._arrays, self._rows, self._episode, self._pass = columns, arrays, rows, episode, going
        self._crew, self._bad = crew, bad
        # No method: `PicturePass` would hold the stream and its buffers until the garbage collector comes.
        self._note_bad = partial(_note_bad, columns, bad)
        cameras = [each.camera for each in columns.cameras]
        self._pictures = PicturePass(cameras, workers, episode, crew, going.memory.threads, bad, self._note_bad)
        count = len(rows.picks)
        self._sampled = frozenset(sampled_rows(range(count), going.settings.image_samples).tolist()) if count else ()
        self._row_bytes = buffer_bytes(columns.cameras)
        size_bytes = max(going.memory.fetch_bytes // 2, self._row_bytes)
        self._buffers = _Buffers(2, size_bytes) if columns.cameras else None

    def run(self) -> None:
        self._crew.statistics.put(_load_arrow, lambda: None)
        picks, memory = self._rows.picks, self._pass.memory
        step = memory.rows_per_flush or max(len(picks), 1)
        for start in range(0, len(picks), step):
            stop = min(start + step, len(picks))
            for low, high in self._blocks(start, stop):
                self._pictures_of(low, high)
                self._moved(high)
            self._write_rows(start, stop)
            self._moved(stop)
            self._pass.run.on_rows(stop)
        self._pictures.finish()

    def _moved(self, done: int) -> None:
        share = self._pass.share_bytes * done // max(len(self._rows.picks), 1)
        self._pass.run.on_moved(self._pass.before_bytes + share)

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Runs of rows that fit into a buffer, and end where chunks end: a chunk is then unpacked once."""
        if self._buffers is None:
            return
        most = max(1, self._buffers.size_bytes // self._row_bytes)
        chunk = max(self._arrays[camera.member.name].chunk_rows for camera in self._columns.cameras)
        whole = most - most % chunk if chunk <= most else most
        picks = self._rows.picks
        while start < stop:
            begin = int(picks[start])
            limit = begin - begin % chunk + whole if chunk <= most else begin + whole
            end = min(start + most, stop)
            end = max(start + 1, start + int(np.searchsorted(picks[start:end], limit)))
            yield start, end
            start = end

    def _pictures_of(self, low: int, high: int) -> None:
        """Read the rows of all cameras into one buffer, and hand their pictures on."""
        assert self._buffers is not None
        buffer = self._buffers.take()
        try:
            shots: list[list[Shot]] = []
            offset = 0
            for owner, column in enumerate(self._columns.cameras):
                data = self._read(column, low, high, buffer[offset:])
                offset += (high - low) * _aligned(column.longest_bytes)
                shots.append(self._shots(owner, column, low, high, data))
        except BaseException:
            self._buffers.give(buffer)
            raise
        give = self._buffers.give
        self._pictures.put(shots, lambda: give(buffer))

    def _read(
        self, column: PictureColumn, low: int, high: int, buffer: NDArray[np.uint8]
    ) -> Sequence[NDArray[np.uint8] | PenstockError]:
        """The bytes of each row, in the buffer where rows have one length."""
        array = self._arrays[column.member.name]
        picks = self._rows.picks[low:high]
        if array.is_ragged:
            return [_ragged_row(array, int(row), column.longest_bytes) for row in picks]
        # A later group may have padded its rows less or more than the first.
        if array.row_bytes > column.longest_bytes:
            raise StoreError(
                f"{array.file.path}: rows of {array.name} have {array.row_bytes:,} bytes, those of the first episode "
                f"{column.longest_bytes:,}",
                hint="convert such episodes on their own",
            )
        stride = array.row_bytes
        rows = buffer[: len(picks) * stride].reshape(len(picks), stride)
        done = 0
        for first, last in _runs(picks):
            part = rows[done : done + last - first]
            array.rows(first, last, part.reshape(-1).view(array.dtype).reshape(last - first, *array.row_shape))
            done += last - first
        form = column.camera.reader
        if isinstance(form, PictureForm) and form.turned:
            for row in rows:
                planes = row.reshape(array.row_shape)
                row[:] = np.ascontiguousarray(planes.transpose(1, 2, 0)).reshape(-1)
        return list(rows)

    def _shots(
        self, owner: int, column: PictureColumn, low: int, high: int, data: Sequence[NDArray[np.uint8] | PenstockError]
    ) -> list[Shot]:
        held = self._rows.held.get(column.key, frozenset())
        check, read = self._pictures.checks[owner], column.camera.reader
        shots: list[Shot] = []
        for position, found in zip(range(low, high), data, strict=True):
            row = int(self._rows.picks[position])
            if row in held:
                if shots:
                    shots[-1] = shots[-1]._replace(repeats=shots[-1].repeats + 1)
                else:
                    self._pictures.repeat(owner, 1)
                continue
            try:
                if isinstance(found, PenstockError):
                    raise found
                picture = read(found.data)
                check(picture, row)
            except PictureChanged as error:
                text = error.message.replace("message", "row", 1)
                raise ImageError(f"{self._arrays[column.member.name].file.path}: {text}", hint=_CHANGED) from error
            except UNUSABLE as error:
                self._note_bad(owner, row, error)
                continue
            shots.append(Shot(row, picture, 0))
            if position in self._sampled:
                self._pictures.sample(owner, row, picture)
        return shots

    def _write_rows(self, start: int, stop: int) -> None:
        columns: dict[str, Any] = dict(self._pictures.take_images())
        if not self._columns.has_rows:  # the rows are counted by the images
            self._crew.writing.drain()
        if self._bad:
            return
        picks = self._rows.picks[start:stop]
        for column in self._columns.numbers:
            pieces = []
            for part in column.parts:
                array = self._arrays[part.name]
                read = [part.read(array, first, last) for first, last in _runs(picks)]
                pieces.append(read[0] if len(read) == 1 else np.concatenate(read))
            columns[column.key] = column.joined(pieces)
        if self._columns.has_success:
            columns[SUCCESS] = np.zeros((stop - start, 1), np.bool_)
            columns[SUCCESS][-1] = self._rows.success and stop == len(self._rows.picks)
        self._episode.write_rows(columns, rows=stop - start)


_CHANGED = "convert the part before and the part after on their own, or choose another video setting"


def _note_bad(columns: FileColumns, bad: list[BadPicture], owner: int, row: int, error: PenstockError) -> None:
    column = columns.cameras[owner]
    bad.append(BadPicture(column.key, column.member.name, row, error.message))


def _ragged_row(array: Hdf5Array, row: int, longest_bytes: int) -> NDArray[np.uint8] | PenstockError:
    try:
        return next(iter(array.ragged(row, row + 1, longest_bytes)))
    except (*UNUSABLE, StoreCorrupt) as error:  # one row of its own length is lost alone
        return ImageError(error.message)


def _runs(picks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Neighbouring rows as [first, last)."""
    if not len(picks):
        return
    breaks = np.flatnonzero(np.diff(picks) != 1) + 1
    for part in np.split(picks, breaks):
        yield int(part[0]), int(part[-1]) + 1


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _load_arrow() -> None:
    """The first flush will need it; loading it meanwhile costs the pass nothing."""
    import pyarrow.parquet  # noqa: F401


__all__ = ["BadPicture", "BadPictures", "EpisodeRows", "Pass", "buffer_bytes", "open_arrays", "stream_episode"]
