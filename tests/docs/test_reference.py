"""The tables of arguments in the reference have the arguments that the code takes."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

import penstock
from penstock import errors
from tests.docs import pages
from tests.docs.pages import DOCS


@pytest.mark.parametrize(
    ("page", "taken", "besides"),
    [
        ("loader.md", penstock.Loader, set()),
        # Two are explained by the guide and by the signature that the page shows.
        ("replay.md", penstock.MultimodalReplayBuffer, {"action_dim", "joint_dim"}),
    ],
)
def test_the_table_has_every_argument(page: str, taken: Any, besides: set[str]) -> None:
    text = pages.read(DOCS / "reference" / page)
    table = text[text.index("| argument |") :].split("\n\n")[0]
    written = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert written - {"num_traj"} == set(inspect.signature(taken).parameters) - besides
    assert all(name in text for name in besides)


_MODULES = ["penstock", *(f"penstock.{path.stem}" for path in pages.REPOSITORY.glob("src/penstock/[a-z]*.py"))]


@pytest.mark.parametrize("module", sorted(_MODULES))
def test_every_public_name_is_listed(module: str) -> None:
    page = "profile.md" if module == "penstock.profile" else "api.md"
    text = pages.read(DOCS / "reference" / page)
    names = getattr(importlib.import_module(module), "__all__", [])
    assert [name for name in names if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text)] == []


def test_every_error_is_listed_below_its_base() -> None:
    text = pages.read(DOCS / "reference" / "api.md")
    written: dict[str, str] = {}
    base = "PenstockError"
    for dash, name in re.findall(r"^\| (– )?`(\w+)` \|", text[text.index("| class |") :], re.MULTILINE):
        base = base if dash else name
        written[name] = base if dash else "PenstockError"
    kinds = [
        each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, penstock.PenstockError)
    ]
    assert written == {
        kind.__name__: kind.__bases__[0].__name__ for kind in kinds if kind is not penstock.PenstockError
    }
