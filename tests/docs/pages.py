"""The pages of the documentation, and what a test needs to know of a page: blocks, headings, links, words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
GUIDES = ("start", "convert", "train", "speed")
TRANSLATED = ("start", "convert", "train")

_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it begins in."""

    kind: str
    text: str
    line: int

    @property
    def needs(self) -> str | None:
        """What the first line, or the one after `#!`, says that the block needs, such as "torch": `# needs torch`."""
        found = re.match(r"(?:#![^\n]*\n)?# needs ([^\n]+)\n", self.text)
        return found[1] if found else None


def pages() -> list[Path]:
    """Every page, the two READMEs included."""
    return [REPOSITORY / "README.md", REPOSITORY / "README.zh.md", *sorted(DOCS.rglob("*.md"))]


def guides() -> list[Path]:
    """The pages with one task each, in English."""
    return [page for folder in GUIDES for page in sorted((DOCS / folder).glob("*.md")) if not is_chinese(page)]


def is_chinese(page: Path) -> bool:
    return page.name.endswith(".zh.md")


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    """All fenced blocks in their order."""
    return [
        Block(found["kind"].strip(), found["text"], text[: found.start()].count("\n") + 1)
        for found in _FENCE.finditer(text)
    ]


def without_blocks(text: str) -> str:
    """The page without fenced and indented blocks."""
    text = _FENCE.sub("", text)
    return re.sub(r"(?<=\n\n)(?:    [^\n]*\n)+", "", text)


def headings(text: str) -> list[tuple[int, str]]:
    """Level and text of every heading."""
    return [(len(marks), words) for marks, words in re.findall(r"^(#+) (.+)$", without_blocks(text), re.MULTILINE)]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    found: set[str] = set()
    for _, words in headings(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 1
        while slug in found:
            slug, number = f"{slug}-{number}", number + 1
        found.add(slug)
    return found


def links(text: str) -> Iterator[str]:
    """The targets of all links and images that are no web addresses."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        if not re.match(r"[a-z]+:", target):
            yield target


def paragraphs(text: str) -> list[str]:
    """Prose: no headings, tables, blocks or comments; each item of a list is one paragraph."""
    text = re.sub(r"<!--.*?-->", "", without_blocks(text), flags=re.DOTALL)
    found: list[str] = []
    for part in re.split(r"\n\s*\n", text):
        lines = [line for line in part.splitlines() if not line.startswith(("#", "|", "!["))]
        for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines)):
            if words := " ".join(item.split()):
                found.append(words)
    return found


def cells(text: str) -> Iterator[str]:
    """The cells of all tables."""
    for line in without_blocks(text).splitlines():
        if line.startswith("|") and not re.match(r"\|[\s:|-]+$", line):
            yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
