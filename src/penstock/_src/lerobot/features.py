"""Features: the named columns and cameras of a data set, and the names they may have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from penstock._src.lerobot.stats import are_pooled
from penstock.errors import DataSetCorrupt, DataSetError

NUMERIC_DTYPES: tuple[str, ...] = (
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
CAMERA_DTYPES: tuple[str, ...] = ("video", "image")
TEXT_DTYPES: tuple[str, ...] = ("string", "language")
KNOWN_DTYPES: tuple[str, ...] = (*NUMERIC_DTYPES, *CAMERA_DTYPES, *TEXT_DTYPES)

ALL_VALUES = "(all values)"  # the name of the one statistic of a wide feature
LANGUAGE_KEYS = ("language_persistent", "language_events")
# A key becomes a directory name; file systems allow 255 bytes, and the rest of the name needs some.
LONGEST_KEY_BYTES = 180
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\<>:"|?*\ud800-\udfff]')


@dataclass(frozen=True)
class Feature:
    """One column: a number or array per row (`float32`, `bool`, …), a `string`, or a camera (`video`, `image`).

    A camera's shape is (height, width, channels). `info` describes the video as LeRobot does (`video.codec`, …).
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    names: Sequence[str] | None = None
    info: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in KNOWN_DTYPES:
            raise DataSetError(
                f"feature {self.key!r}: unknown dtype {self.dtype!r}", hint=f"known: {', '.join(KNOWN_DTYPES)}"
            )
        if not self.shape or any(not isinstance(size, int) or size < 1 for size in self.shape):
            raise DataSetError(f"feature {self.key!r}: shape {self.shape} needs at least one size, each >= 1")
        if self.is_camera and (len(self.shape) != 3 or self.shape[2] not in (1, 3)):
            raise DataSetError(f"camera {self.key!r}: shape {self.shape} is not (height, width, 1 or 3)")
        if self.is_numeric and len(self.shape) > 5:
            raise DataSetError(f"feature {self.key!r}: {len(self.shape)} dimensions; LeRobot reads at most 5")
        if self.is_text and self.shape != (1,):
            raise DataSetError(f"{self.dtype} feature {self.key!r} must have shape (1,), not {self.shape}")
        if self.dtype == "language" and self.key not in LANGUAGE_KEYS:
            raise DataSetError(f"{self.key!r} is not a language column of LeRobot: those are {LANGUAGE_KEYS}")

    @property
    def is_camera(self) -> bool:
        return self.dtype in CAMERA_DTYPES

    @property
    def is_depth(self) -> bool:
        """Distances, marked as LeRobot 0.6.1 marks them; `depth_unit` is their unit where it is known."""
        info = self.info or {}
        return self.is_camera and bool(info.get("is_depth_map") or info.get("video.is_depth_map"))

    @property
    def depth_unit(self) -> str | None:
        """The unit "mm" or "m"; None for an image that is no depth, or whose unit is unknown."""
        unit = (self.info or {}).get("depth_unit") if self.is_depth else None
        return unit if isinstance(unit, str) else None

    @property
    def is_text(self) -> bool:
        """One text per row, or the entries of a language column: nothing that has statistics."""
        return self.dtype in TEXT_DTYPES

    @property
    def is_numeric(self) -> bool:
        return self.dtype in NUMERIC_DTYPES

    @property
    def is_scalar(self) -> bool:
        """Stored as a plain number per row, without a list around it."""
        return self.shape == (1,)

    @property
    def is_wide(self) -> bool:
        """So many numbers in a row that one statistic stands for all of them."""
        return self.is_numeric and are_pooled(self.shape)

    @property
    def dimension_names(self) -> list[str]:
        """One name per number that has statistics of its own, made up where the feature has none."""
        if self.is_wide:
            return [ALL_VALUES]
        size = int(np.prod(self.shape, dtype=np.int64))
        if self.names is not None and len(self.names) == size and not self.is_camera:
            return [str(name) for name in self.names]
        return [str(position) for position in range(size)]

    def to_json(self) -> dict[str, Any]:
        names = None if self.names is None else list(self.names)
        entry: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "names": names}
        if self.info is not None:
            entry["info"] = dict(self.info)
        return entry


def depth_feature(key: str, size_px: tuple[int, int], unit: str) -> Feature:
    """Depth images in the table, (height, width) pixels of 16 bits ("mm") or float32 ("m"), kept exactly."""
    names = ("height", "width", "channels")
    return Feature(key, "image", (*size_px, 1), names, {"is_depth_map": True, "depth_unit": unit})


# The columns that every data set has, in LeRobot's order; the writer fills them.
ROW_FEATURES: tuple[Feature, ...] = (
    Feature("timestamp", "float32", (1,)),
    *(Feature(key, "int64", (1,)) for key in ("frame_index", "episode_index", "index", "task_index")),
)
ROW_KEYS: frozenset[str] = frozenset(feature.key for feature in ROW_FEATURES)


def check_features(features: Sequence[Feature]) -> None:
    """Refuse keys that collide or that cannot safely become names of files and columns."""
    seen: dict[str, str] = {}
    for feature in features:
        problem = key_problem(feature.key)
        if problem is not None:
            raise DataSetError(
                f"feature name {_shown(feature.key)} {problem}", hint=f"use for example {safe_key(feature.key)!r}"
            )
        other = seen.setdefault(feature.key.casefold(), feature.key)
        if other is not feature.key or sum(f.key == feature.key for f in features) > 1:
            raise DataSetError(
                f"feature names {other!r} and {feature.key!r} are the same or differ only in case",
                hint="their files would overwrite each other on some file systems; rename one",
            )


def key_problem(key: str) -> str | None:
    """Why `key` cannot name a feature, or None."""
    if not key.strip():
        return "is empty"
    if key in ROW_KEYS or key == "task":
        return "is a name that LeRobot gives to a column of its own"
    unsafe = _UNSAFE.search(key)
    if unsafe:
        return f"contains {unsafe.group()!r}, which cannot stand in a file name"
    if key != key.strip() or key.startswith(".") or key.endswith(".") or ".." in key:
        return "starts or ends with a dot or space, or contains '..'"
    size = len(key.encode())
    if size > LONGEST_KEY_BYTES:
        return f"is {size} bytes long; at most {LONGEST_KEY_BYTES} fit into a file name"
    return None


def safe_key(text: str) -> str:
    """A feature name made of any text, e.g. a topic: unsafe characters become '_', long names are cut and marked.

    >>> safe_key("/cam_h/color/image_raw")
    'cam_h_color_image_raw'
    """
    key = re.sub(r"\.{2,}", ".", _UNSAFE.sub("_", text))
    key = re.sub(r"\A[\s._]+|[\s._]+\Z", "", key) or "feature"
    if key in ROW_KEYS or key == "task":
        key = f"{key}_"
    if len(key.encode()) > LONGEST_KEY_BYTES:
        import hashlib

        mark = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
        kept = key.encode()[: LONGEST_KEY_BYTES - len(mark) - 1].decode(errors="ignore").rstrip(" .")
        key = f"{kept}_{mark}"
    return key


def parse_feature(key: str, entry: object, where: str) -> Feature:
    """A feature of an info.json; raises DataSetCorrupt that says what is wrong with it."""
    if not isinstance(entry, Mapping):
        raise DataSetCorrupt(f"{where}: feature {_shown(key)} is not an object")
    dtype, shape, names, info = (entry.get(name) for name in ("dtype", "shape", "names", "info"))
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise DataSetCorrupt(f"{where}: feature {_shown(key)} has dtype {dtype!r} and shape {shape!r}")
    flat = _flat_names(names)
    if dtype in CAMERA_DTYPES and len(shape) == 3 and shape[2] not in (1, 3) and shape[0] in (1, 3):
        shape, flat = [shape[1], shape[2], shape[0]], ["height", "width", "channels"]  # v2.0 put the channels first
    try:
        return Feature(
            key=key,
            dtype=dtype,
            shape=tuple(shape),
            names=None if flat is None else tuple(str(name) for name in flat),
            info=info if isinstance(info, Mapping) else None,
        )
    except DataSetError as error:
        raise DataSetCorrupt(f"{where}: {error.message}", hint=error.hint) from None


@dataclass(frozen=True)
class Description:
    """What all episodes of a data set share, and what must not change when it is continued.

    Sizes are in bytes: a file that reaches its limit is followed by another. `chunks_size` is how many files LeRobot
    puts into one directory.
    """

    fps: int
    features: tuple[Feature, ...]
    robot_type: str | None = None
    data_file_bytes: int = 100 * 2**20
    video_file_bytes: int = 200 * 2**20
    chunks_size: int = 1000

    def __post_init__(self) -> None:
        if isinstance(self.fps, bool) or not isinstance(self.fps, int) or self.fps < 1:
            raise DataSetError(
                f"fps must be a whole number >= 1, got {self.fps!r}", hint="LeRobot reads whole rates only"
            )
        check_features(self.features)
        if not self.features:
            raise DataSetError("a data set needs at least one feature")

    @property
    def cameras(self) -> list[Feature]:
        return [feature for feature in self.features if feature.dtype == "video"]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "features": [{"key": feature.key, **feature.to_json()} for feature in self.features]}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], where: str) -> Description:
        """The description that `to_json` gave; raises DataSetError that says what is wrong."""
        features = tuple(parse_feature(str(each["key"]), each, where) for each in entry["features"])
        return cls(**{each.name: entry[each.name] for each in fields(cls)} | {"features": features})


def _flat_names(names: object) -> list[Any] | None:
    """v2 data sets wrap the list of names in another, or in a mapping such as {"motors": […]}."""
    wrapped = list(names.values()) if isinstance(names, Mapping) else names
    if not isinstance(wrapped, list):
        return None
    if wrapped and all(isinstance(each, list) for each in wrapped):
        return [name for each in wrapped for name in each]
    return None if isinstance(names, Mapping) else wrapped


def _shown(key: str) -> str:
    """A name for a message: escaped, and cut where it would flood the screen."""
    return repr(key) if len(key) <= 60 else f"{key[:57]!r}… ({len(key)} characters)"
