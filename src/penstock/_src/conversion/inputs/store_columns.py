"""Features as they will be read from a store: cameras and numbers, settled on the first episode that has rows."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.cameras.camera import Camera, CameraImage, depth_mode, probe_depth, probe_image, range_mm
from penstock._src.conversion.inputs.columns import check_whole_numbers
from penstock._src.conversion.mapping.columns_by_name import BOOLEAN_KEYS, SUCCESS
from penstock._src.conversion.settings import FeatureSettings, Settings, TopicSource, video_for
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.stats import WIDEST_VALUES
from penstock._src.plan.conversion_memory import CameraDemand
from penstock._src.recordings.values.images import EncodedImage, RawImage
from penstock._src.stores.roles import SUCCESSES, base_name
from penstock._src.stores.store import Column, ImageArray, ImageSource, Store, aligned
from penstock.errors import ConfigError, DataSetError, ImageError, LimitExceeded, StoreError

_SLICE = re.compile(r"\A\.?\[(\d*)(:?)(\d*)\]\Z")
_FIRST_ROWS = 16
_COLOURS = {1: "mono8", 3: "{}8", 4: "{}a8"}


@dataclass(frozen=True, kw_only=True)
class StoreCamera(Camera):
    """A camera of a store, and what one row of it takes in memory."""

    column: Column
    source: ImageSource
    is_checked: bool = True  # every image must be what the first one is
    is_decoded: bool = False  # the source decodes a video: its pixels are not those that are stored

    @property
    def row_bytes(self) -> int:
        return aligned(self.source.largest_bytes)

    @property
    def demand(self) -> CameraDemand:
        height, width = max(self.recorded_px, self.size_px, key=lambda size_px: size_px[0] * size_px[1])
        encoded = self.source.largest_bytes if self.copied else 0
        return CameraDemand(width, height, self.stored_as, max(encoded, width * height // 3))

    def image(self, stored: ImageArray) -> CameraImage:
        """What the store gave for a row, as the cameras of all inputs take it; nothing is copied."""
        if stored.ndim == 1:
            return EncodedImage(self.column.encoding, stored.data)
        height, width = stored.shape[:2]
        if stored.ndim == 2:
            encoding = "32FC1" if stored.dtype.kind == "f" else "16UC1"
        else:
            encoding = _COLOURS[stored.shape[2]].format(self.source.pixel_order)
        data = np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data
        step = len(data) // height
        return RawImage(height, width, encoding, stored.dtype.byteorder == ">", step, data)


@dataclass(frozen=True)
class NumberPart:
    """One column's share of a vector: a slice of its values, scaled."""

    column: Column
    first: int
    last: int
    scale: Any
    offset: Any

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def size(self) -> int:
        return self.last - self.first

    @property
    def is_plain(self) -> bool:
        """Stored as it lies in the store."""
        return not (np.any(self.scale != 1.0) or np.any(self.offset != 0.0))

    def read(self, store: Store, rows: NDArray[np.int64]) -> NDArray[Any]:
        values = store.numbers(self.name, rows).reshape(len(rows), -1)[:, self.first : self.last]
        if not self.is_plain:
            scaled: NDArray[Any] = values.astype(np.float64) * self.scale + self.offset
            return scaled
        return values


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, concatenated from one or several columns."""

    key: str
    dtype: str
    parts: tuple[NumberPart, ...]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def passing_bytes(self) -> int:
        """A row besides its numbers as they are written: whole rows of its columns, and 8 bytes a number."""
        (part, *others) = self.parts
        if (
            not others
            and part.is_plain
            and part.column.dtype == self.dtype
            and part.size == math.prod(part.column.shape)
        ):
            return 0
        return sum(part.column.row_bytes for part in self.parts) + 8 * self.size

    def read(self, store: Store, rows: NDArray[np.int64]) -> NDArray[Any]:
        pieces = [part.read(store, rows) for part in self.parts]
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        if self.dtype == "bool":
            truth: NDArray[Any] = (values != 0) & (values == values)  # a NaN says nothing
            return truth
        if self.dtype == "int64" and values.dtype.kind == "f":
            check_whole_numbers(self.key, values.astype(np.float64))
        if self.dtype == "int64" and values.dtype.kind == "u" and values.size and values.max() > 2**63 - 1:
            raise DataSetError(f"{self.key} is int64, but a value is {int(values.max()):,}")
        # Beyond the range of float32 is infinite there: the writer counts it, so the cast stays silent.
        with np.errstate(over="ignore", invalid="ignore"):
            return values if values.dtype == self.dtype else values.astype(self.dtype)


@dataclass(frozen=True)
class StoreColumns:
    """All features of one store."""

    cameras: tuple[StoreCamera, ...]
    numbers: tuple[NumberColumn, ...]
    has_success: bool = False  # of the episode as a whole, in its last row

    def names(self) -> list[str]:
        """Every column that is read, once."""
        names = [camera.name for camera in self.cameras]
        names += [part.name for column in self.numbers for part in column.parts]
        return list(dict.fromkeys(names))

    def features(self) -> tuple[Feature, ...]:
        numbers = [Feature(each.key, each.dtype, (each.size,), each.names or None) for each in self.numbers]
        success = [Feature(SUCCESS, "bool", (1,), (SUCCESSES[0],))] if self.has_success else []
        return (*(each.feature() for each in self.cameras), *numbers, *success)

    def describe(self) -> dict[str, Any]:
        """Where each feature comes from and what becomes of it."""
        described: dict[str, Any] = {camera.key: camera.described() for camera in self.cameras}
        for column in self.numbers:
            described[column.key] = {
                "topics": [part.name for part in column.parts],
                "size": column.size,
                "names": list(column.names),
            }
        if self.has_success:
            described[SUCCESS] = {"topics": [SUCCESSES[0]], "size": 1, "names": [SUCCESSES[0]]}
        return described


def open_store_columns(store: Store, first_row: int, settings: Settings) -> StoreColumns:
    """Find every column, look at the first images, and settle sizes, names and encodings."""
    cameras: list[StoreCamera] = []
    numbers: list[NumberColumn] = []
    has_success = False
    for key, feature in settings.features.items():
        _refuse_pairing(store, key, feature)
        names = [source.topic.strip("/") for source in feature.sources]
        if key == SUCCESS and len(names) == 1 and names[0] in SUCCESSES and names[0] not in store.columns:
            has_success = True
            continue
        columns = [_column(store, key, name) for name in names]
        if any(column.is_image for column in columns):
            if len(columns) != 1:
                raise ConfigError(f"features.{key}: a camera is one data set, this one has {len(columns)}")
            cameras.append(_camera(store, first_row, key, feature, columns[0], settings))
        else:
            numbers.append(_numbers(key, feature, columns))
    if not cameras and not numbers:
        raise StoreError(f"{store.path} has nothing that becomes a feature", hint="name data sets under features:")
    return StoreColumns(tuple(cameras), tuple(numbers), has_success)


def _refuse_pairing(store: Store, key: str, feature: FeatureSettings) -> None:
    """What pairs messages with rows has nothing to do here, and is not ignored silently."""
    for source in feature.sources:
        plain = TopicSource(source.topic, source.field, source.names, source.scale, source.offset, source.unit)
        if source not in (plain, replace(plain, policy="nearest")):
            raise ConfigError(
                f"features.{key}: {source.topic} is a data set: only field, names, scale, offset and unit apply",
                hint=f"the rows of {store.plural} are paired already",
            )
    if feature.relative_start or feature.relative_to is not None:
        raise ConfigError(f"features.{key}: relative values are for recordings, not for {store.plural}")


def _column(store: Store, key: str, name: str) -> Column:
    try:
        column = store.column(name)
    except StoreError as error:
        error.message = f"{store.path}: features.{key}: {error.message.removeprefix(f'{store.path}: ')}"
        raise
    if name in store.problems:
        raise StoreError(store.problems[name], hint=f"convert without it: leave_out={key}; or leave out the file")
    if column.kind == "text":
        raise StoreError(f"{store.path}: features.{key}: {name} cannot be a feature: text")
    return column


def _camera(
    store: Store, first_row: int, key: str, feature: FeatureSettings, column: Column, settings: Settings
) -> StoreCamera:
    output, only_copied = video_for(feature, settings)
    camera = StoreCamera(
        key=key,
        name=column.name,
        kind="raw",
        recorded_px=(0, 0),
        size_px=(0, 0),
        output=output,
        only_copied=only_copied,
        column=column,
        source=store.images(column.name),
    )
    image = _first_image(store, camera, range(first_row, min(first_row + _FIRST_ROWS, store.rows)))
    kind, recorded_px = probe_image(image)
    depth = None
    depth_range_mm = None
    if column.kind == "depth":
        mode = depth_mode(key, feature, settings, is_depth=True)
        if mode != "off":
            depth, kind = probe_depth(image), "depth"
        if mode == "8bit":
            depth_range_mm = range_mm(key, feature, settings)
    return replace(
        camera,
        kind=kind,
        recorded_px=recorded_px,
        size_px=feature.resize or settings.resize or recorded_px,
        encoding=image.encoding if isinstance(image, RawImage) else "",
        depth=depth,
        depth_range_mm=depth_range_mm,
    )


def _first_image(store: Store, camera: StoreCamera, rows: range) -> CameraImage:
    problem = "it has no rows"
    memory = np.empty(camera.row_bytes, np.uint8)
    for row in rows:
        try:
            (first,) = camera.source.read_block([row], memory)
            if isinstance(first, ImageError):
                raise first
            image = camera.image(first)
            probe_image(image)
            return image
        except (ImageError, LimitExceeded) as error:
            problem = error.message
    raise ImageError(f"{store.path}: {camera.name} has no usable image among its first rows: {problem}")


def _numbers(key: str, feature: FeatureSettings, columns: list[Column]) -> NumberColumn:
    parts: list[NumberPart] = []
    names: list[str] = []
    slices = [_slice(key, source, column) for source, column in zip(feature.sources, columns, strict=True)]
    width = sum(last - first for first, last in slices)
    is_named = width <= WIDEST_VALUES  # so many names are of no use, and take more memory than the values
    for source, column, (first, last) in zip(feature.sources, columns, slices, strict=True):
        base = base_name(column.name)
        single = math.prod(column.shape) == 1
        labels = [base] if single else [f"{base}_{i}" for i in range(first, last) if is_named]
        if source.names is not None:
            if len(source.names) != last - first:
                raise ConfigError(
                    f"features.{key}: {len(source.names)} names for {last - first} values of {column.name}"
                )
            labels = list(source.names)
        scale = np.asarray(source.scale) * (math.pi / 180 if source.unit == "deg" else 1.0)
        for values in (scale, np.asarray(source.offset)):
            if values.ndim and values.size != last - first:
                raise ConfigError(f"features.{key}: scale and offset need 1 or {last - first} numbers")
        parts.append(NumberPart(column, first, last, scale, np.asarray(source.offset)))
        names += labels
    if feature.names is not None:
        if len(feature.names) != width:
            raise ConfigError(f"features.{key}.names: {len(feature.names)} names for {width} values")
        names = list(feature.names)
    elif not is_named:
        names = []
    if len(set(names)) != len(names):
        names = [f"{part.name.replace('/', '_')}_{i}" for part in parts for i in range(part.first, part.last)]
    dtype = "bool" if key in BOOLEAN_KEYS else feature.dtype or "float32"
    return NumberColumn(key, dtype, tuple(parts), tuple(names))


def _slice(key: str, source: TopicSource, column: Column) -> tuple[int, int]:
    values = math.prod(column.shape)
    if source.field is None or source.field == ".":
        return 0, values
    match = _SLICE.match(source.field)
    if match is None:
        raise ConfigError(
            f"features.{key}.field: {source.field!r} is not a part of a data set", hint="write it as [0:7] or [3]"
        )
    first = int(match[1] or 0)
    last = (int(match[3]) if match[3] else values) if match[2] else first + 1
    if not 0 <= first < last <= values:
        raise ConfigError(f"features.{key}.field: {source.field} of {values} values of {column.name}")
    return first, last
