"""What robots recorded: ROS 1 bags, ROS 2 db3 and mcap, through one door.

`penstock.recordings` is what users import.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock._src import formats
from penstock._src.recordings.split import find, source_of
from penstock._src.system.files import as_path, refresh
from penstock.errors import RecordingError, UsageError, os_errors

if TYPE_CHECKING:
    from penstock._src.recordings.recording import OnCorrupt, Recording

__all__ = ["find", "open"]


def open(path: str | Path, *, on_corrupt: OnCorrupt = "raise") -> Recording:
    """Open a recording: a file, the first file of a split series, or a ROS 2 bag directory.

    on_corrupt="count": what cannot be read is counted in `losses` and fetched as None, instead of raising.
    """
    if on_corrupt not in ("raise", "count"):
        raise UsageError(f"on_corrupt is 'raise' or 'count', not {on_corrupt!r}")
    with os_errors(RecordingError, f"{path}: cannot be opened"):
        refresh(path)
        source = source_of(as_path(path))
    recording: Recording = formats.get(source.kind).load("open")(source, on_corrupt=on_corrupt)
    return recording
