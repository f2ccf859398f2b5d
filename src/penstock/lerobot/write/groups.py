"""Episodes that wait for each other: accepted, but without a line in the journal until all of them are on the disk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.lerobot import layout

if TYPE_CHECKING:
    from penstock.lerobot.episodes import EpisodeRecord

# A group shares one round of waiting for the disk, as long as a kill costs no more than a moment's work.
GROUP_EPISODES = 8
GROUP_BYTES = 16 * layout.MIB
GROUP_S = 1.0


@dataclass(frozen=True)
class Waiting:
    """An episode that was accepted; `kept` is what a parcel keeps about it."""

    record: EpisodeRecord
    kept: Mapping[str, Any] | None
    is_last: bool


class Group:
    """The episodes that wait now, in order."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._bytes = 0
        self._began_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def was_to_be_last(self) -> bool:
        """Whether `close` was to follow the last one at once."""
        return bool(self._waiting) and self._waiting[-1].is_last

    @property
    def is_full(self) -> bool:
        """Whether a kill would cost more than a moment's work."""
        return (
            len(self._waiting) >= GROUP_EPISODES
            or self._bytes >= GROUP_BYTES
            or time.monotonic() - self._began_s >= GROUP_S
        )

    def begin_episode(self) -> None:
        """An episode is begun: the work of a group is counted from its first one on."""
        if not self._waiting:
            self._began_s = time.monotonic()

    def add(self, waiting: Waiting, size_bytes: int) -> None:
        self._waiting.append(waiting)
        self._bytes += size_bytes

    def take(self) -> list[Waiting]:
        """All of them; the group is empty then."""
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken
