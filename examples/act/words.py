"""Hints of the library in the words of the command line, which has no keywords."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import PenstockError

from .ranges import format_ranges, way_without

_EXAMPLE = "0-40,45"
_SKIP = r'on_error="skip"[^;]*'


def _episodes(found: re.Match[str]) -> str:
    numbers = sorted({int(number) for number in re.findall(r"\d+", found[1])})
    more = ",…" if numbers and "…" in found[1] else ""
    return f"--episodes {format_ranges(numbers) or _EXAMPLE}{more}{found[2] or ''}"


_OPTIONS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r'episodes="whole" opens ', ""),
    (r"episodes=\[([^\]]*)\]( without \d+)?", _episodes),
    (r"columns=\[[^\]]*\]( without '[^']*')?", r"--cameras A,B\1"),
    (r'memory="([^"]*)"( \(of a command: [^)]*\))?', r"--memory \1"),
    (r"memory=…", "--memory"),
    (r"image_size=\((\d+), (\d+)\)", r"--image_size \1x\2"),
    (r"(?<![-\w])(batch_size|image_size|threads)\b(?!=)", r"--\1"),
    (r"view=penstock\.build_view\([^)]*\) keeps a part of the rows", "--view ram keeps what --memory has room for"),
    (r" \(mask=NAME[^)]*\)", ""),
    (_SKIP, "leave its episode out with --episodes"),
)


def in_options(error: PenstockError) -> PenstockError:
    """The same error, with a hint that can be followed here."""
    if error.hint is not None:
        error.hint = in_words(error.hint)
    return error


def in_words(text: str) -> str:
    """A hint or a note of the library, with the options that this command has."""
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
    return text


@contextmanager
def leaving_out(all_episodes: Sequence[int]) -> Iterator[None]:
    """What cannot be read in the body is told with the episodes that are left without it."""
    try:
        yield
    except PenstockError as error:
        broken = re.search(r"\(row [\d,]+ of episode ([\d,]+)\)", error.message)
        if broken is not None and error.hint is not None:
            way = way_without(all_episodes, {int(broken[1].replace(",", ""))})
            error.hint = re.sub(_SKIP, way, error.hint)
        raise
