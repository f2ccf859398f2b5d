"""Notes about what a conversion leaves out: each names a topic and its reason, and those of one reason are grouped."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAMES_SHOWN = 4
_LEFT_OUT = re.compile(r"(\S+) (?:is )?left out: (.+)", re.DOTALL)


def left_out(name: str, reason: str) -> str:
    """The note about one topic or column."""
    return f"{name} left out: {reason}"


def group_left_out(notes: Iterable[str]) -> list[str]:
    """The same notes, with one line for all topics that are left out for the same reason.

    >>> group_left_out(["/a left out: no messages", "a note", "/b left out: no messages"])
    ['2 topics left out: no messages: /a, /b', 'a note']
    """
    names: dict[str, list[str]] = {}
    lines: dict[str, None] = {}  # a reason or a whole note, in the order of their first appearance
    for note in notes:
        found = _LEFT_OUT.fullmatch(note)
        if found is None:
            lines[note] = None
        else:
            names.setdefault(found[2], []).append(found[1])
            lines[found[2]] = None
    return [_line(line, names[line]) if line in names else line for line in lines]


def _line(reason: str, names: list[str]) -> str:
    if len(names) == 1:
        return left_out(names[0], reason)
    what = " topics" if names[0].startswith("/") else ""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names):,}{what} left out: {reason}: {', '.join(names[:_NAMES_SHOWN])}{more}"
