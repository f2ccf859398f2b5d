"""Which process of a training this is: by words, by torch.distributed, or by the variables that `torchrun` sets."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from penstock.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """This process among all, and among those of its machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    gpus: int = 1
    """Processes on this machine, one per GPU."""

    @classmethod
    def find(cls, rank: int | None = None, world: int | None = None, gpus: int | None = None) -> Ranks:
        if (rank is None) != (world is None):
            raise UsageError("rank and world_size go together", hint="clip_loaders(config, rank=0, world_size=2)")
        if rank is None or world is None:
            rank, world = _by_torch() or (_variable("RANK", 0), _variable("WORLD_SIZE", 1))
        if not 0 <= rank < world:
            raise UsageError(f"rank {rank} of {world}: it must lie within 0…{world - 1}")
        local_world = _variable("LOCAL_WORLD_SIZE", world)
        gpus = max(1, local_world if gpus is None else gpus)
        return cls(rank, world, _variable("LOCAL_RANK", rank % gpus), gpus)


def _by_torch() -> tuple[int, int] | None:
    """What torch.distributed says, where it is in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())


def _variable(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
