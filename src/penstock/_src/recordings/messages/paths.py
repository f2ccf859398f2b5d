"""Field paths as a configuration writes them: `position`, `joint_q[12:26]`, `points[0].positions`; `.` is all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import ConfigError, MessageError

MAX_PATH_CHARACTERS = 4096

_PART = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:\[(?P<inside>[^\[\]]*)\])?", re.ASCII)
_SPAN = re.compile(r"\s*(-?[0-9]{1,9})?\s*:\s*(-?[0-9]{1,9})?\s*(?::\s*([0-9]{1,9})?\s*)?", re.ASCII)
_INDEX = re.compile(r"\s*(-?[0-9]{1,9})\s*", re.ASCII)


class ArraySlice(NamedTuple):
    """A slice of an array; unlike Python's own, an end beyond the array is an error and not a shorter result."""

    start: int | None = None
    stop: int | None = None
    step: int = 1

    def __str__(self) -> str:
        text = f"{'' if self.start is None else self.start}:{'' if self.stop is None else self.stop}"
        return text if self.step == 1 else f"{text}:{self.step}"

    def indices(self, length: int, where: str) -> range:
        """The positions it takes from an array of that length; MessageError when the array is shorter than it asks."""
        for edge in (self.start, self.stop):
            if edge is not None and not -length <= edge <= length:
                raise MessageError(f"{where}[{self}] asks for more than the {length} values that the message holds")
        return range(*slice(self.start, self.stop, self.step).indices(length))

    @property
    def fixed_indices(self) -> range | None:
        """The positions, when they do not depend on the array's length."""
        start = self.start or 0
        if start < 0 or self.stop is None or self.stop < 0:
            return None
        return range(start, self.stop, self.step)


Selector = int | ArraySlice


class PathPart(NamedTuple):
    """One field name with what is taken of it."""

    name: str
    selector: Selector | None = None

    def __str__(self) -> str:
        return self.name if self.selector is None else f"{self.name}[{self.selector}]"


class FieldPath(NamedTuple):
    """Where a value lies in a message; no parts means the whole message."""

    parts: tuple[PathPart, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.parts)) or "."


def parse_path(text: str) -> FieldPath:
    """Read a field path.

    >>> parse_path("joint_data.joint_q[12:26]").parts[1]
    PathPart(name='joint_q', selector=Span(start=12, stop=26, step=1))
    """
    if text in ("", "."):
        return FieldPath(())
    if len(text) > MAX_PATH_CHARACTERS:
        raise ConfigError(f"a field path of {len(text):,} characters is over the limit of {MAX_PATH_CHARACTERS:,}")
    parts: list[PathPart] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise _bad_path(text, position)
        parts.append(PathPart(match["name"], _selector(text, match)))
        position = match.end()
        if position == len(text):
            return FieldPath(tuple(parts))
        if text[position] != ".":
            raise _bad_path(text, position)
        position += 1


def _selector(text: str, match: re.Match[str]) -> Selector | None:
    inside = match["inside"]
    if inside is None:
        return None
    if index := _INDEX.fullmatch(inside):
        return int(index[1])
    span = _SPAN.fullmatch(inside)
    if span is None or (span[3] and int(span[3]) == 0):
        raise _bad_path(text, match.start("inside"))
    start, stop, step = (int(group) if group else None for group in span.groups())
    return ArraySlice(start, stop, step or 1)


def _bad_path(text: str, position: int) -> ConfigError:
    return ConfigError(
        f"field path {text[:80]!r} cannot be read at character {position + 1}",
        hint="write it as 'position', 'joint_data.joint_q[12:26]' or 'points[0].positions'",
    )


def select(value: Any, selector: Selector, where: str) -> Any:
    """What a selector takes of an array value, or MessageError with both numbers."""
    length = len(value)
    if isinstance(selector, ArraySlice):
        indices = selector.indices(length, where)
        return value[indices.start : indices.stop : indices.step] if len(indices) else value[:0]
    if not -length <= selector < length:
        raise MessageError(f"{where}[{selector}] does not exist: the message holds {length} values")
    item = value[selector]
    return item.item() if hasattr(item, "item") else item


def follow(value: Any, parts: Sequence[PathPart], where: str) -> Any:
    """Walk on through dicts and lists that were decoded."""
    for number, part in enumerate(parts, 1):
        value = value[part.name]
        if part.selector is not None:
            path = ".".join((where, *map(str, parts[: number - 1]), part.name))
            value = select(value, part.selector, path)
            if isinstance(value, list) and number < len(parts):
                return [follow(item, parts[number:], f"{path}[{part.selector}]") for item in value]
    return value
