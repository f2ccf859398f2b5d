"""The examples of docs/how-it-works/order.md do what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

from tests.load.memory_store import MemoryStore

_PAGE = Path(__file__).parents[3] / "docs" / "how-it-works" / "order.md"


def test_the_examples_of_the_page_run() -> None:
    store = MemoryStore([5, 4], images=("camera",), texts=("task",), fps=10, roles={"state": "state"})
    failed, tried = doctest.testfile(
        str(_PAGE),
        module_relative=False,
        globs={"store": store},
        encoding="utf-8",
    )
    assert tried > 20 and not failed
