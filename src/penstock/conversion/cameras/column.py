"""One camera of an input: what its images are, what becomes of them in the data set, and what encoding them costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.conversion.mapping.first_messages import PictureKind
from penstock.conversion.settings import Encoding, Video
from penstock.errors import VideoError
from penstock.lerobot.features import Feature
from penstock.media.h26x.stream_index import StreamIndex
from penstock.media.image.depth import DepthInfo
from penstock.stores.roles import IMAGE_PREFIX

# CPU time in ns per pixel and thread, from the figures of docs/video.md; good for an estimate, not for more.
_ENCODE_NS = {"h264": 24.0, "hevc": 240.0, "av1": 60.0, "mjpeg": 4.0, "images": 4.0}
_DECODE_NS = {"h264": 11.0, "hevc": 20.0, "h265": 20.0, "av1": 12.0, "raw": 1.0}
_OTHER_DECODE_NS = 5.0  # JPEG, PNG


@dataclass(frozen=True)
class Encoded:
    """Images of one camera that have to be encoded."""

    source: str  # codec or kind of what is decoded
    stored_as: str
    frames: int
    size_px: tuple[int, int]

    @property
    def cpu_s(self) -> float:
        pixels = self.frames * self.size_px[0] * self.size_px[1]
        return pixels * (_ENCODE_NS[self.stored_as] + _DECODE_NS.get(self.source, _OTHER_DECODE_NS)) / 1e9


def quality(stored_as: str, encoding: Encoding) -> str:
    """How good what is encoded becomes: "crf 30", "quality 95"."""
    if stored_as in ("mjpeg", "images"):
        return f"quality {encoding.quality}"
    from penstock.media.video.hardware import encoder_settings

    return f"crf {encoder_settings(stored_as, crf=encoding.crf).crf}"


def video_lines(
    cameras: Iterable[tuple[str, str, Encoded | None]], encoding: Encoding, threads: int
) -> list[tuple[str, str]]:
    """The lines of a plan about cameras (key, fate, what has to be encoded of it); those of one fate share a line."""
    names: dict[str, list[str]] = {}
    parts: dict[str, list[Encoded]] = {}
    for key, fate, encoded in cameras:
        if encoded is not None:
            fate = f"{fate}, {quality(encoded.stored_as, encoding)}"
            parts.setdefault(fate, []).append(encoded)
        names.setdefault(fate, []).append(key.removeprefix(IMAGE_PREFIX))
    return [("video", f"{fate}{_time(parts.get(fate, ()), threads)}: {', '.join(names[fate])}") for fate in names]


def _time(parts: Sequence[Encoded], threads: int) -> str:
    """Cameras of an episode are encoded beside each other, one thread each."""
    if not parts:
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


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A camera: what its images are, and what becomes of them."""

    key: str
    name: str  # where its images come from, for messages: a topic, a column
    kind: PictureKind
    recorded_px: tuple[int, int]
    size_px: tuple[int, int]
    output: Video
    encoding: str = ""  # of raw pixels
    depth: DepthInfo | None = None  # of the first picture; None for an ordinary camera
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
    def fate(self) -> str:
        """What becomes of the pictures, for people."""
        if self.is_metric and self.depth is not None:
            kept = "float32 TIFF" if self.depth.values == "32FC1" else "16-bit PNG"
            return f"depth {'copied' if self.copied else 'kept'} as {kept}, in the table"
        in_table = self.stored_as == "images"
        codec = "JPEG" if in_table else self.stored_as
        fate = f"copied as {self.kind.upper()}" if self.copied else f"encoded as {codec}"
        return fate + (", in the table" if in_table else "")

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

    def to_encode(self, rows: int) -> Encoded | None:
        """What has to be encoded of it when so many rows are made."""
        return None if self.why_not_copied is None else Encoded(self.kind, self.stored_as, rows, self.size_px)

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
        """The camera in the data set."""
        from penstock.lerobot.features import Feature, depth_feature

        if self.is_metric and self.depth is not None:
            return depth_feature(self.key, self.size_px, self.depth.unit)
        dtype = "image" if self.stored_as == "images" else "video"
        return Feature(self.key, dtype, (*self.size_px, 3), ("height", "width", "channels"))
