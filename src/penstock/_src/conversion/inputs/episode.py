"""One pass over a recording: every payload that a row needs goes to its sink, a block at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.align import interpolate
from penstock._src.conversion.cameras.image_pass import (
    UNUSABLE,
    ImagePass,
    PassThreads,
    UnusableImage,
    UnusableImageFound,
    make_worker,
    sampled_rows,
)
from penstock._src.conversion.cameras.video_stream import FeedCursor, StreamFeed, plan_feed, unusable_picks
from penstock._src.conversion.cameras.workers import CameraWorker, ImageChanged, ImageCheck, RepeatedFrame
from penstock._src.conversion.commit.episode import EpisodeWriter
from penstock._src.conversion.inputs.columns import (
    CameraColumn,
    RecordingColumns,
    Relations,
    VectorColumn,
    VectorPart,
    check_whole_numbers,
    thresholded,
)
from penstock._src.conversion.inputs.input import EpisodeCallbacks
from penstock._src.conversion.inputs.pairing import (
    CameraRuns,
    Requests,
    VectorNeeds,
    camera_runs,
    merge,
    vector_needs,
)
from penstock._src.lerobot.features import ALL_VALUES
from penstock._src.recordings.fetch import Block
from penstock._src.recordings.recording import Recording, Topic
from penstock.errors import MessageError, PenstockError

if TYPE_CHECKING:
    from penstock._src.conversion.episodes.cuts import EpisodeCut
    from penstock._src.conversion.inputs.recording import RecordingPlan

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
DAMAGED = "its chunk is damaged"  # counted by the recording itself
Check = Callable[[memoryview, int], object]  # reads one message; raises when it cannot be used


def stream_episode(
    plan: RecordingPlan, span: EpisodeCut, episode: EpisodeWriter, callbacks: EpisodeCallbacks
) -> Counter[tuple[str, str]]:
    """Write the rows of a span as one episode (not yet committed); raises UnusableFound when messages cannot be used.

    Returns how many numbers became Inf, by feature and dimension.
    """
    _refuse_unusable(plan, span.rows)
    cameras, threads = plan.columns.cameras, plan.memory.threads
    feeds = [
        plan_feed(camera, plan.paired, span.rows, plan.settings) if camera.stream is not None else None
        for camera in cameras
    ]
    bad: list[UnusableImage] = []
    workers = [
        _worker(plan, camera, feed, span.rows, episode, bad) for camera, feed in zip(cameras, feeds, strict=True)
    ]
    with ExitStack() as held:
        for worker in workers:
            held.callback(worker.close)
        pool = held.enter_context(PassThreads(threads))
        stream = _RecordingPass(plan, span, episode, callbacks, workers, feeds, pool, bad)
        stream.run()
    if bad:
        raise UnusableImageFound(bad)
    return stream.overflows


class _RecordingPass:
    """The state of one pass; lives as long as `stream_episode`."""

    def __init__(
        self,
        plan: RecordingPlan,
        span: EpisodeCut,
        episode: EpisodeWriter,
        callbacks: EpisodeCallbacks,
        workers: Sequence[CameraWorker],
        feeds: Sequence[StreamFeed | None],
        pool: PassThreads,
        bad: list[UnusableImage],
    ) -> None:
        columns = plan.columns
        self._plan, self._columns, self._paired, self._rows = plan, columns, plan.paired, span.rows
        self._episode, self._callbacks, self._pool, self._bad = episode, callbacks, pool, bad
        self._texts = span.texts(plan.settings.episodes, plan.paired.fps)
        self.overflows: Counter[tuple[str, str]] = Counter()
        self._parts = [(vector, part) for vector in columns.vectors for part in vector.parts]
        # No method: `ImagePass` would hold the stream until the garbage collector comes.
        self._note_bad = partial(_note_bad, columns.topics(), bad)
        threads = plan.memory.threads
        self._images = ImagePass(columns.cameras, workers, episode, pool, threads, bad, self._note_bad)
        self._moved_bytes = plan.recording.size_bytes * span.rows.start // max(plan.paired.rows, 1)
        self._last_numbers: list[int | None] = [None] * len(columns.cameras)
        self._cursors = [None if feed is None else FeedCursor(feed) for feed in feeds]
        # The workers of streams take their samples themselves: an image alone cannot be decoded.
        self._samples = [
            _sampled_numbers(plan, camera, span.rows) if feed is None else frozenset[int]()
            for camera, feed in zip(columns.cameras, feeds, strict=True)
        ]
        self._readers: list[Any] = [camera.reader for camera in columns.cameras]
        self._readers += [part.reader for _, part in self._parts]
        self._relations = Relations(plan.settings.features, columns.vectors)

    def run(self) -> None:
        self._pool.load_arrow()
        for flush in _pieces(self._rows, self._plan.memory.rows_per_flush):
            self._flush(flush)  # in a function of its own, so that its rows are gone before the next are made
            self._callbacks.on_rows(flush.stop - self._rows.start)
        self._images.finish()

    def _flush(self, flush: range) -> None:
        # As they are stored; what reading them takes beside that is a matter of `rows_per_read` alone.
        columns = {
            vector.key: np.empty((len(flush), vector.size), dtype=vector.dtype) for vector in self._columns.vectors
        }
        for rows in _pieces(flush, self._plan.memory.rows_per_read):
            place = slice(rows.start - flush.start, rows.stop - flush.start)
            self._read_rows(rows.start, rows.stop, {key: values[place] for key, values in columns.items()})
        self._write_rows(columns, flush)

    def _read_rows(self, start: int, stop: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """Hand on the images of some rows, and fill in their numbers."""
        runs = [
            camera_runs(self._paired.picks[camera.key], start, stop, last)
            if cursor is None
            else cursor.runs(start, stop)
            for camera, last, cursor in zip(self._columns.cameras, self._last_numbers, self._cursors, strict=True)
        ]
        needs = [vector_needs(self._paired.picks[part.stream], start, stop) for _, part in self._parts]
        values = [
            np.empty((len(need.numbers), part.size), dtype=np.float64)
            for need, (_, part) in zip(needs, self._parts, strict=True)
        ]
        self._hold(runs)
        requests = merge([*runs, *needs], [topic.id for topic in self._columns.topics()])
        if len(requests):
            fetch_bytes = self._plan.memory.fetch_bytes
            moved_bytes = 0
            for block in self._plan.recording.fetch(requests.topic_ids, requests.numbers, memory_bytes=fetch_bytes):
                self._take(block, requests, runs, values)
                moved_bytes = block.file_bytes
                self._callbacks.on_moved(self._moved_bytes + moved_bytes)
            self._moved_bytes += moved_bytes
        if not self._bad:
            self._fill(needs, values, columns)

    def _hold(self, runs: Sequence[CameraRuns]) -> None:
        """Rows at the start of a flush may still show the image of the flush before."""
        for position, share in enumerate(runs):
            if share.held_rows:
                self._images.repeat(position, share.held_rows)
            if len(share.numbers):
                self._last_numbers[position] = int(share.numbers[-1])

    def _take(
        self, block: Block, requests: Requests, runs: Sequence[CameraRuns], values: list[NDArray[np.float64]]
    ) -> None:
        """Sort a block's payloads: images to the writing thread, numbers into their arrays."""
        cameras = len(self._columns.cameras)
        frames: list[list[RepeatedFrame]] = [[] for _ in range(cameras)]
        readers, checks, samples = self._readers, self._images.checks, self._samples
        part = slice(block.first, block.first + len(block.payloads))
        wanted = zip(requests.owners[part], requests.slots[part], requests.numbers[part].tolist(), strict=True)
        for (owner, slot, number), payload in zip(wanted, block.payloads, strict=True):
            try:
                if payload is None:
                    raise MessageError(DAMAGED)
                if owner < cameras:
                    image = readers[owner](payload)
                    checks[owner](image, number)
                    frames[owner].append(RepeatedFrame(number, image, runs[owner].lengths[slot] - 1))
                    if number in samples[owner]:
                        self._images.sample(owner, number, image)
                else:
                    values[owner - cameras][slot] = readers[owner](payload)
            except ImageChanged:
                block.release()
                raise
            except UNUSABLE as error:
                self._note_bad(owner, number, error)
        self._images.put(frames, block.release)

    def _fill(
        self, needs: Sequence[VectorNeeds], values: list[NDArray[np.float64]], columns: Mapping[str, NDArray[Any]]
    ) -> None:
        placed: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        for (vector, part), need, value in zip(self._parts, needs, values, strict=True):
            placed[vector.key].append(thresholded(part, _per_row(part, need, value)))
        joined = {vector.key: vector.join(placed[vector.key]) for vector in self._columns.vectors}
        self._relations.apply(joined)
        for vector in self._columns.vectors:
            values_of = joined[vector.key]
            if vector.dtype == "float32":
                self.overflows.update(_overflows(vector, values_of))
            elif vector.dtype == "int64":
                check_whole_numbers(vector.key, values_of)
            with np.errstate(over="ignore"):  # what becomes Inf is counted
                columns[vector.key][:] = values_of

    def _write_rows(self, columns: Mapping[str, NDArray[Any]], rows: range) -> None:
        images = self._images.take_images(len(rows))
        if not self._columns.vectors:  # the rows are counted by the images
            self._pool.writing.drain()
        if self._bad:
            return
        texts = {key: words(rows.start, rows.stop) for key, words in self._texts.items()}
        self._episode.write_rows({**images, **columns, **texts}, rows=len(rows))


def _note_bad(topics: Sequence[Topic], bad: list[UnusableImage], owner: int, number: int, error: PenstockError) -> None:
    topic = topics[owner]
    bad.append(UnusableImage(topic.id, topic.name, number, error.message))


def _refuse_unusable(plan: RecordingPlan, rows: range) -> None:
    """Messages of streams that the scan found unusable are reported before anything is read."""
    unusable = [
        UnusableImage(camera.topic.id, camera.topic.name, number, reason or DAMAGED)
        for camera in plan.columns.cameras
        if camera.stream is not None
        for number, reason in unusable_picks(camera, plan.paired, rows)
    ]
    if unusable:
        raise UnusableImageFound(unusable)


def _worker(
    plan: RecordingPlan,
    camera: CameraColumn,
    feed: StreamFeed | None,
    rows: range,
    episode: EpisodeWriter,
    bad: list[UnusableImage],
) -> CameraWorker:
    make = partial(make_worker, camera, episode, plan.settings.encoding, plan.paired.fps, plan.memory.threads)
    if feed is None:
        return make()
    from penstock._src.conversion.cameras.stream_workers import CameraStream, DecodingWorker, RemuxWorker

    def note_loss(number: int, reason: str) -> None:
        bad.append(UnusableImage(camera.topic.id, camera.topic.name, number, reason))

    samples = _sampled_numbers(plan, camera, rows)
    stream = CameraStream(camera, feed, samples, note_loss, partial(episode.add_image_sample, camera.key))
    return RemuxWorker(stream, episode.video(camera.key)) if feed.reason is None else DecodingWorker(stream, make())


def _per_row(part: VectorPart, need: VectorNeeds, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if need.right is None:
        return values[need.left]
    policy = part.source.policy or "nearest"
    return interpolate(need.pick, values[need.left], values[need.right], policy, quaternions=part.quaternions)


def _overflows(vector: VectorColumn, values: NDArray[np.float64]) -> dict[tuple[str, str], int]:
    """Numbers that float32 can only hold as Inf, by dimension."""
    too_large = (np.abs(values) > _LARGEST_FLOAT32) & np.isfinite(values)
    counts = np.count_nonzero(too_large, axis=0)
    places = np.flatnonzero(counts).tolist()
    if not vector.names:
        return {(vector.key, ALL_VALUES): int(counts.sum())} if places else {}
    return {(vector.key, vector.names[place]): int(counts[place]) for place in places}


def _pieces(rows: range, most: int) -> Iterator[range]:
    for start in range(rows.start, rows.stop, most):
        yield range(start, min(start + most, rows.stop))


def _sampled_numbers(plan: RecordingPlan, camera: CameraColumn, rows: range) -> frozenset[int]:
    """Images for the statistics, spread evenly over the episode."""
    chosen = sampled_rows(rows, plan.settings.image_samples)
    return frozenset(plan.paired.picks[camera.key].left[chosen].tolist())


def whole_outages(
    recording: Recording,
    columns: RecordingColumns,
    unusable: Sequence[UnusableImage],
    known: Mapping[int, frozenset[int]],
) -> list[UnusableImage]:
    """The messages found, each once, and their broken neighbours up to the first good one on either side."""
    checks = _checks(columns)
    counts = {topic.id: topic.count for topic in recording.topics}
    outages = {(bad.owner, bad.number): bad for bad in unusable}
    for bad in list(outages.values()):
        for step in (-1, 1):
            number = bad.number + step
            while 0 <= number < counts[bad.owner]:
                if (bad.owner, number) in outages or number in known.get(bad.owner, frozenset()):
                    break  # what lies behind it was looked at from there, or will be
                reason = _image_problem(recording, recording.topics[bad.owner], number, checks[bad.owner])
                if reason is None:
                    break
                outages[bad.owner, number] = UnusableImage(bad.owner, bad.name, number, reason)
                number += step
    return sorted(outages.values(), key=lambda each: (each.name, each.number))


def _checks(columns: RecordingColumns) -> dict[int, list[Check]]:
    """What every topic's messages must pass, for each feature that takes them."""
    checks: dict[int, list[Check]] = defaultdict(list)
    for camera in columns.cameras:
        checks[camera.topic.id].append(partial(_read_image, camera, ImageCheck(camera)))
    for vector in columns.vectors:
        for part in vector.parts:
            checks[part.topic.id].append(partial(_read_vector, part))
    return checks


def _read_image(camera: CameraColumn, check: ImageCheck, payload: memoryview, number: int) -> None:
    check(camera.reader(payload), number)


def _read_vector(part: VectorPart, payload: memoryview, number: int) -> None:
    part.reader(payload)


def _image_problem(recording: Recording, topic: Topic, number: int, checks: Sequence[Check]) -> str | None:
    for _, payload in recording.payloads(topic, [number]):
        try:
            if payload is None:
                return DAMAGED
            for check in checks:
                check(payload, number)
        except ImageChanged:
            return None  # whole, and an error of its own where a row needs it
        except UNUSABLE as error:
            return error.message
    return None
