"""Penstock under `torch.utils.data.DataLoader`: a map-style data set, penstock's order as a sampler, a collate.

    dataset = penstock.torch.Dataset("datasets/run", penstock.Window(action=range(20)))
    sampler = penstock.torch.Sampler(dataset, batch_size=64, seed=0)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=penstock.torch.collate, num_workers=4)

The batches are those of `penstock.Loader`, in its order. A worker decodes straight into shared memory, which has no
name, is not taken from /dev/shm, and is used again when the batch is gone.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock._src.load import settings
from penstock._src.load.engine.fetch import SampleFetcher
from penstock._src.load.engine.shared_array import SharedArray
from penstock._src.load.engine.slots import lay_out
from penstock._src.load.engine.source import ImageSize, Normalize
from penstock._src.load.engine.stages import now_ns
from penstock._src.load.sampling.passes import Passes
from penstock._src.load.sampling.window import Sampling
from penstock._src.load.torch_sharing import FetchedSamples, Sample, collate, worker_memory
from penstock._src.load.views.view import View
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Store, row_numbers
from penstock._src.system.budget import Budget
from penstock.errors import MissingExtra, UsageError

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
    except ImportError:  # reported on use: `import penstock.torch` alone breaks nothing
        torch = None
        _MapStyle = _SamplerStyle = object

__all__ = ["Dataset", "FetchedSamples", "Sampler", "collate"]

_OF_LOADERS = {"batch_size", "shuffle", "seed", "shard", "device", "on_error", "max_skip_rate", "output", "drop_last",
               "prefetch", "gpu_decode"}  # fmt: skip


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
        memory: str | int | Budget = "auto",
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
                hint="batch_size is an option of DataLoader; shuffle, seed, shard and drop_last are options of "
                "penstock.torch.Sampler; device, on_error and the others are options of penstock.Loader",
            )
        self._own_store = None
        if not isinstance(store, Store):
            store = self._own_store = open_store(store, **options)
        elif options:
            raise UsageError(f"{', '.join(options)}: options of penstock.open, but the store is open already")
        try:
            self._fetcher = SampleFetcher(
                store, window, image_size=image_size, memory=memory, view=view, threads=threads, exact=exact,
                resize=resize, dtype=dtype, normalize=normalize,
            )  # fmt: skip
            self._fetcher.numbers.fill()  # before a fork, whose children then share it
        except BaseException:
            if self._own_store is not None:
                self._own_store.close()
            raise
        self._shared: dict[str, SharedArray] = {}

    # Asking

    @property
    def store(self) -> Store:
        return self._fetcher.store

    @property
    def window(self) -> Sampling:
        return self._fetcher.window

    @property
    def views(self) -> dict[str, View]:
        """The views that answer for image columns, by column."""
        return self._fetcher.views

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided: views, numbers."""
        return self._fetcher.notes

    def __len__(self) -> int:
        return self._fetcher.count

    def __getitem__(self, index: int) -> Sample:
        """One sample: tensors without a batch dimension, texts as `str`."""
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number:,} of {len(self):,}")
        return self.__getitems__([number + len(self) if number < 0 else number])[0]

    def __getitems__(self, indices: Sequence[int]) -> FetchedSamples:
        """These samples, fetched together: rows that several need are read once. `collate` takes the batch as it is."""
        began_ns = now_ns()
        samples = row_numbers(indices, "samples")
        if torch.utils.data.get_worker_info() is None:
            arrays = self._fetcher.arrays(len(samples))
            batch: Sample = {name: torch.from_numpy(each) for name, each in arrays.items()}
        else:
            self._fetcher.threads = 0  # the workers are the parallel part
            batch, arrays = worker_memory().batch(lay_out(self._fetcher.shapes(len(samples))))
        fetched = self._fetcher.fetch(samples, arrays, hand_out_ns=now_ns() - began_ns)
        batch.update({name: value for name, value in fetched.items() if name not in arrays})
        return FetchedSamples(batch, len(samples))

    # Travelling and ending

    def __getstate__(self) -> dict[str, Any]:
        numbers = self._fetcher.numbers
        numbers.fill()
        for name, table in numbers.in_memory().items():
            if name not in self._shared:
                self._shared[name] = SharedArray(table)
        numbers.adopt({name: shared.values for name, shared in self._shared.items()})  # held once, not twice
        return {"fetcher": self._fetcher, "shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._own_store = None
        self._fetcher, self._shared = state["fetcher"], state["shared"]
        self._fetcher.numbers.adopt({name: shared.values for name, shared in self._shared.items()})

    def close(self) -> None:
        """End threads and views, and the store where it was opened here; more than once is fine."""
        self._fetcher.close()
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


class Sampler(Passes, _SamplerStyle):
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
            raise UsageError(f"{type(dataset).__name__} is not a penstock.torch.Dataset", hint=hint)
        super().__init__(
            len(dataset), dataset.window.describe(), batch_size, shuffle=shuffle, seed=seed, shard=shard,
            drop_last=drop_last,
        )  # fmt: skip
