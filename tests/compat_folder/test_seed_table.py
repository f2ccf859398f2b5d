"""docs/reference/seed-spike.md names a test for each of its rows, and every test that it names is there."""

from __future__ import annotations

import re

from tests.compat_folder.folder import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "seed-spike.md").read_text(encoding="utf-8")
TABLES, LISTED = PAGE.split("## The tests")


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", LISTED)
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (REPOSITORY / path).exists()
        or not re.search(rf"^def {name}\(", (REPOSITORY / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []


def test_every_row_names_a_test_and_every_test_is_named_by_a_row() -> None:
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in TABLES.splitlines() if line.startswith("|")]
    cells = [row[-1].strip() for row in rows if row[-1].strip(" -") and row[-1].strip() != "checked"]
    used = {int(number) for cell in cells if cell != "—" for number in cell.split(", ")}
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", LISTED, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert used == set(numbers)
    assert all(len(row) == 3 for row in rows)
