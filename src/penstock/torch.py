"""Penstock under `torch.utils.data.DataLoader`: a map-style data set, penstock's order as a sampler, a collate.

    dataset = penstock.torch.Dataset("datasets/run", penstock.Window(action=range(20)))
    sampler = penstock.torch.Sampler(dataset, batch_size=64, seed=0)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=penstock.torch.collate, num_workers=4)

The batches are those of `penstock.Loader`, in its order. A worker decodes straight into shared memory, one piece per
batch, which has no name and is not taken from /dev/shm.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock.errors import MissingExtra, UsageError
from penstock.load import settings
from penstock.load.gather import Gatherer
from penstock.load.order import whole_number
from penstock.load.recycle import Recycler
from penstock.load.resume import STATE_VERSION, resumed
from penstock.load.shard import Batches
from penstock.load.shared_array import SharedArray
from penstock.load.slots import SlotLayout, lay_out
from penstock.load.source import ImageSize, Normalize
from penstock.load.stages import now_ns
from penstock.load.view import View
from penstock.load.window import Sampling
from penstock.stores.opening import open_store
from penstock.stores.store import Store, row_numbers
from penstock.system.budget import Budget
from penstock.system.files import memory_file

if TYPE_CHECKING:  # checked alike where torch is installed and where it is not
    torch: Any

    class _MapStyle:
        pass

    class _SamplerStyle:
        pass

else:
    try:
        import torch
        from torch.utils.data import Dataset as _MapStyle
        from torch.utils.data import Sampler as _SamplerStyle
    except ImportError:  # said when something is asked for: `import penstock.torch` alone breaks nothing
        torch = None
        _MapStyle = _SamplerStyle = object

__all__ = ["Dataset", "Fetched", "Sampler", "collate"]

Sample = dict[str, Any]

_OF_LOADERS = {"batch_size", "shuffle", "seed", "shard", "device", "on_error", "max_skip_rate", "output", "drop_last",
               "prefetch", "gpu_decode"}  # fmt: skip
_FREE_BATCHES = 2  # kept for the next ones where no worker is between
_BLOCK = 4096  # samples of the order computed at a time


class Dataset(_MapStyle):
    """Samples of a window over a store, by number: `len(dataset)`, `dataset[i]`, and many at once for a DataLoader.

    `memory` bounds numbers and the view, which all workers share; each worker adds what it decodes into. Workers
    decode in their own thread; without workers, `threads` share the work. It is pickled as words, not as data.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        window: Sampling | None = None,
        *,
        image_size: ImageSize = (224, 224),
        memory: str | int | Budget = "2GiB",
        view: str | Mapping[str, View] = "auto",
        threads: int | str = "auto",
        exact: bool = False,
        resize: str = "linear",
        dtype: str = "uint8",
        normalize: Normalize = None,
        **options: Any,
    ) -> None:
        if torch is None:
            raise MissingExtra("torch", "torch", "penstock.torch")
        if isinstance(store, settings.Mix):
            raise UsageError(
                f"a Dataset is of one store, not of a Mix of {len(store.stores)}",
                hint="penstock.Loader takes a Mix; for a DataLoader make one Dataset per store, and "
                "torch.utils.data.ConcatDataset of them (with torch's own shuffle=True)",
            )
        if strange := sorted(_OF_LOADERS & options.keys()):
            raise UsageError(
                f"{', '.join(strange)}: a Dataset has no such option",
                hint="DataLoader(batch_size=…) and penstock.torch.Sampler(batch_size, shuffle, seed, shard, drop_last) "
                "choose what is asked for; leaving out damaged pictures, devices and the rest are penstock.Loader's",
            )
        self._own_store = None
        if not isinstance(store, Store):
            store = self._own_store = open_store(store, **options)
        elif options:
            raise UsageError(f"{', '.join(options)}: options of penstock.open, but the store is open already")
        try:
            self._gatherer = Gatherer(
                store, window, image_size=image_size, memory=memory, view=view, threads=threads, exact=exact,
                resize=resize, dtype=dtype, normalize=normalize,
            )  # fmt: skip
            self._gatherer.numbers.fill()  # before a fork, whose children then share it
        except BaseException:
            if self._own_store is not None:
                self._own_store.close()
            raise
        self._shared: dict[str, SharedArray] = {}
        self._recycler = _new_recycler()

    # Asking

    @property
    def store(self) -> Store:
        return self._gatherer.store

    @property
    def window(self) -> Sampling:
        return self._gatherer.window

    @property
    def views(self) -> dict[str, View]:
        """The views that answer for picture columns, by column."""
        return self._gatherer.views

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided: views, numbers."""
        return self._gatherer.notes

    def __len__(self) -> int:
        return self._gatherer.count

    def __getitem__(self, index: int) -> Sample:
        """One sample: tensors without a batch dimension, texts as `str`."""
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number:,} of {len(self):,}")
        return self.__getitems__([number + len(self) if number < 0 else number])[0]

    def __getitems__(self, indices: Sequence[int]) -> Fetched:
        """These samples, fetched together: rows that several need are read once. `collate` takes the batch as it is."""
        began_ns = now_ns()
        samples = row_numbers(indices, "samples")
        layout = lay_out(self._gatherer.shapes(len(samples)))
        if torch.utils.data.get_worker_info() is None:
            arrays = self._recycler.arrays(layout)
            tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}
        else:
            self._gatherer.threads = 0  # the workers are the parallel part
            tensors = _shared_tensors(layout)
            arrays = {name: each.numpy() for name, each in tensors.items()}
        found = self._gatherer.gather(samples, arrays, hand_out_ns=now_ns() - began_ns)
        return Fetched({name: tensors.get(name, value) for name, value in found.items()}, len(samples))

    # Travelling and ending

    def __getstate__(self) -> dict[str, Any]:
        numbers = self._gatherer.numbers
        numbers.fill()
        for name, table in numbers.in_memory().items():
            if name not in self._shared:
                self._shared[name] = SharedArray(table)
        numbers.adopt({name: shared.values for name, shared in self._shared.items()})  # held once, not twice
        return {"gatherer": self._gatherer, "shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._own_store = None
        self._gatherer, self._shared = state["gatherer"], state["shared"]
        self._gatherer.numbers.adopt({name: shared.values for name, shared in self._shared.items()})
        self._recycler = _new_recycler()

    def close(self) -> None:
        """End threads and views, and the store where it was opened here; more than once is fine."""
        self._gatherer.close()
        self._recycler.close()
        if self._own_store is not None:
            self._own_store.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.torch.Dataset: {len(self):,} samples of {self.store!r}, {self.window!r}>"


class Fetched(Sequence[Sample]):
    """Samples that were fetched together: a sequence of them, and `batch`, whose tensors they are views of."""

    def __init__(self, batch: Sample, size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return {name: values[index] for name, values in self.batch.items()}

    def __repr__(self) -> str:
        return f"<{self._size} samples of {', '.join(self.batch)}>"


def collate(samples: Sequence[Sample]) -> Sample:
    """A batch: as it was fetched where that is so, else by torch's own collate."""
    if isinstance(samples, Fetched):
        return samples.batch
    batch: Sample = torch.utils.data.default_collate(samples)
    return batch


class Sampler(_SamplerStyle):
    """Which samples come when, as `penstock.Loader` has it: for `batch_sampler=`, or for `sampler=` without batch_size.

    `batch_size` is that of all processes together; with `shard=(rank, world)` each takes its share of every batch.
    The next pass is the next epoch. States go to and from `penstock.Loader`.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = None,
        *,
        shuffle: bool | str = True,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
        drop_last: bool | None = None,
    ) -> None:
        if not isinstance(dataset, Dataset):
            hint = "penstock.torch.Sampler(dataset, …) takes a penstock.torch.Dataset"
            raise UsageError(f"{type(dataset).__name__} is no data set of penstock's", hint=hint)
        self._order = settings.order_for(len(dataset), shuffle, seed)
        self._window = dataset.window.describe()
        self._shard = settings.shard_for(shard)
        self._is_batched = batch_size is not None
        size = batch_size if batch_size is not None else self._shard.world  # one sample for each process
        self._batches = settings.batches_for(len(dataset), size, drop_last, self._shard)
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
        given = self._batches
        batches = Batches(given.total, given.batch_size, given.drop_last, given.rank, given.world, start)
        step = max(1, _BLOCK // given.batch_size)
        for begin in range(0, len(batches), step):
            numbers = range(begin, min(begin + step, len(batches)))
            positions = [batches.positions(number) for number in numbers]
            samples = self._order.at(epoch, np.concatenate(positions)).tolist()
            at = 0
            for number, own in zip(numbers, positions, strict=True):
                chosen = samples[at : at + len(own)]
                at += len(own)
                if chosen or self._is_batched:
                    yield batches.span(number)[1], chosen if self._is_batched else chosen[0]

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the beginning of this epoch; one that is under way no longer counts."""
        self._stand_at(settings.epoch_for(epoch), 0)

    def _stand_at(self, epoch: int, position: int) -> None:
        self.epoch, self._position, self._resumes = epoch, position, True
        self._pass = (epoch, position)  # another one than that of a pass under way, which then moves nothing any more

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where the order stands, JSON-safe. Workers fetch ahead of your loop: `taken` says how many batches (samples,
        without batch_size) it has taken from the DataLoader in this pass, which is the last that began or, behind
        `set_epoch` and `load_state_dict`, the one to come; else all that were asked for count."""
        epoch, position = self.epoch, self._position
        if taken is not None:
            taken, (epoch, start) = whole_number("taken", taken), self._pass
            left = Batches(self._batches.total, self._batches.batch_size, self._batches.drop_last, start=start)
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
        self._stand_at(*resumed(state, self.state_dict(), self._batches.total))


def _new_recycler() -> Recycler:
    # What the user's code holds is its own affair here, as with any DataLoader.
    return Recycler(Budget(1 << 62, source="no limit"), most_free=_FREE_BATCHES)


def _shared_tensors(layout: SlotLayout) -> dict[str, Any]:
    """Tensors over one piece of shared memory that torch hands to the parent as it is."""
    storage = _shared_storage(layout.n_bytes)
    tensors: dict[str, Any] = {}
    for name, place in layout.places.items():
        dtype = getattr(torch, place.dtype)
        offset = place.offset // np.dtype(place.dtype).itemsize
        tensors[name] = torch.empty(0, dtype=dtype).set_(storage, offset, place.shape)
    return tensors


def _shared_storage(n_bytes: int) -> Any:
    attach = getattr(torch.UntypedStorage, "_new_shared_fd_cpu", None)
    by_descriptor = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
    if attach is None or not by_descriptor or not hasattr(os, "memfd_create"):
        return torch.UntypedStorage._new_shared(n_bytes)
    # torch would take it from /dev/shm, which is 64 MB in a container, and a full one kills the worker.
    fd = memory_file("penstock-batch")
    try:
        os.ftruncate(fd, n_bytes)
    except BaseException:
        os.close(fd)
        raise
    return attach(fd, n_bytes)  # the storage closes it
