"""`StreamingVQADataset`: every record once per epoch, in a computed order, for any number of workers and ranks.

dataset = penstock.StreamingVQADataset("shards/", tokenizer, batch_size=64, seed=0)
for batch in DataLoader(dataset, batch_size=None, num_workers=4): …
dataset.state_dict(taken)                      # after `taken` batches; load_state_dict goes on at the next
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock._src.load import settings
from penstock._src.load.sampling.order import whole_number
from penstock._src.load.sampling.passes import samples_of
from penstock._src.load.sampling.resume import STATE_VERSION, resumed
from penstock._src.load.vqa.samples import Sample, VQASamples, collate
from penstock._src.load.vqa.shared_cells import SharedCells
from penstock._src.load.vqa.workers import current_worker
from penstock._src.stores.store import Store
from penstock.errors import UsageError

if TYPE_CHECKING:  # checked alike where torch is installed and where it is not

    class _Iterable:
        pass

else:
    try:
        from torch.utils.data import IterableDataset as _Iterable
    except ImportError:  # it is iterated all the same
        _Iterable = object

_REMEMBERED = 8  # passes whose workers may still be starting
_NEXT, _EPOCH, _START = 0, 1, 2  # of the first row: whether the next pass is given, its epoch, its first position


class StreamingVQADataset(VQASamples, _Iterable):
    """Batches of `batch_size` samples (of all ranks together), or samples one by one where it is left out.

    `shuffle="local"` shuffles blocks of neighbours, so that shards are read forward; True shuffles all, False none.
    Worker w of W makes batches w, w + W, …: a DataLoader gives the same batches for any number of workers. The next
    pass is the next epoch. `on_error="skip"` leaves out what cannot be used, and `dataset.skipped` counts it.
    """

    def __init__(
        self,
        data: Store | str | os.PathLike[str],
        tokenizer: Any = None,
        *,
        batch_size: int | None = None,
        shuffle: bool | str = "local",
        seed: int = 0,
        shard: tuple[int, int] | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(data, tokenizer, **options)
        try:
            rows, own = self.store.rows, settings.shard_for(shard)
            self._order = settings.order_for(rows, shuffle, seed)
            # Without batch_size, one sample for each rank.
            self._batches = settings.batches_for(rows, own.world if batch_size is None else batch_size, drop_last, own)
        except BaseException:
            self.close()
            raise
        self._is_batched = batch_size is not None
        self._epochs = _Epochs()
        self._own_passes = 0
        self._n_taken = 0

    def __len__(self) -> int:
        """Batches (samples, without batch_size) of an epoch for this rank."""
        count = len(self._batches)
        return count if self._is_batched or len(self._batches.positions(count - 1)) else count - 1

    def __iter__(self) -> Iterator[Any]:
        worker, workers, seed = current_worker() or (0, 1, 0)
        self._own_passes += 1
        epoch, start = self._epochs.begin(seed, self._own_passes)
        self._n_taken = 0
        batches = replace(self._batches, start=start)
        for _, rows in samples_of(self._order, batches, epoch, range(worker, len(batches), workers)):
            samples = [sample for row in rows if (sample := self._usable(row)) is not None]
            self._n_taken += 1
            if self._is_batched:
                yield _batch(samples)
            else:
                yield from samples

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the beginning of this epoch."""
        self._epochs.seek(settings.epoch_for(epoch), 0)

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where the order stands, JSON-safe. `taken`: how many batches (samples, without batch_size) your loop has
        taken in this pass; workers make more of them ahead. Without workers, those that were handed out count."""
        epoch, start = self._epochs.last()
        batches = replace(self._batches, start=start)
        count = self._n_taken if taken is None else whole_number("taken", taken)
        if not 0 <= count <= len(batches):
            raise UsageError(f"taken={count:,}: a pass from position {start:,} has {len(batches):,}")
        return {**self._described(), "epoch": epoch, "position": batches.span(count - 1)[1] if count else start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` was taken; batch size, workers and ranks may be others."""
        epoch, position = resumed(state, self._described(), self.store.rows)
        self._n_taken = 0
        self._epochs.seek(epoch, position)

    def _described(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "order": self._order.describe(), "window": {"kind": "vqa"}}


class _Epochs:
    """Which epoch a pass is of, agreed on by the workers of a DataLoader: all that start with one seed are one pass.

    Workers are copies of the data set, and the DataLoader tells them nothing of epochs. The first worker of a pass
    moves to the next epoch, the others find the pass in the shared table.
    """

    def __init__(self) -> None:
        self._cells = SharedCells(2 + _REMEMBERED, 4)
        with self._cells.locked() as cells:
            cells[0, _NEXT] = 1  # the first pass is of epoch 0

    def begin(self, seed: int, own_passes: int) -> tuple[int, int]:
        """(epoch, first position) of a pass that starts here."""
        with self._cells.locked() as cells:
            passes = int(cells[1, 0])
            for row in range(min(passes, _REMEMBERED) if seed else 0):
                if (int(cells[2 + row, 0]), int(cells[2 + row, 1])) == (seed, own_passes):
                    return int(cells[2 + row, 2]), int(cells[2 + row, 3])
            if not cells[0, _NEXT]:
                cells[0, _EPOCH], cells[0, _START] = int(cells[0, _EPOCH]) + 1, 0
            cells[0, _NEXT] = 0
            epoch, start = int(cells[0, _EPOCH]), int(cells[0, _START])
            cells[2 + passes % _REMEMBERED] = seed, own_passes, epoch, start
            cells[1, 0] = passes + 1
            return epoch, start

    def seek(self, epoch: int, start: int) -> None:
        with self._cells.locked() as cells:
            cells[0] = 1, epoch, start, 0

    def last(self) -> tuple[int, int]:
        """(epoch, first position) of the last pass that began, or of the one that was given and is to come."""
        with self._cells.locked() as cells:
            return int(cells[0, _EPOCH]), int(cells[0, _START])


def _batch(samples: list[Sample]) -> Any:
    if not samples:
        raise UsageError(
            "no sample of a batch can be used: a batch cannot be empty",
            hint="look at the data set's `skipped`, or take a larger batch_size",
        )
    return collate(samples)
