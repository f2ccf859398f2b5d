"""Numbers out of messages: a field path of the configuration becomes a vector of float64 per message.

`VectorReader(decoder, "position", names=("left_1", "left_2"), unit="deg")` gives an array of 2 per payload, in radians
and in the order of `names`, whatever the order in the message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.messages.decoder import MessageDecoder, Payload
from penstock._src.recordings.messages.definitions import (
    DURATION_TYPE,
    HEADER_TYPE,
    SEQUENCE,
    TIME_TYPE,
    FieldDef,
    FieldType,
    MessageDef,
)
from penstock._src.recordings.messages.paths import ArraySlice, FieldPath, PathPart, parse_path
from penstock._src.recordings.values.default_fields import ONE_JOINT, PER_JOINT, default_path
from penstock.errors import ConfigError, MessageError

__all__ = ["FieldPath", "VectorReader", "default_path", "parse_path"]

Unit = Literal["deg", "rad"]

MAX_FIELDS = 10_000
# Where messages keep the names of the values beside them.
NAME_FIELDS = ("name", "names", "joint_names", "joint_name")
_TIMES = ("time", "duration", TIME_TYPE, DURATION_TYPE)


class _Leaf(NamedTuple):
    """One number or one array of numbers that a path leads to; `label` names it inside the vector."""

    path: FieldPath
    type: FieldType
    label: str

    @property
    def indices(self) -> range | None:
        """The array positions it takes, when the definition or the path fixes them."""
        selector = self.path.parts[-1].selector
        length = self.type.array
        if length is None or isinstance(selector, int):
            return None
        if length != SEQUENCE:
            return selector.indices(length, str(self.path)) if isinstance(selector, ArraySlice) else range(length)
        return selector.fixed_indices if isinstance(selector, ArraySlice) else None

    @property
    def is_array(self) -> bool:
        return self.type.array is not None and not isinstance(self.path.parts[-1].selector, int)

    @property
    def size(self) -> int | None:
        if not self.is_array:
            return 1
        return None if self.indices is None else len(self.indices)

    def names(self, size: int) -> list[str]:
        if not self.is_array:
            return [self.label]
        selector = self.path.parts[-1].selector
        positions: Sequence[int] | None = self.indices
        if positions is None:
            first = selector.start or 0 if isinstance(selector, ArraySlice) else 0
            step = selector.step if isinstance(selector, ArraySlice) else 1
            positions = range(first, first + size * step, step)
        return [f"{self.label}.{position}" for position in positions]


class VectorReader:
    """Reads the numbers at one path of every message of a topic as a vector of one size.

    A path that ends at a message takes all its numbers in declared order, without headers, times, texts and
    covariances; several paths are separated by commas. The result is `value * scale + offset`, after degrees became
    radians when `unit` is "deg".

    Where the message names its values (the `name` of a JointState), values go by name: `names` picks and orders them,
    and without `names` the first message fixes the order. `by_name=False` turns that off. Where the message does not,
    `names` only labels the dimensions.
    """

    def __init__(
        self,
        decoder: MessageDecoder,
        path: str | FieldPath,
        *,
        names: Sequence[str] | None = None,
        by_name: bool = True,
        scale: float | Sequence[float] = 1.0,
        offset: float | Sequence[float] = 0.0,
        unit: Unit | None = None,
    ) -> None:
        paths = [parse_path(each.strip()) for each in path.split(",")] if isinstance(path, str) else [path]
        self.path = paths[0]
        self._where = f"{decoder.type_name} {path}"
        if unit not in (None, "deg", "rad"):
            raise ConfigError(f"unit {unit!r} of {self._where} is unknown; known are 'deg' and 'rad'")
        self._leaves = _with_distinct_labels([leaf for each in paths for leaf in _leaves(decoder, each)])
        if not self._leaves:
            raise ConfigError(f"{self._where} holds no numbers")
        self._names = _checked_names(names, self._where)
        self._names_path = self._find_names_path(decoder) if by_name else None
        places = [leaf.path for leaf in self._leaves]
        self._joint_path = ONE_JOINT.get(decoder.type_name)
        self._joint: str | None = None  # whose messages these are; the first tells
        if self._joint_path is not None:
            places.append(parse_path(self._joint_path))
        self._read = decoder.reader([*places, self._names_path] if self._names_path else places)
        self._collect = _collector(self._leaves)
        self._seen_names: list[str] | None = None
        self._order: NDArray[np.intp] | None = None
        self._sizes: list[int | None] = [leaf.size for leaf in self._leaves]  # None until the first message tells
        self._size: int | None = None if None in self._sizes else sum(size or 0 for size in self._sizes)
        if self._names is not None:
            if not self._names_path and self._size not in (None, len(self._names)):
                raise ConfigError(f"{self._where} has {self._size} values and {len(self._names)} names are given")
            self._size = len(self._names)
        self._scale = _per_dimension(scale, "scale", self._where) * (math.pi / 180 if unit == "deg" else 1.0)
        self._offset = _per_dimension(offset, "offset", self._where)
        self._is_plain = bool(np.all(self._scale == 1.0) and np.all(self._offset == 0.0))
        self._check_factors()

    @property
    def size(self) -> int | None:
        """How many values a vector has; None until the definition or the first message tells."""
        return self._size

    @property
    def dimension_names(self) -> tuple[str, ...]:
        """A name for every dimension; empty while the size is unknown. Joint names come with the first message."""
        if self._names is not None:
            return self._names
        if self._size is None:
            return ()
        sized = zip(self._leaves, self._sizes, strict=True)
        return tuple(name for leaf, size in sized for name in leaf.names(size or 0))

    @property
    def recorded_names(self) -> tuple[str, ...] | None:
        """All names that the last message gave its values; None where messages name nothing."""
        return None if self._seen_names is None else tuple(self._seen_names)

    def __call__(self, payload: Payload) -> NDArray[np.float64]:
        """The vector of one message, in memory of its own."""
        values = self._read(payload)
        vector = self._collect(values)
        if self._joint_path is not None:
            self._check_joint(values[len(self._leaves)])
        if self._names_path is not None:
            vector = self._by_name(vector, values[-1])
        if vector.shape[0] != self._size:
            self._check_size(vector.shape[0], values)
        return vector if self._is_plain else vector * self._scale + self._offset

    def _check_joint(self, joint: str) -> None:
        """All messages are of one joint: a value of another one is not the next value of this one."""
        self._joint = self._joint or joint
        if joint != self._joint:
            raise MessageError(f"{self._where} is of {joint!r} in this message, and of {self._joint!r} in the first")

    def _check_size(self, size: int, values: Sequence[Any]) -> None:
        if self._size is None:
            self._size = size
            leaves = zip(self._leaves, values, strict=False)
            self._sizes = [len(value) if leaf.is_array else 1 for leaf, value in leaves]
            self._check_factors()
        else:
            raise MessageError(
                f"{self._where} has {size} values in this message, expected are {self._size}",
                hint="take a fixed part of it with a slice, or name the values with `names`",
            )

    def _check_factors(self) -> None:
        for what, factor in (("scale", self._scale), ("offset", self._offset)):
            if self._size is not None and factor.ndim and factor.shape[0] != self._size:
                raise ConfigError(f"{self._where} has {self._size} values, but {what} has {factor.shape[0]}")

    def _by_name(self, vector: NDArray[np.float64], names: list[str]) -> NDArray[np.float64]:
        if names != self._seen_names:
            if self._names is None and (len(names) != vector.shape[0] or len(set(names)) != len(names) or not names):
                # The first message does not name its values: they go by position, in all messages.
                self._names_path = None
                return vector
            self._order = self._order_of(names)
            self._seen_names = names
        if len(names) != vector.shape[0]:
            raise MessageError(
                f"{self._where} has {vector.shape[0]} values in this message, "
                f"but {self._names_path} has {len(names)} names"
            )
        return vector if self._order is None else vector[self._order]

    def _order_of(self, names: list[str]) -> NDArray[np.intp] | None:
        """Where each wanted name lies in the message; None when they lie in order already."""
        if self._names is None:
            self._names = tuple(names)
            return None
        places = {name: place for place, name in enumerate(names)}
        absent = [name for name in self._names if name not in places]
        if absent:
            raise MessageError(
                f"{self._where}: {len(absent)} of {len(self._names)} names are missing in {self._names_path} of this "
                f"message: {', '.join(absent[:5])}",
                hint=f"its {len(names)} names are {', '.join(names[:12])}{' …' if len(names) > 12 else ''}",
            )
        if len(places) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            if twice in self._names:
                raise MessageError(f"{self._where}: {twice!r} is there twice in {self._names_path} of this message")
        order = [places[name] for name in self._names]
        return None if order == list(range(len(names))) else np.array(order, dtype=np.intp)

    def _find_names_path(self, decoder: MessageDecoder) -> FieldPath | None:
        """Where the names of the values lie, with the same slice that the values have."""
        leaf = self._leaves[0]
        if decoder.type_name in PER_JOINT:
            return self._names_of_joints(decoder)
        if len(self._leaves) != 1 or not leaf.is_array or leaf.path != self.path:
            return None
        for depth in range(len(self.path.parts) - 1, -1, -1):
            parents = self.path.parts[:depth]
            owner = decoder.field_at(FieldPath(parents)) if parents else None
            message = decoder.message if owner is None else decoder.definition(owner.type.name)
            for field in message.fields:
                if field.name in NAME_FIELDS and field.type.kind == "string" and field.type.array is not None:
                    return _with_selector(FieldPath((*parents, PathPart(field.name))), leaf)
        return None

    def _names_of_joints(self, decoder: MessageDecoder) -> FieldPath | None:
        """Where each value lies in a message of its own, with its name beside it: `joints[0:7].position`."""
        *owner, last = self.path.parts
        if not owner or not isinstance(owner[-1].selector, ArraySlice) or last.selector is not None:
            return None
        array = decoder.field_at(FieldPath(tuple(owner)))
        message = None if array is None else decoder.definition(array.type.name)
        for field in message.fields if message else ():
            if field.name in NAME_FIELDS and field.type.kind == "string" and field.type.array is None:
                return FieldPath((*owner, PathPart(field.name)))
        return None


def _with_selector(path: FieldPath, leaf: _Leaf) -> FieldPath:
    selector = leaf.path.parts[-1].selector if leaf.is_array else None
    return FieldPath((*path.parts[:-1], PathPart(path.parts[-1].name, selector)))


def _checked_names(names: Sequence[str] | None, where: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"names of {where} must be a list of texts, got {names!r}")
    if len(set(names)) != len(names):
        raise ConfigError(f"names of {where} repeat {next(name for name in names if names.count(name) > 1)!r}")
    return tuple(names)


def _per_dimension(value: float | Sequence[float], what: str, where: str) -> NDArray[np.float64]:
    try:
        factor = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{what} of {where} must be a number or a list of numbers, got {value!r}") from None
    if factor.ndim > 1 or not np.all(np.isfinite(factor)):
        raise ConfigError(f"{what} of {where} must be a finite number or a list of them, got {value!r}")
    return factor


def _collector(leaves: Sequence[_Leaf]) -> Callable[[tuple[Any, ...]], NDArray[np.float64]]:
    """How to make one vector of what the reader gives."""
    count = len(leaves)
    if count == 1 and leaves[0].is_array:
        return lambda values: np.array(values[0], dtype=np.float64)
    if not any(leaf.is_array for leaf in leaves):
        return lambda values: np.array(values[:count], dtype=np.float64)
    return lambda values: np.concatenate([np.array(value, dtype=np.float64, ndmin=1) for value in values[:count]])


def _leaves(decoder: MessageDecoder, path: FieldPath) -> Iterator[_Leaf]:
    total = 0
    singles = _single_paths(decoder, path)
    for single in singles:
        field = decoder.field_at(single)
        label = single.parts[-1].name if single.parts else ""
        if len(singles) > 1:  # the same field of several messages: their numbers distinguish them
            label = ".".join(str(part).replace("[", ".").rstrip("]") for part in single.parts)
        for leaf in _leaves_of(decoder, field, single, label, top=True, numbered=len(singles) > 1):
            total += 1
            if total > MAX_FIELDS:
                raise ConfigError(
                    f"{decoder.type_name} {path} has more than {MAX_FIELDS:,} fields with numbers",
                    hint="name one of them, or a part of an array such as ranges[0:360:4]",
                )
            yield leaf


def _with_distinct_labels(leaves: list[_Leaf]) -> list[_Leaf]:
    """Leaves of several paths may end in the same name: then all of the path is the name."""
    labels = [leaf.label for leaf in leaves]
    return [leaf._replace(label=str(leaf.path)) if labels.count(leaf.label) > 1 else leaf for leaf in leaves]


def _single_paths(decoder: MessageDecoder, path: FieldPath) -> list[FieldPath]:
    """The path with every slice of an array of messages written out as indices."""
    paths: list[tuple[PathPart, ...]] = [()]
    for depth, part in enumerate(path.parts, 1):
        field = decoder.field_at(FieldPath(path.parts[:depth]))
        choices: list[PathPart] = [part]
        if isinstance(part.selector, ArraySlice) and field is not None and field.type.kind == "message":
            indices = part.selector.fixed_indices
            if indices is None or len(indices) * len(paths) > MAX_FIELDS:
                raise ConfigError(
                    f"field path '{path}': the slice of {part.name}, an array of messages, needs a start and an end",
                    hint=f"write it as {part.name}[0:2]",
                )
            choices = [PathPart(part.name, index) for index in indices]
        paths = [(*parts, choice) for parts in paths for choice in choices]
    return [FieldPath(parts) for parts in paths]


def _leaves_of(
    decoder: MessageDecoder,
    field: FieldDef | None,
    path: FieldPath,
    label: str,
    *,
    top: bool = False,
    numbered: bool = False,
) -> Iterator[_Leaf]:
    """All numbers under a path; at its end (`top`) what holds none is an error, deeper it is left out."""
    kind = FieldType("message", decoder.type_name) if field is None else field.type
    selector = path.parts[-1].selector if path.parts else None
    one = kind.array is None or isinstance(selector, int)
    if kind.kind == "primitive" and kind.name not in _TIMES:
        yield _Leaf(path, kind, label)
    elif kind.kind != "message" or kind.name in _TIMES:
        if top:
            raise ConfigError(f"field path '{path}' of {decoder.type_name} leads to {kind}, which holds no numbers")
    elif not one:
        if kind.array == SEQUENCE:
            raise ConfigError(
                f"field path '{path}' of {decoder.type_name} leads to any number of messages ({kind})",
                hint=f"say which, as in {path}[0]",
            )
        for index in range(min(kind.array or 0, MAX_FIELDS + 1)):
            part = PathPart(path.parts[-1].name, index)
            yield from _leaves_of(decoder, field, FieldPath((*path.parts[:-1], part)), f"{label}.{index}")
    else:
        message = decoder.definition(kind.name)
        for inner in message.fields:
            if not _is_left_out(message, inner):
                inner_label = inner.name if top and selector is None and not numbered else f"{label}.{inner.name}"
                if label.rsplit(".", 1)[-1] == inner.name and not top:
                    inner_label = label  # pose.pose.position, as messages with covariances have it
                yield from _leaves_of(decoder, inner, FieldPath((*path.parts, PathPart(inner.name))), inner_label)


def _is_left_out(message: MessageDef, field: FieldDef) -> bool:
    """Headers are no measurement, and a covariance beside its value is not what a person means by that value."""
    if field.type.name == HEADER_TYPE:
        return True
    last = message.name.rsplit("/", 1)[-1]
    return (last.endswith("WithCovariance") and field.name == "covariance") or (
        message.name.startswith("sensor_msgs/") and field.name.endswith("_covariance")
    )
