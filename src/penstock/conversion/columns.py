"""Features as they will be read from one recording: cameras and vectors, probed on their first messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.mapping import is_image
from penstock.conversion.settings import FeatureSettings, Settings, Source, Video
from penstock.errors import ConfigError, ImageError, RecordingError
from penstock.media import jpeg
from penstock.recordings.images import CompressedPicture, ImageReader, RawPicture
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values import VectorReader

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
        return cameras, tuple((vector.key, vector.size, vector.dtype) for vector in self.vectors)


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


def first_payload(recording: Recording, topic: Topic) -> bytes:
    """The first message of a topic that can be read at all."""
    if topic.count == 0:
        raise RecordingError(
            f"{recording.path}: {topic.name} has no messages",
            hint="leave it out under features:, or check the recording",
        )
    for number in range(min(topic.count, 16)):
        ids = np.array([topic.id], dtype=np.int32)
        for block in recording.fetch(ids, np.array([number], dtype=np.int64)):
            payload = block.payloads[0]
            found = None if payload is None else bytes(payload)
            block.release()
            if found is not None:
                return found
    raise RecordingError(f"{recording.path}: none of the first messages of {topic.name} can be read")


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
    """The first whole picture among the first messages; a camera may begin with a broken one."""
    last: ImageError | None = None
    for number in range(min(topic.count, 16)):
        for block in recording.fetch(np.array([topic.id], dtype=np.int32), np.array([number], dtype=np.int64)):
            payload = block.payloads[0]
            held = None if payload is None else memoryview(bytes(payload))
            block.release()
            if held is None:
                continue
            try:
                picture = reader(held)
                probe_picture(picture)
                return picture
            except ImageError as error:
                last = error
    reason = f": {last.message}" if last else ""
    raise ImageError(f"{recording.path}: {topic.name} has no usable picture among its first messages{reason}")


def probe_picture(picture: Picture) -> tuple[PictureKind, tuple[int, int]]:
    """What a picture is and its (height, width), from its header alone."""
    if isinstance(picture, RawPicture):
        return "raw", (picture.height, picture.width)
    head = bytes(picture.data[:26])
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
        return "png", (height, width)
    info = jpeg.probe(picture.data)
    return "jpeg", (info.height, info.width)


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
        value: NDArray[np.float64] = reader(memoryview(first_payload(recording, topic)))
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
        parts.append(VectorPart(source, topic, reader, int(value.size), quaternions))
        names += [f"{topic.name.strip('/').replace('/', '_')}.{name}" for name in found] if len(topics) > 1 else found
    return VectorColumn(key, feature.dtype, tuple(parts), tuple(names))


def _quaternions(names: list[str]) -> tuple[tuple[int, int, int, int], ...]:
    """Where x, y, z, w follow one another; four numbers without telling names are taken as one quaternion."""
    tails = [name.rsplit(".", 1)[-1] for name in names]
    found = [i for i in range(len(tails) - 3) if tails[i : i + 4] == ["x", "y", "z", "w"]]
    if not found and len(names) == 4:
        found = [0]
    return tuple((i, i + 1, i + 2, i + 3) for i in found)
