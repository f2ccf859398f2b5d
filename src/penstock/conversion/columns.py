"""Features as they will be read from one recording: cameras and vectors, probed on their first messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.mapping import is_image
from penstock.conversion.settings import FeatureSettings, Settings, Source, Video
from penstock.errors import ConfigError, ImageError, LimitExceeded, MessageError, PenstockError, RecordingError
from penstock.media import image, jpeg
from penstock.recordings.images import CompressedPicture, ImageReader, RawPicture
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values import VectorReader

_FIRST_MESSAGES = 16  # how many are tried for one that can be read

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_PNG_TAIL_BYTES = 256  # some cameras pad behind the end

PictureKind = Literal["jpeg", "png", "raw"]
Picture = CompressedPicture | RawPicture


@dataclass(frozen=True)
class CameraColumn:
    """A camera: what its messages hold, and what becomes of them."""

    key: str
    source: Source
    topic: Topic
    reader: ImageReader
    kind: PictureKind
    recorded_px: tuple[int, int]
    size_px: tuple[int, int]
    output: Video

    @property
    def resized(self) -> bool:
        return self.recorded_px != self.size_px

    @property
    def copied(self) -> bool:
        """The recorded bytes are the stored bytes."""
        whole = self.kind == "jpeg" or (self.kind == "png" and self.output == "images")
        return self.output in ("copy", "images") and whole and not self.resized

    @property
    def stored_as(self) -> Video:
        """The output after the fallback: what cannot be copied becomes JPEG."""
        return "mjpeg" if self.output == "copy" and not self.copied else self.output


@dataclass(frozen=True)
class VectorPart:
    """One topic's share of a vector."""

    stream: str  # its name in the alignment
    source: Source
    topic: Topic
    reader: VectorReader
    size: int
    quaternions: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True)
class VectorColumn:
    """Numbers, concatenated from one or several topics."""

    key: str
    dtype: str
    parts: tuple[VectorPart, ...]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Columns:
    """All features of one recording."""

    cameras: tuple[CameraColumn, ...]
    vectors: tuple[VectorColumn, ...]

    def signature(self) -> tuple[object, ...]:
        """What must be the same in every recording of a data set."""
        cameras = tuple((camera.key, camera.size_px, camera.stored_as) for camera in self.cameras)
        return cameras, tuple((vector.key, vector.size, vector.dtype, vector.names) for vector in self.vectors)


def open_columns(recording: Recording, settings: Settings) -> Columns:
    """Find every topic, read its first message, and settle sizes, names and encodings."""
    cameras: list[CameraColumn] = []
    vectors: list[VectorColumn] = []
    for key, feature in settings.features.items():
        topics = [recording.topic(source.topic) for source in feature.sources]
        if any(is_image(topic) for topic in topics):
            if len(topics) != 1:
                raise ConfigError(f"features.{key}: a camera has one topic, this one has {len(topics)}")
            cameras.append(_camera(recording, key, feature, topics[0], settings))
        else:
            vectors.append(_vector(recording, key, feature, topics))
    return Columns(tuple(cameras), tuple(vectors))


def describe_features(columns: Columns) -> dict[str, Any]:
    """Where each feature comes from and what became of it."""
    described: dict[str, Any] = {}
    for camera in columns.cameras:
        described[camera.key] = {
            "topics": [camera.topic.name],
            "size_px": list(camera.size_px),
            "recorded_as": camera.kind,
            "stored_as": "copied" if camera.copied else camera.stored_as,
        }
    for vector in columns.vectors:
        described[vector.key] = {
            "topics": [part.topic.name for part in vector.parts],
            "size": vector.size,
            "names": list(vector.names),
        }
    return described


def _first_payloads(recording: Recording, topic: Topic) -> Iterator[memoryview]:
    """The first messages of a topic that can be read at all: a stream may begin with broken ones."""
    if topic.count == 0:
        raise RecordingError(
            f"{recording.path}: {topic.name} has no messages",
            hint="leave it out under features:, or check the recording",
        )
    for number in range(min(topic.count, _FIRST_MESSAGES)):
        held = None
        for block in recording.fetch(np.array([topic.id], dtype=np.int32), np.array([number], dtype=np.int64)):
            held = None if block.payloads[0] is None else bytes(block.payloads[0])
            block.release()
        if held is not None:
            yield memoryview(held)


def _camera(recording: Recording, key: str, feature: FeatureSettings, topic: Topic, settings: Settings) -> CameraColumn:
    source = feature.sources[0]
    if source.policy in ("linear", "slerp"):
        raise ConfigError(f"features.{key}.policy: {source.policy} mixes two values, and pictures are not mixed")
    reader = ImageReader(recording.decoder(topic))
    picture = _first_picture(recording, topic, reader)
    kind, recorded_px = probe_picture(picture)
    size_px = feature.resize or settings.resize or recorded_px
    return CameraColumn(
        key=key,
        source=source,
        topic=topic,
        reader=reader,
        kind=kind,
        recorded_px=recorded_px,
        size_px=size_px,
        output=feature.video or settings.video,
    )


def _first_picture(recording: Recording, topic: Topic, reader: ImageReader) -> Picture:
    last: PenstockError | None = None
    for payload in _first_payloads(recording, topic):
        try:
            picture = reader(payload)
            probe_picture(picture)
            return picture
        except (ImageError, MessageError, LimitExceeded) as error:
            last = error
    reason = f": {last.message}" if last else ""
    raise ImageError(f"{recording.path}: {topic.name} has no usable picture among its first messages{reason}")


def _first_vector(recording: Recording, topic: Topic, reader: VectorReader) -> NDArray[np.float64]:
    last: PenstockError | None = None
    for payload in _first_payloads(recording, topic):
        try:
            return reader(payload)
        except MessageError as error:
            last = error
    reason = f": {last.message}" if last else ""
    raise RecordingError(
        f"{recording.path}: none of the first messages of {topic.name} can be read{reason}",
        hint=None if last is None else last.hint,
    )


def probe_picture(picture: Picture) -> tuple[PictureKind, tuple[int, int]]:
    """What a picture is and its (height, width), from its header alone."""
    if isinstance(picture, RawPicture):
        return "raw", (picture.height, picture.width)
    if is_png(picture):
        # Copied pictures are not decoded: like a JPEG, a PNG must be whole from its first to its last marker.
        if b"IEND" not in bytes(picture.data[-_PNG_TAIL_BYTES:]):
            raise ImageError(f"PNG of {len(picture.data):,} bytes is cut: it has no IEND")
        return "png", image.size_of(picture.data)
    info = jpeg.probe(picture.data)
    return "jpeg", (info.height, info.width)


def is_png(picture: CompressedPicture) -> bool:
    return picture.data[:8] == _PNG_MAGIC


def _vector(recording: Recording, key: str, feature: FeatureSettings, topics: list[Topic]) -> VectorColumn:
    parts: list[VectorPart] = []
    names: list[str] = []
    for source, topic in zip(feature.sources, topics, strict=True):
        if source.field is None:
            from penstock.recordings.values import default_path

            path = default_path(topic.type, recording.decoder(topic).definitions)
            if path is None:
                raise ConfigError(
                    f"features.{key}: {topic.name} ({topic.type}) has no obvious field",
                    hint="name it, for example field: joint_data.joint_q[12:26]",
                )
        else:
            path = source.field
        reader = VectorReader(
            recording.decoder(topic),
            path,
            names=source.names,
            scale=source.scale,
            offset=source.offset,
            unit=source.unit,
        )
        value = _first_vector(recording, topic, reader)
        if value.size == 0:
            raise RecordingError(
                f"{recording.path}: {topic.name}: field {path!r} is empty in the first message",
                hint=f"choose another field for features.{key}, or leave it out",
            )
        found = list(reader.dimension_names)
        quaternions = _quaternions(found) if source.policy == "slerp" else ()
        if source.policy == "slerp" and not quaternions:
            raise ConfigError(
                f"features.{key}: policy slerp turns quaternions, and {topic.name} {path!r} has none",
                hint="use linear, or a field with x, y, z, w such as pose.orientation",
            )
        owner = _owner(feature, source, path)
        parts.append(
            VectorPart(f"{key} ← {owner}" if owner else key, source, topic, reader, int(value.size), quaternions)
        )
        prefix = f"{owner.strip('/').replace('/', '_')}." if owner else ""
        names += [prefix + name for name in found]
    return VectorColumn(key, feature.dtype, tuple(parts), tuple(names))


def _owner(feature: FeatureSettings, source: Source, path: str) -> str:
    """What tells a part of a vector from the others: nothing, its topic, or its topic and field."""
    if len(feature.sources) == 1:
        return ""
    alike = [each for each in feature.sources if each.topic == source.topic]
    return source.topic if len(alike) == 1 else f"{source.topic}.{path}"


def _quaternions(names: list[str]) -> tuple[tuple[int, int, int, int], ...]:
    """Where x, y, z, w follow one another; four numbers without telling names are taken as one quaternion."""
    tails = [name.rsplit(".", 1)[-1] for name in names]
    found = [i for i in range(len(tails) - 3) if tails[i : i + 4] == ["x", "y", "z", "w"]]
    if not found and len(names) == 4:
        found = [0]
    return tuple((i, i + 1, i + 2, i + 3) for i in found)
