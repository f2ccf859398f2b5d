"""`LazyLoadVQADataset` and `VQADataset`: samples by number, for torch's DataLoader or a loop of one's own.

dataset = penstock.LazyLoadVQADataset("train.jsonl", tokenizer, image_root="coco", cache_images=True)
loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)
"""

from __future__ import annotations

import operator
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load import settings
from penstock._src.load.engine.shared_array import SharedArray
from penstock._src.load.sampling.passes import Passes
from penstock._src.load.vqa.samples import Sample, VQASamples, at_row
from penstock._src.stores.store import Store
from penstock._src.stores.vqa.record import VQARecord
from penstock._src.system.budget import Budget
from penstock._src.system.units import format_bytes
from penstock.errors import BudgetExceeded, ImageError


class LazyLoadVQADataset(VQASamples):
    """Samples that are read when they are asked for: `len(dataset)`, `dataset[i]`.

    It holds an index that all workers map, and nothing per record. `cache_images=True` keeps decoded images in
    `memory` bytes that all workers share. `on_error="skip"` leaves malformed records out; where an image cannot be
    used, the next record stands in, and `dataset.skipped` counts it.
    """

    def __len__(self) -> int:
        return self.store.rows

    def __getitem__(self, index: int) -> Any:
        row = operator.index(index)
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"sample {row:,} of {count:,}")
        row %= count
        for step in range(count):
            sample = self._usable((row + step) % count)
            if sample is not None:
                return sample
        raise ImageError(f"{self.store.path}: no record has an image that can be used")

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool | str = True,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
        drop_last: bool | None = None,
    ) -> Passes:
        """Penstock's order, for DataLoader(batch_sampler=…): the same for any number of workers and ranks, another in
        every epoch, with `state_dict` to go on at the exact sample. `batch_size` is that of all ranks together."""
        return Passes(
            len(self), {"kind": "vqa"}, batch_size, shuffle=shuffle, seed=seed, shard=shard, drop_last=drop_last
        )


class VQADataset(LazyLoadVQADataset):
    """Samples that are all in memory: texts, tokens and decoded images are read once, and shared by all workers.

    What would not fit into `memory` is refused before anything is read.
    """

    def __init__(
        self,
        data: Store | str | os.PathLike[str],
        tokenizer: Any = None,
        *,
        memory: str | int | Budget = "auto",
        threads: int | str = "auto",
        **options: Any,
    ) -> None:
        budget_bytes = settings.budget_for(memory)[0].free_bytes
        self._loaded: _LoadedTexts | None = None
        super().__init__(data, tokenizer, memory=budget_bytes, cache_images=options.get("load_images", True), **options)
        try:
            texts_bytes = _texts_bytes(self)
            if texts_bytes > budget_bytes:
                raise BudgetExceeded(
                    f"{self.store.path}: the texts of {len(self):,} records take about {format_bytes(texts_bytes)}, "
                    f"{format_bytes(budget_bytes)} are there for them",
                    size=texts_bytes,
                    limit=budget_bytes,
                    hint="LazyLoadVQADataset reads them when they are asked for; or raise memory=",
                )
            if self.images is not None:
                self._fill(settings.threads_for(threads))
            self._loaded = _LoadedTexts(self)
        except BaseException:
            self.close()
            raise

    def _fill(self, threads: int) -> None:
        assert self.images is not None
        for row, error in self.images.fill_cache(threads):
            if not self._skips:
                raise at_row(self.store, row, error) from error

    def _record(self, row: int) -> VQARecord | None:
        return self.store.parsed(row) if self._loaded is None else None

    def _texts_of(self, row: int, record: VQARecord | None) -> Sample:
        return super()._texts_of(row, record) if self._loaded is None else self._loaded.sample(row)


class _LoadedTexts:
    """Texts, tokens and numbers of all rows in shared memory: one array of bytes, and arrays of numbers."""

    def __init__(self, dataset: VQADataset) -> None:
        count, texts = len(dataset), bytearray()
        ends = np.zeros(2 * count + 1, np.int64)
        numbers: dict[str, NDArray[Any]] = {}
        for row in range(count):
            sample = dataset._texts_of(row, dataset.store.parsed(row))
            for place, name in enumerate(("question", "answer"), start=2 * row + 1):
                texts += sample.pop(name).encode("utf-8", "surrogatepass")
                ends[place] = len(texts)
            for name, value in sample.items():
                if name not in numbers:
                    numbers[name] = np.empty((count, *np.shape(value)), np.int32 if np.ndim(value) else np.int64)
                numbers[name][row] = value
                if not np.array_equal(numbers[name][row], value):  # tokens beyond 32 bits
                    numbers[name] = numbers[name].astype(np.int64)
                    numbers[name][row] = value
        self._ends, self._bytes = SharedArray(ends), SharedArray(np.frombuffer(texts, np.uint8))
        self._numbers = {name: SharedArray(values) for name, values in numbers.items()}

    def sample(self, row: int) -> Sample:
        start, middle, end = self._ends.values[2 * row : 2 * row + 3].tolist()
        data = self._bytes.values
        texts = [data[start:middle].tobytes(), data[middle:end].tobytes()]
        question, answer = (text.decode("utf-8", "surrogatepass") for text in texts)
        sample: Sample = {"question": question, "answer": answer}
        for name, array in self._numbers.items():
            value = array.values[row]
            sample[name] = value.astype(np.int64) if value.ndim else value.item()
        return sample


def _texts_bytes(dataset: VQADataset) -> int:
    """About what texts and tokens take, held once while they are made and once in shared memory."""
    stored_bytes = sum(column.stored_bytes for column in dataset.store.columns.values() if column.kind == "text")
    tokens = 0 if dataset.tokens is None else 3 * 4 * dataset.tokens.max_length
    return 2 * (stored_bytes + tokens * len(dataset))
