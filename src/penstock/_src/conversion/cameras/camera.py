"""One camera of an input: what its images are by the first of them, what becomes of them, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.settings import Encoding, FeatureSettings, Settings, Video
from penstock._src.lerobot.features import Feature
from penstock._src.media.image import codec, depth, jpeg, png
from penstock._src.media.image import raw as raw_image
from penstock._src.media.image.depth import DepthInfo, DepthPixels
from penstock._src.recordings.recording import Recording, Topic
from penstock._src.recordings.values.images import EncodedImage, ImageReader, RawImage
from penstock._src.stores.roles import IMAGE_PREFIX
from penstock.errors import (
    ConfigError,
    ImageError,
    LimitExceeded,
    MessageError,
    PenstockError,
    RecordingError,
    VideoError,
)

if TYPE_CHECKING:
    from penstock._src.media.h26x.stream_index import StreamIndex

ImageKind = Literal["jpeg", "png", "raw", "depth", "h264", "h265"]
CameraImage = EncodedImage | RawImage
T = TypeVar("T")

_PNG_MAGIC = png.MAGIC
_FIRST_MESSAGES = 16  # how many are tried for one that can be read


def first_payloads(recording: Recording, topic: Topic) -> Iterator[memoryview]:
    """The first messages of a topic that can be read at all: a stream may begin with broken ones."""
    if topic.count == 0:
        raise RecordingError(
            f"{recording.path}: {topic.name} has no messages",
            hint="leave it out under features:, or check the recording",
        )
    for number in range(min(topic.count, _FIRST_MESSAGES)):
        for _, payload in recording.payloads(topic, [number]):
            if payload is not None:
                yield memoryview(bytes(payload))


def first_usable(
    recording: Recording, topic: Topic, read: Callable[[memoryview], T], key: str = "NAME", what: str = "image"
) -> T:
    """The first message that can be read, for the feature `key`."""
    last: PenstockError | None = None
    for payload in first_payloads(recording, topic):
        try:
            return read(payload)
        except (ImageError, MessageError, LimitExceeded) as error:
            last = error
    reason = f": {last.message}" if last else ""
    raise (ImageError if what == "image" else RecordingError)(
        f"{recording.path}: {topic.name} has no usable {what} among its first messages{reason}",
        hint="; ".join([*([last.hint] if last and last.hint else []), f"convert without it: leave_out={key}"]),
    )


def probe_image(frame: CameraImage) -> tuple[ImageKind, tuple[int, int]]:
    """What a frame is and its (height, width), from its header alone."""
    if isinstance(frame, RawImage):
        return "raw", (frame.height, frame.width)
    if is_png(frame):
        # Copied images are not decoded: like a JPEG, a PNG must be whole from its first to its last marker.
        png.probe(frame.data)
        return "png", codec.size_of(frame.data)
    info = jpeg.probe(frame.data)
    return "jpeg", (info.height, info.width)


def is_png(frame: EncodedImage) -> bool:
    return frame.data[:8] == _PNG_MAGIC  # asked for every message: one call, not two


# CPU time in ns per pixel and thread, from the figures of docs/how-it-works/video.md: good for an estimate.
_ENCODE_NS = {"h264": 24.0, "hevc": 240.0, "av1": 60.0, "mjpeg": 4.0, "images": 4.0}
_DECODE_NS = {"h264": 11.0, "hevc": 20.0, "h265": 20.0, "av1": 12.0, "raw": 1.0}
_OTHER_DECODE_NS = 5.0  # JPEG, PNG


class CameraConversion(NamedTuple):
    """What becomes of the images of one camera: copied, or encoded in some of the episodes or all."""

    key: str
    source: str  # codec or kind of what is there
    stored_as: str
    size_px: tuple[int, int]
    frames: int = 0  # that have to be encoded
    episodes: str = ""  # which of them, where not all: " (3 of 96 episodes)"

    @property
    def cpu_s(self) -> float:
        pixels = self.frames * self.size_px[0] * self.size_px[1]
        return pixels * (_ENCODE_NS[self.stored_as] + _DECODE_NS.get(self.source, _OTHER_DECODE_NS)) / 1e9

    def text(self, encoding: Encoding) -> str:
        in_table = ", in the table" if self.stored_as == "images" else ""
        if not self.frames:
            return f"copied as {self.source}{in_table}"
        codec = "JPEG" if in_table else self.stored_as
        return f"{self.source} encoded as {codec}{in_table}{self.episodes}, {quality(self.stored_as, encoding)}"


def quality(stored_as: str, encoding: Encoding) -> str:
    """How good what is encoded becomes: "crf 30", "quality 95"."""
    if stored_as in ("mjpeg", "images"):
        return f"quality {encoding.quality}"
    from penstock._src.media.video.hardware import encoder_settings

    return f"crf {encoder_settings(stored_as, crf=encoding.crf).crf}"


def video_lines(conversions: Iterable[CameraConversion], encoding: Encoding, threads: int) -> list[tuple[str, str]]:
    """The lines of a plan about cameras; those with the same conversion share a line."""
    alike: dict[str, list[CameraConversion]] = {}
    for each in conversions:
        alike.setdefault(each.text(encoding), []).append(each)
    return [
        ("video", f"{text}{_time(some, threads)}: {', '.join(each.key.removeprefix(IMAGE_PREFIX) for each in some)}")
        for text, some in alike.items()
    ]


def _time(parts: Sequence[CameraConversion], threads: int) -> str:
    """Cameras of an episode are encoded beside each other, one thread each."""
    if not parts[0].frames:
        return ""
    seconds = sum(part.cpu_s for part in parts) / max(1, min(threads, len(parts)))
    for unit_s, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f", about {seconds / unit_s:.0f} {name} (estimate)"
    return f", about {max(1, round(seconds))} s (estimate)"


def refusal(where: str, camera: str, reason: str, hint: str = "") -> VideoError:
    """The error of `video=copy-only` for images that cannot be copied."""
    return VideoError(
        f"{where}, camera {camera!r}: video=copy-only, and its images would have to be encoded: {reason}",
        hint=f"{hint}{'; ' if hint else ''}video=copy encodes what cannot be copied",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Camera:
    """A camera: what its images are, and what becomes of them."""

    key: str
    name: str  # where its images come from, for messages: a topic, a column
    kind: ImageKind
    recorded_px: tuple[int, int]
    size_px: tuple[int, int]
    output: Video
    encoding: str = ""  # of raw pixels
    depth: DepthInfo | None = None  # of the first frame; None for an ordinary camera
    depth_range_mm: tuple[float, float] | None = None  # becomes 8 bits; None: distances are kept as they are
    stream: StreamIndex | None = None  # of a topic that was recorded as video
    only_copied: bool = False  # what cannot be copied is refused
    keeps_jpeg: bool = False  # where JPEG is stored, images that are one already stay as they are

    @property
    def is_metric(self) -> bool:
        """Depth whose values are kept exactly, in the table."""
        return self.depth is not None and self.depth_range_mm is None

    @property
    def resized(self) -> bool:
        return self.recorded_px != self.size_px

    @property
    def copied(self) -> bool:
        """The recorded bytes are the stored bytes."""
        if self.depth is not None:
            return self.is_metric and self.depth.is_stored_form and not self.resized
        whole = self.kind == "jpeg" or (self.kind == "png" and self.output == "images")
        return self.output in ("copy", "images") and whole and not self.resized

    @property
    def stored_as(self) -> Video:
        """The output after the fallback: what cannot be copied becomes JPEG, and exact depth lies in the table."""
        if self.is_metric:
            return "images"
        if self.stream is not None and self.output == "copy":
            return "h264" if self.stream.codec == "h264" else "hevc"
        return "mjpeg" if self.output == "copy" and not self.copied else self.output

    @property
    def why_not_copied(self) -> str | None:
        """Why its images have to be encoded, of a camera that is no stream; None where nothing of them changes."""
        if self.copied or (self.is_metric and not self.resized):
            return None
        if self.resized:
            return f"resize from {self.recorded_px[1]}×{self.recorded_px[0]} to {self.size_px[1]}×{self.size_px[0]}"
        if self.depth is not None:
            return "depth=8bit"
        return f"they are {self.kind.upper() if self.kind == 'png' else self.kind} {self.encoding}".rstrip()

    def conversion(self, rows: int) -> CameraConversion:
        """What becomes of its images when so many rows are made."""
        source = self.kind if self.kind == "raw" else self.kind.upper()
        if self.is_metric and self.depth is not None:
            source = "float32 TIFF" if self.depth.values == "32FC1" else "16-bit PNG"
        frames = 0 if self.why_not_copied is None else rows
        return CameraConversion(self.key, source, self.stored_as, self.size_px, frames)

    def refuse_encoding(self, path: Path) -> None:
        """Refuse a camera, no stream, that cannot be copied where only copies are wanted."""
        if self.only_copied and (reason := self.why_not_copied) is not None:
            hint = "video=images keeps PNG as it is" if self.kind == "png" and not self.resized else ""
            raise refusal(f"{path}: every episode", self.key, reason, hint)

    def described(self) -> dict[str, Any]:
        """Where its images come from and what becomes of them, for the report."""
        stored_as = "copied" if self.copied else self.stored_as
        return {
            "topics": [self.name],
            "size_px": list(self.size_px),
            "recorded_as": self.kind,
            "stored_as": stored_as,
        }

    def feature(self) -> Feature:
        from penstock._src.lerobot.features import Feature, depth_feature

        if self.is_metric and self.depth is not None:
            return depth_feature(self.key, self.size_px, self.depth.unit)
        dtype = "image" if self.stored_as == "images" else "video"
        return Feature(self.key, dtype, (*self.size_px, 3), ("height", "width", "channels"))


COMPRESSED_DEPTH = "compressedDepth"
# Bytes per pixel, measured by benchmarks/depth.py: what a row takes on its way into the table (a PNG of depth is near
# one byte per pixel, a TIFF is four, and each is held several times), and what decoding a frame takes at its peak.
_ROW_BYTES = {"16UC1": 2, "32FC1": 8}
_RVL_DECODING_BYTES, _DECODING_BYTES = 40, 16


def holds_depth(topic_name: str, frame: CameraImage) -> bool:
    """Whether a topic's images are distances, by their encoding and, where that leaves it open, by its name."""
    named = "depth" in topic_name.lower()
    if isinstance(frame, RawImage):
        return frame.encoding in ("16UC1", "32FC1") or (frame.encoding == "mono16" and named)
    if topic_name.endswith(COMPRESSED_DEPTH) or COMPRESSED_DEPTH in frame.format:
        return True
    if not png.is_png(frame.data) or not png.read_header(frame.data).is_depth:
        return False
    return named or frame.format.startswith(("16UC1", "32FC1"))


def probe_depth(frame: CameraImage) -> DepthInfo:
    """What a depth frame is, from its header alone."""
    if isinstance(frame, RawImage):
        return depth.probe_raw(frame)
    return depth.probe_compressed(frame.format, frame.data)


def read_image(
    topic: Topic, reader: ImageReader, payload: memoryview, feature: FeatureSettings | None = None
) -> CameraImage:
    """An image that can become what the feature asks for: depth, or an ordinary camera."""
    frame = reader(payload)
    asked = None if feature is None else feature.depth
    if asked in ("metric", "8bit") or (asked is None and holds_depth(topic.name, frame)):
        probe_depth(frame)
    elif isinstance(frame, RawImage):
        raw_image.check_encoding(frame.encoding)
    elif feature is not None:
        probe_image(frame)
    return frame


def peek(recording: Recording, topic: Topic) -> DepthInfo | None:
    """What the depth images of a topic are; None for an ordinary camera. Reads its first usable message."""
    reader = ImageReader(recording.decoder(topic))
    frame = first_usable(recording, topic, lambda payload: read_image(topic, reader, payload))
    return probe_depth(frame) if holds_depth(topic.name, frame) else None


def depth_bytes(info: DepthInfo) -> tuple[int, int]:
    """Memory for each pixel of a frame: while its row waits to be written, and while it is decoded."""
    return _ROW_BYTES[info.values], _RVL_DECODING_BYTES if info.packing == "rvl" else _DECODING_BYTES


def depth_mode(key: str, feature: FeatureSettings, settings: Settings, is_depth: bool) -> str:
    """metric or 8bit, or off for an ordinary camera."""
    if feature.depth is not None:
        return feature.depth
    if not is_depth:
        return "off"
    if settings.depth == "off":
        raise ConfigError(
            f"features.{key}: {feature.sources[0].topic} is depth, and depth is off",
            hint=f"leave it out, or set features.{key}.depth to metric, 8bit or off (an ordinary camera)",
        )
    return settings.depth


def range_mm(key: str, feature: FeatureSettings, settings: Settings) -> tuple[float, float]:
    """The one range of a camera in 8-bit mode."""
    depth_range = feature.depth_range or settings.depth_range
    if depth_range is None:
        raise ConfigError(
            f"features.{key}: depth: 8bit needs to know which distances become 0 and 255",
            hint="for example depth_range: [200, 1500], in millimetres; it holds for every frame",
        )
    return depth_range


def values_of(column: Camera, frame: CameraImage) -> DepthPixels:
    """The distances of a frame at the size of the data set."""
    if isinstance(frame, RawImage):
        values = depth.from_raw(frame)
    else:
        values = depth.from_compressed(depth.probe_compressed(frame.format, frame.data), frame.data)
    return depth.resize(values, column.size_px) if column.resized else values


def stored_bytes(column: Camera, frame: CameraImage) -> bytes:
    """The file of a frame that keeps its distances exactly: its own PNG where it has one."""
    if column.copied:
        return bytes(frame.data[probe_depth(frame).start :])
    return depth.encode(values_of(column, frame))


def gray_rgb(column: Camera, frame: CameraImage, range_mm: tuple[float, float]) -> NDArray[np.uint8]:
    """The frame in 8 bits of a range, as an ordinary camera shows it."""
    gray = depth.to_gray(values_of(column, frame), range_mm)
    return np.repeat(gray[:, :, np.newaxis], 3, axis=2)
