"""One episode out of a store: images go through a few recycled buffers or are moved as stored, rows beside them."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.camera import PictureChanged, Shot, to_pixels
from penstock.conversion.cameras.image_pass import UNUSABLE, PicturePass, make_worker, sampled_rows
from penstock.conversion.cameras.lane import Crew
from penstock.conversion.cameras.moved import MovedFrames
from penstock.conversion.commit.episode import EpisodeWriter
from penstock.conversion.inputs.input import Run
from penstock.conversion.inputs.store_columns import StoreCamera
from penstock.conversion.settings import Settings
from penstock.errors import ImageError, PenstockError, VideoError
from penstock.lerobot.features import Feature
from penstock.plan.conversion_memory import MemoryPlan
from penstock.stores.store import Packets
from penstock.stores.store import Picture as StoredImage
from penstock.system.closing import on_error

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


class Table(ABC):
    """What the rows of an episode hold besides the images of its cameras."""

    has_rows = True
    """Whether there is anything at all."""

    @abstractmethod
    def read(self, start: int, stop: int, episode: EpisodeWriter) -> dict[str, Any]:
        """The columns of the rows [start, stop) of the episode; asked for in order."""

    def tasks(self) -> NDArray[np.int64] | None:
        """The tasks of the rows that were read last, where rows name their own."""
        return None


def _keep(_: str, error: PenstockError) -> PenstockError:
    return error


@dataclass(frozen=True)
class EpisodeWork:
    """What an episode is made of.

    `rows`: numbers that the sources of the cameras know; `held`: for each camera, rows that show the image before;
    `moved`: cameras of the data set whose frames are moved as they are stored.
    """

    path: Path
    rows: NDArray[np.int64]
    table: Table
    cameras: tuple[StoreCamera, ...] = ()
    moved: tuple[tuple[Feature, Packets], ...] = ()
    held: Mapping[str, frozenset[int]] = field(default_factory=dict)
    row_number: Callable[[int], int] = int  # by which messages name a row
    named: Callable[[str, PenstockError], PenstockError] = _keep  # an error of a camera, with where it happened
    strict: bool = False  # an image that cannot be used ends the conversion


@dataclass(frozen=True)
class Pass:
    """The means of a pass; `before_bytes` and `share_bytes` say where the episode lies in the whole store."""

    settings: Settings
    memory: MemoryPlan
    fps: int
    before_bytes: int
    share_bytes: int
    run: Run


def stream_episode(work: EpisodeWork, episode: EpisodeWriter, means: Pass) -> None:
    """Write the rows as one episode (not yet committed); raises BadImages when some cannot be used."""
    bad: list[BadImage] = []
    threads, count = means.memory.threads, len(work.rows)
    sampled = sampled_rows(range(count), means.settings.image_samples) if count else np.empty(0, np.int64)
    share = means.memory.fetch_bytes // max(len(work.cameras) + len(work.moved), 1)
    moved: list[MovedFrames] = []
    workers = [make_worker(each, episode, means.settings.encoding, means.fps, threads) for each in work.cameras]
    try:
        for feature, packets in work.moved:
            moved.append(MovedFrames(feature, packets, episode, sampled, share))
        with Crew(threads) as crew:
            # No method: `PicturePass` would hold the stream and its buffers until the garbage collector comes.
            note_bad = _noting(work, bad)
            images = PicturePass(work.cameras, workers, episode, crew, threads, bad, note_bad)
            _Stream(work, episode, means, images, moved, frozenset(sampled.tolist()), crew, bad).run()
    finally:
        for close in (*(worker.close for worker in workers), *(each.close for each in moved)):
            close()
    if bad:
        raise BadImages(bad)


def _noting(work: EpisodeWork, bad: list[BadImage]) -> Callable[[int, int, PenstockError], None]:
    def note_bad(owner: int, row: int, error: PenstockError) -> None:
        camera = work.cameras[owner]
        if work.strict:
            raise work.named(camera.key, error) from error
        bad.append(BadImage(camera.key, camera.name, row, error.message))

    return note_bad


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
        work: EpisodeWork,
        episode: EpisodeWriter,
        means: Pass,
        images: PicturePass,
        moved: Sequence[MovedFrames],
        sampled: frozenset[int],
        crew: Crew,
        bad: list[BadImage],
    ) -> None:
        self._work, self._episode, self._pass = work, episode, means
        self._images, self._moved, self._sampled, self._crew, self._bad = images, moved, sampled, crew, bad
        self._note_bad = _noting(work, bad)
        self._row_bytes = block_row_bytes(work.cameras)
        share = means.memory.fetch_bytes * len(work.cameras) // max(len(work.cameras) + len(moved), 1)
        self._buffers = _Buffers(2, max(share // 2, self._row_bytes)) if work.cameras else None

    def run(self) -> None:
        self._crew.load_arrow()
        count = len(self._work.rows)
        step = self._pass.memory.rows_per_flush or max(count, 1)
        for start in range(0, count, step):
            self._flush(start, min(start + step, count))
        self._images.finish()
        self._at_once([partial(self._with_name, each.key, each.finish) for each in self._moved])

    def _flush(self, start: int, stop: int) -> None:
        columns = self._work.table.read(start, stop, self._episode)
        for low, high in self._blocks(start, stop):
            self._read_images(low, high)
            self._tell(high)
        jobs = [partial(self._with_name, each.key, partial(each.advance, stop)) for each in self._moved]
        for each, taken in zip(self._moved, self._at_once(jobs), strict=True):
            if each.in_table:
                columns[each.key] = taken
        self._tell(stop)
        columns |= self._images.take_images()
        if not self._work.table.has_rows:  # the rows are counted by the images
            self._crew.writing.drain()
        if not self._bad:
            self._episode.write_rows(columns, rows=stop - start, task=self._work.table.tasks())
        self._pass.run.on_rows(stop)

    def _tell(self, done: int) -> None:
        share = self._pass.share_bytes * done // max(len(self._work.rows), 1)
        self._pass.run.on_moved(self._pass.before_bytes + share)

    def _at_once(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """All have ended before the first error is raised: nobody writes behind the back of an abort."""
        if len(jobs) < 2:
            return [job() for job in jobs]
        started = [self._crew.pool.submit(job) for job in jobs]
        wait(started)
        return [each.result() for each in started]

    def _with_name(self, key: str, job: Callable[[], Any]) -> Any:
        try:
            return job()
        except (ImageError, VideoError) as error:
            raise self._work.named(key, error) from error

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Rows that fit into a buffer, up to where a chunk ends: it is then unpacked once."""
        if self._buffers is None:
            return
        most = max(1, self._buffers.size_bytes // self._row_bytes)
        rows = self._work.rows
        while start < stop:
            end = min(start + most, stop)
            if end < stop:
                begins = np.ones(end - start, np.bool_)  # of the rows after the first, and of the one behind the block
                for camera in self._work.cameras:
                    runs = camera.source.runs(rows[start : end + 1])
                    begins &= runs[1:] != runs[:-1]
                end = start + 1 + int(np.flatnonzero(begins)[-1]) if begins.any() else end
            yield start, end
            start = end

    def _read_images(self, low: int, high: int) -> None:
        """Read the rows of all cameras into one buffer, and hand their images on."""
        assert self._buffers is not None
        buffer = self._buffers.take()
        with on_error(partial(self._buffers.give, buffer)):
            rows: list[int] = self._work.rows[low:high].tolist()
            jobs: list[Callable[[], Any]] = []
            offset = 0
            for camera in self._work.cameras:
                part = buffer[offset : offset + len(rows) * camera.row_bytes]
                offset += len(part)
                jobs.append(partial(self._with_name, camera.key, partial(camera.source.read_block, rows, part)))
            # Where videos are decoded, one after the other would keep the encoders waiting.
            is_decoded = any(camera.is_decoded for camera in self._work.cameras)
            found = self._at_once(jobs) if is_decoded else [job() for job in jobs]
            shots = [self._shots(owner, low, images) for owner, images in enumerate(found)]
        give = self._buffers.give
        self._images.put(shots, lambda: give(buffer))

    def _shots(self, owner: int, low: int, found: Sequence[StoredImage | ImageError]) -> list[Shot]:
        camera = self._work.cameras[owner]
        held = self._work.held.get(camera.key, frozenset())
        shots: list[Shot] = []
        for position, stored in enumerate(found, low):
            row = int(self._work.rows[position])
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
                if camera.is_checked:
                    self._images.checks[owner](image, self._work.row_number(row))
            except PictureChanged as error:
                text = error.message.replace("message", "row", 1)
                raise ImageError(f"{self._work.path}: {text}", hint=_CHANGED) from error
            except UNUSABLE as error:
                self._note_bad(owner, row, error)
                continue
            shots.append(Shot(row, image, 0))
            if position in self._sampled:
                self._sample(owner, row, image)
        return shots

    def _sample(self, owner: int, row: int, image: Any) -> None:
        camera = self._work.cameras[owner]
        if camera.is_decoded:  # a copy that waits would take as much as all that is encoded meanwhile
            self._episode.add_image_sample(camera.key, to_pixels(camera, image))
        else:
            self._images.sample(owner, row, image)
