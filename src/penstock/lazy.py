"""`dataclass` without the compiler: the same classes as the standard library's, made in a tenth of the time.

The standard decorator writes the source of each method and compiles it, about half a millisecond per class; a command
that loads a hundred of them would spend a quarter of its start there. Here the methods are closures over the fields.
Making an instance takes somewhat longer, so what is made once per message is a NamedTuple instead.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, repr: bool = True, eq: bool = True) -> Any:
        """As `dataclasses.dataclass`, with the options that are used here."""
        return (lambda each: _made(each, frozen, repr, eq)) if cls is None else _made(cls, frozen, repr, eq)


_MISSING = dataclasses.MISSING
_bare = dataclasses.dataclass(init=False, repr=False, eq=False)


def _made(cls: Any, frozen: bool, shows: bool, compares: bool) -> Any:
    own = set(vars(cls))
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard decorator looks up a signature for it
    made: Any = _bare(cls)
    fields = dataclasses.fields(made)
    if "__init__" not in own:
        made.__init__ = _init(made, fields)
    if shows and "__repr__" not in own:
        names = tuple(each.name for each in fields if each.repr)
        made.__repr__ = lambda self: (
            f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
        )
    if compares and "__eq__" not in own:
        _compare(made, tuple(each.name for each in fields if each.compare), hashes=frozen and "__hash__" not in own)
    if frozen:
        made.__setattr__ = _refuse_set
        made.__delattr__ = _refuse_delete
    return made


def _init(made: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    names = tuple(each.name for each in fields if each.init)
    known = frozenset(names)
    required = tuple(
        each.name for each in fields if each.init and each.default is _MISSING and each.default_factory is _MISSING
    )
    defaults = {each.name: each.default for each in fields if each.default is not _MISSING}
    factories = {each.name: each.default_factory for each in fields if each.default_factory is not _MISSING}
    finish = getattr(made, "__post_init__", None)
    title = made.__name__

    def __init__(self: Any, *values: Any, **named: Any) -> None:
        if len(values) > len(names):
            raise TypeError(f"{title}() takes {len(names)} values, not {len(values)}")
        state = dict(zip(names, values, strict=False))
        for name, value in named.items():
            if name not in known or name in state:
                what = "an unexpected" if name not in known else "two values for the"
                raise TypeError(f"{title}() got {what} argument {name!r}")
            state[name] = value
        for name in required:
            if name not in state:
                raise TypeError(f"{title}() needs {name!r}")
        for name, value in defaults.items():
            state.setdefault(name, value)
        for name, factory in factories.items():
            if name not in state:
                state[name] = factory()
        self.__dict__.update(state)
        if finish is not None:
            finish(self)

    return __init__


def _compare(made: Any, names: tuple[str, ...], *, hashes: bool) -> None:
    def values(self: Any) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in names)

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    made.__eq__ = __eq__
    made.__hash__ = (lambda self: hash(values(self))) if hashes else made.__dict__.get("__hash__")


def _refuse_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
