"""The frames of one camera and episode on their way: samples moved in blocks, or decoded, resized and encoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras import remux
from penstock.conversion.cameras.dataset_cameras import DataSetCamera
from penstock.conversion.cameras.lane import Lane
from penstock.conversion.settings import Encoding
from penstock.errors import ImageError
from penstock.lerobot.read.frames import EpisodeFrames
from penstock.media.image import codec as image
from penstock.media.image import depth
from penstock.media.image.jpeg import JpegProbe
from penstock.media.video import decode

if TYPE_CHECKING:
    from penstock.conversion.commit.episode import EpisodeWriter
    from penstock.conversion.sink import VideoSink
    from penstock.media.video.encode import VideoEncoder

_FEWEST_KEY_FRAMES = 8  # below this the statistics take the frames that were meant, whatever they cost
# Encoders and decoders keep to one thread each: the bytes must not depend on how many cores there are.
_CODER_THREADS = 1
_ENCODER_INFO = ("video.g", "video.crf", "video.preset", "video.fast_decode", "video.video_backend",
                 "video.extra_options", "video.channels", "is_depth_map")  # fmt: skip


class Statistics:
    """The rows of an episode whose pictures enter the statistics of a camera."""

    def __init__(self, episode: EpisodeWriter, key: str, rows: NDArray[np.int64]) -> None:
        self.rows = frozenset(rows.tolist())
        self._episode, self._key = episode, key

    def add(self, pixels: NDArray[Any]) -> None:
        self._episode.add_image_sample(self._key, pixels)


class Feed(ABC):
    """Frames of one camera and episode, row after row; one thread at a time uses it."""

    def __init__(self, camera: DataSetCamera) -> None:
        self.camera = camera
        self.in_table = camera.stored_as == "images"
        self._done = 0
        self._kept: list[bytes] = []

    def advance(self, rows: int, pictures: Sequence[bytes] | None) -> list[bytes]:
        """Bring the next rows to their place; returns the pictures of those rows where they belong into the table.

        `pictures` are those of the rows where they come from the table.
        """
        self._advance(self._done + rows, pictures)
        self._done += rows
        if not self.in_table:
            return []
        taken, self._kept = self._kept[:rows], self._kept[rows:]
        return taken

    @abstractmethod
    def _advance(self, until: int, pictures: Sequence[bytes] | None) -> None: ...

    def finish(self) -> None:  # noqa: B027 - some have nothing to do
        """The episode ends: what is still held goes to the file."""

    def close(self) -> None:  # noqa: B027
        """Give back what is held, whether the episode ended well or not."""


class MovedFrames(Feed):
    """Samples of a video as they are: to a video, or JPEG into the table."""

    def __init__(
        self,
        camera: DataSetCamera,
        frames: EpisodeFrames,
        sink: VideoSink | None,
        statistics: Statistics,
        block_bytes: int,
    ) -> None:
        super().__init__(camera)
        self._frames, self._sink, self._statistics = frames, sink, statistics
        self._blocks = remux.move(frames, block_bytes)
        self._row = 0
        self._is_jpeg = camera.codec == "mjpeg"
        self._probe = JpegProbe()
        if sink is not None and not self._is_jpeg:
            sink.set_codec(remux.description(frames.index), self._info())

    def _info(self) -> dict[str, Any]:
        said = self.camera.feature.info or {}
        info = {key: said[key] for key in _ENCODER_INFO if key in said}
        return info | {"video.codec": self.camera.codec, "video.pix_fmt": decode.pixel_format(self._frames.path)}

    def _advance(self, until: int, pictures: Sequence[bytes] | None) -> None:
        while self._row < until:
            block = next(self._blocks)
            if self._is_jpeg:
                self._look_at(block)
            if self._sink is None:
                for piece, repeats in zip(block.pieces, block.repeats, strict=True):
                    self._kept += [bytes(piece)] * (1 + repeats)
            else:
                self._append(block, self._sink)
            self._row += block.rows
            del block  # before the next is read

    def _append(self, block: remux.Moved, sink: VideoSink) -> None:
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

    def _look_at(self, block: remux.Moved) -> None:
        """Every JPEG is whole and of the camera's size; a few are decoded."""
        row = self._row
        for piece, repeats in zip(block.pieces, block.repeats, strict=True):
            found = self._probe.probe(piece)
            if (found.height, found.width) != self.camera.size_px:
                height, width = self.camera.size_px
                raise ImageError(f"frame {row:,} is {found.width}×{found.height} px, the camera is {width}×{height}")
            for _ in self._statistics.rows.intersection(range(row, row + 1 + repeats)):
                self._statistics.add(image.decode(piece))
            row += 1 + repeats

    def finish(self) -> None:
        """Other codecs are decoded for the statistics once the frames are moved: the file gives a few at random."""
        if self._is_jpeg or self.camera.is_metric:
            return
        first = self._frames.first
        for _, rgb in decode.frames(self._frames.path, [first + row for row in self._cheap_rows()], _CODER_THREADS):
            self._statistics.add(rgb)

    def _cheap_rows(self) -> list[int]:
        """The key frames at or before the wanted rows, where there are enough: others cost many frames to decode."""
        keys = np.flatnonzero(self._frames.index.key[self._frames.samples])
        wanted = np.array(sorted(self._statistics.rows))
        at_keys = np.unique(keys[np.searchsorted(keys, wanted, side="right") - 1])
        chosen = at_keys if len(at_keys) >= min(_FEWEST_KEY_FRAMES, len(wanted)) else wanted
        return [int(row) for row in chosen]

    def close(self) -> None:
        self._blocks.close()


class EncodedFrames(Feed):
    """Frames that are decoded, resized where asked, and encoded: to a video, or JPEG into the table."""

    def __init__(
        self,
        camera: DataSetCamera,
        frames: EpisodeFrames | None,
        sink: VideoSink | None,
        statistics: Statistics,
        encoding: Encoding,
        fps: int,
    ) -> None:
        """`frames` is None where the pictures come from the table."""
        super().__init__(camera)
        self._sink, self._statistics, self._quality = sink, statistics, encoding.quality
        self._row = 0
        self._decoded: Iterator[tuple[int, NDArray[np.uint8]]] = iter(())
        self._lane: Lane | None = None
        if frames is not None:
            self._lane = Lane("penstock-encode", depth=1)
            numbers = range(frames.first, frames.first + frames.count)
            self._decoded = decode.frames(frames.path, numbers, _CODER_THREADS)
        self._encoder: VideoEncoder | None = None
        if camera.stored_as not in ("images", "mjpeg"):
            from penstock.media.video.encode import VideoEncoder
            from penstock.media.video.hardware import encoder_settings

            chosen = encoder_settings(
                camera.stored_as, crf=encoding.crf, gop=encoding.gop, preset=encoding.preset, device=encoding.device
            )
            height, width = camera.size_px
            self._encoder = VideoEncoder(chosen, width, height, fps, threads=_CODER_THREADS)

    def _advance(self, until: int, pictures: Sequence[bytes] | None) -> None:
        if self._lane is None:
            for picture in pictures or ():
                self._take(picture, None)
            return
        # The next frame is decoded while this one is encoded.
        for _ in range(self._done, until):
            _, rgb = next(self._decoded)
            self._lane.put(partial(self._take, None, rgb), lambda: None)
        self._lane.drain()

    def _take(self, picture: bytes | None, rgb: NDArray[np.uint8] | None) -> None:
        sampled = self._row in self._statistics.rows
        is_kept = picture is not None and self._is_wanted_jpeg(picture)
        if rgb is None and picture is not None and (sampled or not is_kept):
            rgb = image.decode(picture)
            self._check_size(rgb)
        if rgb is not None:
            rgb = image.resize(rgb, self.camera.size_px)
        self._store(picture if is_kept else None, rgb)
        if sampled and rgb is not None:
            self._statistics.add(rgb)
        self._row += 1

    def _store(self, jpeg: bytes | None, rgb: NDArray[np.uint8] | None) -> None:
        if self._encoder is not None and rgb is not None and self._sink is not None:
            self._sink.append_encoded(self._encoder.encode(rgb), self._encoder)
            return
        data = jpeg if jpeg is not None or rgb is None else image.encode_jpeg(rgb, self._quality)
        if data is None:
            raise ImageError(f"row {self._row:,} has no picture")
        if self._sink is None:
            self._kept.append(data)
        else:
            self._sink.append([data])

    def _is_wanted_jpeg(self, picture: bytes) -> bool:
        """A JPEG of the table that becomes a frame of MJPEG video needs no encoding."""
        if self.camera.stored_as != "mjpeg" or self.camera.resized or picture[:2] != b"\xff\xd8":
            return False
        return image.size_of(picture) == self.camera.size_px

    def _check_size(self, rgb: NDArray[np.uint8]) -> None:
        if rgb.shape[:2] != self.camera.source.shape[:2]:
            height, width = self.camera.source.shape[:2]
            raise ImageError(
                f"the picture of row {self._row:,} is {rgb.shape[1]}×{rgb.shape[0]} px, info.json says {width}×{height}"
            )

    def finish(self) -> None:
        if self._encoder is not None and self._sink is not None:
            self._sink.append_encoded(self._encoder.flush(), self._encoder)

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()
        if self._encoder is not None:
            self._encoder.close()
        closing = getattr(self._decoded, "close", None)
        if closing is not None:
            closing()


class KeptPictures(Feed):
    """Pictures of the table that stay there as they are."""

    def __init__(self, camera: DataSetCamera, statistics: Statistics) -> None:
        super().__init__(camera)
        self._statistics = statistics
        self._row = 0

    def _advance(self, until: int, pictures: Sequence[bytes] | None) -> None:
        for picture in pictures or ():
            if self._row in self._statistics.rows:
                self._statistics.add(depth.decode(picture) if self.camera.is_metric else image.decode(picture))
            self._row += 1
        self._kept += pictures or ()


def open_feed(
    camera: DataSetCamera,
    frames: EpisodeFrames | None,
    number: int,
    episode: EpisodeWriter,
    statistics: Statistics,
    encoding: Encoding,
    fps: int,
    block_bytes: int,
) -> Feed:
    """The feed of one camera for the episode at place `number`; `frames` is None for pictures of the table."""
    sink = None if camera.stored_as == "images" else episode.video(camera.key)
    if number in camera.encoded:
        return EncodedFrames(camera, frames, sink, statistics, encoding, fps)
    if frames is None:
        return KeptPictures(camera, statistics)
    return MovedFrames(camera, frames, sink, statistics, block_bytes)
