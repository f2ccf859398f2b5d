"""Workers of cameras that were recorded as video streams: one moves samples, one decodes them for another worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.cameras.video_stream import StreamFeed
from penstock._src.conversion.cameras.workers import BytesWorker, CameraWorker, Prepared, RepeatedFrame
from penstock._src.conversion.inputs.columns import CameraColumn
from penstock._src.conversion.sink import VideoSink
from penstock._src.media.h26x.stream_decode import DecodedFrame, StreamDamage, StreamDecoder
from penstock._src.media.h26x.stream_index import depends_on, to_sample
from penstock._src.media.h26x.stream_order import KEY
from penstock._src.media.image import codec
from penstock._src.recordings.values.images import RawImage
from penstock.errors import VideoError

NoteLoss = Callable[[int, str], None]  # message, why it cannot be used
AddSample = Callable[[NDArray[np.uint8]], None]

MOST_PENDING = 16  # images that wait for their row, where rows take them in another order than that of the stream


class CameraStream(NamedTuple):
    """The stream of one camera in an episode: its messages, those of the statistics, and its callbacks."""

    column: CameraColumn
    feed: StreamFeed
    samples: frozenset[int]
    note_loss: NoteLoss
    add_sample: AddSample


class StreamWorker(CameraWorker):
    """Decodes the messages of a feed in order; what cannot be decoded is reported, with all that depends on it."""

    def __init__(self, stream: CameraStream) -> None:
        column, feed, self._samples, self._note_loss, self._add_sample = stream
        super().__init__(column)
        self._feed = feed
        self._decoder = StreamDecoder(feed.index.codec, delay=feed.index.delay, in_order=feed.in_order)
        self._place = 0  # in the feed
        self._fed: int | None = None  # the message before; None: the decoder is empty
        self._dead_until = -1  # messages below are lost already
        self._has_lost = False  # a message that rows need: they are written again without it
        self._first = int(feed.runs[0])

    def repeat(self, rows: int) -> None:
        raise VideoError(f"{self.column.name}: a stream has no frame to repeat")

    def check_usable(self, frames: Sequence[RepeatedFrame]) -> None:
        for _ in self._decode(frames):
            pass

    def close(self) -> None:
        self._decoder.close()

    def _decode(self, frames: Sequence[RepeatedFrame]) -> Iterator[DecodedFrame]:
        """The images that are ready, in the order in which they are shown."""
        numbers = self._feed.numbers
        for frame in frames:
            while self._place < len(numbers) and numbers[self._place] < frame.number:
                self._lose_dependents(int(numbers[self._place]))  # the reader has reported the message itself
                self._place += 1
            self._place += 1
            if frame.number >= self._dead_until:
                yield from self._feed_one(frame)
        if self._place == len(numbers) and self._fed is not None:
            yield from self._drain()

    def _feed_one(self, frame: RepeatedFrame) -> Iterator[DecodedFrame]:
        index, data = self._feed.index, bytes(frame.image.data)
        if self._fed is not None and self._fed + 1 != frame.number:
            yield from self._drain()
        if self._fed is None:
            data = index.sets[int(index.versions[frame.number])].stream_bytes + data
        self._fed = frame.number
        try:
            yield from self._sampled(self._decoder.feed(frame.number, data))
        except StreamDamage as damage:
            self._lose(damage.number, damage.message)

    def _drain(self) -> Iterator[DecodedFrame]:
        try:
            yield from self._sampled(self._decoder.flush())
        except StreamDamage as damage:
            self._lose(damage.number, damage.message)
        self._fed = None

    def _sampled(self, images: Iterator[DecodedFrame]) -> Iterator[DecodedFrame]:
        for frame in images:
            if frame.number in self._samples:
                self._add_sample(codec.resize(frame.rgb(), self.column.size_px))
            yield frame

    def _lose(self, number: int, reason: str) -> None:
        if number >= self._first:
            self._note_loss(number, reason)
        self._lose_dependents(number)

    def _lose_dependents(self, number: int) -> None:
        """Give up what depends on a message; rows that are committed keep what they have."""
        group = self._feed.index.rest_of_group(number)
        self._has_lost = self._has_lost or group.stop > self._first
        for each in group:
            if each != number and each >= max(self._first, self._dead_until):
                self._note_loss(each, depends_on(number))
        self._dead_until = max(self._dead_until, group.stop)
        self._decoder.reset()
        self._fed = None


class RemuxWorker(StreamWorker):
    """Moves the samples of a stream as they are; they are decoded only to know that they can be."""

    def __init__(self, stream: CameraStream, sink: VideoSink) -> None:
        super().__init__(stream)
        self._sink = sink

    def prepare(self, frame: RepeatedFrame) -> Prepared:
        return to_sample(self._feed.index.codec, bytes(frame.image.data))

    def store(self, frames: Sequence[RepeatedFrame], prepared: Sequence[Prepared]) -> None:
        index = self._feed.index
        if frames and self._sink.frames == 0:
            sets = index.sets[int(index.versions[frames[0].number])]
            info = {"video.codec": self.column.stored_as, "video.pix_fmt": sets.picture.pix_fmt}
            self._sink.set_codec(sets.stsd(), info)
        self._sink.append(list(prepared), [bool(index.flags[frame.number] & KEY) for frame in frames])
        self.check_usable(frames)


class DecodingWorker(StreamWorker):
    """Decodes a stream for the worker that stores its images."""

    def __init__(self, stream: CameraStream, inner: CameraWorker) -> None:
        super().__init__(stream)
        self._inner = inner
        self._pending: dict[int, NDArray[np.uint8]] = {}
        self._shown = 0  # runs of rows that have their frame
        runs = self._feed.runs
        self._wanted = np.zeros(int(runs.max()) + 1, np.bool_)
        self._wanted[runs] = True
        # Where rows go back in the stream, a frame may be wanted again later.
        rising = bool(np.all(np.diff(runs) > 0))
        self._last_use = {} if rising else {int(number): place for place, number in enumerate(runs)}

    @property
    def table(self) -> BytesWorker | None:
        return self._inner.table

    def store(self, frames: Sequence[RepeatedFrame], prepared: Sequence[Prepared]) -> None:
        for frame in self._decode(frames):
            # A frame that does not come would hold up all behind it, as many as come in one go.
            if self._has_lost:
                continue
            if frame.number < len(self._wanted) and self._wanted[frame.number]:
                self._pending[frame.number] = frame.rgb()
                self._show()

    def finish(self) -> None:
        if self._shown != len(self._feed.runs):
            number = int(self._feed.runs[self._shown])
            raise VideoError(f"{self.column.name}: the decoder shows no frame for message {number:,}")
        self._inner.finish()

    def close(self) -> None:
        super().close()
        self._pending.clear()
        self._inner.close()

    def _show(self) -> None:
        runs, lengths = self._feed.runs, self._feed.lengths
        while self._shown < len(runs) and (rgb := self._pending.get(int(runs[self._shown]))) is not None:
            number = int(runs[self._shown])
            height, width = rgb.shape[:2]
            image = RawImage(height, width, "rgb8", False, 3 * width, np.ascontiguousarray(rgb).data.cast("B"))
            frame = RepeatedFrame(number, image, int(lengths[self._shown]) - 1)
            self._inner.store([frame], [self._inner.prepare(frame)])
            if self._last_use.get(number, self._shown) <= self._shown:
                del self._pending[number]
            self._shown += 1
        if len(self._pending) > MOST_PENDING:
            raise VideoError(
                f"{self.column.name}: the rows take its images in another order than that of the stream, "
                f"and more than {MOST_PENDING} would have to be kept",
                hint="time: log (or header) may be the better clock for this topic",
            )
