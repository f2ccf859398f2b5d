"""The values of a profile's file: made plain where it is written, taken as what they have to be where it is read."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, NamedTuple, TypeVar

from penstock.errors import UsageError

_LARGEST = 1 << 72  # more than words of 64 bits of all threads add up to
ANY, COUNT = (-_LARGEST, _LARGEST), (0, _LARGEST)
_KINDS: dict[str, Any] = {"a table": Mapping, "a list": list, "a text": str, "true or false": bool}
_DEEPEST = 32

_T = TypeVar("_T")


def plain_value(value: Any, depth: int = 0) -> Any:
    """A value that JSON has and a reader can reckon with: arrays and tensors become numbers and lists, a number that is
    not finite nothing, and whatever else there is a text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        number = int(value) if isinstance(value, int) else float(value)
        return number if -sys.float_info.max <= number <= sys.float_info.max else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # a path may hold half a letter
    if depth == _DEEPEST:
        return reprlib.repr(value)
    if isinstance(value, Mapping):
        return {plain_value(str(name)): plain_value(each, depth + 1) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_value(each, depth + 1) for each in value]
    try:
        listed = value.tolist()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # no array
        return plain_value(str(value))
    return plain_value(listed, depth + 1)


class Part(NamedTuple):
    """A value of a file and its place there; it is taken as what it has to be, or refused by its place."""

    value: Any
    place: str

    def be(self, what: str, it_is: bool | None = None) -> Any:
        """The value, if it is what is needed."""
        if it_is is False or (it_is is None and not isinstance(self.value, _KINDS[what])):
            raise UsageError(f"the profile is damaged: {self.place}: needs {what}, not {reprlib.repr(self.value)}")
        return self.value

    def part(self, name: str) -> Part:
        place = f"{self.place}.{name}" if self.place else name
        if name not in self.be("a table"):
            raise UsageError(f"the profile is damaged: {place} is missing")
        return Part(self.value[name], place)

    def items(self) -> list[Part]:
        return [Part(each, f"{self.place}[{number}]") for number, each in enumerate(self.be("a list"))]

    def named(self) -> list[tuple[str, Part]]:
        found = self.be("a table").items()
        return [(str(name), Part(each, f"{self.place}[{reprlib.repr(name)}]")) for name, each in found]

    def whole(self, among: tuple[int, int] = COUNT) -> int:
        asked = f"a whole number from {among[0]} to {among[1]}".replace(str(_LARGEST), "2^72")
        return int(self.be(asked, type(self.value) is int and among[0] <= self.value <= among[1]))

    def real(self, most: float = sys.float_info.max) -> Any:
        return self.be("a number", type(self.value) in (int, float) and -most <= self.value <= most)

    def rows(self, *among: tuple[int, int]) -> list[list[int]]:
        """Rows of whole numbers, each within the range of its column."""
        fits = all(type(row) is list and len(row) == len(among) for row in self.be("a list"))
        rows: list[list[int]] = self.be(f"rows of {len(among)} whole numbers", fits)
        for number, column in enumerate(zip(*rows, strict=True)):
            least, most = among[number]
            if set(map(type, column)) != {int} or min(column) < least or max(column) > most:
                for row, value in enumerate(column):
                    Part(value, f"{self.place}[{row}][{number}]").whole((least, most))
        return rows

    def facts(self) -> dict[str, Any]:
        """A table of anything, whose numbers can be reckoned with."""
        waiting = [each for _, each in self.named()]
        for part in waiting:  # it grows
            if isinstance(part.value, Mapping):
                waiting += [each for _, each in part.named()]
            elif isinstance(part.value, list):
                waiting += part.items()
            elif type(part.value) in (int, float):
                part.real()
        return dict(self.value)

    def made(self, kind: type[_T], signed: tuple[str, ...] = (), **known: Any) -> _T:
        """A dataclass of the fields that it has; whole numbers are 0 or more, but for those whose names end so."""
        its = fields(kind)  # type: ignore[arg-type]
        for each in its:
            name = json_name(each)
            has_default = each.default is not MISSING or each.default_factory is not MISSING
            if each.name in known or (name not in self.be("a table") and has_default):
                continue
            known[each.name] = self.part(name)._typed(str(each.type), ANY if each.name.endswith(signed) else COUNT)
        return kind(**{each.name: known[each.name] for each in its if each.name in known})

    def _typed(self, annotation: str, among: tuple[int, int]) -> Any:
        """The value, as the annotation of a field says."""
        if annotation.endswith(" | None"):
            return None if self.value is None else self._typed(annotation.removesuffix(" | None"), among)
        if annotation == "int":
            return self.whole(among)
        if annotation == "float":
            return self.real()
        if annotation == "tuple[int, int]":
            self.be("two whole numbers", isinstance(self.value, list | tuple) and len(self.value) == 2)
            return tuple(each.whole() for each in Part(list(self.value), self.place).items())
        if annotation == "Mapping[str, Any]":
            return self.facts()
        return self.be({"str": "a text", "bool": "true or false"}[annotation])


def json_name(of: Field[Any]) -> str:
    """The name of a dataclass's field in the file."""
    return str(of.metadata.get("json", of.name))
