"""Pages are short and plain: words per guide, paragraph and cell, characters per line, no semicolons as glue."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS, REPOSITORY

MOST_WORDS_README = 800
MOST_WORDS_GUIDE = 650
MOST_WORDS_PARAGRAPH = 60
MOST_WORDS_CELL = 15
MOST_CHARACTERS = 120

# Made by a script, or line by line what another document says.
_EXEMPT = ("reference/cli.md", "reference/from-kuavo.md", "reference/seed-plan.md", "reference/seed-spike.md")
_ENGLISH = [page for page in pages.pages() if not pages.is_chinese(page)]
_PLAIN = [page for page in _ENGLISH if pages.name_of(page).removeprefix("docs/") not in _EXEMPT]


def _words(text: str) -> int:
    return len([word for word in text.split() if re.search(r"\w", word)])


def test_guides_are_short() -> None:
    lengths = {pages.name_of(page): len(pages.read(page).split()) for page in pages.guides()}
    assert len(lengths) > 20
    assert {name: length for name, length in lengths.items() if length > MOST_WORDS_GUIDE} == {}
    assert len(pages.read(REPOSITORY / "README.md").split()) <= MOST_WORDS_README


@pytest.mark.parametrize("page", _PLAIN, ids=pages.name_of)
def test_paragraphs_and_cells_are_short(page: Path) -> None:
    text = pages.read(page)
    assert [each for each in pages.paragraphs(text) if _words(each) > MOST_WORDS_PARAGRAPH] == []
    assert [each for each in pages.cells(text) if _words(each) > MOST_WORDS_CELL] == []


@pytest.mark.parametrize("page", _PLAIN, ids=pages.name_of)
def test_sentences_are_not_glued_by_semicolons(page: Path) -> None:
    prose = [re.sub(r"`[^`]*`", "", each) for each in pages.paragraphs(pages.read(page))]
    assert [each for each in prose if ";" in each] == []


@pytest.mark.parametrize("page", [page for page in pages.pages() if page.name != "cli.md"], ids=pages.name_of)
def test_lines_are_not_long(page: Path) -> None:
    lines = [line for line in pages.without_blocks(pages.read(page)).splitlines() if not line.startswith(("|", "!["))]
    assert [line for line in lines if len(line) > MOST_CHARACTERS] == []


@pytest.mark.parametrize("page", pages.guides(), ids=pages.name_of)
def test_a_guide_shows_code_first(page: Path) -> None:
    before = pages.read(page).split("```")[0]
    assert len(before.splitlines()) <= 3


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", DOCS / "prose.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "prose", module)
    spec.loader.exec_module(module)
    return module


def test_the_script_counts_sentences_and_semicolons(prose: ModuleType) -> None:
    text = "# A page\n\nOne two three. Four five; six!\n\n```sh\na; b; c.\n```\n\n- Seven `eight; nine`.\n\n| a; b |\n"
    page = prose.measure("page.md", text)
    assert page.sentence_lengths == (3, 3, 2)
    assert page.semicolons == 1
    assert page.words == len(text.split())
