"""What reads the messages of one type: values by field path and header stamps, whatever the encoding.

decode.py reads ROS 1 and CDR, protobuf.py and json_messages.py what a library parses as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock._src.recordings.messages.definitions import FieldDef, FieldType, MessageDef, definition_of
from penstock._src.recordings.messages.paths import ArraySlice, FieldPath, PathPart, parse_path, select
from penstock._src.recordings.messages.steps import NS_PER_S
from penstock._src.system.units import name_hint
from penstock.errors import ConfigError, MessageError, SchemaError

Payload = memoryview | bytes
Reader = Callable[[Payload], tuple[Any, ...]]

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
    """Whether the first bytes of a message tell its header time."""

    @abstractmethod
    def header_stamp_ns(self, payload: Payload) -> int:
        """The header time of a message."""

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


class ObjectDecoder(MessageDecoder):
    """A decoder of messages that are parsed as a whole; paths are followed in what was parsed."""

    stamp_is_first = False

    def __init__(self, definitions: Mapping[str, MessageDef], type_name: str) -> None:
        self.type_name = type_name
        self.definitions = definitions
        self.message = self.definition(type_name)
        stamp = self._find_stamp()
        self.has_header = stamp is not None
        self._read_stamp = None if stamp is None else self.reader([stamp])

    @abstractmethod
    def _parse(self, payload: Payload) -> Any:
        """The message as its library gives it."""

    @abstractmethod
    def _member(self, value: Any, field: FieldDef, where: str) -> Any:
        """A field of a parsed message."""

    @abstractmethod
    def _plain(self, value: Any, kind: FieldType, where: str) -> Any:
        """A parsed value as readers give it: a number, a text, an array, a dict."""

    def header_stamp_ns(self, payload: Payload) -> int:
        if self._read_stamp is None:
            raise SchemaError(
                f"{self.type_name} has none of {', '.join(_STAMPS)} and so no header time",
                hint="use the receive times of this topic (time: log)",
            )
        return int(self._read_stamp(payload)[0])

    def reader(self, paths: Sequence[str | FieldPath]) -> Reader:
        parsed = [parse_path(path) if isinstance(path, str) else path for path in paths]
        for path in parsed:
            self.field_at(path)
        root_type = FieldType("message", self.type_name)

        def read(payload: Payload) -> tuple[Any, ...]:
            root = self._parse(payload)
            return tuple(self._at(root, root_type, path.parts, self.type_name) for path in parsed)

        return read

    def decode(self, payload: Payload) -> dict[str, Any]:
        message: dict[str, Any] = self._plain(
            self._parse(payload), FieldType("message", self.type_name), self.type_name
        )
        return message

    def _at(self, value: Any, kind: FieldType, parts: Sequence[PathPart], where: str) -> Any:
        """What a path leads to from a parsed value."""
        for number, part in enumerate(parts, 1):
            field = self.definition(kind.name).field(part.name)
            assert field is not None  # `field_at` has checked the path
            where, kind = f"{where}.{part.name}", field.type
            value = self._member(value, field, where)
            if part.selector is None:
                continue
            if kind.kind != "message":
                return select(self._plain(value, kind, where), part.selector, where)
            one = FieldType("message", kind.name)
            value = select(self._list(value, where), part.selector, where)
            if isinstance(part.selector, ArraySlice):
                return [self._at(each, one, parts[number:], where) for each in value]
            kind = one
        return self._plain(value, kind, where)

    def _list(self, value: Any, where: str) -> Any:
        """A parsed array of messages."""
        return value

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
