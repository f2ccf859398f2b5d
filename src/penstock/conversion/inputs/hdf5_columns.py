"""Features as they will be read from an HDF5 file: cameras and numbers, settled on the first episode that has rows."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.depth_camera import depth_mode, probe_depth, range_mm
from penstock.conversion.inputs.columns import CameraColumn
from penstock.conversion.inputs.hdf5_mapping import BOOLEAN_KEYS, SUCCESS
from penstock.conversion.mapping.first_messages import Picture, probe_picture
from penstock.conversion.settings import FeatureSettings, Settings, Source, asked_video
from penstock.errors import ConfigError, DataSetError, ImageError, LimitExceeded, StoreCorrupt, StoreError
from penstock.lerobot.features import Feature
from penstock.lerobot.stats import WIDEST_VALUES
from penstock.recordings.recording import Topic
from penstock.recordings.values.images import CompressedPicture, RawPicture
from penstock.stores.hdf5.array import LARGEST_IMAGE_BYTES, Hdf5Array
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.layout import Member, classify, join
from penstock.stores.hdf5.read import picture_bytes
from penstock.stores.roles import SUCCESSES

_SLICE = re.compile(r"\A\.?\[(\d*)(:?)(\d*)\]\Z")
_FIRST_ROWS = 16


@dataclass(frozen=True)
class PictureColumn:
    """A camera of the file, and how a row of it is read."""

    camera: CameraColumn
    member: Member
    longest_bytes: int  # of one row in memory

    @property
    def key(self) -> str:
        return self.camera.key


@dataclass(frozen=True)
class NumberPart:
    """One data set's share of a vector: a slice of its values, scaled."""

    name: str
    values: int  # of one row as stored
    first: int
    last: int
    scale: Any
    offset: Any

    @property
    def size(self) -> int:
        return self.last - self.first

    @property
    def is_plain(self) -> bool:
        """Stored as it lies in the file."""
        return not (np.any(self.scale != 1.0) or np.any(self.offset != 0.0))

    def read(self, array: Hdf5Array, start: int, stop: int) -> NDArray[Any]:
        """The rows [start, stop) as (rows, size)."""
        found = array.rows(start, stop).reshape(stop - start, -1)[:, self.first : self.last]
        if not self.is_plain:
            scaled: NDArray[Any] = found.astype(np.float64) * self.scale + self.offset
            return scaled
        return found


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, concatenated from one or several data sets."""

    key: str
    dtype: str
    parts: tuple[NumberPart, ...]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def joined(self, pieces: list[NDArray[Any]]) -> NDArray[Any]:
        """The pieces of all parts as the column's own type; whole numbers must be whole."""
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        if self.dtype == "bool":
            truth: NDArray[Any] = (values != 0) & (values == values)  # a NaN says nothing
            return truth
        if self.dtype == "int64" and values.dtype.kind == "f":
            whole = values.astype(np.float64)
            wrong = ~(np.abs(whole) <= 2.0**53) | (whole != np.rint(whole))
            if wrong.any():
                raise DataSetError(
                    f"{self.key} is int64, but {int(np.count_nonzero(wrong)):,} values are no whole numbers within "
                    f"±2^53, the first is {float(whole[wrong][0])}",
                    hint=f"set features.{self.key}.dtype: float64",
                )
        if self.dtype == "int64" and values.dtype.kind == "u" and values.size and values.max() > 2**63 - 1:
            raise DataSetError(f"{self.key} is int64, but a value is {int(values.max()):,}")
        # Beyond the range of float32 is infinite there: the writer counts it, so the cast stays silent.
        with np.errstate(over="ignore", invalid="ignore"):
            return values if values.dtype == self.dtype else values.astype(self.dtype)


@dataclass(frozen=True)
class FileColumns:
    """All features of one HDF5 file."""

    cameras: tuple[PictureColumn, ...]
    numbers: tuple[NumberColumn, ...]
    has_success: bool = False  # of the episode as a whole, in its last row

    @property
    def has_rows(self) -> bool:
        """Whether there is more than images."""
        return bool(self.numbers) or self.has_success

    def names(self) -> list[str]:
        """Every data set that is read, once."""
        found = [camera.member.name for camera in self.cameras]
        found += [part.name for column in self.numbers for part in column.parts]
        return list(dict.fromkeys(found))

    def features(self) -> tuple[Feature, ...]:
        numbers = [Feature(each.key, each.dtype, (each.size,), each.names or None) for each in self.numbers]
        success = [Feature(SUCCESS, "bool", (1,), (SUCCESSES[0],))] if self.has_success else []
        return (*(each.camera.feature() for each in self.cameras), *numbers, *success)

    def describe(self) -> dict[str, Any]:
        """Where each feature comes from and what becomes of it."""
        described: dict[str, Any] = {}
        for each in self.cameras:
            described[each.key] = {
                "topics": [each.member.name],
                "size_px": list(each.camera.size_px),
                "recorded_as": each.camera.kind,
                "stored_as": "copied" if each.camera.copied else each.camera.stored_as,
            }
        for column in self.numbers:
            described[column.key] = {
                "topics": [part.name for part in column.parts],
                "size": column.size,
                "names": list(column.names),
            }
        if self.has_success:
            described[SUCCESS] = {"topics": [SUCCESSES[0]], "size": 1, "names": [SUCCESSES[0]]}
        return described


def open_columns(file: Hdf5File, group: str, settings: Settings) -> FileColumns:
    """Find every data set in the group, look at its first row, and settle sizes, names and encodings."""
    cameras: list[PictureColumn] = []
    numbers: list[NumberColumn] = []
    has_success = False
    for key, feature in settings.features.items():
        _refuse_pairing(key, feature)
        if key == SUCCESS and _is_of_episode(file, group, feature):
            has_success = True
            continue
        members = [_member(file, group, key, source, settings) for source in feature.sources]
        if any(member.is_picture for member in members):
            if len(members) != 1:
                raise ConfigError(f"features.{key}: a camera is one data set, this one has {len(members)}")
            cameras.append(_camera(file, group, key, feature, members[0], settings))
        else:
            numbers.append(_numbers(key, feature, members))
    if not cameras and not numbers:
        raise StoreError(f"{file.path} has nothing that becomes a feature", hint="name data sets under features:")
    return FileColumns(tuple(cameras), tuple(numbers), has_success)


def _is_of_episode(file: Hdf5File, group: str, feature: FeatureSettings) -> bool:
    """Whether success is that of a whole episode (an attribute, or one value), and not of every row."""
    names = [source.topic.strip("/") for source in feature.sources]
    path = join(group, names[0])
    return names[0] in SUCCESSES and len(names) == 1 and (file.kind(path) != "dataset" or file.dataset(path).size == 1)


def _refuse_pairing(key: str, feature: FeatureSettings) -> None:
    """What pairs messages with rows has nothing to do here, and is not ignored silently."""
    for source in feature.sources:
        plain = Source(source.topic, source.field, source.names, source.scale, source.offset, source.unit)
        if source not in (plain, replace(plain, policy="nearest")):
            raise ConfigError(
                f"features.{key}: {source.topic} is a data set: only field, names, scale, offset and unit apply",
                hint="the rows of an HDF5 file are paired already",
            )
    if feature.relative_start or feature.relative_to is not None:
        raise ConfigError(f"features.{key}: relative values are for recordings, not for HDF5 files")


def _member(file: Hdf5File, group: str, key: str, source: Source, settings: Settings) -> Member:
    name = source.topic.strip("/")
    path = join(group, name)
    if file.kind(path) != "dataset":
        beside = ", ".join(file.names(path.rsplit("/", 1)[0] if "/" in path else "/")[:12])
        raise StoreError(
            f"{file.path}: features.{key}: there is no data set {path}", hint=f"beside it: {beside}" if beside else None
        )
    member = classify(Hdf5Array(file, path), name, settings.hdf5.channels)
    if member.content == "other":
        raise StoreError(f"{file.path}: features.{key}: {path} cannot be a feature: {member.why}")
    return member


def _camera(
    file: Hdf5File, group: str, key: str, feature: FeatureSettings, member: Member, settings: Settings
) -> PictureColumn:
    array = Hdf5Array(file, join(group, member.name))
    longest = array.longest_bytes(LARGEST_IMAGE_BYTES)
    form = PictureForm(member, settings.hdf5.pixels)
    picture = _first_picture(file, array, form, longest)
    kind, recorded_px = probe_picture(picture)
    depth = None
    depth_range_mm = None
    if member.content == "depth":
        mode = depth_mode(key, feature, settings, is_depth=True)
        if mode != "off":
            depth, kind = probe_depth(picture), "depth"
        if mode == "8bit":
            depth_range_mm = range_mm(key, feature, settings)
    output, only_copied = asked_video(feature, settings)
    camera = CameraColumn(
        key=key,
        source=feature.sources[0],
        topic=Topic(0, member.name, f"{member.dtype} {member.row_shape}", array.count, "hdf5"),
        reader=form,
        kind=kind,
        recorded_px=recorded_px,
        size_px=feature.resize or settings.resize or recorded_px,
        output=output,
        only_copied=only_copied,
        encoding=picture.encoding if isinstance(picture, RawPicture) else "",
        depth=depth,
        depth_range_mm=depth_range_mm,
    )
    return PictureColumn(camera, member, longest)


class PictureForm:
    """Makes a picture of a row's bytes, without copying them."""

    def __init__(self, member: Member, pixels: str) -> None:
        self.is_raw = member.content in ("pixels", "depth")
        self.turned = member.content == "pixels" and member.channels == "first"
        self._format = member.content
        if not self.is_raw:
            return
        shape = member.row_shape
        if self.turned:
            shape = (*shape[1:], shape[0])
        self.height, self.width = shape[:2]
        channels = shape[2] if len(shape) > 2 else 1
        self.encoding = "16UC1"
        if member.content == "pixels":
            self.encoding = {1: "mono8", 3: f"{pixels}8", 4: f"{pixels}a8"}[channels]
        self._big_endian = member.dtype.startswith(">")
        self._step = self.width * channels * np.dtype(member.dtype).itemsize

    def __call__(self, row: memoryview) -> Picture:
        if self.is_raw:
            return RawPicture(self.height, self.width, self.encoding, self._big_endian, self._step, row)
        return CompressedPicture(self._format, row[: picture_bytes(row)])


def _first_picture(file: Hdf5File, array: Hdf5Array, form: PictureForm, longest: int) -> Picture:
    problem = "it has no rows"
    for row in range(min(array.count, _FIRST_ROWS)):
        try:
            if array.is_ragged:
                data = next(iter(array.ragged(row, row + 1, longest)))
            else:
                data = array.rows(row, row + 1).reshape(-1).view(np.uint8)
            picture = form(data.data)
            probe_picture(picture)
            return picture
        except (ImageError, LimitExceeded, StoreCorrupt) as error:
            problem = error.message
    raise ImageError(f"{file.path}: {array.name} has no usable picture among its first rows: {problem}")


def _numbers(key: str, feature: FeatureSettings, members: list[Member]) -> NumberColumn:
    parts: list[NumberPart] = []
    names: list[str] = []
    slices = [_slice(key, source, member) for source, member in zip(feature.sources, members, strict=True)]
    width = sum(last - first for first, last in slices)
    is_named = width <= WIDEST_VALUES  # nobody reads so many names, and they take more memory than the values
    for source, member, (first, last) in zip(feature.sources, members, slices, strict=True):
        labels = [member.base] if member.values == 1 else [f"{member.base}_{i}" for i in range(first, last) if is_named]
        if source.names is not None:
            if len(source.names) != last - first:
                raise ConfigError(
                    f"features.{key}: {len(source.names)} names for {last - first} values of {member.name}"
                )
            labels = list(source.names)
        scale = np.asarray(source.scale) * (math.pi / 180 if source.unit == "deg" else 1.0)
        for given in (scale, np.asarray(source.offset)):
            if given.ndim and given.size != last - first:
                raise ConfigError(f"features.{key}: scale and offset need 1 or {last - first} numbers")
        parts.append(NumberPart(member.name, member.values, first, last, scale, np.asarray(source.offset)))
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


def _slice(key: str, source: Source, member: Member) -> tuple[int, int]:
    if source.field is None or source.field == ".":
        return 0, member.values
    match = _SLICE.match(source.field)
    if match is None:
        raise ConfigError(
            f"features.{key}.field: {source.field!r} is no part of a data set", hint="write it as [0:7] or [3]"
        )
    first = int(match[1] or 0)
    last = (int(match[3]) if match[3] else member.values) if match[2] else first + 1
    if not 0 <= first < last <= member.values:
        raise ConfigError(f"features.{key}.field: {source.field} of {member.values} values of {member.name}")
    return first, last
