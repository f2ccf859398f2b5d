"""Which formats there are, and which of them a path is: asked by open, convert, inspect, doctor and recover."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.errors import UsageError
from penstock.formats import builtin
from penstock.formats.format import FAMILIES, HEAD_BYTES, Family, Format
from penstock.system.files import open_source

GROUP = "penstock.formats"
"""Of entry points that name a `Format`, or a sequence of them."""

_BUILTIN = {each.kind: each for each in builtin.FORMATS}
_registered: dict[str, Format] = {}
_plugins: dict[str, Format] | None = None  # None: not looked for yet
_lock = threading.RLock()


def register(added: Format) -> None:
    """Make a format known to this process; one of the same kind that was registered before is replaced."""
    if not isinstance(added, Format):
        raise UsageError(f"{added!r} is no penstock.formats.Format")
    if added.kind in _BUILTIN or added.kind in FAMILIES:
        raise UsageError(f"the kind {added.kind!r} is penstock's own", hint="give the format another kind")
    _registered[added.kind] = added


def unregister(kind: str) -> None:
    """Forget a format that was registered."""
    _registered.pop(kind, None)


def all_formats(family: Family | None = None) -> Iterator[Format]:
    """Penstock's own, those registered, and those of installed packages, which are loaded when it comes to them."""
    for each in _known():
        if family in (None, each.family):
            yield each


def _known() -> Iterator[Format]:
    yield from builtin.FORMATS
    yield from tuple(_registered.values())
    yield from (each for each in _from_packages().values() if each.kind not in _registered)


def get(kind: str) -> Format:
    """The format of a kind."""
    found = next((each for each in all_formats() if each.kind == kind), None)
    if found is None:
        hint = "install the package that reads it; what register() adds is known to one process only"
        raise UsageError(f"no format {kind!r} is known here", hint=hint)
    return found


def by_name(name: str, family: Family | None = None) -> Format | None:
    """The format that a file name promises."""
    return next((each for each in all_formats(family) if each.is_named(name)), None)


def by_start(head: bytes, family: Family | None = None) -> Format | None:
    """The format of a file that begins so."""
    return next((each for each in all_formats(family) if each.is_started(head)), None)


def by_content(path: Path, family: Family | None = None) -> Format | None:
    """The format of a file, whatever its name is."""
    with open_source(path) as source:
        return by_start(source.read(0, HEAD_BYTES), family)


def by_directory(path: Path, family: Family | None = None) -> Format | None:
    """The format of a directory that is one piece of data."""
    return next((each for each in all_formats(family) if each.marks(path)), None)


def identify(path: Path, family: Family | None = None) -> Format | None:
    """What lies at a path: of a directory by its markers, of a file by its content, else by its name; None: unknown."""
    if path.is_dir():
        return by_directory(path, family)
    return by_content(path, family) or by_name(path.name, family)


def _from_packages() -> dict[str, Format]:
    """Formats of installed packages, looked for once; a package that cannot be loaded is named in a warning."""
    global _plugins
    if _plugins is None:
        with _lock:
            if _plugins is None:
                _plugins = _load_plugins()
    return _plugins


def _load_plugins() -> dict[str, Format]:
    from importlib import metadata  # not cheap, and seldom needed

    found: dict[str, Format] = {}
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else point.value
        try:
            loaded = point.load()
            for each in loaded if isinstance(loaded, Iterable) else [loaded]:
                if not isinstance(each, Format):
                    raise TypeError(f"{point.value} is {type(each).__name__}, no penstock.formats.Format")
                if each.kind in _BUILTIN or each.kind in FAMILIES or each.kind in found:
                    raise ValueError(f"the kind {each.kind!r} is taken")
                found[each.kind] = each
        except Exception as error:  # whatever it is: the other formats stay usable
            text = (
                f"the formats of the package {package} ({point.name}) cannot be used: {type(error).__name__}: {error}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return found
