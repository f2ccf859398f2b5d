"""Depth cameras: which topics are depth, and their pictures as exact values or as 8 bits of one fixed range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.column import Camera
from penstock.conversion.mapping.first_messages import Picture, first_picture
from penstock.conversion.settings import FeatureSettings, Settings
from penstock.errors import ConfigError
from penstock.media.image import depth, png
from penstock.media.image import raw as raw_image
from penstock.media.image.depth import DepthInfo, DepthPixels
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values.images import ImageReader, RawPicture

COMPRESSED_DEPTH = "compressedDepth"
# Bytes per pixel, measured by benchmarks/depth.py: what a row takes on its way into the table (a PNG of depth is near
# one byte per pixel, a TIFF is four, and each is held several times), and what decoding a picture takes at its peak.
_ROW_BYTES = {"16UC1": 2, "32FC1": 8}
_RVL_DECODING_BYTES, _DECODING_BYTES = 40, 16


def holds_depth(topic_name: str, picture: Picture) -> bool:
    """Whether a topic's pictures are distances, by their encoding and, where that leaves it open, by its name."""
    named = "depth" in topic_name.lower()
    if isinstance(picture, RawPicture):
        return picture.encoding in ("16UC1", "32FC1") or (picture.encoding == "mono16" and named)
    if topic_name.endswith(COMPRESSED_DEPTH) or COMPRESSED_DEPTH in picture.format:
        return True
    if not png.is_png(picture.data) or not png.read_header(picture.data).is_depth:
        return False
    return named or picture.format.startswith(("16UC1", "32FC1"))


def probe_depth(picture: Picture) -> DepthInfo:
    """What a depth picture is, from its header alone."""
    if isinstance(picture, RawPicture):
        return depth.probe_raw(picture)
    return depth.probe_compressed(picture.format, picture.data)


def check_kind(topic_name: str, picture: Picture) -> None:
    """Refuse a picture that could be neither depth nor an ordinary camera."""
    if holds_depth(topic_name, picture):
        probe_depth(picture)
    elif isinstance(picture, RawPicture):
        raw_image.check_encoding(picture.encoding)


def peek(recording: Recording, topic: Topic) -> DepthInfo | None:
    """What the depth pictures of a topic are; None for an ordinary camera. Reads its first usable message."""
    reader = ImageReader(recording.decoder(topic))
    picture = first_picture(recording, topic, reader, lambda found: check_kind(topic.name, found))
    return probe_depth(picture) if holds_depth(topic.name, picture) else None


def depth_bytes(info: DepthInfo) -> tuple[int, int]:
    """Memory for each pixel of a picture: while its row waits to be written, and while it is decoded."""
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
    found = feature.depth_range or settings.depth_range
    if found is None:
        raise ConfigError(
            f"features.{key}: depth: 8bit needs to know which distances become 0 and 255",
            hint="for example depth_range: [200, 1500], in millimetres; it holds for every frame",
        )
    return found


def values_of(column: Camera, picture: Picture) -> DepthPixels:
    """The distances of a picture at the size of the data set."""
    if isinstance(picture, RawPicture):
        found = depth.from_raw(picture)
    else:
        found = depth.from_compressed(depth.probe_compressed(picture.format, picture.data), picture.data)
    return depth.resize(found, column.size_px) if column.resized else found


def stored_bytes(column: Camera, picture: Picture) -> bytes:
    """The file of a picture that keeps its distances exactly: its own PNG where it has one."""
    if column.copied:
        return bytes(picture.data[probe_depth(picture).start :])
    return depth.encode(values_of(column, picture))


def gray_rgb(column: Camera, picture: Picture, range_mm: tuple[float, float]) -> NDArray[np.uint8]:
    """The picture in 8 bits of a range, as an ordinary camera shows it."""
    gray = depth.to_gray(values_of(column, picture), range_mm)
    return np.repeat(gray[:, :, np.newaxis], 3, axis=2)
