"""The cache directory: where views, indexes and other things that can be made again are kept."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import UsageError

HINT = "set PENSTOCK_CACHE to a directory that may be written, on a disk with room"


def cache_directory() -> Path:
    """$PENSTOCK_CACHE, else $XDG_CACHE_HOME/penstock, else ~/.cache/penstock."""
    own = os.environ.get("PENSTOCK_CACHE")
    if own:
        return expanded(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a path that is not absolute counts as not set.
    return (Path(shared) if os.path.isabs(shared) else expanded("~/.cache")) / "penstock"


def expanded(path: str | os.PathLike[str]) -> Path:
    """An absolute path; `~` is the home directory."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:  # a user without an entry, as in some containers
        raise UsageError(f"there is no home directory for the cache: {error}", hint=HINT) from error


def has_directory() -> bool:
    """Whether there is a place for the cache; a user without a home directory has none."""
    try:
        cache_directory()
    except UsageError:
        return False
    return True
