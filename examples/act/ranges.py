"""Numbers of episodes as people write them: `0-40,45`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from penstock.errors import UsageError

_MOST = 10_000_000
_MOST_WRITTEN = 60  # letters of a list of episodes in a line


def parse_ranges(text: str) -> list[int]:
    """Numbers and ranges (both ends belong to them) in rising order, each once."""
    parts = [re.fullmatch(r"\s*(\d{1,12})(?:\s*-\s*(\d{1,12}))?\s*", part) for part in text.split(",")]
    found = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part is not None]
    if len(found) < len(parts) or not all(found):
        raise UsageError(f"--episodes {text!r} is no list of numbers and ranges", hint="e.g. --episodes 0-40,45")
    count = sum(len(each) for each in found)
    if count > _MOST:
        raise UsageError(f"--episodes {text!r} names {count:,} episodes", hint=f"at most {_MOST:,}")
    return sorted(set(chain.from_iterable(found)))


def format_ranges(numbers: Iterable[int]) -> str:
    """The shortest way to write rising numbers.

    >>> format_ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def way_without(all_episodes: Sequence[int], bad: Collection[int]) -> str:
    """What to do about bad episodes: mend them, or train without them, where two are left."""
    way = f"mend episode{'s' if len(bad) > 1 else ''} {_cut(format_ranges(sorted(bad)))}"
    if len(all_episodes) - len(bad) < 2:
        return way
    left = format_ranges(number for number in all_episodes if number not in bad)
    is_short = len(left) <= _MOST_WRITTEN
    return way + (f", or train without: --episodes {left}" if is_short else ", or leave them out with --episodes")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_WRITTEN else f"{text[:_MOST_WRITTEN].rsplit(',', 1)[0]},…"
