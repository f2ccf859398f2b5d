"""Frames of a store that go into the data set as they are stored: to a video, or JPEG into the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.commit.episode import EpisodeWriter
from penstock.conversion.sink import VideoSink
from penstock.errors import ImageError
from penstock.lerobot.features import Feature
from penstock.media.image import codec as image
from penstock.media.image.jpeg import JpegProbe
from penstock.stores.store import PacketBlock, Packets

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
                self._look_at(block)
            if self._sink is None:
                for piece, repeats in zip(block.pieces, block.repeats, strict=True):
                    self._kept += [bytes(piece)] * (1 + repeats)
            else:
                self._append(block, self._sink)
            self._row += block.rows
            del block  # before the next is read
        rows, self._done = until - self._done, until
        taken, self._kept = self._kept[:rows], self._kept[rows:]
        return taken

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

    def _look_at(self, block: PacketBlock) -> None:
        """Every JPEG is whole and of the camera's size; a few are decoded."""
        row = self._row
        height, width = self._feature.shape[:2]
        for piece, repeats in zip(block.pieces, block.repeats, strict=True):
            found = self._probe.probe(piece)
            if (found.height, found.width) != (height, width):
                raise ImageError(f"frame {row:,} is {found.width}×{found.height} px, the camera is {width}×{height}")
            for _ in self._sampled.intersection(range(row, row + 1 + repeats)):
                self._episode.add_image_sample(self.key, image.decode(piece))
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
