"""The video files of one camera: which file an episode goes to, and the way back when it is aborted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import DataSetError, ImageError, VideoError
from penstock.lerobot import layout
from penstock.lerobot.features import Feature
from penstock.lerobot.layout import FilePosition
from penstock.media import jpeg
from penstock.media.mp4 import Mark, Mp4Writer, mjpeg_stsd

Piece = memoryview | bytes


class Encoder(Protocol):
    """What a video encoder must tell: see penstock.media.encode.VideoEncoder."""

    @property
    def info(self) -> Mapping[str, Any]: ...
    @property
    def stsd(self) -> bytes: ...


class EncodedSample(Protocol):
    """One frame as an encoder gives it."""

    @property
    def data(self) -> bytes: ...
    @property
    def key(self) -> bool: ...


@dataclass(frozen=True)
class VideoSpan:
    """Where the frames of one episode lie in the files of one camera."""

    position: FilePosition
    first_frame: int
    frames: int


def video_info(
    *,
    height: int,
    width: int,
    codec: str,
    pix_fmt: str,
    fps: int,
    channels: int = 3,
    encoder: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What info.json says about a video, with LeRobot 0.6.1's keys; `encoder` adds or replaces some."""
    info: dict[str, Any] = {
        "video.height": height,
        "video.width": width,
        "video.codec": codec,
        "video.pix_fmt": pix_fmt,
        "video.fps": fps,
        "video.channels": channels,
        "has_audio": False,
        "video.g": None,
        "video.crf": None,
        "video.preset": None,
        "video.fast_decode": None,
        "video.video_backend": None,
        "video.extra_options": {},
        "is_depth_map": False,
    }
    return info | dict(encoder or {})


class VideoSink:
    """Takes the frames of one camera: JPEG pictures as they are, or samples of an encoder after `set_codec`.

    The files roll over between episodes only, so an episode always lies within one of them.
    """

    def __init__(
        self, root: Path, feature: Feature, *, fps: int, limit_bytes: int, chunks_size: int, fsync: bool
    ) -> None:
        self.key = feature.key
        self.info: dict[str, Any] | None = None
        self.size_bytes = 0
        self._root = root
        self._height, self._width = feature.shape[0], feature.shape[1]
        self._fps = fps
        self._limit_bytes = limit_bytes
        self._chunks_size = chunks_size
        self._fsync = fsync
        self._position = layout.FIRST_FILE
        self._file: Mp4Writer | None = None
        # What all samples of a file must share: the sample description, and for JPEG how the colours are sampled.
        self._file_kind: tuple[bytes, str] | None = None
        self._kind: tuple[bytes, str] | None = None
        self._is_jpeg = True
        self._start: Mark | None = None
        self._expected_rows = 0
        self._info_before: dict[str, Any] | None = None
        self._probe = jpeg.JpegProbe()

    def __repr__(self) -> str:
        return f"VideoSink({self.key!r}, {self._width}×{self._height}, frames={self.frames})"

    @property
    def frames(self) -> int:
        """Frames of the episode that is being written."""
        return 0 if self._file is None or self._start is None else self._file.samples - self._start.samples

    def set_codec(self, stsd: bytes, info: Mapping[str, Any]) -> None:
        """Say that samples of an encoder follow: the MP4 sample description, and entries for info.json
        (`video.codec` and `video.pix_fmt` at least). Once per episode, before its first sample."""
        if self.frames and (stsd, "") != self._kind:
            raise VideoError(f"camera {self.key!r}: the codec changed after {self.frames} frames of the episode")
        missing = [name for name in ("video.codec", "video.pix_fmt") if name not in info]
        if missing:
            raise VideoError(f"camera {self.key!r}: set_codec needs {', '.join(missing)}")
        self._kind = (stsd, "")
        self._is_jpeg = False
        self._describe(str(info["video.codec"]), str(info["video.pix_fmt"]), info)

    def append(self, pieces: Sequence[Piece], keys: Sequence[bool] | None = None) -> None:
        """Append one frame per piece; `keys` marks the key frames of an encoder, a JPEG is always one."""
        if not pieces:
            return
        if self._is_jpeg:
            self._check_jpeg(pieces[0])
        elif keys is None or (self.frames == 0 and not keys[0]):
            raise VideoError(f"camera {self.key!r}: an episode must start with a key frame of the encoder")
        self._open().append(pieces, keys)

    def append_encoded(self, samples: Sequence[EncodedSample], encoder: Encoder) -> None:
        """Append what an encoder gave; the first samples of an episode bring its codec with them."""
        if not samples:
            return
        if self._is_jpeg:
            self.set_codec(encoder.stsd, encoder.info)
        self.append([sample.data for sample in samples], [sample.key for sample in samples])

    def repeat(self, count: int = 1) -> None:
        """Show the last frame in `count` more rows without writing it again."""
        if self.frames == 0 or self._file is None:
            raise VideoError(f"camera {self.key!r}: there is no frame of this episode to repeat")
        self._file.repeat(count)

    def begin_episode(self, expected_rows: int | None) -> None:
        """Called by the data set's writer."""
        self._start = None
        self._kind = None
        self._is_jpeg = True
        self._expected_rows = expected_rows or 0
        self._info_before = None if self.info is None else dict(self.info)

    def commit_episode(self) -> VideoSpan:
        """Called by the data set's writer: the frames stay."""
        if self._file is None or self._start is None:
            raise DataSetError(f"camera {self.key!r}: the episode has no frame")
        if self._fsync:
            layout.fsync_file(self._path(self._position))
        span = VideoSpan(self._position, self._start.samples, self.frames)
        self._start = None
        return span

    def abort_episode(self) -> None:
        """Called by the data set's writer: no trace of the episode remains."""
        self.info = self._info_before
        if self._file is None or self._start is None:
            return
        if self._start.samples:
            self._file.rollback(self._start)
        else:
            self._drop_file()
        self._start = None

    def close(self) -> None:
        """Finish the last file."""
        if self._file is None:
            return
        if self._file.samples == 0:
            self._drop_file()
            return
        path = self._path(self._position)
        self._file.close(self._fsync)
        self.size_bytes += path.stat().st_size
        self._file = None

    def discard(self) -> None:
        """Drop the open file: the data set will not be finished."""
        if self._file is not None:
            self._drop_file()

    def _check_jpeg(self, piece: Piece) -> None:
        """One look per call; the caller has looked at every picture, this catches that it forgot."""
        found = self._probe.probe(piece)
        if (found.height, found.width) != (self._height, self._width):
            raise ImageError(
                f"camera {self.key!r}: frame {self.frames} is {found.width}×{found.height} px, "
                f"but the feature is {self._width}×{self._height}"
            )
        kind = (mjpeg_stsd(self._width, self._height), found.pix_fmt)
        if self.frames and kind != self._kind:
            before = self._kind[1] if self._kind else "encoded"
            raise ImageError(f"camera {self.key!r}: frame {self.frames} is {found.pix_fmt}, the frames before {before}")
        self._kind = kind
        if self.info is None:
            self._describe("mjpeg", found.pix_fmt, {"video.channels": found.components, "video.g": 1})
        elif self.info["video.codec"] != "mjpeg":
            self._describe("mjpeg", found.pix_fmt, {})

    def _describe(self, codec: str, pix_fmt: str, more: Mapping[str, Any]) -> None:
        info = video_info(
            height=self._height, width=self._width, codec=codec, pix_fmt=pix_fmt, fps=self._fps, encoder=more
        )
        if self.info is not None and self.info["video.codec"] != info["video.codec"]:
            raise VideoError(
                f"camera {self.key!r}: this data set's video is {self.info['video.codec']}, not {codec}",
                hint="LeRobot reads one codec per camera; convert both recordings with the same video setting",
            )
        self.info = info

    def _open(self) -> Mp4Writer:
        """The file for this episode: the present one, or a new one when that is full, too long, or of another codec."""
        if self._file is not None and self._start is not None:
            return self._file
        if self._kind is None:
            raise VideoError(f"camera {self.key!r}: the codec of the samples is not known yet")
        if self._file is not None and (self._is_full(self._file) or self._kind != self._file_kind):
            self.close()
            self._position = self._position.next(self._chunks_size)
        if self._file is None:
            path = self._path(self._position)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataSetError(f"{path.parent}: cannot make the directory: {error.strerror}") from error
            self._file = Mp4Writer(path, stsd=self._kind[0], width=self._width, height=self._height, fps=self._fps)
            self._file_kind = self._kind
        self._start = self._file.mark()
        return self._file

    def _is_full(self, file: Mp4Writer) -> bool:
        longest = (file.samples + self._expected_rows) / self._fps
        return file.tell() >= self._limit_bytes or longest > layout.LONGEST_SHARED_VIDEO_S

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.abort()
            self._file = None
        directory = self._path(self._position).parent
        # Only directories that are empty now go: those that this file alone had made.
        with contextlib.suppress(OSError):
            for path in (directory, directory.parent, directory.parent.parent):
                path.rmdir()

    def _path(self, position: FilePosition) -> Path:
        relative = layout.fill_template(
            layout.VIDEO_PATH, key=self.key, chunk_index=position.chunk, file_index=position.file
        )
        return self._root / relative
