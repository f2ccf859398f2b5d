"""A file of the profile is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import OutputFailed, UsageError
from penstock.system import files


@contextmanager
def replacing(path: str | os.PathLike[str], what: str) -> Iterator[Path]:
    """The file to write to; when the body is over it takes the place of `path` in one go."""
    target = Path(path)
    if not target.name:
        raise UsageError(f"{os.fspath(path)!r} is no name of a file for {what}")
    try:
        with files.replacing(target) as scratch:
            yield scratch
    except OSError as error:
        raise OutputFailed(target, f"{what} cannot be written", error) from error
