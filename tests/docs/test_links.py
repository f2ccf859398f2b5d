"""Every link of the documentation leads to a page, and every anchor to a heading; every file it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS, REPOSITORY

# Pages outside docs/ that have links into it.
_OTHERS = [REPOSITORY / "compat" / "README.md", REPOSITORY / "src" / "penstock" / "README.md"]
_SOURCES = ("src", "tests", "benchmarks", "examples", "compat", "docs")


@pytest.mark.parametrize("page", [*pages.pages(), *_OTHERS], ids=pages.name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in pages.links(pages.read(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in pages.anchors(pages.read(target))):
            broken.append(link)
    assert broken == []


def test_every_page_is_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [(page.parent / link.partition("#")[0]).resolve() for link in pages.links(pages.read(page))]
    assert [pages.name_of(page) for page in pages.pages() if page not in reached] == []


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name_of)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    file = r"\b((?:src|examples|benchmarks|compat|tests|docs)/[\w/.-]+\.(?:py|md|yaml))\b"
    named = re.findall(file, pages.read(page))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_every_page_that_the_code_names_is_there() -> None:
    broken = []
    for folder in _SOURCES:
        for path in [*(REPOSITORY / folder).rglob("*.py"), *(REPOSITORY / folder).rglob("*.yaml")]:
            named = re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
            broken += [f"{path}: {name}" for name in named if not (REPOSITORY / name).exists()]
    assert broken == []
