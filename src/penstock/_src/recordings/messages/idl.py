"""OMG IDL as ROS 2 writes it: modules, structs, typedefs, enums and constants; everything else is a SchemaError."""

from __future__ import annotations

import re

from penstock._src.recordings.messages.definitions import (
    EMPTY_MEMBER,
    MAX_DEPTH,
    MAX_FIELDS,
    SEQUENCE,
    ConstantDef,
    FieldDef,
    FieldType,
    MessageDef,
    check_definitions,
    check_text,
    field_type,
    normalise_type,
    resolve_references,
    shorten,
)
from penstock.errors import SchemaError

# Several .idl files in one text lie behind a line of '=' signs and a line with their name.
_FILE_TITLE = re.compile(r"^={3,}[ \t\r]*$|^(?:IDL|MSG):[^\n]*$", re.MULTILINE)
_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/ | \#[^\n]*
    | (?P<word>(?:::)?[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)*)
    | (?P<text>[LuU]?"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
    | (?P<number>[0-9][A-Za-z0-9_.+-]* | \.[0-9]+)
    | (?P<mark>[{}<>\[\]();,=@+*|&^~%:-] | /(?!\*))""",
    re.ASCII | re.DOTALL | re.VERBOSE,
)
_PRIMITIVES = {
    "boolean": "bool",
    "octet": "byte",
    "char": "char",
    "short": "int16",
    "unsigned short": "uint16",
    "long": "int32",
    "unsigned long": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "float": "float32",
    "double": "float64",
    **{name: name for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
}
_UNSUPPORTED = ("any", "fixed", "long double", "map", "union", "unsigned", "wchar")
_SUFFIX = "_Constants"


def parse_idl(text: str, type_name: str) -> dict[str, MessageDef]:
    """Read an OMG IDL definition as ROS 2 generates it (.idl files, possibly several after lines of '=' signs)."""
    check_text(text, type_name)
    name = normalise_type(type_name)
    resolved = resolve_references(_IdlParser(_FILE_TITLE.sub("", text), name).parse())
    check_definitions(resolved, name)
    return resolved


class _IdlParser:
    """One pass over the tokens; names are looked up in the scopes that are open where they stand, innermost first."""

    def __init__(self, text: str, type_name: str) -> None:
        self._type_name = type_name
        self._tokens = self._split(text)
        self._next = 0
        self._structs: dict[str, tuple[FieldDef, ...]] = {}
        self._aliases: dict[str, FieldType] = {}
        self._constants: dict[str, ConstantDef] = {}
        self._fields_total = 0

    def parse(self) -> dict[str, MessageDef]:
        while self._next < len(self._tokens):
            self._definition(())
        return {
            name: MessageDef(
                name,
                fields,
                tuple(c for full, c in self._constants.items() if full.rpartition("/")[0] == name + _SUFFIX),
            )
            for name, fields in self._structs.items()
        }

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                line = text.count("\n", 0, position) + 1
                raise self._error(f"line {line} cannot be read: {shorten(text[position : position + 40])}")
            if match.lastgroup:
                tokens.append(match[0])
            position = match.end()
        return tokens

    def _error(self, problem: str) -> SchemaError:
        return SchemaError(f"the IDL definition of {self._type_name}: {problem}")

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise self._error("it ends too early")
        self._next += 1
        return token

    def _expect(self, wanted: str) -> None:
        token = self._take()
        if token != wanted:
            raise self._error(f"expected {wanted!r}, found {shorten(token)}")

    def _name(self) -> str:
        token = self._take()
        if not (token[0].isalpha() or token[0] == "_") or "::" in token:
            raise self._error(f"expected a name, found {shorten(token)}")
        return token

    def _definition(self, scope: tuple[str, ...]) -> None:
        if len(scope) > MAX_DEPTH:
            raise self._error(f"modules nest more than {MAX_DEPTH} deep")
        self._annotations()
        word = self._take()
        if word == "module":
            inner = (*scope, self._name())
            self._expect("{")
            while self._peek() != "}":
                self._definition(inner)
            self._expect("}")
        elif word == "struct":
            self._struct(scope)
        elif word == "typedef":
            kind = self._type(scope)
            name, kind = self._declarator(kind, scope)
            self._aliases["/".join((*scope, name))] = kind
        elif word == "enum":
            self._enum(scope)
        elif word == "const":
            self._constant(scope)
        else:
            raise self._error(f"{shorten(word)} is not supported here")
        self._expect(";")

    def _annotations(self) -> None:
        while self._peek() == "@":
            self._take()
            self._take()
            if self._peek() != "(":
                continue
            depth = 0
            while True:
                token = self._take()
                depth += (token == "(") - (token == ")")
                if not depth:
                    break

    def _struct(self, scope: tuple[str, ...]) -> None:
        full_name = "/".join((*scope, self._name()))
        fields: dict[str, FieldDef] = {}
        self._expect("{")
        while self._peek() != "}":
            self._annotations()
            kind = self._type(scope)
            while True:
                name, declared = self._declarator(kind, scope)
                if name in fields:
                    raise self._error(f"{full_name} has two fields named {shorten(name)}")
                fields[name] = FieldDef(name, declared)
                if self._peek() != ",":
                    break
                self._take()
            self._expect(";")
            self._fields_total += 1
            if self._fields_total > MAX_FIELDS:
                raise self._error(f"it has more than {MAX_FIELDS:,} fields")
        self._expect("}")
        fields.pop(EMPTY_MEMBER, None)
        self._structs.setdefault(full_name, tuple(fields.values()))

    def _enum(self, scope: tuple[str, ...]) -> None:
        self._aliases["/".join((*scope, self._name()))] = FieldType("primitive", "uint32")
        self._expect("{")
        while self._take() != "}":
            pass

    def _constant(self, scope: tuple[str, ...]) -> None:
        kind = self._type(scope)
        name = self._name()
        self._expect("=")
        words: list[str] = []
        while self._peek() != ";":
            words.append(self._take())
        self._constants["/".join((*scope, name))] = ConstantDef(name, kind.name, " ".join(words)[:1000])

    def _declarator(self, kind: FieldType, scope: tuple[str, ...]) -> tuple[str, FieldType]:
        name = self._name()
        if self._peek() != "[":
            return name, kind
        self._take()
        length = self._length(scope)
        self._expect("]")
        if kind.array is not None or self._peek() == "[":
            raise self._error(f"{shorten(name)} is an array of arrays, which ROS messages do not have")
        return name, field_type(kind.kind, kind.name, length, None, f"the IDL definition of {self._type_name}")

    def _length(self, scope: tuple[str, ...]) -> int:
        token = self._take()
        if not token[0].isdigit():
            names = [name for name in self._candidates(token, scope) if name in self._constants]
            token = self._constants[names[0]].value if names else token
        try:
            length = int(token, 0) if len(token) <= 20 else 0
        except ValueError:
            length = 0
        if length < 1:
            raise self._error(f"expected a length, found {shorten(token)}")
        return length

    def _candidates(self, word: str, scope: tuple[str, ...]) -> list[str]:
        name = word.replace("::", "/")
        if name.startswith("/"):
            return [name[1:]]
        return ["/".join((*scope[:depth], name)) for depth in range(len(scope), -1, -1)]

    def _type(self, scope: tuple[str, ...]) -> FieldType:
        word = self._take()
        where = f"the IDL definition of {self._type_name}"
        while word in ("unsigned", "long", "unsigned long") and self._peek() in ("short", "long", "double"):
            word += " " + self._take()
        if word in _PRIMITIVES:
            return FieldType("primitive", _PRIMITIVES[word])
        if word in ("string", "wstring"):
            bound = self._bound(scope) if self._peek() == "<" else None
            return field_type("string" if word == "string" else "wstring", word, None, bound, where)
        if word == "sequence":
            self._expect("<")
            if self._peek() == "sequence":
                raise self._error("a sequence of sequences is not supported")
            item = self._type(scope)
            bound = None
            if self._peek() == ",":
                self._take()
                bound = self._length(scope)
            self._expect(">")
            if item.array is not None:
                raise self._error("a sequence of arrays is not supported")
            return field_type(item.kind, item.name, SEQUENCE, bound, where)
        if not (word[0].isalpha() or word[0] in "_:") or word in _UNSUPPORTED:
            raise self._error(f"the type {shorten(word)} is not supported")
        candidates = self._candidates(word, scope)
        for name in candidates:
            if name in self._aliases:
                return self._aliases[name]
            if name in self._structs:
                return FieldType("message", name)
        # A struct of another file, which may come later in the text: with its modules it is absolute.
        return FieldType("message", candidates[-1] if "::" in word else candidates[0])

    def _bound(self, scope: tuple[str, ...]) -> int:
        self._expect("<")
        bound = self._length(scope)
        self._expect(">")
        return bound
