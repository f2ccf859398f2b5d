"""One camera of an input: what its images are, and what becomes of them in the data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.conversion.cameras.encoding_anew import Encoded, refusal
from penstock.conversion.mapping.first_messages import PictureKind
from penstock.conversion.settings import Video
from penstock.media.image.depth import DepthInfo

if TYPE_CHECKING:
    from penstock.lerobot.features import Feature
    from penstock.media.h26x.stream_index import StreamIndex


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

    def feature(self) -> Feature:
        """The camera in the data set."""
        from penstock.lerobot.features import Feature, depth_feature

        if self.is_metric and self.depth is not None:
            return depth_feature(self.key, self.size_px, self.depth.unit)
        dtype = "image" if self.stored_as == "images" else "video"
        return Feature(self.key, dtype, (*self.size_px, 3), ("height", "width", "channels"))
