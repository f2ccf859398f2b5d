"""Writes MP4 files: one video track whose samples are moved as they are, and counted to the byte.

A muxer of our own, because FFmpeg's copies every packet and writes in small pieces; here the frames of many messages
go to the file in one `pwritev`, and one frame that serves several rows is stored once.

    ftyp | mdat (64-bit size) sample sample sample … | moov

The moov lies at the end because its tables are known only then; until `close`, the file is not a video.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.mp4 import boxes as mp4_boxes
from penstock._src.system.closing import on_error
from penstock._src.system.files import AppendFile
from penstock.errors import OutputFailed, PenstockError, VideoError

_MAX_SAMPLE_BYTES = 0xFFFF_FFFF


class Mark(NamedTuple):
    """A place between two samples to which `Mp4Writer.rollback` can return."""

    samples: int
    end_bytes: int


class SampleTable(NamedTuple):
    """Where the samples of a file lie, and where the last of them ends."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.uint32]
    keys: NDArray[np.uint8]
    end_bytes: int
    shifts: NDArray[np.int32]
    """How many places after its own each sample is shown; empty where all are shown in the order of the file."""

    def __repr__(self) -> str:
        return f"SampleTable(samples={len(self.keys):,}, end_bytes={self.end_bytes:,})"


class Mp4Writer:
    """One video track at a constant rate; a context manager that closes the file, or removes it on an error.

    >>> with Mp4Writer("cam.mp4", stsd=mjpeg_stsd(640, 480), width=640, height=480, fps=30) as video:
    ...     video.append(jpegs)                                                      # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        stsd: bytes,
        width: int,
        height: int,
        fps: int,
        resume: SampleTable | None = None,
    ) -> None:
        """`path`: of a file that does not exist yet.

        With `resume`, it is that of a file which another writer left or closed: it is continued after the samples of
        the table, and whatever lies behind them is cut off.
        """
        self.track = mp4_boxes.Track(bytes(stsd), width, height, fps)  # what all samples share
        self._path = os.fspath(path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if resume is None else 0)
        try:
            self._fd = os.open(self._path, flags, 0o644)
        except OSError as error:
            raise OutputFailed(self._path, "cannot be created" if resume is None else "opening", error) from error
        self._offsets = array("q", resume.offsets.astype(np.int64).tobytes() if resume else b"")
        self._sizes = array("I", resume.sizes.astype(np.uint32).tobytes() if resume else b"")
        self._keys = bytearray(resume.keys.astype(np.uint8).tobytes() if resume else b"")
        self._shifts = array("i", resume.shifts.astype(np.int32).tobytes() if resume else b"")
        self._open = True
        self._file = AppendFile(self._fd, self._path, resume.end_bytes if resume else 0)
        with on_error(self.leave if resume else self.abort):
            if resume is None:
                self._file.write([mp4_boxes.prologue()])
            else:
                self._continue()

    @property
    def samples(self) -> int:
        """How many samples (rows) the track has."""
        return len(self._sizes)

    def tell(self) -> int:
        """Bytes written so far: what the file will measure, without its index."""
        return self._file.end_bytes

    def append(
        self,
        pieces: Sequence[memoryview | bytes],
        keys: Sequence[bool] | None = None,
        shifts: Sequence[int] | None = None,
    ) -> None:
        """Append each piece as one sample. Give many at once: they are written by one call.

        `shifts` are for frames that are stored in another order than they are shown: how many places after its own
        each is shown. All samples together must be shown once at every place.

        The pieces are on their way to the disk when this returns; their buffers may be used again.
        """
        self._check_open()
        sizes = [len(piece) for piece in pieces]
        if not sizes:
            return
        if not all(len(each) == len(sizes) for each in (keys, shifts) if each is not None):
            raise VideoError(f"{self._path}: {len(sizes)} samples came with another number of flags or places")
        if not all(0 < size <= _MAX_SAMPLE_BYTES for size in sizes):
            raise VideoError(f"{self._path}: samples of {min(sizes):,} to {max(sizes):,} bytes")
        offset = self._file.end_bytes
        self._file.write(pieces)
        # The tables grow only after the bytes are in the file: a failed write leaves no entry without data.
        if shifts is not None:
            self._shifts.extend([0] * (self.samples - len(self._shifts)))
            self._shifts.extend(shifts)
        for size in sizes:
            self._offsets.append(offset)
            offset += size
        self._sizes.extend(sizes)
        self._keys += b"\1" * len(sizes) if keys is None else bytes(map(bool, keys))

    def repeat(self, count: int = 1) -> None:
        """Show the last sample `count` more times. Only a key frame can be repeated: others depend on their place."""
        self._check_open()
        if not self._keys or not self._keys[-1]:
            raise VideoError(f"{self._path}: there is no key frame that could be repeated")
        self._offsets.extend([self._offsets[-1]] * count)
        self._sizes.extend([self._sizes[-1]] * count)
        self._keys += b"\1" * count

    def table(self, since: Mark | None = None) -> SampleTable:
        """Where the samples lie (those after `since`), for a writer that will continue the file, or for a copy."""
        first = since.samples if since is not None else 0
        return SampleTable(
            np.frombuffer(self._offsets[first:].tobytes(), np.int64),
            np.frombuffer(self._sizes[first:].tobytes(), np.uint32),
            np.frombuffer(bytes(self._keys[first:]), np.uint8),
            self._file.end_bytes,
            np.frombuffer(self._all_shifts()[first:].tobytes(), np.int32),
        )

    def _all_shifts(self) -> array[int]:
        """A place for every sample, or for none where all are shown in the order of the file."""
        if not any(self._shifts):
            return array("i")
        return self._shifts + array("i", [0]) * (self.samples - len(self._shifts))

    def mark(self) -> Mark:
        """This place, to which `rollback` returns."""
        return Mark(self.samples, self._file.end_bytes)

    def rollback(self, mark: Mark) -> None:
        """Forget every sample after the mark and give their bytes back."""
        self._check_open()
        self._file.cut(mark.end_bytes)
        del self._offsets[mark.samples :]
        del self._sizes[mark.samples :]
        del self._keys[mark.samples :]
        del self._shifts[mark.samples :]

    def close(self, fsync: bool = True) -> None:
        """Write the index; after this the file is a video. With `fsync` it is on the disk, too."""
        if not self._open:
            return
        if not self._sizes:
            raise VideoError(f"{self._path}: a video needs at least one sample", hint="call abort() to drop the file")
        size_offset, size_field = mp4_boxes.mdat_size_field(self._file.end_bytes)
        self._file.write([mp4_boxes.moov(self.track, self._offsets, self._sizes, self._keys, self._all_shifts())])
        self._file.write_at(size_field, size_offset)
        self._file.finish(fsync)
        self._open = False
        os.close(self._fd)

    def sync(self) -> None:
        """Wait until all samples are on the disk; the file remains open."""
        if self._open:
            self._file.sync()

    def leave(self) -> None:
        """Stop without a video, but keep the file: `resume` can go on with it."""
        if not self._open:
            return
        self._open = False
        # What was asked for too much goes back to the file system; where that fails, nothing is lost.
        with contextlib.suppress(PenstockError):
            self._file.cut(self._file.end_bytes)
        os.close(self._fd)

    def abort(self) -> None:
        """Stop without a video: the file that this writer created is removed."""
        if not self._open:
            return
        self._open = False
        os.close(self._fd)
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def __enter__(self) -> Mp4Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
            return
        with on_error(self.abort):
            self.close()

    def _continue(self) -> None:
        """Bring a file that may be a whole video back to the state behind its last known sample."""
        size_offset, size_field = mp4_boxes.mdat_size_field(None)
        expected = mp4_boxes.prologue()[:size_offset]
        try:
            size_bytes = os.fstat(self._fd).st_size
            head = os.pread(self._fd, size_offset, 0)
        except OSError as error:
            raise self._file.failed("reading", error) from error
        if size_bytes < self._file.end_bytes or head != expected:
            raise VideoError(
                f"{self._path}: {size_bytes:,} bytes that are no video which penstock wrote: its samples ended at byte "
                f"{self._file.end_bytes:,}"
            )
        self._file.cut(self._file.end_bytes)
        self._file.write_at(size_field, size_offset)

    def _check_open(self) -> None:
        if not self._open:
            raise VideoError(f"{self._path}: the video is closed already")
