"""The headings of docs/problems.md are texts that the code really has."""

from __future__ import annotations

import re

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS, REPOSITORY

_TEXTS = [words for level, words in pages.headings(pages.read(DOCS / "problems.md")) if level == 3]


@pytest.fixture(scope="module")
def source() -> str:
    """All of the source, with texts that go on in the next line as one."""
    whole = "\n".join(path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "src").rglob("*.py")))
    return re.sub(r'"\n\s*f?"', "", whole)


@pytest.mark.parametrize("text", _TEXTS)
def test_the_error_text_is_in_the_code(text: str, source: str) -> None:
    parts = [part.strip() for part in text.split("…")]
    assert [part for part in parts if part not in source] == []
