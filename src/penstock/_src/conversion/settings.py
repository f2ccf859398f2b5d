"""What a user may ask of a conversion: YAML file, `a.b=c` words and keyword arguments, as one frozen model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as option
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from penstock._src.align.streams import Missing, Policy
from penstock._src.conversion.sink import DEFAULT_OUTPUT, check_output, default_video
from penstock._src.stores.roles import ChannelOrder
from penstock._src.system import config, units
from penstock.errors import ConfigError, VideoError

AUTO, NONE = "auto", "none"
TABLES = ("tasks.csv", "tasks.yaml", "tasks.yml", "tasks.json")  # of all recordings in a directory
_NEED_TOPIC = ("field", "start", "stop", "discard", "stop_topic", "stop_field")


def _words(value: Any) -> tuple[str, ...] | None:
    """One word or several, as `word_of` writes the values of messages."""
    if value is None:
        return None
    words = tuple(word_of(each) for each in (value if isinstance(value, (list, tuple)) else [value]))
    if not words or not all(words):
        raise ValueError(f"{value!r} is neither a word, a number, true or false, nor a list of them")
    return words


def word_of(value: Any) -> str:
    """A value as the word that a configuration would write for it: true, 1, start; nothing for other things."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() if isinstance(value, (str, int, float)) else ""


def _duration(least: int) -> dict[str, Any]:
    """Durations of so many nanoseconds at least, or null."""

    def parse(value: Any) -> int | None:
        duration_ns = None if value is None else units.parse_duration_ns(value)
        if duration_ns is not None and duration_ns < least:
            raise ValueError(f"{value!r} is too short: write for example 2s or 500ms")
        return duration_ns

    return {"parse": parse, "dump": units.duration_text}


def _sidecar(value: Any) -> str:
    if value is None or value is False:
        return NONE
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not auto, none or a file")
    return value


@dataclass(frozen=True)
class TextTopic:
    """A topic that says a text from time to time; it holds until the next one."""

    topic: str
    field: str | None = None


def _text_topic(value: Any) -> TextTopic | None:
    if value is None or isinstance(value, TextTopic):
        return value
    if isinstance(value, str):
        return TextTopic(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is neither a topic nor a mapping of topic and field")
    return config.build(TextTopic, value)


_LENGTH, _TOLERANCE = _duration(1), _duration(0)
_TEXT = {"parse": _text_topic}
_WORD = {"parse": _words}


@dataclass(frozen=True)
class EpisodeSettings:
    """`episodes:` — a recording is one episode unless a topic, a sidecar file or a gap says otherwise."""

    topic: str | None = None
    field: str | None = None
    start: tuple[str, ...] | None = option(default=None, metadata=_WORD)
    stop: tuple[str, ...] | None = option(default=None, metadata=_WORD)
    discard: tuple[str, ...] | None = option(default=None, metadata=_WORD)
    stop_topic: str | None = None
    stop_field: str | None = None
    gap: int | None = option(default=None, metadata=_LENGTH)
    min_length: int | None = option(default=None, metadata=_LENGTH)
    max_length: int | None = option(default=None, metadata=_LENGTH)
    task: TextTopic | None = option(default=None, metadata=_TEXT)
    subtask: TextTopic | None = option(default=None, metadata=_TEXT)
    subtasks: bool | None = None  # whether rows have a subtask; null: where some are given
    language: bool = False  # subtasks also as LeRobot's language column
    sidecar: str = option(default=AUTO, metadata={"parse": _sidecar})

    def __post_init__(self) -> None:
        if self.topic is None:
            for name in _NEED_TOPIC:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} has no meaning without episodes.topic, the topic that marks episodes")
        if self.stop_field is not None and self.stop_topic is None:
            raise ValueError("stop_field has no meaning without episodes.stop_topic")
        if self.min_length and self.max_length and self.min_length > self.max_length:
            raise ValueError(
                f"min_length {units.duration_text(self.min_length)} is more than "
                f"max_length {units.duration_text(self.max_length)}: no episode could be both"
            )
        if self.subtasks is False and (self.subtask is not None or self.language):
            raise ValueError("subtasks: false leaves out the subtasks that subtask or language asks for")

    @property
    def topics(self) -> frozenset[str]:
        """The topics that speak of episodes, and are therefore no part of what the robot saw or did."""
        topics = [each.topic for each in (self.task, self.subtask) if each is not None]
        return frozenset(name for name in (self.topic, self.stop_topic, *topics) if name is not None)


Clock = Literal["log", "header"]
Video = Literal["copy", "copy-only", "images", "mjpeg", "h264", "hevc", "av1"]
Depth = Literal["metric", "8bit", "off"]

_NO_CODEC = ("copy", "copy-only", "images", "mjpeg")  # kinds of video that no video encoder makes
TRANSFORM_TOPIC = "/tf"
FIXED = "fixed"  # the timeline that follows no topic


def _numbers(value: Any) -> float | tuple[float, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(float(x) for x in value)
    return float(value)


def _size_px(value: Any) -> tuple[int, int] | None:
    """[height, width], "480x640" or nothing."""
    if value is None:
        return None
    parts = value.lower().split("x") if isinstance(value, str) else value
    try:
        height, width = (int(part) for part in parts)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1:
        raise ValueError(f"{value!r} is not [height, width] in pixels")
    return height, width


def _depth(value: Any) -> str | None:
    """YAML reads a bare `off` as false."""
    if value is False:
        return "off"
    if value is not None and value not in get_args(Depth):
        raise ValueError(f"{value!r} is not {', '.join(get_args(Depth))}")
    return None if value is None else str(value)


def _range_mm(value: Any) -> tuple[float, float] | None:
    """[nearest, farthest] in millimetres."""
    if value is None:
        return None
    try:
        low, high = (float(end) for end in value)
    except (TypeError, ValueError):
        low = high = 0.0
    if not 0 <= low < high or high == float("inf"):
        raise ValueError(f"{value!r} is not [nearest, farthest] in millimetres")
    return low, high


def _chunk_rows(value: Any) -> int | Literal["auto"]:
    if value is None:
        return 0
    if value != "auto" and (type(value) is not int or value < 0):
        raise ValueError(f"{value!r} is not a number of rows, 0, null or auto")
    return "auto" if value == "auto" else int(value)


def _whole(least: int, most: float = math.inf, *, null: bool = True) -> dict[str, Any]:
    """The parser of a whole number of this range, or null."""

    def parse(value: Any) -> int | None:
        if not (null and value is None) and (type(value) is not int or not least <= value <= most):
            expected = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise ValueError(f"{value!r} is not a whole number, {expected}")
        return value

    return {"parse": parse}


_POSITIVE, _NOT_NEGATIVE = _whole(1), _whole(0)


def _names(value: Any) -> tuple[str, ...]:
    """One name, or a list of names."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{value!r} is not a name or a list of names")
    return tuple(names)


@dataclass(frozen=True)
class TopicSource:
    """One topic's contribution to a feature: which value it gives, and how it is paired with the rows."""

    topic: str
    field: str | None = None
    names: tuple[str, ...] | None = None
    scale: float | tuple[float, ...] = option(default=1.0, metadata={"parse": _numbers})
    offset: float | tuple[float, ...] = option(default=0.0, metadata={"parse": _numbers})
    unit: Literal["deg", "rad"] | None = None
    policy: Policy | None = None
    tolerance: int | None = option(default=None, metadata=_TOLERANCE)
    time_offset: int = option(default=0, metadata={"parse": units.parse_duration_ns, "dump": units.duration_text})
    time: Clock | None = None
    missing: Missing | None = None
    threshold: float | None = None  # 1 above it, 0 elsewhere
    absolute: bool = False  # left as it is where the feature is relative to something
    tf: str | None = None  # base→tool: a transform, composed along the tree of frames at each row's time


@dataclass(frozen=True)
class FeatureSettings:
    """One column of the data set: a camera (one source), or numbers from one or several topics, concatenated."""

    sources: tuple[TopicSource, ...]
    dtype: Literal["float32", "float64", "int64"] | None = None  # float32; of positions on earth float64
    video: Video | None = None
    resize: tuple[int, int] | None = option(default=None, metadata={"parse": _size_px})
    depth: Depth | None = option(default=None, metadata={"parse": _depth})
    depth_range: tuple[float, float] | None = option(default=None, metadata={"parse": _range_mm})
    names: tuple[str, ...] | None = None  # of all its numbers, by position
    relative_start: bool = False
    relative_to: str | None = None


def _features(value: Any) -> dict[str, FeatureSettings]:
    """A feature is written as one source, as a list of sources, or in full with `sources:`."""
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping from feature names to topics")
    of_feature = ("dtype", "video", "resize", "depth", "depth_range", "relative_start", "relative_to")
    built: dict[str, FeatureSettings] = {}
    for key, entry in value.items():
        if isinstance(entry, FeatureSettings):
            built[key] = entry
            continue
        if isinstance(entry, str):
            tree: dict[str, Any] = {"sources": [{"topic": entry}]}
        elif isinstance(entry, (list, tuple)):
            tree = {"sources": list(entry)}
        elif isinstance(entry, Mapping) and not {"topic", "tf", "sources"} & set(entry):
            raise ConfigError(
                f"features.{key}: topic, tf or sources is missing; given: {', '.join(map(str, entry)) or 'nothing'}",
                hint="`penstock inspect SRC --suggest-config` prints the features to change, for --config; "
                "a name with dots is written in brackets: 'features[observation.state]=/joint_states'",
            )
        elif isinstance(entry, Mapping) and "sources" not in entry:
            tree = {name: entry[name] for name in of_feature if name in entry}
            source = {name: each for name, each in entry.items() if name not in of_feature}
            tree["sources"] = [{"topic": TRANSFORM_TOPIC, **source} if "tf" in source else source]
        else:
            tree = entry
        built[str(key)] = config.build(FeatureSettings, tree, where=f"features.{key}")
    return built


@dataclass(frozen=True)
class Flushing:
    """`rosbag:` — the name that users of the Kuavo converter know."""

    chunk_size: int | Literal["auto"] = option(default=1000, metadata={"parse": _chunk_rows})


@dataclass(frozen=True)
class FileSizes:
    """Sizes at which a new file starts, as in LeRobot's info.json."""

    data_mb: int | None = option(default=100, metadata=_POSITIVE)
    video_mb: int | None = option(default=200, metadata=_POSITIVE)
    # Videos also begin anew with each group of inputs, in its own chunk; 0: never; null: where machines share the work.
    group_mb: int | None = option(default=None, metadata=_NOT_NEGATIVE)


@dataclass(frozen=True)
class Hdf5:
    """What only HDF5 files have: other files that they lead to, named parts, and pixels that do not say their order."""

    allow_external: bool = False  # links, storage and virtual data sets may read other files
    mask: str | None = None  # the demonstrations that mask/NAME lists
    channels: ChannelOrder = "auto"  # of raw images: (3, H, W) or (H, W, 3)
    pixels: Literal["rgb", "bgr"] = "rgb"  # the order of raw images
    next_observations: Literal["auto", "keep", "drop"] = "auto"  # auto: dropped where each is proven the row after


@dataclass(frozen=True)
class Encoding:
    """How images are encoded where they are not copied; what is null follows LeRobot's own default for the codec."""

    quality: int = option(default=95, metadata=_whole(1, 100, null=False))
    crf: int | None = None
    gop: int | None = option(default=None, metadata=_POSITIVE)
    preset: str | int | None = None
    device: Literal["cpu", "auto", "nvenc", "videotoolbox", "qsv", "vaapi"] = "cpu"


@dataclass(frozen=True)
class Settings:
    """The whole configuration of a conversion; `penstock inspect BAG --suggest-config` prints one."""

    fps: int | None = option(default=None, metadata=_POSITIVE)
    timeline: str | None = None
    stride: int | None = option(default=None, metadata=_POSITIVE)
    time: Clock = "log"
    sample_drop: int = option(default=0, metadata=_whole(0, null=False))
    missing: Missing = "trim"
    tolerance: int | None = option(default=None, metadata=_TOLERANCE)
    bad_messages: Literal["drop", "reject"] = "drop"
    bad_episodes: Literal["drop", "reject"] = "reject"
    video: Video = "copy"
    resize: tuple[int, int] | None = option(default=None, metadata={"parse": _size_px})
    depth: Depth = option(default="metric", metadata={"parse": _depth})
    depth_range: tuple[float, float] | None = option(default=None, metadata={"parse": _range_mm})
    encoding: Encoding = option(default_factory=Encoding)
    task: str = "unspecified"
    robot_type: str = "unknown"
    episodes: EpisodeSettings = option(default_factory=EpisodeSettings)
    split_episodes: bool = False
    image_samples: int | None = option(default=None, metadata=_POSITIVE)
    features: dict[str, FeatureSettings] = option(default_factory=dict, metadata={"parse": _features})
    leave_out: tuple[str, ...] = option(default=(), metadata={"parse": _names})  # of features, not taken over
    rosbag: Flushing = option(default_factory=Flushing)
    files: FileSizes = option(default_factory=FileSizes)
    hdf5: Hdf5 = option(default_factory=Hdf5)
    output: str = DEFAULT_OUTPUT  # the format that is written


def plain_settings(settings: Settings) -> dict[str, Any]:
    """The settings as the journal keeps them. Journals of the default output do not name it: most are older than it."""
    plain: dict[str, Any] = config.plain(settings)
    if settings.output == DEFAULT_OUTPUT:
        del plain["output"]
    return plain


def video_for(feature: FeatureSettings | None, settings: Settings) -> tuple[Video, bool]:
    """What is asked of a camera's images, and whether all that is no copy is refused."""
    video = (feature.video if feature is not None else None) or settings.video
    return ("copy", True) if video == "copy-only" else (video, False)


def read_settings(
    file: str | Path | None = None, overrides: Iterable[str] = (), values: Mapping[str, Any] | None = None
) -> Settings:
    """Settings from a YAML file, then keyword values, then `a.b=c` words; the later ones win."""
    tree: dict[str, Any] = dict(config.load_yaml(Path(file))) if file is not None else {}
    for key, value in (values or {}).items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), Mapping):
            tree[key] = {**tree[key], **value}
        else:
            tree[key] = value
    tree = config.apply_overrides(tree, list(overrides))
    if "dataset" in tree:
        raise ConfigError(
            "dataset: is a key of Kuavo's converter", hint="penstock convert --config-path DIR --config-name NAME"
        )
    settings = config.build(Settings, tree)
    if settings.fps is None and settings.timeline == FIXED:
        raise ConfigError("timeline: fixed needs a rate", hint="add the rows per second, for example fps=30")
    check_output(settings.output)
    if "video" not in tree:
        settings = replace(settings, video=default_settings(settings.output).video)
    _check_encoding(settings)
    return settings


def default_settings(output: str) -> Settings:
    """The settings of a user who gives none; some follow the output."""
    return config.build(Settings, {"video": default_video(output)})


FeatureT = TypeVar("FeatureT")


def without_left_out(
    features: Mapping[str, FeatureT],
    settings: Settings,
    where: object,
    *,
    strict: bool,
    others: str = "",
    hint: str | None = None,
) -> dict[str, FeatureT]:
    """The features without those that `leave_out` names; `strict` refuses names of none of them.

    `others` and `hint` say why nothing else became a feature, and how it can.
    """
    for name in settings.leave_out if strict else ():
        if name not in features:
            near = config.did_you_mean(name, features)
            raise ConfigError(
                f"leave_out: {where} has no feature {name!r}{near}", hint=f"there are {', '.join(features) or 'none'}"
            )
    left = {key: feature for key, feature in features.items() if key not in settings.leave_out}
    if features and not left:
        none_left = f"leave_out: no feature of {where} is left{others and ': '}{others}"
        raise ConfigError(none_left, hint=hint or f"there are {', '.join(features)}")
    return left


def without_effect(settings: Settings, names: Sequence[str], on: str) -> list[str]:
    """A note when a user gave settings for which some kind of input has no use."""
    usual = Settings()
    changed = [name for name in names if getattr(settings, name) != getattr(usual, name)]
    return [f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} no effect on {on}"] if changed else []


def _check_encoding(settings: Settings) -> None:
    """What an encoder would refuse is refused before anything is read."""
    videos = {settings.video, *(feature.video for feature in settings.features.values())} - {None, *_NO_CODEC}
    if not videos:
        return
    from penstock._src.media.video.hardware import encoder_settings

    chosen = settings.encoding
    for video in videos:
        try:
            encoder_settings(str(video), crf=chosen.crf, gop=chosen.gop, preset=chosen.preset)
        except VideoError as error:
            raise ConfigError(f"encoding: {error.message}", hint=error.hint) from error
