"""What robots recorded: ROS 1 bags, ROS 2 db3 and mcap, through one door.

with penstock.recordings.open("run.bag") as recording:
    for topic in recording.topics:
        print(topic.name, topic.type, topic.count)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock import formats
from penstock.errors import RecordingError, UsageError, os_errors
from penstock.recordings.split import find, source_of
from penstock.system.files import as_path, refresh

if TYPE_CHECKING:
    from penstock.recordings.recording import Loss, OnCorrupt, Recording, Topic
    from penstock.recordings.recovery.recover import recover

__all__ = ["Loss", "Recording", "Topic", "find", "open", "recover"]


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


def __getattr__(name: str) -> object:
    if name in ("Loss", "Recording", "Topic"):
        from penstock.recordings import recording

        return getattr(recording, name)
    if name == "recover":
        from penstock.recordings.recovery.recover import recover

        return recover
    raise AttributeError(f"module 'penstock.recordings' has no attribute {name!r}")
