"""The frames of one camera of a LeRobot data set: JPEG packets by byte offset, other codecs through decoders."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import layout
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.read.frames import FrameFinder
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.media.image import jpeg
from penstock._src.media.mp4.index import VideoIndex
from penstock._src.media.video.decode import NEAR_FRAMES, VideoDecoder
from penstock._src.media.video.frame_times import FrameTimes
from penstock._src.profile.record.spans import span
from penstock._src.stores.caches import ERRORS, FILE_CACHE, Lru, Pool, open_file, prefetch_all
from penstock._src.stores.lerobot.images import FILE_SHIFT, check_rows, read_packet
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock._src.system.files import ByteSource, Prefetch, RemotePath, open_source
from penstock.errors import DataSetCorrupt, PenstockError, VideoError

_HEAD_BYTES = 4096  # of a JPEG: its comments lie before its tables
_DECODER_DELAY = 3  # packets that a decoder takes beyond a frame before it gives that frame
_DECODER_FRAMES = 8  # that a decoder keeps for reference
_DECODER_BYTES = 2 << 20  # and what it takes beside them


@dataclass(frozen=True, eq=False)
class PacketRanges:
    """Where the packets of a file lie, in the order in which they are stored, and the packet of each shown frame."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int32]
    order: NDArray[np.int64]

    @property
    def n_bytes(self) -> int:
        return int(self.offsets.nbytes + self.sizes.nbytes + self.order.nbytes)

    def of_frames(self, key: int, frame: int) -> tuple[int, int]:
        """(offset, bytes) from a key frame to a frame, with those that the decoder takes before it gives that one."""
        first = int(self.order[key])
        last = min(max(int(self.order[frame]), first) + _DECODER_DELAY, len(self.offsets) - 1)
        begin = int(self.offsets[first])
        return begin, int(self.offsets[last] + self.sizes[last]) - begin


@dataclass(frozen=True)
class FileIndex:
    """Where the frames of one video file lie, in the order in which they are shown."""

    path: str
    codec: str
    firsts: dict[int, int | DataSetCorrupt]
    """The first frame of every opened episode in this file, or what is wrong with it."""
    offsets: NDArray[Any] | None
    sizes: NDArray[np.uint32] | None
    """Of JPEG packets, 8 bytes per frame together (12 in files above 4 GiB)."""
    times: FrameTimes | None
    """Of other codecs, and of JPEGs of limited range, which only FFmpeg decodes right."""
    packets: PacketRanges | None = None
    """Of remote files that are decoded: which bytes a frame takes."""

    @property
    def n_bytes(self) -> int:
        held = 256 + 128 * len(self.firsts) + (self.times.n_bytes if self.times is not None else 0)
        held += 0 if self.packets is None else self.packets.n_bytes
        return held + sum(each.nbytes for each in (self.offsets, self.sizes) if each is not None)


class CameraFiles:
    """The video files of one camera, and which opened episode lies in which; indexes are read when first needed."""

    def __init__(
        self, data: DataSet, key: str, numbers: NDArray[np.int64], starts: NDArray[np.int64],
        relatives: Sequence[str], file_of: NDArray[np.int32], indexes: Lru[Any],
    ) -> None:  # fmt: skip
        self.data = data
        self.key = key
        self.relatives = relatives
        # For one row bisect is faster than numpy; arrays, for a fleet has a hundred thousand episodes.
        self.starts = array("q", starts.tobytes())
        self.file_of = array("i", file_of.astype(np.int32).tobytes())
        self._starts = starts
        self._file_of = file_of
        self.numbers = numbers
        self._claimed_firsts = np.zeros(len(numbers), np.int64)
        if data.is_v30:
            from_s = np.nan_to_num(data.episodes.videos[key].from_s[numbers], nan=0.0, posinf=0.0, neginf=0.0)
            self._claimed_firsts = np.rint(np.clip(from_s * data.info.fps, 0, 2**38)).astype(np.int64)
        self._indexes = indexes

    @property
    def is_remote(self) -> bool:
        """Whether a read of a frame takes long."""
        return isinstance(self.data.root, RemotePath)

    def index(self, file: int) -> FileIndex:
        """The index of a file; raises what is wrong with the file."""
        index: FileIndex = self._indexes.get((self.key, file), lambda: self._opened(file))
        return index

    def frame(self, index: FileIndex, row: int) -> int:
        """The number of a row's frame in its file."""
        episode = bisect_right(self.starts, row) - 1
        first = index.firsts[episode]
        if not isinstance(first, int):
            raise DataSetCorrupt(first.message, hint=first.hint)
        return first + row - self.starts[episode]

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(file, frame) of rows by the metadata alone: good for sorting, exact only where the file agrees with it."""
        episodes = np.searchsorted(self._starts, rows, side="right") - 1
        return self._file_of[episodes].astype(np.int64), rows - self._starts[episodes] + self._claimed_firsts[episodes]

    def _opened(self, file: int) -> FileIndex:
        with span(FILE_CACHE):
            return self._load(file)

    def _load(self, file: int) -> FileIndex:
        layout.path_in(self.data.root, self.relatives[file])
        finder = FrameFinder(self.data)
        firsts: dict[int, int | DataSetCorrupt] = {}
        index: VideoIndex | None = None
        for episode in np.flatnonzero(self._file_of == file).tolist():
            try:
                frames = finder.find(int(self.numbers[episode]), self.key)
            except DataSetCorrupt as error:
                number = int(self.data.episodes.index[self.numbers[episode]])
                hint = f"fetch the file again, or open the other episodes: episodes=[…] without {number}"
                firsts[episode] = DataSetCorrupt(error.message, hint=hint)
            else:
                firsts[episode], index = frames.first, frames.index
        if index is None:
            broken = next(each for each in firsts.values() if not isinstance(each, int))
            raise DataSetCorrupt(broken.message, hint=broken.hint)
        return _compact(index, firsts, self.is_remote)


def _compact(index: VideoIndex, firsts: dict[int, int | DataSetCorrupt], is_remote: bool) -> FileIndex:
    order = index.presentation_order()
    if index.codec != "mjpeg" or _is_limited_range(index, order):
        times = FrameTimes.of(index.pts[order], index.key[order])
        packets = PacketRanges(index.offsets, index.sizes, order) if is_remote else None
        return FileIndex(index.path, index.codec, firsts, None, None, times, packets)
    offsets: NDArray[Any] = index.offsets[order]
    if not len(offsets) or int(offsets.max()) < 1 << 32:
        offsets = offsets.astype(np.uint32)
    return FileIndex(index.path, index.codec, firsts, offsets, index.sizes[order].astype(np.uint32), None)


def _is_limited_range(index: VideoIndex, order: NDArray[np.int64]) -> bool:
    """Whether the JPEGs of a file are not what decoders of JPEGs take them for; the first stands for all."""
    if not len(order):
        return False
    with open_source(index.path, ERRORS) as source:
        head = source.read(int(index.offsets[order[0]]), min(int(index.sizes[order[0]]), _HEAD_BYTES))
    return jpeg.is_limited_range(head)


class VideoSource(ImageSource):
    """The frames of one camera. `decoder_threads` is what a decoder opened from now on may use (1: threads of the
    caller do the work; more suits one pass from end to end)."""

    def __init__(
        self, camera: CameraFiles, feature: Feature, codec: str, files: Lru[ByteSource], mean_bytes: int
    ) -> None:
        self._camera = camera
        self._files = files
        self._shape = feature.shape[:2]
        self._depth = _depth_scale(feature) if feature.is_depth else None
        self._decoders: Pool[VideoDecoder] = Pool(fewest=2)
        self.decoder_threads = 1
        pixels = feature.shape[0] * feature.shape[1]
        self._is_packets = codec == "mjpeg"
        self._decoding_bytes = decoder_bytes(feature) + 6 * pixels
        if self._is_packets:
            self.scratch_bytes = min(4 * mean_bytes, max(3 * pixels, 1024))
        else:
            self.scratch_bytes = self._decoding_bytes

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        camera = self._camera
        wanted: list[int] = rows.tolist() if isinstance(rows, np.ndarray) else list(rows)
        starts, file_of = camera.starts, camera.file_of
        check_rows(wanted, starts[-1], f"{camera.data.root}: {camera.key!r}")
        at, count = 0, len(wanted)
        while at < count:
            file = file_of[bisect_right(starts, wanted[at]) - 1]
            end = at + 1
            while end < count and file_of[bisect_right(starts, wanted[end]) - 1] == file:
                end += 1
            index = camera.index(file)
            if index.times is None:
                yield from self._packets(index, wanted[at:end], scratch)
            else:
                yield from self._decoded(file, index, wanted[at:end])
            at = end

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        files, frames = self._camera.locate(rows)
        return np.asarray((files << FILE_SHIFT) | frames, np.int64)

    def runs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Frames that one decoder reaches by going on are one run; a JPEG packet is a run by itself."""
        if self._is_packets:
            return super().runs(rows)
        files, frames = self._camera.locate(rows)
        goes_on = np.zeros(len(rows), np.bool_)
        for file in np.unique(files).tolist():
            try:
                times = self._camera.index(file).times
            except PenstockError:
                continue  # reported when a row of it is read
            here = np.flatnonzero(files == file)
            if times is not None and len(here) > 1:
                before, ahead = frames[here[:-1]], frames[here[1:]]
                is_near = (ahead - before <= 1 + NEAR_FRAMES) | (times.key_before(ahead) <= before + 1 + NEAR_FRAMES)
                goes_on[here[1:]] = (ahead >= before) & is_near & (np.diff(here) == 1)
        return np.asarray(np.cumsum(~goes_on) - 1, np.int64)

    def prefetch(self, rows: Sequence[int]) -> Prefetch | None:
        if not self._camera.is_remote:
            return None
        camera, by_file = self._camera, dict[int, list[int]]()
        for row in rows:
            by_file.setdefault(camera.file_of[bisect_right(camera.starts, row) - 1], []).append(row)
        asked = []
        for file, wanted in by_file.items():
            try:
                index = camera.index(file)
                frames = [camera.frame(index, row) for row in wanted]
            except DataSetCorrupt:
                continue  # said when a row of it is read
            source = self._files.get(index.path, lambda path=index.path: open_file(path))  # type: ignore[misc]
            asked.append((source, _ranges(index, frames)))
        return prefetch_all(asked)

    def close(self) -> None:
        self._decoders.close()

    def _packets(self, index: FileIndex, rows: list[int], scratch: Scratch) -> Iterator[ImageArray]:
        source = self._files.get(index.path, lambda: open_file(index.path))
        offsets, sizes = index.offsets, index.sizes
        if offsets is None or sizes is None:
            raise VideoError(f"{index.path}: {index.codec} has no packets to hand out")
        frame_of, column = self._camera.frame, f"camera {self._camera.key!r}"
        for row in rows:
            frame = frame_of(index, row)
            size = sizes.item(frame)
            data = read_packet(source, offsets.item(frame), size, scratch, row, column)
            if size > self.scratch_bytes:
                self.scratch_bytes = size
            yield data

    def _decoded(self, file: int, index: FileIndex, rows: list[int]) -> Iterator[ImageArray]:
        times = index.times
        if times is None:
            raise VideoError(f"{index.path}: {index.codec} needs no decoder")
        self.scratch_bytes = max(self.scratch_bytes, self._decoding_bytes)
        pixel_format = "rgb24" if self._depth is None else "gray12le"
        threads = self.decoder_threads
        row, frame = rows[0], self._camera.frame(index, rows[0])

        def away(decoder: VideoDecoder) -> float | None:
            """Rather one that goes on, then any of this file."""
            if decoder.file != file or decoder.threads != threads:
                return None
            ahead = decoder.frames_to(frame)
            return 1e9 if ahead is None else ahead

        def opened() -> VideoDecoder:
            with span(FILE_CACHE):
                return VideoDecoder(index.path, times, threads, file)

        decoder = self._decoders.take(away, opened)
        whole = False
        try:
            shown, pixels = -1, None
            for row in rows:
                frame = self._camera.frame(index, row)
                if frame != shown or pixels is None:
                    pixels = self._shaped(decoder, decoder.frame(frame), pixel_format, row)
                    shown = frame
                whole = True  # between two frames it may be given back
                yield pixels
                whole = False
            whole = True
        except VideoError as error:
            raise self._broken(row, error) from error
        finally:
            self._decoders.give(decoder, whole=whole)

    def _shaped(self, decoder: VideoDecoder, frame: Any, pixel_format: str, row: int) -> NDArray[Any]:
        pixels = decoder.pixels(frame, pixel_format)
        if pixels.shape[:2] != self._shape:
            raise VideoError(
                f"{decoder.path}: a frame of {pixels.shape[1]}×{pixels.shape[0]} px, info.json says "
                f"{self._shape[1]}×{self._shape[0]}"
            )
        return pixels if self._depth is None else self._depth.millimetres(pixels)

    def _broken(self, row: int, error: VideoError) -> DataSetCorrupt:
        camera = self._camera
        episode = bisect_right(camera.starts, row) - 1
        number = int(camera.data.episodes.index[camera.numbers[episode]])
        return DataSetCorrupt(
            f"{camera.data.root}: episode {number}, camera {camera.key!r}, frame {row - camera.starts[episode]:,} of "
            f"the episode: {error.message}",
            hint="the file is damaged: fetch it again, or leave the episode out",
        )


def _ranges(index: FileIndex, frames: Sequence[int]) -> list[tuple[int, int]]:
    """The bytes that frames take: a JPEG each, or all from the key frame before."""
    if index.offsets is not None and index.sizes is not None:
        return [(index.offsets.item(frame), index.sizes.item(frame)) for frame in frames]
    if index.packets is None or index.times is None:
        return []
    return [index.packets.of_frames(index.times.key_of(frame), frame) for frame in frames]


def decoder_bytes(feature: Feature) -> int:
    """What decoders of a camera take, per thread that reads: one in use, one that waits."""
    return 2 * (_DECODER_BYTES + _DECODER_FRAMES * feature.shape[0] * feature.shape[1] * 3 // 2)


@dataclass(frozen=True)
class DepthScale:
    """How LeRobot 0.6.1 keeps depth in a video: 12-bit codes for logarithms (or distances) between two distances."""

    low_m: float = 0.01
    high_m: float = 10.0
    shift_m: float = 3.5
    is_log: bool = True

    def millimetres(self, codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """The distances, rounded to millimetres."""
        low, high = self.low_m, self.high_m
        if self.is_log:
            low, high = float(np.log(low + self.shift_m)), float(np.log(high + self.shift_m))
        metres = np.empty(codes.shape, np.float32)
        np.multiply(codes, (high - low) / 4095, out=metres)
        metres += np.float32(low)
        if self.is_log:
            np.exp(metres, out=metres)
            metres -= np.float32(self.shift_m)
        np.clip(metres, self.low_m, self.high_m, out=metres)
        np.rint(metres * np.float32(1000.0), out=metres)
        return np.clip(metres, 0, 65535).astype(np.uint16)


def _depth_scale(feature: Feature) -> DepthScale:
    info = feature.info or {}

    def setting(name: str, default: float) -> float:
        value = info.get(f"video.{name}", default)
        if not isinstance(value, (int, float)) or not np.isfinite(value):
            raise DataSetCorrupt(f"camera {feature.key!r}: video.{name} is {value!r}, not a number")
        return float(value)

    plain = DepthScale()
    scale = DepthScale(
        setting("depth_min", plain.low_m), setting("depth_max", plain.high_m), setting("shift", plain.shift_m),
        bool(info.get("video.use_log", plain.is_log)),
    )  # fmt: skip
    if scale.high_m <= scale.low_m or (scale.is_log and scale.low_m + scale.shift_m <= 0):
        raise DataSetCorrupt(f"camera {feature.key!r}: depth from {scale.low_m} m to {scale.high_m} m is not a range")
    return scale
