"""What reads the messages of one type: values by field path and header stamps, whatever the encoding.

decode.py reads ROS 1 and CDR, protobuf.py and json_messages.py the encodings whose fields come in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from penstock._src.recordings.messages.definitions import FieldDef, FieldType, MessageDef, definition_of
from penstock._src.recordings.messages.paths import FieldPath, PathPart, follow, parse_path
from penstock._src.recordings.messages.steps import NS_PER_S
from penstock._src.system.units import name_hint
from penstock.errors import ConfigError, MessageError, SchemaError

Payload = memoryview | bytes
Reader = Callable[[Payload], tuple[Any, ...]]
Tree = dict[str, "Tree | None"]
"""The fields that are wanted of a message, by name; None: all of it."""

_MAX_NS = (1 << 63) - 1
# Where messages of these encodings keep their time: foxglove's first, then those modelled on ROS.
_STAMPS = ("timestamp", "header.stamp", "header.timestamp")
_SECONDS = frozenset(("sec", "secs", "seconds"))
_NANOSECONDS = frozenset(("nsec", "nsecs", "nanos", "nanosec", "nanoseconds"))


class MessageDecoder(ABC):
    """Reads the messages of one type; `definitions` has the type and all types that it is made of."""

    type_name: str
    definitions: Mapping[str, MessageDef]
    message: MessageDef
    has_header: bool
    """Whether the message carries the time of its measurement."""
    stamp_is_first: bool
    """Whether the first bytes of a message nearly always tell its header time."""

    @abstractmethod
    def header_stamp_ns(self, payload: Payload) -> int:
        """The header time of a message."""

    @abstractmethod
    def stamp_of_start(self, start: Payload) -> int | None:
        """The header time from the first bytes of a message; None where the whole message is needed."""

    @abstractmethod
    def reader(self, paths: Sequence[str | FieldPath]) -> Reader:
        """A function from a payload to the values at the paths, in their order; '.' is the whole message.

        Arrays of numbers are views into the payload: copy what must outlive it.
        """

    @abstractmethod
    def decode(self, payload: Payload) -> dict[str, Any]:
        """The whole message as a dict."""

    def is_time(self, kind: FieldType) -> bool:
        """Whether values of this type are nanoseconds."""
        return kind.name in ("time", "duration")

    def definition(self, type_name: str) -> MessageDef:
        """The definition of a type that this message is made of."""
        return definition_of(type_name, self.definitions)

    def field_at(self, path: FieldPath) -> FieldDef | None:
        """The field that a path ends at, None for the whole message; ConfigError for a path that does not exist."""
        message = self.message
        field: FieldDef | None = None
        for number, part in enumerate(path.parts):
            if field is not None:
                last = path.parts[number - 1]
                if field.type.kind != "message" or self.is_time(field.type):
                    kind = "a time in nanoseconds" if self.is_time(field.type) else str(field.type)
                    raise ConfigError(f"field path '{path}': {field.name} is {kind} and has no field {part.name!r}")
                if field.type.array is not None and last.selector is None:
                    raise ConfigError(
                        f"field path '{path}': {field.name} is an array of messages",
                        hint=f"say which one, as in {field.name}[0].{part.name}",
                    )
                message = self.definition(field.type.name)
            field = _field_of(message, part, path)
        return field


def _field_of(message: MessageDef, part: PathPart, path: FieldPath) -> FieldDef:
    field = message.field(part.name)
    if field is None:
        names = [other.name for other in message.fields]
        hint = name_hint(part.name, names, "its fields:")
        raise ConfigError(f"field path '{path}': {message.name} has no field {part.name!r}", hint=hint)
    if part.selector is not None and field.type.array is None:
        raise ConfigError(f"field path '{path}': {field.name} is {field.type} and no array, but has [{part.selector}]")
    return field


class Elements(Sequence[Any]):
    """The messages of an array, each decoded when it is asked for."""

    def __init__(self, count: int, decode: Callable[[int], Any]) -> None:
        self._count = count
        self._decode = decode
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(index)
        if place not in self._held:
            self._held[place] = self._decode(place)
        return self._held[place]

    def __iter__(self) -> Iterator[Any]:
        return map(self._decode, range(self._count))


class TreeDecoder(MessageDecoder):
    """A decoder of messages whose fields come in any order: the wanted ones become nested dicts, paths follow them."""

    stamp_is_first = False

    def __init__(self, definitions: Mapping[str, MessageDef], type_name: str) -> None:
        self.type_name = type_name
        self.definitions = definitions
        self.message = self.definition(type_name)
        self._whole: Callable[[memoryview], dict[str, Any]] | None = None
        self._stamp = self._find_stamp()
        self.has_header = self._stamp is not None
        self._read_stamp = None if self._stamp is None else self.reader([self._stamp])

    @abstractmethod
    def _tree_reader(self, tree: Tree | None) -> Callable[[memoryview], dict[str, Any]]:
        """A function from a payload to its wanted fields; arrays of messages are `Elements` where `tree` names them."""

    def header_stamp_ns(self, payload: Payload) -> int:
        if self._read_stamp is None:
            raise SchemaError(
                f"{self.type_name} has none of {', '.join(_STAMPS)} and so no header time",
                hint="use the receive times of this topic (time: log)",
            )
        return int(self._read_stamp(payload)[0])

    def stamp_of_start(self, start: Payload) -> int | None:
        return None

    def reader(self, paths: Sequence[str | FieldPath]) -> Reader:
        parsed = [parse_path(path) if isinstance(path, str) else path for path in paths]
        for path in parsed:
            self.field_at(path)
        read_tree = self._tree_reader(_tree([path.parts for path in parsed if path.parts]))
        type_name = self.type_name

        def value_at(root: dict[str, Any], path: FieldPath) -> Any:
            try:
                value = follow(root, path.parts, type_name)
            except (KeyError, TypeError):  # JSON that another path takes as a whole may lack it
                raise MessageError(f"{type_name}.{path} is missing in this message") from None
            return list(value) if isinstance(value, Elements) else value

        def read(payload: Payload) -> tuple[Any, ...]:
            root = read_tree(payload if type(payload) is memoryview else memoryview(payload))
            return tuple(value_at(root, path) if path.parts else self.decode(payload) for path in parsed)

        return read

    def decode(self, payload: Payload) -> dict[str, Any]:
        if self._whole is None:
            self._whole = self._tree_reader(None)
        return self._whole(memoryview(payload))

    def _find_stamp(self) -> FieldPath | None:
        for text in _STAMPS:
            path = parse_path(text)
            try:
                field = self.field_at(path)
            except ConfigError:
                continue
            if field is not None and field.type.array is None and field.type.name == "time":
                return path
        return None


def _tree(paths: Sequence[Sequence[PathPart]]) -> Tree:
    groups: dict[str, list[Sequence[PathPart]]] = {}
    for parts in paths:
        groups.setdefault(parts[0].name, []).append(parts[1:])
    # A field that one path takes as a whole is read as a whole: the other paths follow into it.
    return {name: _tree(rest) if all(rest) else None for name, rest in groups.items()}


def time_kind(type_name: str, fields: Sequence[tuple[str, bool]]) -> str | None:
    """ "time" or "duration" where a type is just seconds and nanoseconds; `fields` are (name, whether an integer)."""
    names = {name for name, is_integer in fields if is_integer}
    if len(fields) != 2 or not names & _SECONDS or not names & _NANOSECONDS:
        return None
    return "duration" if "duration" in type_name.lower() else "time"


def time_ns(parts: Mapping[str, int], where: str) -> int:
    """Seconds and nanoseconds as one number; MessageError where one is missing, or 64 bits do not hold it."""
    seconds = next((value for name, value in parts.items() if name in _SECONDS), None)
    nanoseconds = next((value for name, value in parts.items() if name in _NANOSECONDS), None)
    if seconds is None or nanoseconds is None:
        raise MessageError(f"{where}: seconds or nanoseconds are missing in this message")
    total_ns = seconds * NS_PER_S + nanoseconds
    if not -_MAX_NS <= total_ns <= _MAX_NS:
        raise MessageError(f"{where}: {seconds} s and {nanoseconds} ns do not fit into a 64-bit time")
    return total_ns
