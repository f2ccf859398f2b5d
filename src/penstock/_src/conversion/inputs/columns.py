"""Features as they will be read from one recording: cameras and vectors, probed on their first messages."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.streams import Policy
from penstock._src.conversion.cameras.camera import (
    Camera,
    ImageKind,
    depth_bytes,
    depth_mode,
    first_usable,
    holds_depth,
    probe_depth,
    probe_image,
    range_mm,
    read_image,
)
from penstock._src.conversion.mapping.camera_topics import is_image
from penstock._src.conversion.mapping.numeric_topics import default_field
from penstock._src.conversion.settings import FeatureSettings, Settings, TopicSource, video_for
from penstock._src.lerobot.stats import WIDEST_VALUES
from penstock._src.plan.conversion_memory import CameraDemand, VectorDemand
from penstock._src.recordings.recording import Recording, Topic
from penstock._src.recordings.values.default_fields import DOUBLE_PRECISION, NO_VECTOR, holds_numbers
from penstock._src.recordings.values.images import VIDEO_TYPES, ImageReader, RawImage, VideoReader, scan_stream
from penstock._src.recordings.values.transforms import (
    NAMES,
    EdgeMessages,
    TransformReader,
    TransformTree,
    compose,
    parse_chain,
)
from penstock._src.recordings.values.vectors import VectorReader
from penstock.errors import ConfigError, DataSetError, RecordingError

if TYPE_CHECKING:
    from penstock._src.media.image.depth import DepthInfo


@dataclass(frozen=True, kw_only=True, eq=False)
class CameraColumn(Camera):
    """A camera of a recording: the topic of its messages, and how one is read."""

    source: TopicSource
    topic: Topic
    reader: Callable[[memoryview], Any]

    def demand(self, recording: Recording) -> CameraDemand:
        height, width = max(self.recorded_px, self.size_px, key=lambda size_px: size_px[0] * size_px[1])
        typical = recording.size_bytes // max(sum(topic.count for topic in recording.topics), 1)
        if self.depth is not None:
            stored, decoding = depth_bytes(self.depth)
            return CameraDemand(width, height, self.stored_as, width * height * stored, decoding)
        return CameraDemand(width, height, self.stored_as, max(typical, width * height // 3))

    @property
    def decoder_demand(self) -> CameraDemand:
        """That of the decoder of a stream: what is stored is what it reads."""
        height, width = self.recorded_px
        return CameraDemand(width, height, self.kind, width * height // 3)


class VectorPart(NamedTuple):
    """One topic's share of a vector."""

    stream: str  # its name in the alignment
    source: TopicSource
    topic: Topic
    reader: VectorReader | TransformReader
    size: int
    quaternions: tuple[tuple[int, int, int, int], ...] = ()
    messages: EdgeMessages | None = None  # of a transform: the messages of the topic that hold it


class VectorColumn(NamedTuple):
    """Numbers, concatenated from one or several topics."""

    key: str
    dtype: str
    parts: tuple[VectorPart, ...]
    names: tuple[str, ...]  # none where there are too many
    inverse: tuple[bool, ...] | None = None  # of a chain of transforms: which of its parts lead upwards

    @property
    def size(self) -> int:
        return len(NAMES) if self.inverse is not None else sum(part.size for part in self.parts)

    @property
    def demand(self) -> VectorDemand:
        return VectorDemand(self.key, sum(part.size for part in self.parts), self.dtype)

    def join(self, values: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        """One array (rows, size) from those of the parts."""
        if self.inverse is not None:
            return compose(values, self.inverse)
        return values[0] if len(values) == 1 else np.concatenate(values, axis=1)


class RecordingColumns(NamedTuple):
    """All features of one recording."""

    cameras: tuple[CameraColumn, ...]
    vectors: tuple[VectorColumn, ...]

    def topics(self) -> list[Topic]:
        """Every topic that is read, once for each use."""
        cameras = [camera.topic for camera in self.cameras]
        return cameras + [part.topic for vector in self.vectors for part in vector.parts]

    @property
    def index_bytes(self) -> int:
        """What is held of the messages of transforms, besides the index of the recording."""
        messages = (part.messages for vector in self.vectors for part in vector.parts if part.messages is not None)
        return sum({each.edge: each.numbers.nbytes + each.stamps_ns.nbytes for each in messages}.values())


def open_columns(recording: Recording, settings: Settings) -> RecordingColumns:
    """Find every topic, read its first message, and settle sizes, names and encodings."""
    cameras: list[CameraColumn] = []
    vectors: list[VectorColumn] = []
    chains = _chains(recording, settings.features)
    for key, feature in settings.features.items():
        if key in chains:
            vectors.append(_transform(recording, key, feature, chains[key]))
            continue
        topics = [recording.topic(source.topic) for source in feature.sources]
        if any(is_image(topic) for topic in topics):
            if len(topics) != 1:
                raise ConfigError(f"features.{key}: a camera has one topic, this one has {len(topics)}")
            cameras.append(_camera(recording, key, feature, topics[0], settings))
        else:
            vectors.append(_vector(recording, key, feature, topics))
    check_relations(settings.features, vectors)
    return RecordingColumns(tuple(cameras), tuple(vectors))


def describe_features(columns: RecordingColumns) -> dict[str, Any]:
    """Where each feature comes from and what became of it."""
    described: dict[str, Any] = {}
    for camera in columns.cameras:
        described[camera.key] = camera.described()
        if camera.depth_range_mm is not None:
            described[camera.key] |= {"depth": "8bit", "depth_range_mm": list(camera.depth_range_mm)}
        elif camera.depth is not None:
            described[camera.key] |= {"depth": "metric", "depth_unit": camera.depth.unit}
    for vector in columns.vectors:
        described[vector.key] = {
            "topics": [part.topic.name for part in vector.parts],
            "size": vector.size,
            "names": list(vector.names),
        }
    return described


def _camera(recording: Recording, key: str, feature: FeatureSettings, topic: Topic, settings: Settings) -> CameraColumn:
    source = feature.sources[0]
    if source.policy in ("linear", "slerp"):
        raise ConfigError(f"features.{key}.policy: {source.policy} mixes two values, and images are not mixed")
    if topic.type in VIDEO_TYPES:
        return _video(recording, key, feature, topic, settings)
    reader = ImageReader(recording.decoder(topic))
    image = first_usable(recording, topic, lambda payload: read_image(topic, reader, payload, feature), key)
    mode = depth_mode(key, feature, settings, holds_depth(topic.name, image))
    kind: ImageKind
    depth_info: DepthInfo | None = None
    if mode == "off":
        kind, recorded_px = probe_image(image)
    else:
        depth_info = probe_depth(image)
        kind, recorded_px = "depth", (depth_info.height, depth_info.width)
    return _column(key, feature, topic, settings)(
        reader=reader,
        kind=kind,
        recorded_px=recorded_px,
        size_px=feature.resize or settings.resize or recorded_px,
        encoding=image.encoding if isinstance(image, RawImage) else "",
        depth=depth_info,
        depth_range_mm=range_mm(key, feature, settings) if mode == "8bit" else None,
    )


def _video(recording: Recording, key: str, feature: FeatureSettings, topic: Topic, settings: Settings) -> CameraColumn:
    reader = VideoReader(recording.decoder(topic))
    stream = scan_stream(recording, topic, reader)
    recorded_px = stream.first_picture.size_px
    size_px = feature.resize or settings.resize or recorded_px
    column = _column(key, feature, topic, settings)
    return column(reader=reader, kind=stream.codec, recorded_px=recorded_px, size_px=size_px, stream=stream)


def _column(key: str, feature: FeatureSettings, topic: Topic, settings: Settings) -> Callable[..., CameraColumn]:
    """What is known of a camera before a message is looked at."""
    output, only_copied = video_for(feature, settings)
    source = feature.sources[0]
    return partial(
        CameraColumn, key=key, name=topic.name, source=source, topic=topic, output=output, only_copied=only_copied
    )


def _vector(recording: Recording, key: str, feature: FeatureSettings, topics: list[Topic]) -> VectorColumn:
    parts: list[VectorPart] = []
    names: list[str] = []
    owners: Counter[str] = Counter()
    for source, topic in zip(feature.sources, topics, strict=True):
        if not holds_numbers(topic.type, recording.decoder(topic).definitions):
            raise ConfigError(
                f"features.{key}: the messages of {topic.name} hold no numbers: {topic.type}",
                hint=f"leave it out; texts become tasks by episodes.task={topic.name} or episodes.subtask={topic.name}",
            )
        if source.field is None:
            path = default_field(recording, topic)
            if path is None:
                raise ConfigError(
                    f"features.{key}: {topic.name} has no obvious field: {NO_VECTOR.get(topic.type, topic.type)}",
                    hint=f"penstock inspect {shlex.quote(str(recording.path))} --fields {topic.name} lists its fields",
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
            # Names for the whole vector go by position; a joint that is wanted by name is found by name.
            by_name=bool(source.names or not feature.names),
        )
        value = first_usable(recording, topic, reader, key, "value")
        if value.size == 0:
            raise RecordingError(
                f"{recording.path}: {topic.name}: field {path!r} is empty in the first message",
                hint=f"choose another field for features.{key}, or convert without it: leave_out={key}",
            )
        wide = value.size > WIDEST_VALUES and reader.recorded_names is None
        dimension_names = [] if wide else list(reader.dimension_names)
        quaternions = _quaternions(dimension_names) if source.policy == "slerp" else ()
        if source.policy == "slerp" and not quaternions:
            raise ConfigError(
                f"features.{key}: policy slerp turns quaternions, and {topic.name} {path!r} has none",
                hint="use linear, or a field with x, y, z, w such as pose.orientation",
            )
        owner = _owner(feature, source, path)
        owners[owner] += 1
        if owners[owner] > 1:  # the same numbers once more: others of them, or at another time
            owner = f"{owner}.{owners[owner]}"
        prefix = f"{owner.strip('/').replace('/', '_')}." if owner else ""
        name = f"{key} ← {owner}" if owner else key
        parts.append(VectorPart(name, source, topic, reader, int(value.size), quaternions))
        names += [prefix + name for name in dimension_names]
    size = sum(part.size for part in parts)
    if len(names) < size:  # numbers go by position then: so many made-up names are of no use
        if any(part.reader.recorded_names for part in parts):
            raise ConfigError(
                f"features.{key}: {max(part.size for part in parts):,} numbers without names beside named ones",
                hint="make it a feature of its own",
            )
        names = []
    if feature.names is not None and len(feature.names) != size:
        raise ConfigError(f"features.{key}.names: {len(feature.names)} names for {size} values")
    usual = "float64" if any(topic.type in DOUBLE_PRECISION for topic in topics) else "float32"
    return VectorColumn(key, feature.dtype or usual, tuple(parts), feature.names or tuple(names))


def _chains(
    recording: Recording, features: Mapping[str, FeatureSettings]
) -> dict[str, list[tuple[EdgeMessages, bool]]]:
    """The steps of each feature that is a transform: the messages of one, and whether it leads upwards."""
    wanted = {key: feature for key, feature in features.items() if any(each.tf is not None for each in feature.sources)}
    if not wanted:
        return {}
    ends = {key: _ends(key, feature) for key, feature in wanted.items()}
    tree = TransformTree(recording)
    links = {key: tree.chain(*pair) for key, pair in ends.items()}
    messages = tree.messages(link.edge for chain in links.values() for link in chain)
    return {key: [(messages[edge], inverse) for edge, inverse in chain] for key, chain in links.items()}


def _ends(key: str, feature: FeatureSettings) -> tuple[str, str]:
    """The frames between which a transform is wanted."""
    source = feature.sources[0]
    hint = f"write features.{key}: {{tf: base→tool}}"
    if len(feature.sources) > 1 or source.tf is None:
        raise ConfigError(f"features.{key}: a transform is a feature of its own", hint=hint)
    for word in ("field", "scale", "offset", "unit", "threshold"):
        if getattr(source, word) != getattr(TopicSource(source.topic), word):
            raise ConfigError(f"features.{key}: {word} does not apply to a transform", hint=hint)
    return parse_chain(source.tf)


def _transform(
    recording: Recording, key: str, feature: FeatureSettings, chain: Sequence[tuple[EdgeMessages, bool]]
) -> VectorColumn:
    """A transform between two frames: one part for each step of the chain, each interpolated by itself."""
    source = feature.sources[0]
    parts = []
    for messages, _ in chain:
        name = "→".join(messages.edge)
        policy: Policy = "hold" if messages.is_static else source.policy or "slerp"
        own = replace(source, topic=messages.topic.name, policy=policy)
        quaternions = ((3, 4, 5, 6),) if own.policy == "slerp" else ()
        reader = TransformReader(recording.decoder(messages.topic), messages.edge)
        parts.append(VectorPart(f"{key} ← {name}", own, messages.topic, reader, 7, quaternions, messages=messages))
    names = feature.names or source.names or NAMES
    if len(names) != len(NAMES):
        raise ConfigError(f"features.{key}.names: {len(names)} names for {len(NAMES)} values")
    return VectorColumn(key, feature.dtype or "float32", tuple(parts), names, tuple(inverse for _, inverse in chain))


def _owner(feature: FeatureSettings, source: TopicSource, path: str) -> str:
    """What distinguishes a part of a vector from the others: nothing, its topic, or its topic and field."""
    if len(feature.sources) == 1:
        return ""
    alike = [each for each in feature.sources if each.topic == source.topic]
    return source.topic if len(alike) == 1 else f"{source.topic}.{path}"


def _quaternions(names: list[str]) -> tuple[tuple[int, int, int, int], ...]:
    """Where x, y, z, w follow one another; four numbers without telling names are taken as one quaternion."""
    tails = [name.rsplit(".", 1)[-1] for name in names]
    starts = [i for i in range(len(tails) - 3) if tails[i : i + 4] == ["x", "y", "z", "w"]]
    if not starts and len(names) == 4:
        starts = [0]
    return tuple((i, i + 1, i + 2, i + 3) for i in starts)


Values = NDArray[np.float64]


def check_relations(features: Mapping[str, FeatureSettings], vectors: Sequence[VectorColumn]) -> None:
    """Refuse before anything is read what could not be subtracted."""
    sizes = {vector.key: vector.size for vector in vectors}
    moving = {vector.key: _moving(vector) for vector in vectors}
    for key, feature in features.items():
        if key not in sizes and (feature.relative_to is not None or feature.relative_start):
            raise ConfigError(f"features.{key} is a camera: only numbers can be relative to others")
        other = feature.relative_to
        if other is None:
            continue
        where = f"features.{key}.relative_to"
        if other not in sizes or other == key:
            known = [each for each in sizes if each != key]
            raise ConfigError(
                f"{where}: {other!r} is not another feature of numbers", hint=f"there are: {', '.join(known) or 'none'}"
            )
        if sizes[other] > sizes[key] or moving[key][sizes[other] :].any():
            raise ConfigError(
                f"{where}: {key} has {sizes[key]} values and {other} has {sizes[other]}",
                hint="both need the same values in the same order; what comes after them must be absolute: true",
            )
        if features[other].relative_to is not None:
            raise ConfigError(f"{where}: {other} is itself relative to {features[other].relative_to}")


def thresholded(part: VectorPart, values: Values) -> Values:
    """1 where a value is above the threshold of its source, else 0; what is no number stays none."""
    threshold = part.source.threshold
    if threshold is None:
        return values
    return np.where(np.isnan(values), values, (values > threshold).astype(np.float64))


def check_whole_numbers(key: str, values: Values) -> None:
    """Refuse what cannot be int64. The values came as float64: beyond 2^53 it rounds whole numbers."""
    wrong = ~(np.abs(values) <= 2.0**53) | (values != np.rint(values))
    if wrong.any():
        raise DataSetError(
            f"{key} is int64, but {int(np.count_nonzero(wrong)):,} values are not whole numbers within ±2^53, "
            f"the first is {float(values[wrong][0])}",
            hint=f"set features.{key}.dtype: float64",
        )


class Relations:
    """What is subtracted from the rows of one episode: it begins with the episode, and remembers its first row."""

    def __init__(self, features: Mapping[str, FeatureSettings], vectors: Sequence[VectorColumn]) -> None:
        self._features = {vector.key: features[vector.key] for vector in vectors if vector.key in features}
        self._moving = {vector.key: _moving(vector) for vector in vectors}
        self._first: dict[str, Values] = {}

    def apply(self, values: Mapping[str, Values]) -> None:
        """Change the next rows of all features in place; `relative_to` takes what the other feature stores."""
        for key, feature in self._features.items():
            if feature.relative_start:
                first = self._first.setdefault(key, values[key][0].copy())
                moving = self._moving[key]
                values[key][:, moving] -= first[moving]
        for key, feature in self._features.items():
            if feature.relative_to is not None:
                other = values[feature.relative_to]
                moving = self._moving[key][: other.shape[1]]
                values[key][:, : other.shape[1]][:, moving] -= other[:, moving]


def _moving(vector: VectorColumn) -> NDArray[np.bool_]:
    """Which values of a vector are made relative: all but those of absolute sources."""
    if vector.inverse is not None:
        return np.full(vector.size, not vector.parts[0].source.absolute)
    return np.concatenate([np.full(part.size, not part.source.absolute) for part in vector.parts])
