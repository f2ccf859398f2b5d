"""From the definition text that a recording carries to a decoder; one broken text never hurts another topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock._src.recordings.messages.decoder import MessageDecoder
from penstock._src.recordings.messages.definitions import MessageDef, normalise_type, parse_msg
from penstock.errors import SchemaError

ENCODINGS = ("ros1", "cdr", "protobuf", "json")
# A topic has one or two descriptions; a file that has thousands of one topic is not worth comparing them all.
_MOST_COMPARED = 16
# The only ROS type whose definition is rightly the empty text.
_EMPTY_TYPE = "std_msgs/msg/Empty"


class Schema(NamedTuple):
    """What a recording says of one type; `format`: "ros1msg", "ros2msg", "ros2idl", "protobuf", "jsonschema", "" or
    "none" (nothing), or a foreign one. The descriptors of protobuf are bytes: `text` has one character for each.
    """

    type: str
    format: str
    text: str

    def __repr__(self) -> str:
        return f"Schema({self.type!r}, {self.format!r}, {len(self.text)} characters)"


def type_name(name: str) -> str:
    """The three-part spelling of a type name; a name that is no ROS type stays as it is."""
    try:
        return normalise_type(name)
    except SchemaError:
        return name


def several_types(counted: Iterable[tuple[tuple[str, str], int]]) -> list[str]:
    """A note for each topic that carries messages of several types; `counted`: messages by name and type."""
    types: dict[str, list[tuple[int, str]]] = {}
    for (name, kind), count in counted:
        if count:
            types.setdefault(name, []).append((count, kind))
    return [
        f"{name} carries messages of several types: "
        + ", ".join(f"{count:,} {kind}" for count, kind in sorted(schemas, key=lambda each: -each[0]))
        + f"; {name} names those of the first, {name}:TYPE those of another"
        for name, schemas in sorted(types.items())
        if len(schemas) > 1
    ]


class TopicTable:
    """Numbers topics as they are met: channels of one name, encoding and definition (several publishers) are one.

    Publishers may describe one type in different words: comments and spaces do not make two types.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, Schema], int] = {}
        self._described: dict[tuple[str, str, str], list[Schema]] = {}  # by topic, type and format

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: str, encoding: str, schema: Schema) -> int:
        """The number of a topic."""
        return self._numbers.setdefault((name, encoding, self._first(name, schema)), len(self._numbers))

    def _first(self, topic: str, schema: Schema) -> Schema:
        """The schema that came first of those of the same topic and type with the same fields."""
        known = self._described.setdefault((topic, schema.type, schema.format), [])
        for other in known:
            if other.text == schema.text or _have_same_fields(other, schema):
                return other
        if len(known) < _MOST_COMPARED:
            known.append(schema)
        return schema

    def in_order(self) -> list[tuple[int, tuple[str, str, Schema]]]:
        """(number, topic) by name: the same recording in another container gets the same topic ids."""

        def key(entry: tuple[int, tuple[str, str, Schema]]) -> tuple[str, ...]:
            name, encoding, schema = entry[1]
            return name, schema.type, schema.format, schema.text, encoding

        return sorted(((number, topic) for topic, number in self._numbers.items()), key=key)


def _have_same_fields(one: Schema, other: Schema) -> bool:
    try:
        return _definitions(one) == _definitions(other)
    except SchemaError:
        return False


def _definitions(schema: Schema) -> Mapping[str, MessageDef]:
    if schema.format == "ros2idl":
        from penstock._src.recordings.messages.idl import parse_idl

        return parse_idl(schema.text, schema.type)
    if schema.format in ("ros1msg", "ros2msg") and (schema.text.strip() or schema.type == _EMPTY_TYPE):
        return parse_msg(schema.text, schema.type)
    if schema.format == "ros1msg":
        # Never replaced by a standard text: ROS 1 bags always carry one, so an empty one means the types may differ.
        raise SchemaError(f"the recording holds an empty definition of {schema.type}")
    if schema.format in ("ros2msg", ""):
        from penstock._src.recordings.messages.standard_types import standard_definitions

        known = standard_definitions("ros2")
        if schema.type in known:
            return known
        raise SchemaError(f"the recording holds no definition of {schema.type}, and it is not a standard type")
    raise SchemaError(f"{schema.type} is described in {schema.format!r}, which penstock does not read")


class SchemaStore:
    """The decoders of one recording, once per schema and encoding: another recording may define a name differently."""

    def __init__(self) -> None:
        self._made: dict[tuple[Schema, str], MessageDecoder | SchemaError] = {}

    def decoder(self, schema: Schema, encoding: str) -> MessageDecoder:
        """The decoder, or the SchemaError that says why there is none."""
        key = (schema, encoding)
        made = self._made.get(key)
        if made is None:
            try:
                made = self._make(schema, encoding)
            except SchemaError as error:
                made = error
            self._made[key] = made
        if isinstance(made, SchemaError):
            raise SchemaError(made.message, hint=made.hint)
        return made

    def problem(self, schema: Schema, encoding: str) -> str | None:
        """Why payloads of this schema cannot be decoded, None when they can."""
        try:
            self.decoder(schema, encoding)
        except SchemaError as error:
            return error.message
        return None

    @staticmethod
    def _make(schema: Schema, encoding: str) -> MessageDecoder:
        if encoding in ("ros1", "cdr"):
            from penstock._src.recordings.messages.decode import RosDecoder

            return RosDecoder(_definitions(schema), schema.type, encoding)
        if encoding == "protobuf" and schema.format == "protobuf":
            from penstock._src.recordings.messages.protobuf import ProtobufDecoder

            return ProtobufDecoder(schema.text.encode("latin-1"), schema.type)
        if encoding == "json" and schema.format in ("jsonschema", "none", ""):
            from penstock._src.recordings.messages.json_messages import JsonDecoder

            return JsonDecoder(schema.type)  # a topic's own decoder knows its first messages, and so its fields
        if encoding in ENCODINGS:
            raise SchemaError(f"{encoding} messages are described in {schema.format!r}, which penstock does not read")
        raise SchemaError(f"messages are encoded as {encoding!r}; penstock decodes {', '.join(ENCODINGS)}")
