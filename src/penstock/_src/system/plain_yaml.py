"""YAML as plain data: text in, mappings, lists and scalars out; and back.

A tag never makes an object. A bare word means what YAML 1.2 says, not PyYAML's 1.1: `on`, `no`, `12:30` and
`2024-01-01` are text, `1e-3` is a number. A key that stands twice is an error.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import yaml

_WORDS = (  # tag, pattern, the characters that it can start with
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("merge", r"<<", "<"),
)


@functools.lru_cache(maxsize=1)
def _classes() -> tuple[type[yaml.SafeLoader], type[yaml.SafeDumper]]:
    """A safe loader and dumper that agree on what a bare word is."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own attribute, filled below

    class Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers = {}  # noqa: RUF012

        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
            flat = not any(isinstance(item, (dict, list)) for item in sequence)
            return super().represent_sequence(tag, sequence, flow_style=flat)

        def represent_str(self, data: str) -> yaml.ScalarNode:
            # Quoted with escapes: PyYAML folds the rarer line breaks (NEL, LS, PS) of other styles into blanks.
            style = None if data.isprintable() else '"'
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    for name, pattern, first in _WORDS:
        for either in (PlainLoader, Dumper):
            either.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{pattern})\Z"), list(first))

    def construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
        text = str(loader.construct_scalar(node))
        return int(text, 16) if text.startswith("0x") else int(text)

    def construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Iterable[dict[Any, Any]]:
        tree: dict[Any, Any] = {}
        yield tree
        seen: set[str] = set()
        for key, _ in node.value:
            text = str(key.value)
            if text in seen and text != "<<":
                problem = f"the key {text!r} is here twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(text)
        tree.update(loader.construct_mapping(node, deep=True))

    PlainLoader.add_constructor("tag:yaml.org,2002:int", construct_int)
    PlainLoader.add_constructor("tag:yaml.org,2002:map", construct_mapping)
    return PlainLoader, Dumper


def parse(text: str, where: str) -> Any:
    """The value that one YAML document holds; a ConfigError that names `where`, line and column otherwise."""
    import yaml

    try:
        return yaml.load(text, Loader=_classes()[0])  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        hint = "penstock reads plain data only; remove the tag" if " tag " in str(error.problem) else None
        raise ConfigError(f"{where}{line}: {error.problem or error.context}", hint=hint) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not readable as YAML: {str(error) or type(error).__name__}") from None


def word(text: str) -> Any:
    """What one bare word stands for: 30, 1e-3, true, null, or the text itself."""
    import yaml

    for name, pattern, _ in _WORDS:
        if name != "merge" and re.fullmatch(pattern, text):
            return yaml.load(text, Loader=_classes()[0])
    return text


def dump(value: Any) -> str:
    """The text that `parse` turns back into `value`; leaves such as [480, 640] stay on one line."""
    import yaml

    return str(yaml.dump(value, Dumper=_classes()[1], sort_keys=False, allow_unicode=True, width=110))
