"""Passes over samples, batch by batch: the order of an epoch, this process's share, and a state to go on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from penstock._src.load import settings
from penstock._src.load.sampling.order import Order, whole_number
from penstock._src.load.sampling.resume import STATE_VERSION, resumed
from penstock._src.load.sampling.shard import Batches
from penstock.errors import UsageError

_BLOCK = 4096  # samples of the order computed at a time


def samples_of(order: Order, batches: Batches, epoch: int, numbers: range) -> Iterator[tuple[int, list[int]]]:
    """Number and samples of these batches; the order is computed for many of them at a time."""
    step = max(1, _BLOCK // batches.batch_size)
    for begin in range(0, len(numbers), step):
        some = numbers[begin : begin + step]
        positions = [batches.positions(number) for number in some]
        samples = order.at(epoch, np.concatenate(positions)).tolist()
        at = 0
        for number, own in zip(some, positions, strict=True):
            yield number, samples[at : at + len(own)]
            at += len(own)


class Passes:
    """Which samples come when: an iterator of batches (of samples, without `batch_size`) for torch's DataLoader.

    `batch_size` is that of all processes together; with `shard=(rank, world)` each takes its share of every batch.
    The next pass is the next epoch. `window` describes what a sample is; a state goes on only where it is the same.
    """

    def __init__(
        self,
        count: int,
        window: Mapping[str, Any],
        batch_size: int | None = None,
        *,
        shuffle: bool | str = True,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
        drop_last: bool | None = None,
    ) -> None:
        self._order = settings.order_for(count, shuffle, seed)
        self._window = window
        self._shard = settings.shard_for(shard)
        self._is_batched = batch_size is not None
        size = batch_size if batch_size is not None else self._shard.world  # one sample for each process
        self._batches = settings.batches_for(count, size, drop_last, self._shard)
        self.epoch = 0
        self._position = 0
        self._resumes = False
        self._pass = (0, 0)

    def __len__(self) -> int:
        """Batches of an epoch for this process; samples, where no batch_size was given."""
        count = len(self._batches)
        is_short = not self._is_batched and count > 0 and not len(self._batches.positions(count - 1))
        return count - is_short

    def __iter__(self) -> Iterator[Any]:
        # A generator: the pass begins with its first batch. With workers, torch makes two iterators and uses one.
        if self._position and not self._resumes:  # the pass before was left in the middle
            self.epoch, self._position = self.epoch + 1, 0
        self._resumes = False
        own = self._pass = epoch, start = (self.epoch, self._position)
        for after, samples in self._batched(epoch, start):
            if self._pass is own:
                self._position = after
            yield samples
        if self._pass is own:
            self.epoch, self._position = epoch + 1, 0

    def _batched(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        """(position behind it, samples) of every batch; one by one, of those that are not empty."""
        batches = replace(self._batches, start=start)
        for number, samples in samples_of(self._order, batches, epoch, range(len(batches))):
            if samples or self._is_batched:
                yield batches.span(number)[1], samples if self._is_batched else samples[0]

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the beginning of this epoch; one that is under way no longer counts."""
        self._set_position(settings.epoch_for(epoch), 0)

    def _set_position(self, epoch: int, position: int) -> None:
        self.epoch, self._position, self._resumes = epoch, position, True
        self._pass = (epoch, position)  # another one than that of a pass under way, which then moves nothing any more

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where the order stands, JSON-safe. Workers fetch ahead of your loop: `taken` says how many batches (samples,
        without batch_size) it has taken from the DataLoader in this pass, which is the last that began or, behind
        `set_epoch` and `load_state_dict`, the one to come; else all that were asked for count."""
        epoch, position = self.epoch, self._position
        if taken is not None:
            taken, (epoch, start) = whole_number("taken", taken), self._pass
            left = replace(self._batches, start=start)
            if not 0 <= taken <= len(left):
                raise UsageError(f"taken={taken:,}: a pass from position {start:,} has {len(left):,}")
            position = left.span(taken - 1)[1] if taken else start
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "position": position,
            "order": self._order.describe(),
            "window": self._window,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; batch size, workers and shards may be others."""
        self._set_position(*resumed(state, self.state_dict(), self._batches.total))
