"""Hints of the library in the words of the command line, which has no keywords."""

from __future__ import annotations

import re

from penstock.errors import PenstockError

_OPTIONS = (
    (r"episodes=\[[^\]]*\]( without \d+)?", r"--episodes 0-40,45\1"),
    (r"columns=\[[^\]]*\]( without '[^']*')?", r"--cameras A,B\1"),
    (r'memory="([^"]*)"', r"--memory \1"),
    (r"memory=…", "--memory"),
    (r"image_size=\((\d+), (\d+)\)", r"--image_size \1x\2"),
    (r"(?<![-\w])(batch_size|image_size|threads)\b(?!=)", r"--\1"),
)


def in_options(error: PenstockError) -> PenstockError:
    """The same error, with a hint that can be followed here."""
    if error.hint is not None:
        for pattern, option in _OPTIONS:
            error.hint = re.sub(pattern, option, error.hint)
    return error
