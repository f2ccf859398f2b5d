"""`inspect.signature` tells the truth about every dataclass: editors, notebooks and `help()` show what can be given."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent


def _dataclasses() -> Iterator[type]:
    """Those of all modules that do not write their own `__init__`."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "__main__.py":
            continue
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for kind in vars(importlib.import_module(name)).values():
            if inspect.isclass(kind) and kind.__module__ == name and dataclasses.is_dataclass(kind):
                code = getattr(kind.__init__, "__code__", None)
                if code is not None and code.co_filename == "<string>":  # made by the decorator
                    yield kind


def test_a_dataclass_takes_the_arguments_that_its_signature_names() -> None:
    found = list(_dataclasses())
    assert len(found) > 50
    for kind in found:
        taken = [each for each in dataclasses.fields(kind) if each.init]
        parameters = inspect.signature(kind).parameters
        assert sorted(parameters) == sorted(each.name for each in taken), kind
        for each in taken:
            is_free = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
            assert (parameters[each.name].default is not inspect.Parameter.empty) is is_free, (kind, each.name)


def test_public_classes_show_what_they_take() -> None:
    assert list(inspect.signature(penstock.Clip).parameters) == ["frames", "stride", "step", "columns"]
    assert {"store", "window", "batch_size", "memory"} <= set(inspect.signature(penstock.Loader).parameters)
    assert list(inspect.signature(penstock.profile.Snapshot).parameters)[:2] == ["spans", "counters"]
