"""Groups of inputs: the unit in which machines share the work, and at which videos may begin anew.

The inputs are divided in their order, by their sizes alone: neither the number of machines nor what fails changes a
group, and so the same files come out however the work was shared.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock._src.formats.registry import LEROBOT

DEFAULT_GROUP_MB = 64  # less is not worth a process on another machine
MOST_INPUTS = 100  # of a group: what a lost machine costs at most
_MIB = 2**20


class Group(NamedTuple):
    """Inputs that follow each other, `first` up to `stop`, and are converted in one go."""

    number: int
    first: int
    stop: int
    size_bytes: int

    @property
    def inputs(self) -> range:
        return range(self.first, self.stop)


def divide(batches: Sequence[Sequence[Mapping[str, Any]]], group_mb: int | None) -> list[Group]:
    """The groups of all inputs, as the journal knows those: a batch for each call that gave some.

    Inputs share a group while they have `group_mb` together; a data set, which brings a table of tasks, has its own.
    """
    limit_bytes = (group_mb or DEFAULT_GROUP_MB) * _MIB
    groups: list[Group] = []
    number = 0
    for batch in batches:
        begins = True
        for source in batch:
            size_bytes, is_alone = int(source["bytes"]), source["kind"] == LEROBOT.kind
            last = None if begins or is_alone else groups[-1]
            if last is not None and last.size_bytes + size_bytes <= limit_bytes and len(last.inputs) < MOST_INPUTS:
                groups[-1] = last._replace(stop=number + 1, size_bytes=last.size_bytes + size_bytes)
            else:
                groups.append(Group(len(groups), number, number + 1, size_bytes))
            begins = is_alone
            number += 1
    return groups


def owners(groups: Sequence[Group], shards: int) -> dict[int, int]:
    """Which shard converts a group, by the number of the group: each takes about as many bytes as the others."""
    loads = [(0, number) for number in range(shards)]
    found = {}
    for group in sorted(groups, key=lambda each: (-each.size_bytes, each.number)):
        load_bytes, owner = loads[0]
        heapq.heapreplace(loads, (load_bytes + group.size_bytes + 1, owner))
        found[group.number] = owner
    return found
