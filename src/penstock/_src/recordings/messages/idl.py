"""OMG IDL as ROS 2 writes it, parsed by rosbags: modules, structs, typedefs and constants."""

from __future__ import annotations

import re

from penstock._src.recordings.messages.definitions import (
    MessageDef,
    check_definitions,
    check_text,
    field_type,
    normalise_type,
    resolve_references,
    shorten,
)
from penstock._src.recordings.messages.standard_types import message_from_rosbags
from penstock.errors import SchemaError

# Several .idl files in one text lie behind a line of '=' signs and a line with their name; no #include is followed.
_LEFT_OUT = re.compile(r"^={3,}[ \t\r]*$|^(?:IDL|MSG):[^\n]*$|^[ \t]*#[^\n]*$", re.MULTILINE)


def parse_idl(text: str, type_name: str) -> dict[str, MessageDef]:
    """Read an OMG IDL definition as ROS 2 generates it (.idl files, possibly several after lines of '=' signs)."""
    from rosbags.typesys import get_types_from_idl
    from rosbags.typesys.base import TypesysError

    check_text(text, type_name)
    where = f"the IDL definition of {type_name}"
    try:
        types = get_types_from_idl(_LEFT_OUT.sub("", text))
    except (TypesysError, RecursionError, ValueError, KeyError) as error:
        raise SchemaError(f"{where} cannot be read: {shorten(str(error), 200)}") from None
    definitions = {name: message_from_rosbags(name, fields, ros1=False) for name, (_, fields) in types.items()}
    for name, message in definitions.items():
        if len({field.name for field in message.fields}) < len(message.fields):
            raise SchemaError(f"{where}: {name} has two fields of one name")
        for field in message.fields:
            field_type(*field.type, where)
    resolved = resolve_references(definitions)
    check_definitions(resolved, normalise_type(type_name))
    return resolved
