"""The system's page cache of some files: dropping it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def files_of(path: Path) -> list[Path]:
    """The files that a store at this path is made of."""
    if path.is_file():
        return [path]
    return sorted(each for each in path.rglob("*") if each.is_file())


def drop(paths: Sequence[Path]) -> None:
    """Ask the system to forget the pages of these files; mapped pages stay."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.access(path, os.W_OK):
                os.fdatasync(fd)  # pages that are not on the disk yet cannot be forgotten
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
