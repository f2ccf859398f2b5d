"""The tables of arguments in the reference have the arguments that the code takes."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import penstock
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
