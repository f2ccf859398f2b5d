"""The order of clips: every clip once per epoch over all ranks, and every rank with the same number of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock._src.load.sampling.passes import Passes


class Repeat(int):
    """A clip that stands in where a rank has none left in the last batch of an epoch: its weight is 0."""


class ClipPasses(Passes):
    """Batches of clip numbers that carry their epoch: epoch × clips + clip.

    No clip is dropped and none is counted twice. Where the last global batch has fewer clips than there are ranks, a
    rank without one gets a `Repeat`: ranks stay in step, as collective operations need it.
    """

    def __init__(
        self, count: int, window: Mapping[str, Any], batch_size: int, *, shuffle: bool, seed: int, rank: int, world: int
    ) -> None:
        """`batch_size` is that of one rank."""
        shard = (rank, world)
        super().__init__(count, window, batch_size * world, shuffle=shuffle, seed=seed, shard=shard, drop_last=False)

    def _batched(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        first = epoch * self._batches.total
        for after, samples in super()._batched(epoch, start):
            yield (
                after,
                [first + sample for sample in samples] or [Repeat(first + int(self._order.at(epoch, [after - 1])[0]))],
            )

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        state = super().state_dict(taken)
        if state["position"] == self._batches.total:  # nothing is left of this epoch
            state.update(epoch=state["epoch"] + 1, position=0)
        return state
