"""What becomes of a camera's images: copied as they are, encoded as JPEG or video, or kept as bytes for a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.cameras.camera import (
    Camera,
    CameraImage,
    ImageKind,
    gray_rgb,
    is_png,
    probe_depth,
    probe_image,
    stored_bytes,
    values_of,
)
from penstock._src.conversion.sink import VideoSink
from penstock._src.media.image import codec
from penstock._src.media.image import raw as raw_image
from penstock._src.media.image.jpeg import JpegProbe
from penstock._src.recordings.values.images import RawImage
from penstock.errors import ImageError

if TYPE_CHECKING:
    from penstock._src.media.image.depth import DepthInfo
    from penstock._src.media.video.encode import VideoEncoder

Prepared = Any  # whatever a worker's `prepare` gives to its own `store`


class RepeatedFrame(NamedTuple):
    """An image of a camera, and how many further rows show it."""

    number: int
    image: CameraImage
    repeats: int


class ImageCheck:
    """Every frame of a camera has the kind and the size of the first, and a JPEG is whole."""

    def __init__(self, column: Camera) -> None:
        self._column = column
        self._probe = JpegProbe()
        self._is_sample = column.copied and column.stored_as == "copy"
        self._pix_fmt = ""

    def __call__(self, frame: CameraImage, number: int) -> None:
        column = self._column
        if column.stream is not None:
            return  # every message of a stream was looked at before
        if column.kind == "jpeg" and not isinstance(frame, RawImage) and not is_png(frame):
            info = self._probe.probe(frame.data)
            kind: ImageKind = "jpeg"
            size_px = (info.height, info.width)
            if info.pix_fmt != self._pix_fmt and self._is_sample:
                self._check_pix_fmt(info.pix_fmt, number)
        else:
            if column.depth is not None:
                self._check_depth(column.depth, frame, number)
                return
            if isinstance(frame, RawImage):
                self._check_raw(frame, number)
                return
            kind, size_px = probe_image(frame)
        if kind != column.kind or size_px != column.recorded_px:
            height, width = column.recorded_px
            self._refuse(number, f"{kind} {size_px[1]}×{size_px[0]}", f"{column.kind} {width}×{height}")

    def _check_depth(self, first: DepthInfo, frame: CameraImage, number: int) -> None:
        info = probe_depth(frame)
        names = ("values", "packing", "height", "width")
        if any(getattr(info, name) != getattr(first, name) for name in names):
            self._refuse(number, f"depth {info}", f"depth {first}")

    def _check_raw(self, frame: RawImage, number: int) -> None:
        column = self._column
        known = column.encoding in ("", frame.encoding)
        if not known or (frame.height, frame.width) != column.recorded_px:
            now = f"raw {frame.encoding} {frame.width}×{frame.height}"
            height, width = column.recorded_px
            self._refuse(number, now, f"raw {column.encoding} {width}×{height}")

    def _refuse(self, number: int, now: str, first: str) -> None:
        raise ImageChanged(
            f"{self._column.name}: message {number:,} is {now}, the first was {first}",
            hint="split the recording where the camera changed, and convert the parts on their own",
        )

    def _check_pix_fmt(self, pix_fmt: str, number: int) -> None:
        """The frames of a video share one pixel format; copied ones bring their own."""
        if self._pix_fmt:
            raise ImageChanged(
                f"{self._column.name}: message {number:,} is {pix_fmt}, the ones before {self._pix_fmt}",
                hint="video=mjpeg, images, h264, hevc or av1 takes both, or split the recording there",
            )
        self._pix_fmt = pix_fmt


class ImageChanged(ImageError):
    """A camera changes its size or encoding within a recording."""


def to_rgb(column: Camera, frame: CameraImage) -> NDArray[np.uint8]:
    """The frame's pixels at the size of the data set."""
    if column.depth_range_mm is not None:
        return gray_rgb(column, frame, column.depth_range_mm)
    rgb = raw_image.to_rgb(frame) if isinstance(frame, RawImage) else codec.decode(frame.data)
    return codec.resize(rgb, column.size_px) if column.resized else rgb


def to_pixels(column: Camera, frame: CameraImage) -> NDArray[Any]:
    """What the statistics of the camera are made of: RGB, or distances where these are kept."""
    return values_of(column, frame) if column.is_metric else to_rgb(column, frame)


class CameraWorker(ABC):
    """One camera of one episode; `prepare` may run in any thread, `store` runs in order, one call at a time."""

    def __init__(self, column: Camera) -> None:
        self.column = column

    def prepare(self, frame: RepeatedFrame) -> Prepared:
        return frame.image

    @abstractmethod
    def store(self, frames: Sequence[RepeatedFrame], prepared: Sequence[Prepared]) -> None: ...

    @abstractmethod
    def repeat(self, rows: int) -> None:
        """The next rows show what the row before them showed."""

    @property
    def table(self) -> BytesWorker | None:
        """Who holds the images, where they lie in the table."""
        return None

    def check_usable(self, frames: Sequence[RepeatedFrame]) -> None:  # noqa: B027 - most looked when they prepared
        """Find what cannot be used, when nothing is stored any more."""

    def finish(self) -> None:  # noqa: B027 - most have nothing to do
        """The episode ends: what is still held goes to the file."""

    def close(self) -> None:  # noqa: B027
        """Give back what the worker holds, whether the episode ended well or not."""


class CopyWorker(CameraWorker):
    """Recorded JPEG bytes become samples of the video file as they are."""

    def __init__(self, column: Camera, sink: VideoSink) -> None:
        super().__init__(column)
        self._sink = sink

    def store(self, frames: Sequence[RepeatedFrame], prepared: Sequence[Prepared]) -> None:
        pieces = []
        for frame in frames:
            pieces.append(frame.image.data)
            if frame.repeats:
                self._sink.append(pieces)
                self._sink.repeat(frame.repeats)
                pieces = []
        if pieces:
            self._sink.append(pieces)

    def repeat(self, rows: int) -> None:
        self._sink.repeat(rows)


class JpegWorker(CopyWorker):
    """Images that cannot be copied become JPEGs of the asked quality."""

    def __init__(self, column: Camera, sink: VideoSink, quality: int) -> None:
        super().__init__(column, sink)
        self._quality = quality

    def prepare(self, frame: RepeatedFrame) -> Prepared:
        if self.column.keeps_jpeg and not self.column.resized and bytes(frame.image.data[:2]) == b"\xff\xd8":
            return bytes(frame.image.data)
        return codec.encode_jpeg(to_rgb(self.column, frame.image), self._quality)

    def store(self, frames: Sequence[RepeatedFrame], prepared: Sequence[Prepared]) -> None:
        for frame, data in zip(frames, prepared, strict=True):
            self._sink.append([data])
            if frame.repeats:
                self._sink.repeat(frame.repeats)


class VideoWorker(CameraWorker):
    """Images become video frames; a repeated row is a frame of its own, which costs the codec almost nothing."""

    def __init__(self, column: Camera, sink: VideoSink, encoder: VideoEncoder) -> None:
        super().__init__(column)
        self._sink = sink
        self._encoder = encoder
        self._last: NDArray[np.uint8] | None = None

    def prepare(self, frame: RepeatedFrame) -> Prepared:
        return to_rgb(self.column, frame.image)

    def store(self, frames: Sequence[RepeatedFrame], prepared: Sequence[Prepared]) -> None:
        for frame, rgb in zip(frames, prepared, strict=True):
            self._last = rgb
            self.repeat(1 + frame.repeats)
        if self._last is not None and not self._last.flags.owndata:
            # Raw pixels are a view of the block, which is used again while this frame may still be repeated.
            self._last = self._last.copy()

    def repeat(self, rows: int) -> None:
        if self._last is not None:
            for _ in range(rows):
                self._sink.append_encoded(self._encoder.encode(self._last), self._encoder)

    def finish(self) -> None:
        self._sink.append_encoded(self._encoder.flush(), self._encoder)
        self._last = None

    def close(self) -> None:
        self._encoder.close()


class BytesWorker(CameraWorker):
    """Encoded images as bytes, row by row, for a column of the table."""

    def __init__(self, column: Camera, quality: int) -> None:
        super().__init__(column)
        self._quality = quality
        self.rows: list[bytes] = []
        self._last = b""

    def prepare(self, frame: RepeatedFrame) -> Prepared:
        if self.column.copied:
            return bytes(frame.image.data)
        return codec.encode_jpeg(to_rgb(self.column, frame.image), self._quality)

    def store(self, frames: Sequence[RepeatedFrame], prepared: Sequence[Prepared]) -> None:
        for frame, data in zip(frames, prepared, strict=True):
            self._last = data
            self.repeat(1 + frame.repeats)

    def repeat(self, rows: int) -> None:
        self.rows.extend([self._last] * rows)

    @property
    def table(self) -> BytesWorker | None:
        return self

    def take(self, rows: int | None = None) -> list[bytes]:
        """The images of the next rows; without a number, of all that are there."""
        count = len(self.rows) if rows is None else rows
        part, self.rows = self.rows[:count], self.rows[count:]
        return part


class DepthWorker(BytesWorker):
    """Distances as they were recorded: 16-bit PNG or float TIFF, row by row, for a column of the table."""

    def prepare(self, frame: RepeatedFrame) -> Prepared:
        return stored_bytes(self.column, frame.image)
