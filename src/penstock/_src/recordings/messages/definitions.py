"""Message definitions: the text that travels inside a recording becomes frozen values.

Nothing here runs what it reads: the text is matched line by line within limits, and a definition that is broken,
too large, too deep or endless is a SchemaError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from penstock.errors import SchemaError

MAX_TEXT_BYTES = 1 << 20
MAX_FIELDS = 10_000
MAX_DEPTH = 32
MAX_EXPANDED_FIELDS = 20_000
MAX_NAME_CHARACTERS = 255
MAX_ARRAY_ITEMS = (1 << 32) - 1
SEQUENCE = -1

HEADER_TYPE = "std_msgs/msg/Header"
TIME_TYPE = "builtin_interfaces/msg/Time"
DURATION_TYPE = "builtin_interfaces/msg/Duration"
EVENT_SUFFIX = "_Event"
EVENT_INFO_TYPE = "service_msgs/msg/ServiceEventInfo"
# Structures without members do not exist in IDL; ROS 2 gives such messages this one byte.
EMPTY_MEMBER = "structure_needs_at_least_one_member"

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "byte", "char")
PRIMITIVES = frozenset(("bool", "float32", "float64", "time", "duration", *INTEGERS))

Kind = Literal["primitive", "string", "wstring", "message"]


class FieldType(NamedTuple):
    """The type of one field; `array` is None (one value), a fixed length, or SEQUENCE (the message says how many)."""

    kind: Kind
    name: str
    array: int | None = None
    bound: int | None = None

    def __str__(self) -> str:
        if self.array is None:
            return self.name if self.bound is None else f"{self.name}<={self.bound}"
        if self.array != SEQUENCE:
            return f"{self.name}[{self.array}]"
        return f"{self.name}[]" if self.bound is None else f"{self.name}[<={self.bound}]"


class FieldDef(NamedTuple):
    """One field of a message."""

    name: str
    type: FieldType


class MessageDef(NamedTuple):
    """One message type: its fields in the order of serialisation."""

    name: str
    fields: tuple[FieldDef, ...]

    def field(self, name: str) -> FieldDef | None:
        """The field of that name, or None."""
        return next((field for field in self.fields if field.name == name), None)


def _stamp_def(name: str) -> MessageDef:
    return MessageDef(
        name,
        (FieldDef("sec", FieldType("primitive", "int32")), FieldDef("nanosec", FieldType("primitive", "uint32"))),
    )


_EVENT_INFO = MessageDef(
    EVENT_INFO_TYPE,
    (
        FieldDef("event_type", FieldType("primitive", "uint8")),
        FieldDef("stamp", FieldType("message", TIME_TYPE)),
        FieldDef("client_gid", FieldType("primitive", "char", 16)),
        FieldDef("sequence_number", FieldType("primitive", "int64")),
    ),
)
# Recorders leave these out of their definitions because every system knows them.
BUILT_IN: Mapping[str, MessageDef] = {
    TIME_TYPE: _stamp_def(TIME_TYPE),
    DURATION_TYPE: _stamp_def(DURATION_TYPE),
    EVENT_INFO_TYPE: _EVENT_INFO,
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TYPE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_SEPARATOR = re.compile(r"={3,}")
_FIELD = re.compile(
    r"(?P<type>[A-Za-z_][A-Za-z0-9_/]*)(?:<=(?P<limit>[0-9]{1,10}))?"
    r"(?P<array>\[(?P<bounded><=)?(?P<count>[0-9]{1,10})?\])?"
    r"[ \t]+(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)


def definition_of(name: str, definitions: Mapping[str, MessageDef]) -> MessageDef:
    """The definition of a type, by the text of the recording or as every system knows it."""
    definition = definitions.get(name) or BUILT_IN.get(name)
    if definition is None:
        raise SchemaError(f"message type {name} is not defined")
    return definition


def is_field_name(text: str) -> bool:
    return len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def normalise_type(name: str) -> str:
    """The three-part name of a type.

    >>> normalise_type("sensor_msgs/Image")
    'sensor_msgs/msg/Image'
    """
    parts = name.split("/")
    return f"{parts[0]}/msg/{parts[1]}" if len(parts) == 2 else name


def shorten(text: str, characters: int = 60) -> str:
    """Text quoted for an error message; foreign text can be of any length."""
    return repr(text if len(text) <= characters else text[: characters - 1] + "…")


def check_text(text: str, type_name: str) -> None:
    """Refuse a type name or a definition text that is over the limits, before anything reads it."""
    if len(type_name) > MAX_NAME_CHARACTERS or not _TYPE_NAME.fullmatch(type_name):
        raise SchemaError(f"{shorten(type_name)} is not the name of a message type")
    if len(text) > MAX_TEXT_BYTES:
        raise SchemaError(
            f"the definition of {type_name} has {len(text):,} characters, the limit is {MAX_TEXT_BYTES:,}",
            hint="no real message type comes near the limit; the recording is damaged or hostile",
        )


def parse_msg(text: str, type_name: str) -> dict[str, MessageDef]:
    """Read a .msg definition, with the definitions it depends on after lines of '=' signs, as bags carry it.

    >>> sorted(parse_msg("Header header\\nfloat64[] q\\n===\\nMSG: std_msgs/Header\\nstring frame_id", "a/B"))
    ['a/msg/B', 'std_msgs/msg/Header']
    """
    check_text(text, type_name)
    sections = _sections(text, normalise_type(type_name))
    definitions: dict[str, MessageDef] = {}
    fields_total = 0
    for name, lines in sections:
        if name in definitions:
            continue
        fields_total += len(lines)
        if fields_total > MAX_FIELDS:
            raise SchemaError(f"the definition of {type_name} has more than {MAX_FIELDS:,} fields")
        parting = [place for place, (_, line) in enumerate(lines) if line == "---"]
        definitions.update(_parse_service(name, lines, parting) if parting else {name: _parse_section(name, lines)})
    resolved = resolve_references(definitions)
    main = normalise_type(type_name)
    check_definitions(resolved, main if main in resolved else main + EVENT_SUFFIX)
    return resolved


def _sections(text: str, type_name: str) -> Iterable[tuple[str, list[tuple[int, str]]]]:
    name: str | None = type_name
    lines: list[tuple[int, str]] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r\ufeff\x00")
        if not line or line[0] in "#@":
            continue
        if _SEPARATOR.fullmatch(line):
            if name is not None:
                yield name, lines
            name, lines = None, []
        elif line.startswith(("MSG:", "IDL:")):
            title = line[4:].strip()
            if len(title) > MAX_NAME_CHARACTERS or not _TYPE_NAME.fullmatch(title):
                raise SchemaError(
                    f"line {number} of the definition of {type_name}: {shorten(title)} is not a type name"
                )
            if name is not None and lines:
                yield name, lines
                lines = []
            name = normalise_type(title)
        elif name is None:
            raise SchemaError(
                f"line {number} of the definition of {type_name}: expected 'MSG: <type>' after the line of '=' signs, "
                f"found {shorten(line)}"
            )
        else:
            lines.append((number, line))
    if name is not None:
        yield name, lines


def _parse_section(name: str, lines: list[tuple[int, str]]) -> MessageDef:
    fields: dict[str, FieldDef] = {}
    for number, line in lines:
        match = _FIELD.match(line)
        rest = match["rest"] if match else ""
        if match is None or (rest and rest[0] not in "=#" and not line[match.start("rest") - 1].isspace()):
            raise SchemaError(f"line {number} of the definition of {name} is not a field: {shorten(line)}")
        if rest.startswith("="):
            continue  # a constant
        field = FieldDef(match["name"], _field_type(match, f"line {number} of the definition of {name}"))
        if field.name == EMPTY_MEMBER:
            continue
        if field.name in fields:
            raise SchemaError(f"line {number} of the definition of {name}: a second field {shorten(field.name)}")
        if len(field.name) > MAX_NAME_CHARACTERS:
            raise SchemaError(
                f"line {number} of the definition of {name}: the field name {shorten(field.name)} has "
                f"{len(field.name):,} characters, the limit is {MAX_NAME_CHARACTERS}"
            )
        fields[field.name] = field
    return MessageDef(name, tuple(fields.values()))


def _parse_service(name: str, lines: list[tuple[int, str]], parting: list[int]) -> dict[str, MessageDef]:
    """Recorded service calls carry the service's text, while their messages are the event that ROS 2 makes of it."""
    if len(parting) != 1 or "/action/" in name:
        raise SchemaError(f"line {lines[parting[-1]][0]} of the definition of {name}: '---' has no place in it")
    service = name.removesuffix(EVENT_SUFFIX)
    request = _parse_section(f"{service}_Request", lines[: parting[0]])
    response = _parse_section(f"{service}_Response", lines[parting[0] + 1 :])
    event = MessageDef(
        service + EVENT_SUFFIX,
        (
            FieldDef("info", FieldType("message", EVENT_INFO_TYPE)),
            FieldDef("request", FieldType("message", request.name, SEQUENCE, 1)),
            FieldDef("response", FieldType("message", response.name, SEQUENCE, 1)),
        ),
    )
    return {message.name: message for message in (event, request, response)}


def _field_type(match: re.Match[str], where: str) -> FieldType:
    name, limit = match["type"], match["limit"]
    array: int | None = None
    bound: int | None = None
    if match["array"]:
        if match["bounded"] and not match["count"]:
            raise SchemaError(f"{where}: the bound of {shorten(match['array'])} is missing")
        count = int(match["count"]) if match["count"] else None
        array, bound = (SEQUENCE, count) if match["bounded"] or count is None else (count, None)
    elif limit is not None:
        bound = int(limit)
    if name in ("string", "wstring"):
        return field_type("string" if name == "string" else "wstring", name, array, bound, where)
    if limit is not None:
        raise SchemaError(f"{where}: only strings have a bound of this kind, not {shorten(name)}")
    if name in PRIMITIVES:
        return field_type("primitive", name, array, bound, where)
    if len(name) > MAX_NAME_CHARACTERS or not _TYPE_NAME.fullmatch(name):
        raise SchemaError(f"{where}: {shorten(name)} is not the name of a type")
    return field_type("message", HEADER_TYPE if name == "Header" else normalise_type(name), array, bound, where)


def field_type(kind: Kind, name: str, array: int | None, bound: int | None, where: str) -> FieldType:
    """A FieldType whose lengths have been checked; `where` begins the error's sentence."""
    for what, count in (("length", array), ("bound", bound)):
        if count is not None and count != SEQUENCE and not 0 < count <= MAX_ARRAY_ITEMS:
            raise SchemaError(f"{where}: {name} with the {what} {count}, allowed is 1 to {MAX_ARRAY_ITEMS:,}")
    return FieldType(kind, name, array, bound)


def resolve_references(definitions: Mapping[str, MessageDef]) -> dict[str, MessageDef]:
    """Give every field that names a message the full name of its type: ROS 1 leaves out the package of neighbours."""
    by_last_name: dict[str, list[str]] = {}
    for name in definitions:
        by_last_name.setdefault(name.rsplit("/", 1)[-1], []).append(name)

    def full_name(name: str, owner: str) -> str:
        if name in definitions or name in BUILT_IN:
            return name
        package, _, last = name.rpartition("/")
        if not package:
            for folder in (owner.rpartition("/")[0], owner.split("/")[0] + "/msg"):
                if f"{folder}/{last}" in definitions:
                    return f"{folder}/{last}"
        candidates = by_last_name.get(last, [])
        if package:
            candidates = [other for other in candidates if other.split("/")[0] == package.split("/")[0]]
        if len(candidates) == 1:
            return candidates[0]
        return name if package else f"{owner.split('/')[0]}/msg/{last}"

    def resolved(field: FieldDef, owner: str) -> FieldDef:
        kind = field.type
        if kind.kind != "message":
            return field
        return FieldDef(field.name, FieldType("message", full_name(kind.name, owner), kind.array, kind.bound))

    return {
        name: MessageDef(name, tuple(resolved(field, name) for field in message.fields))
        for name, message in definitions.items()
    }


def check_definitions(definitions: Mapping[str, MessageDef], type_name: str) -> None:
    """Refuse a type that refers to a missing type, contains itself, nests too deep, or expands to too many fields."""
    whole: dict[str, tuple[int, int]] = {}  # height and fields of each type; an array of messages counts as one
    open_types: list[str] = []

    def measure(name: str, needed_by: str) -> tuple[int, int]:
        if name in open_types:
            raise SchemaError(f"message type {name} contains itself, through {' → '.join([*open_types[-4:], name])}")
        if name in whole:
            return whole[name]
        message = definitions.get(name) or BUILT_IN.get(name)
        if message is None:
            raise SchemaError(
                f"message type {name} is not defined{needed_by}",
                hint="the recording carries no definition of it; its messages can be counted and timed, not decoded",
            )
        open_types.append(name)
        height, count = 1, len(message.fields)
        for field in message.fields:
            if field.type.kind == "message" and len(open_types) <= MAX_DEPTH:
                inner_height, inner_count = measure(field.type.name, f", needed by {name}.{field.name}")
                height = max(height, inner_height + 1)
                count += inner_count if field.type.array is None else 0
        open_types.pop()
        if height > MAX_DEPTH or len(open_types) >= MAX_DEPTH:
            raise SchemaError(f"the definition of {type_name} nests more than {MAX_DEPTH} messages deep")
        if count > MAX_EXPANDED_FIELDS:
            raise SchemaError(f"{name} expands to more than {MAX_EXPANDED_FIELDS:,} fields")
        whole[name] = height, count
        return height, count

    measure(type_name, "")
