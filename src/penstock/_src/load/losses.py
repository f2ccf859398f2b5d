"""Samples that could not be had: raised, or left out of their batch, counted, and no more of them than was allowed."""

from __future__ import annotations

import numpy as np

from penstock._src.load.engine.job import BatchJob, Failure
from penstock._src.load.sampling.position_map import Batch, selected
from penstock._src.load.sampling.shard import Batches
from penstock.errors import PenstockError


class Losses:
    """What one process has got and lost of its part of the batches."""

    def __init__(self, batches: Batches, skips: bool, max_skip_rate: float) -> None:
        self._batches = batches
        self._skips = skips
        self._max_skip_rate = max_skip_rate
        self.kept = self.skipped = 0

    def without(self, job: BatchJob, batch: Batch) -> Batch | None:
        """The batch without samples that could not be had, None where nothing is left; raises where losses are not
        asked for, and where there are too many."""
        if not job.failures:
            self.kept += job.size
            return batch
        if not self._skips:
            skip = 'on_error="skip" leaves such samples out and counts them'
            raise job.failures[0].raised(skip) from job.failures[0].error
        lost = sorted({place for failure in job.failures for place in failure.places})
        self.skipped += len(lost)
        self.kept += job.size - len(lost)
        self._check_rate(job.failures[0])
        kept = np.setdiff1d(np.arange(job.size), lost)
        if len(kept):
            return selected(batch, kept)
        if self._batches.world > 1:  # one batch less than the others have: they would wait for this process for ever
            error = job.failures[0].raised()
            raise PenstockError(
                f"none of the {job.size:,} samples of rank {self._batches.rank} in a batch of "
                f"{self._batches.batch_size:,} could be loaded; the first: {error.message}",
                hint="; ".join(["a larger batch_size", *job.failures[0].doctor]),
            ) from job.failures[0].error
        return None

    def _check_rate(self, failure: Failure) -> None:
        world, seen = self._batches.world, self.skipped + self.kept
        own = -(-self._batches.total // world)  # of an epoch
        if self.skipped <= max(1.0, self._max_skip_rate * max(seen, own)):
            return
        error = failure.raised()
        part = f", the part of rank {self._batches.rank} of {world}" if world > 1 else ""
        raise PenstockError(
            f"{self.skipped:,} of {seen:,} samples could not be loaded, more than "
            f"max_skip_rate={self._max_skip_rate:g} of {own:,}{part}; the last: {error.message}",
            hint="; ".join(["a larger max_skip_rate goes on", *failure.doctor]),
        ) from failure.error
