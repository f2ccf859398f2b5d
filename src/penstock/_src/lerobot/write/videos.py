"""The video files of one camera: which file an episode goes to, and the way back when it is aborted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock._src.lerobot import layout
from penstock._src.lerobot.features import Description, Feature
from penstock._src.lerobot.layout import FilePosition, UnsyncedNames, VideoSpan
from penstock._src.media.image import jpeg
from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.writer import Mark, Mp4Writer, SampleTable
from penstock.errors import DataSetCorrupt, DataSetError, ImageError, VideoError

if TYPE_CHECKING:
    from penstock._src.media.video.encode import EncodedSample, VideoEncoder

Piece = memoryview | bytes


_Kind = tuple[bytes, str]
"""What all samples of a file share: the sample description, and for JPEG how the colours are sampled."""


class _CameraFile(NamedTuple):
    """One of the files; those that are closed, or of another process, have no writer."""

    position: FilePosition
    writer: Mp4Writer | None = None
    kind: _Kind | None = None


class VideoFiles:
    """Takes the frames of one camera: JPEG images as they are, or samples of an encoder after `set_codec`.

    The files roll over between episodes only, so an episode always lies within one of them. A file that is full is
    finished when the first episode of its successor is committed: until then, that episode can still be taken back.
    With a `group`, the files of the episodes that follow lie in the chunk of that number, and begin anew there. Files
    that another process has finished under the same names are taken as they are (`adopt`).
    """

    def __init__(
        self, feature: Feature, description: Description, names: UnsyncedNames, path_of: Callable[[FilePosition], Path]
    ) -> None:
        self.key = feature.key
        self.info: dict[str, Any] | None = None
        self.group: int | None = None
        self.first_file = 0  # of each group
        self.chunks = layout.ALL_CHUNKS
        self._path_of, self._names, self._fps = path_of, names, description.fps
        self._height, self._width = feature.shape[0], feature.shape[1]
        self._limit_bytes, self._chunks_size = description.video_file_bytes, description.chunks_size
        self._last: _CameraFile | None = None
        self._before: _CameraFile | None = None  # full, or of another process; finished with the next commit
        self._adopted: VideoSpan | None = None  # the frames of the open episode, in a file of another process
        self._kind: _Kind | None = None
        self._is_jpeg = True
        self._start: Mark | None = None
        self._expected_rows = 0
        self._info_before: dict[str, Any] | None = None
        self._probe = jpeg.JpegProbe()
        self.committed_bytes = 0  # of the last episode

    @property
    def frames(self) -> int:
        """Frames of the episode that is being written."""
        if self._adopted is not None:
            return self._adopted.frames
        writer = self._writer
        return 0 if writer is None or self._start is None else writer.samples - self._start.samples

    @property
    def _writer(self) -> Mp4Writer | None:
        return None if self._last is None else self._last.writer

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

    def append(
        self,
        pieces: Sequence[Piece],
        keys: Sequence[bool] | None = None,
        *,
        shifts: Sequence[int] | None = None,
        checked: bool = False,
    ) -> None:
        """Append one frame per piece; `keys` marks the key frames of an encoder, a JPEG is always one.

        `shifts` are as `Mp4Writer.append` takes them; the frames of an episode are shown after those before it.
        `checked` says that these JPEG images have passed through here before, after others of their episode.
        """
        if not pieces:
            return
        if self._is_jpeg:
            if not checked or self.frames == 0:
                self._check_jpeg(pieces[0])
        elif keys is None or (self.frames == 0 and not keys[0]):
            raise VideoError(f"camera {self.key!r}: an episode must start with a key frame of the encoder")
        self._open().append(pieces, keys, shifts)

    def append_encoded(self, samples: Sequence[EncodedSample], encoder: VideoEncoder) -> None:
        """Append what an encoder gave; the first samples of an episode bring its codec with them."""
        if not samples:
            return
        if self._is_jpeg:
            self.set_codec(encoder.stsd, encoder.info)
        self.append([sample.data for sample in samples], [sample.key for sample in samples])

    def repeat(self, count: int = 1) -> None:
        """Show the last frame in `count` more rows without writing it again."""
        if self.frames == 0 or (writer := self._writer) is None:
            raise VideoError(f"camera {self.key!r}: there is no frame of this episode to repeat")
        writer.repeat(count)

    def adopt(self, source: Path, span: VideoSpan, kept: Mapping[str, Any]) -> bool:
        """The frames of the open episode lie at `span` in the finished file `source`, which is taken over unchanged.

        `kept` is what its writer kept of them (`episode_state`). False, and nothing is changed, where this writer has
        begun the files of that chunk itself.
        """
        last = self._last
        if last is not None and last.writer is not None and last.position.chunk == span.position.chunk:
            return False
        if kept["pix_fmt"] == "":
            self.set_codec(kept["stsd"], kept["info"])
        elif self.info is None:
            self.info = dict(kept["info"])
        else:
            self._check_codec("mjpeg")
        if last is None or span.position != last.position:
            path = self._path_of(span.position)
            layout.take_over(source, path)
            self._names.add(path)
            self._before, self._last = last, _CameraFile(span.position)
        self._adopted = span
        return True

    def begin_episode(self, expected_rows: int | None) -> None:
        self._start = None
        self._adopted = None
        self._kind = None
        self._is_jpeg = True
        self._expected_rows = expected_rows or 0
        self._info_before = None if self.info is None else dict(self.info)

    def commit_episode(self) -> VideoSpan:
        """Called by the sink: the frames stay."""
        if self._adopted is None and not self.frames:
            raise DataSetError(f"camera {self.key!r}: the episode has no frame")
        if self._before is not None and self._before.writer is not None:
            self._before.writer.close(self._names.fsync)
        self._before = None
        if self._adopted is not None:
            adopted, self._adopted, self.committed_bytes = self._adopted, None, 0
            return adopted
        assert self._last is not None and self._last.writer is not None and self._start is not None
        span = VideoSpan(self._last.position, self._start.samples, self.frames, self._last.writer.tell())
        self.committed_bytes = span.end_bytes - self._start.end_bytes
        self._start = None
        return span

    def abort_episode(self) -> None:
        """Called by the sink: no trace of the episode remains."""
        self.info = self._info_before
        if self._adopted is not None and self._before is not None:
            self._last, self._before = self._before, None
        self._adopted = None  # the file stays beside its other name until `resume` clears it away
        writer, start, self._start = self._writer, self._start, None
        if writer is not None and start is not None:
            if start.samples:
                writer.rollback(start)
            else:
                self._drop_file(writer)

    def sync(self) -> None:
        if self._names.fsync and (writer := self._writer) is not None:
            writer.sync()

    def close(self) -> None:
        if self._last is not None and self._last.writer is not None:
            self._last.writer.close(self._names.fsync)
            self._last = _CameraFile(self._last.position)

    def leave(self) -> None:
        """Close the files as they are: `restore` can go on with them."""
        for file in (self._last, self._before):
            if file is not None and file.writer is not None:
                file.writer.leave()

    def state(self) -> dict[str, Any]:
        """What `restore` needs besides the place of the last episode; nothing is open where that was adopted."""
        return {"info": self.info} if self._writer is None else self._state(self._writer.table())

    def episode_state(self) -> dict[str, Any]:
        """The frames of the open episode alone, as a copy of them needs them."""
        if (writer := self._writer) is None or self._start is None:
            raise DataSetError(f"camera {self.key!r}: the episode has no frame")
        return self._state(writer.table(since=self._start))

    def _state(self, table: SampleTable) -> dict[str, Any]:
        stsd, pix_fmt = (self._last and self._last.kind) or (b"", "")
        return {"info": self.info, "stsd": stsd, "pix_fmt": pix_fmt, **table_state(table)}

    def restore(self, state: Mapping[str, Any], last: VideoSpan) -> None:
        """Go on behind the last committed episode: whatever else the files hold is cut off."""
        if "sizes" not in state:
            self.info, self._last = state["info"], _CameraFile(last.position)
            return
        table = table_from(state, last.end_bytes)
        if len(table.sizes) != last.first_frame + last.frames:
            raise DataSetCorrupt(f"camera {self.key!r}: {len(table.sizes)} frames known, {last} committed")
        self.info = state["info"]
        path = self._path_of(last.position)
        layout.own_copy(path)
        kind = (state["stsd"], str(state["pix_fmt"]))
        self._last = _CameraFile(last.position, self._writer_of(path, kind, table), kind)
        self._names.add(path)

    def _check_jpeg(self, piece: Piece) -> None:
        """One look per call; the caller has looked at every image, this catches that it forgot."""
        info = self._probe.probe(piece)
        if (info.height, info.width) != (self._height, self._width):
            raise ImageError(
                f"camera {self.key!r}: frame {self.frames} is {info.width}×{info.height} px, "
                f"but the feature is {self._width}×{self._height}"
            )
        kind = (mjpeg_stsd(self._width, self._height), info.pix_fmt)
        if self.frames and kind != self._kind:
            before = self._kind[1] if self._kind else "encoded"
            raise ImageError(f"camera {self.key!r}: frame {self.frames} is {info.pix_fmt}, the frames before {before}")
        self._kind = kind
        if self.info is None:
            self._describe("mjpeg", info.pix_fmt, {"video.channels": info.components, "video.g": 1})
        elif self.info["video.codec"] != "mjpeg":
            self._describe("mjpeg", info.pix_fmt, {})

    def _describe(self, codec: str, pix_fmt: str, more: Mapping[str, Any]) -> None:
        """What info.json says about the video, with LeRobot 0.6.1's keys; `more` adds or replaces some."""
        info: dict[str, Any] = {
            "video.height": self._height,
            "video.width": self._width,
            "video.codec": codec,
            "video.pix_fmt": pix_fmt,
            "video.fps": self._fps,
            "video.channels": 3,
            "has_audio": False,
            "video.g": None,
            "video.crf": None,
            "video.preset": None,
            "video.fast_decode": None,
            "video.video_backend": None,
            "video.extra_options": {},
            "is_depth_map": False,
            **more,
        }
        self._check_codec(str(info["video.codec"]))
        self.info = info

    def _check_codec(self, codec: str) -> None:
        if self.info is not None and self.info["video.codec"] != codec:
            raise VideoError(
                f"camera {self.key!r}: this data set's video is {self.info['video.codec']}, not {codec}",
                hint="LeRobot reads one codec per camera; convert both recordings with the same video setting",
            )

    def _writer_of(self, path: Path, kind: _Kind, resume: SampleTable | None = None) -> Mp4Writer:
        return Mp4Writer(path, stsd=kind[0], width=self._width, height=self._height, fps=self._fps, resume=resume)

    def _open(self) -> Mp4Writer:
        """The file for this episode: the present one, or a new one when that is full, too long, or of another codec."""
        last, writer = self._last, self._writer
        if writer is not None and self._start is not None:
            return writer
        if self._kind is None:
            raise VideoError(f"camera {self.key!r}: the codec of the samples is not known yet")
        is_other_group = last is not None and self.group not in (None, last.position.chunk)
        if last is None or writer is None or self._is_full(writer) or self._kind != last.kind or is_other_group:
            position = self._next_position()
            path = self._path_of(position)
            with layout.writing(path.parent, "cannot make the directory"):
                path.parent.mkdir(parents=True, exist_ok=True)
            writer = self._writer_of(path, self._kind)
            self._before, self._last = last, _CameraFile(position, writer, self._kind)
            self._names.add(path)
        self._start = writer.mark()
        return writer

    def _next_position(self) -> FilePosition:
        last = None if self._last is None else self._last.position
        if self.group is not None:
            if last is None or last.chunk != self.group:
                return FilePosition(self.group, self.first_file)
            return FilePosition(self.group, last.file + 1)
        if last is None or last.chunk < self.chunks.first:
            return FilePosition(self.chunks.first, 0)
        return last.next(self._chunks_size, self.chunks)

    def _is_full(self, file: Mp4Writer) -> bool:
        longest = (file.samples + self._expected_rows) / self._fps
        return file.tell() >= self._limit_bytes or longest > layout.LONGEST_SHARED_VIDEO_S

    def _drop_file(self, writer: Mp4Writer) -> None:
        """Remove the file of the open episode, which holds no other, and go back to the one before."""
        assert self._last is not None
        writer.abort()
        # Only directories that are empty now go: those that this file alone had made.
        with contextlib.suppress(OSError):
            for path in self._path_of(self._last.position).parents[:3]:
                path.rmdir()
                self._names.forget(path)
        self._last, self._before = self._before, None


def table_state(table: SampleTable) -> dict[str, Any]:
    """A table of samples for a state file: most lie behind the one before, so only the others name their place.

    Places in time are named only where frames are shown in another order than they are stored.
    """
    follows = np.zeros(len(table.sizes), np.bool_)
    follows[1:] = table.offsets[1:] == table.offsets[:-1] + table.sizes[:-1]
    apart = np.flatnonzero(~follows)
    keys = np.packbits(table.keys != 0)
    reordered = {"shifts": table.shifts} if len(table.shifts) else {}
    return {"sizes": table.sizes, "keys": keys, "apart": apart, "offsets_apart": table.offsets[apart], **reordered}


def table_from(state: Mapping[str, Any], end_bytes: int) -> SampleTable:
    sizes, keys, apart, places = (np.asarray(state[name]) for name in ("sizes", "keys", "apart", "offsets_apart"))
    # Where each would lie if all followed each other, and how far its run lies from there.
    ends = np.cumsum(sizes.astype(np.int64))
    starts = ends - sizes
    offsets = starts + np.repeat(places - starts[apart], np.diff(np.append(apart, len(sizes))))
    if int(offsets.min()) < 0 or int((offsets + sizes).max()) > end_bytes:
        raise DataSetCorrupt(f"a table of samples that lie beyond byte {end_bytes:,}")
    flags = np.unpackbits(keys.astype(np.uint8), count=len(sizes))
    shifts = np.asarray(state.get("shifts", np.zeros(0, np.int32)))
    return SampleTable(offsets, sizes.astype(np.uint32), flags, end_bytes, shifts.astype(np.int32))
