"""One pass over a recording: every payload that a row needs goes to its sink, a block at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.align import interpolate
from penstock.conversion.cameras.camera import CameraWorker, PictureChanged, PictureCheck, Shot
from penstock.conversion.cameras.image_pass import UNUSABLE, PicturePass, make_worker, sampled_rows
from penstock.conversion.cameras.lane import Crew
from penstock.conversion.cameras.video_stream import Feed, FeedCursor, plan_feed, unusable_picks
from penstock.conversion.commit.episode import EpisodeWriter
from penstock.conversion.inputs.columns import CameraColumn, Columns, VectorColumn, VectorPart
from penstock.conversion.inputs.derive import Relations, check_whole_numbers, thresholded
from penstock.conversion.inputs.pairing import (
    CameraRuns,
    Paired,
    Requests,
    VectorNeeds,
    camera_runs,
    merge,
    vector_needs,
)
from penstock.conversion.settings import Settings
from penstock.errors import MessageError, PenstockError
from penstock.lerobot.features import ALL_VALUES
from penstock.recordings.fetch import Block
from penstock.recordings.recording import Recording, Topic

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
DAMAGED = "its chunk is damaged"  # counted by the recording itself
Check = Callable[[memoryview, int], object]  # reads one message; raises when it cannot be used


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
    rows_per_read: int
    fetch_bytes: int
    threads: int
    on_block: Callable[[int], None]
    on_flush: Callable[[int], None]
    texts: Mapping[str, Callable[[int, int], list[Any]]] = field(default_factory=dict)  # columns of words, by rows
    bad: list[Bad] = field(default_factory=list)
    overflows: Counter[tuple[str, str]] = field(default_factory=Counter)  # by feature and dimension


def stream_episode(
    recording: Recording, columns: Columns, paired: Paired, rows: range, episode: EpisodeWriter, run: Pass
) -> None:
    """Write the given rows as one episode (not yet committed); raises BadMessages when some cannot be used."""
    _refuse_unusable(columns, paired, rows)
    feeds = [
        plan_feed(camera, paired, rows, run.settings) if camera.stream is not None else None
        for camera in columns.cameras
    ]
    workers = [
        _worker(camera, feed, paired, rows, episode, run) for camera, feed in zip(columns.cameras, feeds, strict=True)
    ]
    try:
        with Crew(run.threads) as crew:
            _Stream(recording, columns, paired, rows, episode, run, workers, feeds, crew).run()
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
        feeds: Sequence[Feed | None],
        crew: Crew,
    ) -> None:
        self._recording, self._columns, self._paired, self._rows = recording, columns, paired, rows
        self._episode, self._pass, self._crew = episode, run, crew
        self._parts = [(vector, part) for vector in columns.vectors for part in vector.parts]
        # No method: `PicturePass` would hold the stream until the garbage collector comes.
        topics = [camera.topic for camera in columns.cameras] + [part.topic for _, part in self._parts]
        self._note_bad = partial(_note_bad, topics, run.bad)
        self._pictures = PicturePass(columns.cameras, workers, episode, crew, run.threads, run.bad, self._note_bad)
        self._moved_bytes = 0
        self._last_numbers: list[int | None] = [None] * len(columns.cameras)
        self._cursors = [None if feed is None else FeedCursor(feed) for feed in feeds]
        # The workers of streams take their samples themselves: a picture alone cannot be decoded.
        self._samples = [
            _sampled_numbers(paired, camera, rows, run.settings) if feed is None else frozenset[int]()
            for camera, feed in zip(columns.cameras, feeds, strict=True)
        ]
        self._readers: list[Any] = [camera.reader for camera in columns.cameras]
        self._readers += [part.reader for _, part in self._parts]
        self._relations = Relations(run.settings.features, columns.vectors)

    def run(self) -> None:
        self._crew.load_arrow()
        for flush in _pieces(self._rows, self._pass.rows_per_flush):
            self._flush(flush)  # in a function of its own, so that its rows are gone before the next are made
            self._pass.on_flush(flush.stop - self._rows.start)
        self._pictures.finish()

    def _flush(self, flush: range) -> None:
        # As they are stored; what reading them takes beside that is a matter of `rows_per_read` alone.
        columns = {
            vector.key: np.empty((len(flush), vector.size), dtype=vector.dtype) for vector in self._columns.vectors
        }
        for rows in _pieces(flush, self._pass.rows_per_read):
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
        if not self._pass.bad:
            self._fill(needs, values, columns)

    def _hold(self, runs: Sequence[CameraRuns]) -> None:
        """Rows at the start of a flush may still show the picture of the flush before."""
        for position, share in enumerate(runs):
            if share.held_rows:
                self._pictures.repeat(position, share.held_rows)
            if len(share.numbers):
                self._last_numbers[position] = int(share.numbers[-1])

    def _take(
        self, block: Block, requests: Requests, runs: Sequence[CameraRuns], values: list[NDArray[np.float64]]
    ) -> None:
        """Sort a block's payloads: pictures to the writing lane, numbers into their arrays."""
        cameras = len(self._columns.cameras)
        shots: list[list[Shot]] = [[] for _ in range(cameras)]
        readers, checks, samples = self._readers, self._pictures.checks, self._samples
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
                        self._pictures.sample(owner, number, picture)
                else:
                    values[owner - cameras][slot] = readers[owner](payload)
            except PictureChanged:
                block.release()
                raise
            except UNUSABLE as error:
                self._note_bad(owner, number, error)
        self._pictures.put(shots, block.release)

    def _fill(
        self, needs: Sequence[VectorNeeds], values: list[NDArray[np.float64]], columns: Mapping[str, NDArray[Any]]
    ) -> None:
        placed: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        for (vector, part), need, found in zip(self._parts, needs, values, strict=True):
            placed[vector.key].append(thresholded(part, _per_row(part, need, found)))
        joined = {vector.key: vector.join(placed[vector.key]) for vector in self._columns.vectors}
        self._relations.apply(joined)
        for vector in self._columns.vectors:
            values_of = joined[vector.key]
            if vector.dtype == "float32":
                self._pass.overflows.update(_overflows(vector, values_of))
            elif vector.dtype == "int64":
                check_whole_numbers(vector.key, values_of)
            with np.errstate(over="ignore"):  # what becomes Inf is counted
                columns[vector.key][:] = values_of

    def _write_rows(self, columns: Mapping[str, NDArray[Any]], rows: range) -> None:
        images = self._pictures.take_images(len(rows))
        if not self._columns.vectors:  # the rows are counted by the images
            self._crew.writing.drain()
        if self._pass.bad:
            return
        texts = {key: words(rows.start, rows.stop) for key, words in self._pass.texts.items()}
        self._episode.write_rows({**images, **columns, **texts}, rows=len(rows))


def _note_bad(topics: Sequence[Topic], bad: list[Bad], owner: int, number: int, error: PenstockError) -> None:
    topic = topics[owner]
    bad.append(Bad(topic.id, topic.name, number, error.message))


def _refuse_unusable(columns: Columns, paired: Paired, rows: range) -> None:
    """Messages of streams that the scan found unusable are told before anything is read."""
    found = [
        Bad(camera.topic.id, camera.topic.name, number, reason or DAMAGED)
        for camera in columns.cameras
        if camera.stream is not None
        for number, reason in unusable_picks(camera, paired, rows)
    ]
    if found:
        raise BadMessages(found)


def _worker(
    camera: CameraColumn, feed: Feed | None, paired: Paired, rows: range, episode: EpisodeWriter, run: Pass
) -> CameraWorker:
    settings = run.settings
    if feed is None:
        return make_worker(camera, episode, settings.encoding, paired.fps, run.threads)
    from penstock.conversion.cameras.stream_workers import DecodingWorker, RemuxWorker, Stream

    def note_loss(number: int, reason: str) -> None:
        run.bad.append(Bad(camera.topic.id, camera.topic.name, number, reason))

    samples = _sampled_numbers(paired, camera, rows, settings)
    stream = Stream(camera, feed, samples, note_loss, partial(episode.add_image_sample, camera.key))
    if feed.reason is None:
        return RemuxWorker(stream, episode.video(camera.key))
    return DecodingWorker(stream, make_worker(camera, episode, settings.encoding, paired.fps, run.threads))


def _per_row(part: VectorPart, need: VectorNeeds, found: NDArray[np.float64]) -> NDArray[np.float64]:
    if need.right is None:
        return found[need.left]
    policy = part.source.policy or "nearest"
    return interpolate(need.pick, found[need.left], found[need.right], policy, quaternions=part.quaternions)


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


def _sampled_numbers(paired: Paired, camera: CameraColumn, rows: range, settings: Settings) -> frozenset[int]:
    """Pictures for the statistics, spread evenly over the episode."""
    chosen = sampled_rows(rows, settings.image_samples)
    return frozenset(paired.picks[camera.key].left[chosen].tolist())


def whole_outages(
    recording: Recording, columns: Columns, found: Sequence[Bad], known: Mapping[int, frozenset[int]]
) -> list[Bad]:
    """The messages found, each once, and their broken neighbours up to the first good one on either side."""
    checks = _checks(columns)
    counts = {topic.id: topic.count for topic in recording.topics}
    outages = {(bad.topic_id, bad.number): bad for bad in found}
    for bad in list(outages.values()):
        for step in (-1, 1):
            number = bad.number + step
            while 0 <= number < counts[bad.topic_id]:
                if (bad.topic_id, number) in outages or number in known.get(bad.topic_id, frozenset()):
                    break  # what lies behind it was looked at from there, or will be
                reason = _look(recording, recording.topics[bad.topic_id], number, checks[bad.topic_id])
                if reason is None:
                    break
                outages[bad.topic_id, number] = Bad(bad.topic_id, bad.topic, number, reason)
                number += step
    return sorted(outages.values(), key=lambda each: (each.topic, each.number))


def _checks(columns: Columns) -> dict[int, list[Check]]:
    """What every topic's messages must pass, for each feature that takes them."""
    checks: dict[int, list[Check]] = {}
    for camera in columns.cameras:
        checks.setdefault(camera.topic.id, []).append(partial(_read_picture, camera, PictureCheck(camera)))
    for vector in columns.vectors:
        for part in vector.parts:
            checks.setdefault(part.topic.id, []).append(partial(_read_vector, part))
    return checks


def _read_picture(camera: CameraColumn, check: PictureCheck, payload: memoryview, number: int) -> None:
    check(camera.reader(payload), number)


def _read_vector(part: VectorPart, payload: memoryview, number: int) -> None:
    part.reader(payload)


def _look(recording: Recording, topic: Topic, number: int, checks: Sequence[Check]) -> str | None:
    for _, payload in recording.payloads(topic, [number]):
        try:
            if payload is None:
                return DAMAGED
            for check in checks:
                check(payload, number)
        except PictureChanged:
            return None  # whole, and an error of its own where a row needs it
        except UNUSABLE as error:
            return error.message
    return None
