"""YAML and `a.b=c` words become frozen, checked dataclasses.

    tree = apply_overrides(load_yaml("run.yaml"), ["rosbag.chunk_size=500", "fps=30"])
    settings = build(Settings, tree)

Every complaint names the key's full path, the value, and what is expected.

A dataclass field may carry `metadata={"parse": f}` (value → field value; ValueError, TypeError and UsageError become
ConfigError with the key's path) and `metadata={"dump": g}` (its inverse, for `dump_yaml`). A dataclass with
`upper_case_keys: ClassVar[bool] = True` is written `BATCH_SIZE: 4` and read as `.batch_size`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock._src.system import plain_yaml
from penstock.errors import ConfigError, UsageError

T = TypeVar("T")
Tree = dict[str, Any]

MAX_CONFIG_BYTES = 1 << 20


# Files


def load_yaml(path: str | Path) -> Tree:
    """The mapping that a YAML file holds; an empty file is an empty mapping."""
    tree = plain_yaml.parse(read_text(Path(path), "not a configuration"), str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected `key: value` lines, found {_kind(tree)}")
    return tree


def read_text(path: Path, what: str, hint: str | None = None, encoding: str = "utf-8") -> str:
    """The text of a small file; one that is larger than any configuration is `what`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_CONFIG_BYTES:,} bytes: {what}", hint=hint)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start:,} is not UTF-8 text") from None


# Overrides


def apply_overrides(tree: Mapping[str, Any], words: Sequence[str]) -> Tree:
    """A copy of `tree` with each `a.b=c` set, in order.

    The value is a YAML scalar, or a `[list]`, `{mapping}` or "quoted text". A key that has dots itself stands in
    brackets, `topics[observation.state].scale=2`, unless the tree has it already; list items go by number.
    """
    result: Tree = _copied(dict(tree))
    for word in words:
        path, equals, text = word.partition("=")
        keys = re.findall(r"\[([^\]]*)\]|([^.\[\]]+)", path)
        if not equals or not re.fullmatch(r"(?:[^.\[\]]+|\[[^\]]+\])(?:\.[^.\[\]]+|\.?\[[^\]]+\])*", path.strip()):
            raise ConfigError(f"{word!r} is not of the form key=value", hint="for example: fps=30, encoding.crf=23")
        _set(result, [(bracketed or plain).strip() for bracketed, plain in keys], _word_value(text, word), word)
    return result


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(child) for key, child in value.items()}
    return [_copied(child) for child in value] if isinstance(value, list) else value


def _word_value(text: str, word: str) -> Any:
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'", "!"):
        return plain_yaml.parse(text, f"the value of {word!r}")
    # Everything else is one word, not a document: `task=pick: the #3 cup` is text, not a mapping with a comment.
    return plain_yaml.word(text)


def _set(tree: Any, keys: list[str], value: Any, word: str) -> None:
    """Walk `keys` and set the last; at each level the longest run of keys that names an existing entry is taken."""
    while True:
        if isinstance(tree, list):
            key: Any = int(keys[0]) if keys[0].isdecimal() else -1
            if not 0 <= key < len(tree):
                raise ConfigError(f"{word!r}: {keys[0]!r} is not an item of a list of {len(tree)}")
            rest = keys[1:]
        elif isinstance(tree, dict):
            joined = [(".".join(keys[:n]), keys[n:]) for n in range(len(keys), 0, -1)]
            key, rest = next((each for each in joined if each[0] in tree), (keys[0], keys[1:]))
        else:
            raise ConfigError(f"{word!r}: the key before {keys[0]!r} holds {_kind(tree)}, not a mapping")
        if not rest:
            tree[key] = value
            return
        if isinstance(tree, dict) and tree.get(key) is None:
            tree[key] = {}
        tree, keys = tree[key], rest


# Models


def build(cls: type[T], tree: Any, where: str = "") -> T:
    """An instance of the dataclass `cls` from a mapping, checked field by field, all the way down."""
    if isinstance(tree, cls):
        return tree
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{_place(where)}expected a mapping of {_fields_text(cls)}, got {_shown(tree)}")
    types_by_name = typing.get_type_hints(cls)
    fields = {_key(cls, field): field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = {key: types_by_name[field.name] for key, field in fields.items()}
    for key in tree:
        if key not in fields:
            raise ConfigError(
                f"unknown key {key!r} in {where or 'the configuration'}{_nearest_key(str(key), hints)}",
                hint=f"known keys: {', '.join(fields)}",
            )
    values: Tree = {}
    for key, field in fields.items():
        if key in tree:
            values[field.name] = _field_value(field, hints[key], tree[key], f"{where}.{key}" if where else key)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"missing key {key!r} in {where or 'the configuration'}: it has no default")
    return _guarded(lambda: cls(**values), where)


def _key(cls: type, field: dataclasses.Field[Any]) -> str:
    """How a field is written in YAML."""
    return field.name.upper() if getattr(cls, "upper_case_keys", False) else field.name


def _place(where: str) -> str:
    return f"{where}: " if where else ""


def _guarded(call: Callable[[], T], where: str) -> T:
    """Run a converter or constructor; what it refuses is a ConfigError that names the key."""
    try:
        return call()
    except UsageError as error:
        # A converter that builds something itself may have named the place, and a closer one.
        named = error.message.startswith(f"{where}.") or f" in {where}." in error.message
        place = "" if named else _place(where)
        raise ConfigError(f"{place}{error.message}", hint=error.hint) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{_place(where)}{error}") from None


def _field_value(field: dataclasses.Field[Any], hint: Any, value: Any, where: str) -> Any:
    parse = field.metadata.get("parse")
    if parse is None or (value is None and type(None) in typing.get_args(hint)):
        return _value(hint, value, where)
    return _guarded(lambda: parse(value), where)


def _value(hint: Any, value: Any, where: str) -> Any:
    """`value` as `hint` asks, or a ConfigError that names `where`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin is typing.Union or origin is types.UnionType:
        return _union_value(hint, arguments, value, where)
    if origin is typing.Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
        words = [str(choice) for choice in arguments]
        raise ConfigError(f"{where}: expected {_expected(hint)}, got {_shown(value)}{did_you_mean(str(value), words)}")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, where)
    if origin is tuple or hint is tuple:
        return _tuple_value(arguments, value, where, hint)
    if origin in (list, collections.abc.Sequence) and isinstance(value, (list, tuple)):
        items = (_value(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(value))
        return list(items) if origin is list else tuple(items)
    if origin in (dict, collections.abc.Mapping) and isinstance(value, Mapping):
        return {
            _value(arguments[0], key, f"{where}: key {key!r}"): _value(arguments[1], item, f"{where}.{key}")
            for key, item in value.items()
        }
    return _scalar_value(hint, value, where)


def _scalar_value(hint: Any, value: Any, where: str) -> Any:
    if hint is type(None) and value is None:
        return None
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    advice = None
    if hint in (str, Path) and isinstance(value, (int, float)):
        advice = f"put it in quotes if you mean the text: '{value}'"
    raise ConfigError(f"{where}: expected {_expected(hint)}, got {_shown(value)}", hint=advice)


def _tuple_value(arguments: tuple[Any, ...], value: Any, where: str, hint: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where}: expected {_expected(hint)}, got {_shown(value)}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise ConfigError(f"{where}: expected {len(arguments)} values, got {len(value)}: {_shown(value)}")
    return tuple(_value(each, value[n], f"{where}[{n}]") for n, each in enumerate(arguments))


def _union_value(hint: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    # int before float, so that 3 stays an int in `float | int`.
    members = sorted((each for each in arguments if each is not type(None)), key=lambda each: each is float)
    deeper: ConfigError | None = None
    for member in members:
        try:
            return _value(member, value, where)
        except ConfigError as error:
            # A mapping meant for a dataclass, or a list with one bad item, deserves the precise complaint from inside.
            if not error.message.startswith(f"{where}: expected"):
                deeper = deeper or error
            elif len(members) == 1:
                message = error.message.replace(_expected(member), _expected(hint), 1)
                raise ConfigError(message, hint=error.hint) from None
    raise deeper or ConfigError(f"{where}: expected {_expected(hint)}, got {_shown(value)}")


def dump_yaml(value: Any, *, skip_defaults: bool = False) -> str:
    """YAML text that `load_yaml` and `build` turn back into `value`; fields in their declared order."""
    return plain_yaml.dump(_plain(value, skip_defaults))


def plain(value: Any) -> Any:
    """Mappings, lists and scalars that `build` turns back into `value`; safe for JSON."""
    return _plain(value, False)


def _plain(value: Any, skip_defaults: bool) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tree: Tree = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if field.init and not (skip_defaults and item == _default(field)):
                dump = field.metadata.get("dump")
                item = dump(item) if dump and item is not None else item
                tree[_key(type(value), field)] = _plain(item, skip_defaults)
        return tree
    if isinstance(value, Mapping):
        return {str(key): _plain(item, skip_defaults) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, skip_defaults) for item in value]
    return str(value) if isinstance(value, Path) else value


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


# Words for people


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'fps'?" when something known is close, else nothing."""
    import difflib

    by_folded = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""


def _nearest_key(key: str, hints: Mapping[str, Any]) -> str:
    """The key that was probably meant: of this level, or the same key one level down."""
    for name, hint in hints.items():
        if dataclasses.is_dataclass(hint) and key in _fields_text(hint).split(", "):  # type: ignore[arg-type]
            return f"; did you mean '{name}.{key}'?"
    return did_you_mean(key, hints)


def _fields_text(cls: type) -> str:
    return ", ".join(_key(cls, field) for field in dataclasses.fields(cls))


_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
_NAMES[type(None)] = "null"


def _expected(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin is typing.Union or origin is types.UnionType:
        return " or ".join(_expected(each) for each in arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return f"a list of {len(arguments)} ({', '.join(_expected(each) for each in arguments)})"
    if origin in (tuple, list, collections.abc.Sequence):
        return f"a list of {_expected(arguments[0])}"
    if origin in (dict, collections.abc.Mapping):
        return f"a mapping from {_expected(arguments[0])} to {_expected(arguments[1])}"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"a mapping of {_fields_text(hint)}"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return _NAMES.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "…"
    return "null" if value is None else f"{text} ({_kind(value)})"
