"""Refusing what does not fit on a disk before the first byte is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock._src.system import units
from penstock.errors import LimitExceeded


def check_space(directory: Path, needed_bytes: int, hint: str) -> None:
    """Raise `LimitExceeded` with both numbers where the file system of `directory` has no room for `needed_bytes`."""
    parent = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    free_bytes = shutil.disk_usage(parent).free
    if needed_bytes > free_bytes:
        raise LimitExceeded(
            f"{directory} needs {units.format_size(needed_bytes)} more, {units.format_size(free_bytes)} are free there",
            size=needed_bytes,
            limit=free_bytes,
            hint=hint,
        )
