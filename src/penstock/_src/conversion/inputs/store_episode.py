"""One episode out of a store: images go through a few recycled buffers or are moved as stored, rows beside them."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.cameras.image_pass import (
    UNUSABLE,
    ImagePass,
    PassThreads,
    UnusableImage,
    UnusableImageFound,
    make_worker,
    sampled_rows,
)
from penstock._src.conversion.cameras.workers import ImageChanged, RepeatedFrame, to_pixels
from penstock._src.conversion.commit.episode import EpisodeWriter
from penstock._src.conversion.inputs.input import EpisodeCallbacks, Input
from penstock._src.conversion.inputs.store_columns import StoreCamera
from penstock._src.conversion.sink import VideoSink
from penstock._src.lerobot.features import Feature
from penstock._src.media.image import codec
from penstock._src.media.image.jpeg import JpegProbe
from penstock._src.stores.store import ImageArray, PacketBlock, Packets
from penstock._src.system.closing import on_error
from penstock.errors import ImageError, PenstockError, VideoError

_FEWEST_KEY_FRAMES = 8  # below this the statistics take the frames that were meant, whatever they cost
_ENCODER_INFO = ("video.g", "video.crf", "video.preset", "video.fast_decode", "video.video_backend",
                 "video.extra_options", "video.channels", "is_depth_map")  # fmt: skip


class MovedFrames:
    """One camera of one episode; one thread at a time uses it. `feature` is the camera in the new data set."""

    def __init__(
        self,
        feature: Feature,
        packets: Packets,
        episode: EpisodeWriter,
        sampled: NDArray[np.int64],
        block_bytes: int,
    ) -> None:
        self.key, self._feature, self._packets = feature.key, feature, packets
        self._episode, self._sampled = episode, frozenset(sampled.tolist())
        self._sink: VideoSink | None = None if feature.dtype == "image" else episode.video(feature.key)
        self._blocks = packets.blocks(block_bytes)
        self._row = 0
        self._kept: list[bytes] = []
        self._done = 0
        self._is_jpeg = packets.codec == "mjpeg"
        self._probe = JpegProbe()
        if self._sink is not None and not self._is_jpeg:
            self._sink.set_codec(packets.description, self._info())

    @property
    def in_table(self) -> bool:
        return self._sink is None

    def _info(self) -> Mapping[str, Any]:
        known = self._feature.info or {}
        info = {key: known[key] for key in _ENCODER_INFO if key in known}
        return info | {"video.codec": self._packets.codec, "video.pix_fmt": self._packets.pixel_format}

    def advance(self, until: int) -> list[bytes]:
        """Bring the rows before `until` to their place; returns their images where they belong into the table."""
        while self._row < until:
            block = next(self._blocks)
            if self._is_jpeg:
                self._check_frames(block)
            if self._sink is None:
                for piece, repeats in zip(block.pieces, block.repeats, strict=True):
                    self._kept += [bytes(piece)] * (1 + repeats)
            else:
                self._append(block, self._sink)
            self._row += block.rows
            del block  # before the next is read
        rows, self._done = until - self._done, until
        frames, self._kept = self._kept[:rows], self._kept[rows:]
        return frames

    def _append(self, block: PacketBlock, sink: VideoSink) -> None:
        start = 0
        for place, repeats in enumerate([*block.repeats, 0]):
            last = place == len(block.repeats)
            if repeats or last:
                stop = place if last else place + 1
                keys = None if self._is_jpeg else block.keys[start:stop]
                shifts = None if block.shifts is None else block.shifts[start:stop]
                sink.append(block.pieces[start:stop], keys, shifts=shifts)
                if repeats:
                    sink.repeat(repeats)
                start = stop

    def _check_frames(self, block: PacketBlock) -> None:
        """Every JPEG is whole and of the camera's size; a few are decoded."""
        row = self._row
        height, width = self._feature.shape[:2]
        for piece, repeats in zip(block.pieces, block.repeats, strict=True):
            info = self._probe.probe(piece)
            if (info.height, info.width) != (height, width):
                raise ImageError(f"frame {row:,} is {info.width}×{info.height} px, the camera is {width}×{height}")
            for _ in self._sampled.intersection(range(row, row + 1 + repeats)):
                self._episode.add_image_sample(self.key, codec.decode(piece))
            row += 1 + repeats

    def finish(self) -> None:
        """Other codecs are decoded for the statistics once the frames are moved: the file gives a few at random."""
        if self._is_jpeg or self._feature.is_depth:
            return
        for rgb in self._packets.decoded(self._cheap_rows()):
            self._episode.add_image_sample(self.key, rgb)

    def _cheap_rows(self) -> list[int]:
        """The key frames at or before the wanted rows, where there are enough: others cost many frames to decode."""
        keys = self._packets.key_rows
        wanted = np.array(sorted(self._sampled))
        at_keys = np.unique(keys[np.searchsorted(keys, wanted, side="right") - 1])
        chosen = at_keys if len(at_keys) >= min(_FEWEST_KEY_FRAMES, len(wanted)) else wanted
        return [int(row) for row in chosen]

    def close(self) -> None:
        self._blocks.close()


_CHANGED = "convert the part before and the part after on their own, or choose another video setting"


ReadRows = Callable[[int, int, EpisodeWriter], tuple[dict[str, Any], "NDArray[np.int64] | None"]]
"""The rows [start, stop) of the episode besides the images of its cameras, and the tasks of rows that name their own;
asked for in order."""


def _keep(_: str, error: PenstockError) -> PenstockError:
    return error


@dataclass(frozen=True)
class EpisodeWork:
    """What an episode is made of, and what it is made with.

    `rows`: numbers that the sources of the cameras know; `span_bytes`: where they lie in the whole store; `moved`:
    cameras of the data set whose frames are moved as they are stored.
    """

    source: Input
    rows: NDArray[np.int64]
    span_bytes: range
    read: ReadRows
    cameras: tuple[StoreCamera, ...] = ()
    moved: tuple[tuple[Feature, Packets], ...] = ()
    row_number: Callable[[int], int] = int  # by which messages name a row
    named: Callable[[str, PenstockError], PenstockError] = _keep  # an error of a camera, with where it happened
    strict: bool = False  # an image that cannot be used ends the conversion


def stream_episode(work: EpisodeWork, episode: EpisodeWriter, callbacks: EpisodeCallbacks) -> None:
    """Write the rows as one episode (not yet committed); raises UnusableFound when some images cannot be used."""
    bad: list[UnusableImage] = []
    memory, settings, fps = work.source.memory, work.source.settings, work.source.fps
    threads, count = memory.threads, len(work.rows)
    sampled = sampled_rows(range(count), settings.image_samples) if count else np.empty(0, np.int64)
    share = memory.fetch_bytes // max(len(work.cameras) + len(work.moved), 1)
    with ExitStack() as held:
        workers = [make_worker(each, episode, settings.encoding, fps, threads) for each in work.cameras]
        moved = [MovedFrames(feature, packets, episode, sampled, share) for feature, packets in work.moved]
        for close in (*(each.close for each in workers), *(each.close for each in moved)):
            held.callback(close)
        pool = held.enter_context(PassThreads(threads))
        # No method: `ImagePass` would hold the stream and its buffers until the garbage collector comes.
        images = ImagePass(work.cameras, workers, episode, pool, threads, bad, partial(_note_bad, work, bad))
        _StorePass(work, episode, callbacks, images, moved, frozenset(sampled.tolist()), pool, bad).run()
    if bad:
        raise UnusableImageFound(bad)


def _note_bad(work: EpisodeWork, bad: list[UnusableImage], owner: int, row: int, error: PenstockError) -> None:
    camera = work.cameras[owner]
    if work.strict:
        raise work.named(camera.key, error) from error
    bad.append(UnusableImage(camera.key, camera.name, row, error.message))


def block_row_bytes(cameras: Sequence[StoreCamera]) -> int:
    """One row of all cameras in a buffer."""
    return sum(camera.row_bytes for camera in cameras)


class _StorePass:
    """The state of one pass; lives as long as `stream_episode`."""

    def __init__(
        self,
        work: EpisodeWork,
        episode: EpisodeWriter,
        callbacks: EpisodeCallbacks,
        images: ImagePass,
        moved: Sequence[MovedFrames],
        sampled: frozenset[int],
        pool: PassThreads,
        bad: list[UnusableImage],
    ) -> None:
        self._work, self._episode, self._callbacks = work, episode, callbacks
        self._images, self._moved, self._sampled, self._pool, self._bad = images, moved, sampled, pool, bad
        self._row_bytes = block_row_bytes(work.cameras)
        share = work.source.memory.fetch_bytes * len(work.cameras) // max(len(work.cameras) + len(moved), 1)
        self._buffer_bytes = max(share // 2, self._row_bytes)
        # Two buffers in turn: taking one waits until one is free.
        self._buffers: queue.Queue[NDArray[np.uint8]] = queue.Queue()
        for _ in range(2 if work.cameras else 0):
            self._buffers.put(np.empty(self._buffer_bytes, np.uint8))

    def run(self) -> None:
        self._pool.load_arrow()
        count = len(self._work.rows)
        step = self._work.source.memory.rows_per_flush or max(count, 1)
        for start in range(0, count, step):
            self._flush(start, min(start + step, count))
        self._images.finish()
        self._at_once([partial(self._with_name, each.key, each.finish) for each in self._moved])

    def _flush(self, start: int, stop: int) -> None:
        columns, tasks = self._work.read(start, stop, self._episode)
        has_rows = bool(columns)
        for low, high in self._blocks(start, stop):
            self._read_images(low, high)
            self._report_rows(high)
        jobs = [partial(self._with_name, each.key, partial(each.advance, stop)) for each in self._moved]
        for each, values in zip(self._moved, self._at_once(jobs), strict=True):
            if each.in_table:
                columns[each.key] = values
        self._report_rows(stop)
        columns |= self._images.take_images()
        if not has_rows:  # the rows are counted by the images
            self._pool.writing.drain()
        if not self._bad:
            self._episode.write_rows(columns, rows=stop - start, task=tasks)
        self._callbacks.on_rows(stop)

    def _report_rows(self, done: int) -> None:
        span = self._work.span_bytes
        self._callbacks.on_moved(span.start + len(span) * done // max(len(self._work.rows), 1))

    def _at_once(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """All have ended before the first error is raised: nothing is written after an abort."""
        if len(jobs) < 2:
            return [job() for job in jobs]
        started = [self._pool.pool.submit(job) for job in jobs]
        wait(started)
        return [each.result() for each in started]

    def _with_name(self, key: str, job: Callable[[], Any]) -> Any:
        try:
            return job()
        except (ImageError, VideoError) as error:
            raise self._work.named(key, error) from error

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Rows that fit into a buffer, up to where a chunk ends: it is then unpacked once."""
        if not self._work.cameras:
            return
        most = max(1, self._buffer_bytes // self._row_bytes)
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
        buffer = self._buffers.get()
        give_back = partial(self._buffers.put, buffer)
        with on_error(give_back):
            rows: list[int] = self._work.rows[low:high].tolist()
            jobs: list[Callable[[], Any]] = []
            offset = 0
            for camera in self._work.cameras:
                part = buffer[offset : offset + len(rows) * camera.row_bytes]
                offset += len(part)
                jobs.append(partial(self._with_name, camera.key, partial(camera.source.read_block, rows, part)))
            # Where videos are decoded, one after the other would keep the encoders waiting.
            is_decoded = any(camera.is_decoded for camera in self._work.cameras)
            results = self._at_once(jobs) if is_decoded else [job() for job in jobs]
            frames = [self._frames(owner, low, images) for owner, images in enumerate(results)]
        self._images.put(frames, give_back)

    def _frames(self, owner: int, low: int, images: Sequence[ImageArray | ImageError]) -> list[RepeatedFrame]:
        camera = self._work.cameras[owner]
        frames: list[RepeatedFrame] = []
        for position, stored in enumerate(images, low):
            row = int(self._work.rows[position])
            try:
                if isinstance(stored, ImageError):
                    raise stored
                image = camera.image(stored)
                if camera.is_checked:
                    self._images.checks[owner](image, self._work.row_number(row))
            except ImageChanged as error:
                text = error.message.replace("message", "row", 1)
                raise ImageError(f"{self._work.source.path}: {text}", hint=_CHANGED) from error
            except UNUSABLE as error:
                _note_bad(self._work, self._bad, owner, row, error)
                continue
            frames.append(RepeatedFrame(row, image, 0))
            if position in self._sampled:
                self._sample(owner, row, image)
        return frames

    def _sample(self, owner: int, row: int, image: Any) -> None:
        camera = self._work.cameras[owner]
        if camera.is_decoded:  # a copy that waits would take as much as all that is encoded meanwhile
            self._episode.add_image_sample(camera.key, to_pixels(camera, image))
        else:
            self._images.sample(owner, row, image)
