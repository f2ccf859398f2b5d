"""Measures the documentation: `python docs/prose.py [--before REVISION]`.

Prints words per page (all words of the file, as `wc -w` counts), the mean sentence length, and semicolons per 1,000
words of prose, in English pages. With --before, also for the pages of another revision of this repository.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_GENERATED = "cli.md"
_ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|etc|vs)\.|\.\.\.|…|(?<=\d)\.(?=\d)")


@dataclass(frozen=True)
class Prose:
    """The figures of one page."""

    name: str
    words: int
    sentence_lengths: tuple[int, ...]
    semicolons: int

    @property
    def prose_words(self) -> int:
        return sum(self.sentence_lengths)


def measure(name: str, text: str) -> Prose:
    """A page in figures: sentences are those of paragraphs and lists, without tables, headings and code."""
    prose = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"(?<=\n\n)(?:    [^\n]*\n)+", "\n", prose)
    kept = [line for line in prose.splitlines() if not re.match(r"\s*(\||#|!\[|<!--)", line)]
    prose = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", "\n".join(kept), flags=re.MULTILINE)
    prose = re.sub(r"`[^`]*`", "code", prose)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    prose = _ABBREVIATIONS.sub("", prose)
    lengths: list[int] = []
    for paragraph in re.split(r"\n\s*\n", prose):
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
            if words := re.findall(r"\w[\w'’-]*", sentence):
                lengths.append(len(words))
    return Prose(name, len(text.split()), tuple(lengths), prose.count(";"))


def pages(revision: str | None) -> Iterator[tuple[str, str]]:
    """Name and text of every English page, now or in a revision."""
    if revision is None:
        paths = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
        found = [(path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")) for path in paths]
    else:
        names = _git("ls-tree", "-r", "--name-only", revision, "README.md", "docs").splitlines()
        found = [(name, _git("show", f"{revision}:{name}")) for name in names if name.endswith(".md")]
    yield from ((name, text) for name, text in found if not name.endswith((".zh.md", _GENERATED)))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout


def _summary(label: str, found: list[Prose]) -> str:
    words = [page.words for page in found]
    lengths = [length for page in found for length in page.sentence_lengths]
    semicolons = 1000 * sum(page.semicolons for page in found) / max(1, sum(page.prose_words for page in found))
    return (
        f"{label:<7} {len(found):>3} pages · {sum(words):>6,} words · a page: median {statistics.median(words):,.0f}, "
        f"most {max(words):,} · a sentence: {statistics.mean(lengths):.1f} words · {semicolons:.1f} ';' per 1,000 words"
    )


def main(words: list[str] | None = None) -> int:
    """Print a line per page, and the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="REVISION", help="also the pages of this revision")
    parser.add_argument("--quiet", action="store_true", help="the summary alone")
    args = parser.parse_args(words)
    now = [measure(name, text) for name, text in pages(None)]
    if not args.quiet:
        for page in now:
            print(f"{page.words:>6,} words  {page.semicolons:>3} ';'  {page.name}")
    if args.before is not None:
        print(_summary("before", [measure(name, text) for name, text in pages(args.before)]))
    print(_summary("now", now))
    return 0


if __name__ == "__main__":
    sys.exit(main())
