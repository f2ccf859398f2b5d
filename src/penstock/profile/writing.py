"""A file of the profile is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import OutputFailed, UsageError


@contextmanager
def replacing(path: str | os.PathLike[str], what: str) -> Iterator[Path]:
    """The file to write to; when the body is over it takes the place of `path` in one go."""
    target = Path(path)
    if not target.name:
        raise UsageError(f"{os.fspath(path)!r} is no name of a file for {what}")
    scratch = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield scratch
        scratch.replace(target)
    except OSError as error:
        raise OutputFailed(target, f"{what} cannot be written", error) from error
    finally:
        with suppress(OSError):  # it has its place, or there is none
            scratch.unlink(missing_ok=True)
