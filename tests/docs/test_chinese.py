"""Chinese pages have the sections, the code and the tables of the English ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS, REPOSITORY, TRANSLATED

_ENGLISH = [
    REPOSITORY / "README.md",
    *(page for folder in TRANSLATED for page in sorted((DOCS / folder).glob("*.md")) if not pages.is_chinese(page)),
]


def _chinese(page: Path) -> Path:
    return page.with_name(page.name.removesuffix(".md") + ".zh.md")


def _code(text: str) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in pages.blocks(text)]


def _rows(text: str) -> int:
    return sum(line.startswith("|") for line in pages.without_blocks(text).splitlines())


@pytest.mark.parametrize("page", _ENGLISH, ids=pages.name_of)
def test_the_chinese_page_says_the_same(page: Path) -> None:
    english, chinese = pages.read(page), pages.read(_chinese(page))
    assert [level for level, _ in pages.headings(chinese)] == [level for level, _ in pages.headings(english)]
    assert _code(chinese) == _code(english)
    assert _rows(chinese) == _rows(english)
    assert len(re.findall(r"[\u4e00-\u9fff]", chinese)) > 100


def test_every_chinese_page_has_an_english_one() -> None:
    alone = [page for page in pages.pages() if pages.is_chinese(page)]
    alone = [page for page in alone if not page.with_name(page.name.replace(".zh.md", ".md")).exists()]
    assert alone == []
