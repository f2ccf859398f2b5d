"""Where an episode lies in the files of a LeRobot v3.0 data set: what the journal keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot.layout import FilePosition

_SPAN = ("chunk", "file", "first_frame", "frames", "end_bytes")


@dataclass(frozen=True)
class VideoSpan:
    """Where the frames of one episode lie in the files of one camera; the last of them ends at `end_bytes`."""

    position: FilePosition
    first_frame: int
    frames: int
    end_bytes: int

    def to_json(self) -> dict[str, int]:
        return {
            "chunk": self.position.chunk,
            "file": self.position.file,
            "first_frame": self.first_frame,
            "frames": self.frames,
            "end_bytes": self.end_bytes,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> VideoSpan:
        chunk, file, *numbers = (entry[name] for name in _SPAN)
        return cls(FilePosition.checked(chunk, file), *map(int, numbers))


@dataclass(frozen=True)
class EpisodePlace:
    """The data file in which the rows of an episode lie or will lie, the size of their part, and their frames."""

    data: FilePosition
    part_bytes: int
    videos: Mapping[str, VideoSpan]

    def to_json(self) -> dict[str, Any]:
        return {
            "data": [self.data.chunk, self.data.file],
            "part_bytes": self.part_bytes,
            "videos": {key: span.to_json() for key, span in self.videos.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: object) -> EpisodePlace:
        """The place that a record of the journal holds."""
        try:
            return cls(
                FilePosition.checked(*record["data"]),
                int(record["part_bytes"]),
                {key: VideoSpan.from_json(span) for key, span in record["videos"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataSetCorrupt(f"{where}: a record of an episode cannot be used: {error!r}") from error
