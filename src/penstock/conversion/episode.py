"""One pass over a recording: every payload that a row needs goes to its sink, a block at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.align import interpolate
from penstock.conversion.cameras import (
    BytesWorker,
    CameraWorker,
    CopyWorker,
    JpegWorker,
    PictureChanged,
    PictureCheck,
    Shot,
    VideoWorker,
    to_rgb,
)
from penstock.conversion.columns import CameraColumn, Columns, VectorPart
from penstock.conversion.lane import Crew
from penstock.conversion.pairing import Paired
from penstock.conversion.requests import CameraRuns, Requests, VectorNeeds, camera_runs, merge, vector_needs
from penstock.conversion.settings import Settings
from penstock.errors import DataSetError, ImageError, LimitExceeded, MessageError, PenstockError
from penstock.plan.conversion_memory import PREPARED_PER_THREAD
from penstock.recordings.fetch import Block
from penstock.recordings.images import CompressedPicture, RawPicture
from penstock.recordings.recording import Recording

if TYPE_CHECKING:
    from penstock.lerobot.writer import EpisodeWriter


UNUSABLE = (ImageError, MessageError, LimitExceeded)
DAMAGED = "its chunk is damaged"  # counted by the recording itself
# Pictures that are decoded for the statistics of an episode: more from a long one, and a bounded number from any.
_ROWS_PER_SAMPLE, _FEWEST_SAMPLES, _MOST_SAMPLES = 300, 8, 64


@dataclass(frozen=True)
class Bad:
    """A message that cannot be used, and why."""

    topic_id: int
    topic: str
    number: int
    reason: str


class BadMessages(Exception):
    """The pass met messages that cannot be used; the rows have to be paired again without them."""

    def __init__(self, found: Sequence[Bad]) -> None:
        super().__init__(f"{len(found)} unusable messages")
        self.found = tuple(found)


@dataclass
class Pass:
    """The means of a pass: how much it may hold, how many threads help, and whom it tells."""

    settings: Settings
    rows_per_flush: int
    fetch_bytes: int
    threads: int
    on_block: Callable[[int], None]
    on_flush: Callable[[int], None]
    bad: list[Bad] = field(default_factory=list)


def stream_episode(
    recording: Recording, columns: Columns, paired: Paired, rows: range, episode: EpisodeWriter, run: Pass
) -> None:
    """Write the given rows as one episode (not yet committed); raises BadMessages when some cannot be used."""
    workers = [_worker(camera, episode, run, paired.fps) for camera in columns.cameras]
    try:
        with Crew(run.threads) as crew:
            _Stream(recording, columns, paired, rows, episode, run, workers, crew).run()
    finally:
        for worker in workers:
            worker.close()
    if run.bad:
        raise BadMessages(run.bad)


class _Stream:
    """The state of one pass; lives as long as `stream_episode`."""

    def __init__(
        self,
        recording: Recording,
        columns: Columns,
        paired: Paired,
        rows: range,
        episode: EpisodeWriter,
        run: Pass,
        workers: Sequence[CameraWorker],
        crew: Crew,
    ) -> None:
        self._recording, self._columns, self._paired, self._rows = recording, columns, paired, rows
        self._episode, self._pass, self._crew = episode, run, crew
        self._workers = list(workers)
        self._all_copied = all(type(worker) is CopyWorker for worker in workers)
        self._moved_bytes = 0
        self._checks = [PictureCheck(camera) for camera in columns.cameras]
        self._last_numbers: list[int | None] = [None] * len(columns.cameras)
        self._samples = [_sampled_numbers(paired, camera, rows, run.settings) for camera in columns.cameras]
        self._parts = [(vector, part) for vector in columns.vectors for part in vector.parts]
        self._readers: list[Any] = [camera.reader for camera in columns.cameras]
        self._readers += [part.reader for _, part in self._parts]

    def run(self) -> None:
        self._crew.statistics.put(_load_arrow, lambda: None)
        for start, stop in _flushes(self._rows, self._pass.rows_per_flush):
            self._rows_between(start, stop)
            self._pass.on_flush(stop - self._rows.start)
        self._crew.writing.put(self._finish_cameras, lambda: None)
        self._crew.writing.drain()
        self._crew.statistics.drain()

    def _rows_between(self, start: int, stop: int) -> None:
        runs = [
            camera_runs(self._paired.picks[camera.key], start, stop, last)
            for camera, last in zip(self._columns.cameras, self._last_numbers, strict=True)
        ]
        needs = [vector_needs(self._paired.picks[part.stream], start, stop) for _, part in self._parts]
        values = [
            np.empty((len(need.numbers), part.size), dtype=np.float64)
            for need, (_, part) in zip(needs, self._parts, strict=True)
        ]
        self._hold(runs)
        topics = [camera.topic.id for camera in self._columns.cameras] + [part.topic.id for _, part in self._parts]
        requests = merge([*runs, *needs], topics)
        if len(requests):
            blocks = self._recording.fetch(requests.topic_ids, requests.numbers, memory_bytes=self._pass.fetch_bytes)
            moved_bytes = 0
            for block in blocks:
                self._take(block, requests, runs, values)
                moved_bytes = block.file_bytes
                self._pass.on_block(self._moved_bytes + moved_bytes)
            self._moved_bytes += moved_bytes
        self._write_rows(needs, values, stop - start)

    def _hold(self, runs: Sequence[CameraRuns]) -> None:
        """Rows at the start of a flush may still show the picture of the flush before."""
        for position, (camera, share) in enumerate(zip(self._workers, runs, strict=True)):
            if share.held_rows:
                self._crew.writing.put(partial(self._repeat, camera, share.held_rows), lambda: None)
            if len(share.numbers):
                self._last_numbers[position] = int(share.numbers[-1])

    def _repeat(self, worker: CameraWorker, rows: int) -> None:
        """In the writing lane, where it is known whether the picture before was stored."""
        if not self._pass.bad:
            worker.repeat(rows)

    def _take(
        self, block: Block, requests: Requests, runs: Sequence[CameraRuns], values: list[NDArray[np.float64]]
    ) -> None:
        """Sort a block's payloads: pictures to the writing lane, numbers into their arrays."""
        cameras = len(self._workers)
        shots: list[list[Shot]] = [[] for _ in range(cameras)]
        readers, checks, samples = self._readers, self._checks, self._samples
        part = slice(block.first, block.first + len(block.payloads))
        asked = zip(requests.owners[part], requests.slots[part], requests.numbers[part].tolist(), strict=True)
        for (owner, slot, number), payload in zip(asked, block.payloads, strict=True):
            try:
                if payload is None:
                    raise MessageError(DAMAGED)
                if owner < cameras:
                    picture = readers[owner](payload)
                    checks[owner](picture, number)
                    shots[owner].append(Shot(number, picture, runs[owner].lengths[slot] - 1))
                    if number in samples[owner]:
                        self._sample(owner, number, picture)
                else:
                    values[owner - cameras][slot] = readers[owner](payload)
            except PictureChanged:
                block.release()
                raise
            except UNUSABLE as error:
                self._note_bad(owner, number, error)
        if self._pass.bad and self._all_copied:
            block.release()
        else:  # after a bad message the others are still decoded, so that one pass finds all that cannot be
            self._crew.writing.put(lambda: self._store(shots), block.release)

    def _note_bad(self, owner: int, number: int, error: PenstockError) -> None:
        cameras = self._columns.cameras
        topic = cameras[owner].topic if owner < len(cameras) else self._parts[owner - len(cameras)][1].topic
        self._pass.bad.append(Bad(topic.id, topic.name, number, error.message))

    def _store(self, shots: Sequence[list[Shot]]) -> None:
        """In the writing lane: prepare in parallel what needs it, then store each camera's pictures in order."""
        busy = [(worker, taken) for worker, taken in zip(self._workers, shots, strict=True) if taken]
        if all(type(worker) is CopyWorker for worker, _ in busy):
            if self._pass.bad:
                return
            for worker, taken in busy:
                worker.store(taken, [])
            return
        # A block may hold a thousand small JPEGs, and only so many decoded ones are in the budget.
        step = max(1, PREPARED_PER_THREAD * self._pass.threads // len(busy))
        for start in range(0, max(len(taken) for _, taken in busy), step):
            self._store_some([(worker, taken[start : start + step]) for worker, taken in busy])

    def _store_some(self, busy: Sequence[tuple[CameraWorker, list[Shot]]]) -> None:
        flat = [(worker, shot) for worker, taken in busy for shot in taken]
        prepared = list(self._crew.pool.map(lambda pair: self._prepare(*pair), flat))
        if self._pass.bad:
            return
        results = iter(prepared)
        work = [(worker, taken, [next(results) for _ in taken]) for worker, taken in busy]
        for _ in self._crew.pool.map(lambda entry: entry[0].store(entry[1], entry[2]), work):
            pass

    def _prepare(self, worker: CameraWorker, shot: Shot) -> Any:
        try:
            return worker.prepare(shot)
        except UNUSABLE as error:
            self._note_bad(self._workers.index(worker), shot.number, error)
            return None

    def _finish_cameras(self) -> None:
        if not self._pass.bad:
            for worker in self._workers:
                worker.finish()

    def _sample(self, owner: int, number: int, picture: CompressedPicture | RawPicture) -> None:
        """Decode a bounded number of pictures for the statistics, from a copy: the block goes its own way."""
        held = picture._replace(data=memoryview(bytes(picture.data)))
        self._crew.statistics.put(lambda: self._add_sample(owner, number, held), lambda: None)

    def _add_sample(self, owner: int, number: int, picture: CompressedPicture | RawPicture) -> None:
        column = self._columns.cameras[owner]
        try:
            rgb = to_rgb(column, picture)
        except UNUSABLE as error:  # whole by its markers, and yet no picture
            self._note_bad(owner, number, error)
        else:
            self._episode.add_image_sample(column.key, rgb)

    def _write_rows(self, needs: Sequence[VectorNeeds], values: list[NDArray[np.float64]], rows: int) -> None:
        pictures = {worker.column.key: worker for worker in self._workers if isinstance(worker, BytesWorker)}
        if pictures or not self._columns.vectors:  # the rows hold the pictures, or are counted by them
            self._crew.writing.drain()
        if self._pass.bad:
            return
        columns: dict[str, Any] = {key: worker.take() for key, worker in pictures.items()}
        placed: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        for (vector, part), need, found in zip(self._parts, needs, values, strict=True):
            placed[vector.key].append(_per_row(part, need, found))
        for vector in self._columns.vectors:
            joined = np.concatenate(placed[vector.key], axis=1)
            columns[vector.key] = _whole_numbers(vector.key, joined) if vector.dtype == "int64" else joined
        self._episode.write_rows(columns, rows=rows)


def _load_arrow() -> None:
    """The first flush will need it; loading it meanwhile costs the pass nothing."""
    import pyarrow.parquet  # noqa: F401


def _per_row(part: VectorPart, need: VectorNeeds, found: NDArray[np.float64]) -> NDArray[np.float64]:
    if need.right is None:
        return found[need.left]
    policy = part.source.policy or "nearest"
    return interpolate(need.pick, found[need.left], found[need.right], policy, quaternions=part.quaternions)


def _whole_numbers(key: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    # The values came as float64: beyond 2^53 it rounds whole numbers.
    wrong = ~(np.abs(values) <= 2.0**53) | (values != np.rint(values))
    if wrong.any():
        example = float(values[wrong][0])
        raise DataSetError(
            f"{key} is int64, but {int(np.count_nonzero(wrong)):,} values are no whole numbers within ±2^53, "
            f"the first is {example}",
            hint=f"set features.{key}.dtype: float64",
        )
    return values.astype(np.int64)


def _flushes(rows: range, rows_per_flush: int) -> Iterator[tuple[int, int]]:
    step = rows_per_flush or max(len(rows), 1)
    for start in range(rows.start, rows.stop, step):
        yield start, min(start + step, rows.stop)


def _sampled_numbers(paired: Paired, camera: CameraColumn, rows: range, settings: Settings) -> frozenset[int]:
    """Pictures for the statistics, spread evenly over the episode."""
    automatic = min(max(len(rows) // _ROWS_PER_SAMPLE, _FEWEST_SAMPLES), _MOST_SAMPLES)
    count = min(settings.image_samples or automatic, len(rows))
    chosen = np.linspace(rows.start, rows.stop - 1, num=count).astype(np.int64)
    return frozenset(paired.picks[camera.key].left[chosen].tolist())


def _worker(camera: CameraColumn, episode: EpisodeWriter, run: Pass, fps: int) -> CameraWorker:
    encoding = run.settings.encoding
    if camera.stored_as == "images":
        return BytesWorker(camera, encoding.quality)
    sink = episode.video(camera.key)
    if camera.copied:
        return CopyWorker(camera, sink)
    if camera.stored_as == "mjpeg":
        return JpegWorker(camera, sink, encoding.quality)
    from penstock.media.encode import VideoEncoder, encoder_settings

    chosen = encoder_settings(camera.stored_as, crf=encoding.crf, gop=encoding.gop, preset=encoding.preset)
    height, width = camera.size_px
    return VideoWorker(camera, sink, VideoEncoder(chosen, width, height, fps, threads=run.threads))


__all__ = ["Bad", "BadMessages", "Pass", "stream_episode"]
