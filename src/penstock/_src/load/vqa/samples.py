"""What the three VQA data sets have in common: a store, and how a record becomes a sample.

| entry | what it is |
|---|---|
| `question`, `answer` | texts |
| `image` | (3, height, width), uint8 or float32 |
| `has_image` | False where a record has no image; `image` is zero then |
| `n_images` | with `max_images`: how many of (max_images, 3, height, width) there are |
| `input_ids`, `attention_mask` | the question, with a tokenizer |
| `labels` | the answer, with a tokenizer; -100 is padding |
| `question_id`, `image_id` | where the data have them |
| `index` | the row of the store |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.load import settings
from penstock._src.load.engine.source import ImageSize, Normalize, Shaping
from penstock._src.load.vqa.images import SampleImages
from penstock._src.load.vqa.skipped import SkippedImages
from penstock._src.load.vqa.tokens import Tokens
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Store
from penstock._src.stores.vqa.record import VQARecord
from penstock._src.stores.vqa.store import VQAStore
from penstock._src.system.budget import Budget
from penstock.errors import ImageError, MissingExtra, PenstockError, StoreError, UsageError

Sample = dict[str, Any]
Texts = Callable[[VQARecord], tuple[str, str]]
"""Makes question and answer of a record, for example of all turns of a conversation."""

_OUTPUTS = ("numpy", "torch")
_IDS = ("question_id", "image_id")
_Self = TypeVar("_Self", bound="VQASamples")


class VQASamples:
    """Samples of a VQA store by row; a context manager. It is pickled as words, not as data."""

    def __init__(
        self,
        data: Store | str | os.PathLike[str],
        tokenizer: Any = None,
        *,
        max_length: int = 512,
        image_size: ImageSize = (224, 224),
        load_images: bool = True,
        max_images: int = 1,
        cache_images: bool = False,
        memory: str | int | Budget = "auto",
        dtype: str = "uint8",
        normalize: Normalize = None,
        exact: bool = False,
        resize: str = "linear",
        on_error: str = "raise",
        texts: Texts | None = None,
        transform: Callable[[Sample], Any] | None = None,
        output: str = "numpy",
        **options: Any,
    ) -> None:
        """`data`: what penstock.open opens, with its options, or an open store."""
        settings.one_of("output", output, _OUTPUTS)
        settings.one_of("on_error", on_error, ("raise", "skip"))
        if output == "torch":
            _need_torch()
        self.tokens = None if tokenizer is None else Tokens(tokenizer, max_length)
        self._own_store = not isinstance(data, Store)
        self.store = _vqa_store(data, on_error, options)
        try:
            cache_bytes = settings.budget_for(memory)[0].free_bytes if cache_images else 0
            shaping = Shaping(image_size, exact, resize, dtype, normalize)
            self.images = SampleImages(self.store, shaping, max_images, cache_bytes) if load_images else None
        except BaseException:
            self._close_store()
            raise
        self._skips = on_error == "skip"
        self._texts, self._transform, self._output = texts, transform, output
        self._ids = tuple(name for name in _IDS if name in self.store.columns)
        self.skipped = SkippedImages()
        """Samples that were left out because of their images, over all workers; records that cannot be parsed are left
        out when the store is opened, and named in its notes."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the data: malformed records, missing images."""
        return tuple(self.store.notes)

    def _sample(self, row: int) -> Sample:
        """One sample; an image that cannot be used is an ImageError or StoreError that names it."""
        record = self._record(row)
        sample = self._texts_of(row, record)
        if self.images is not None:
            pixels: NDArray[Any] = np.empty(self.images.shape, self.images.dtype)
            try:
                count = self.images.read(row, record, pixels)
            except (ImageError, StoreError) as error:
                raise at_row(self.store, row, error) from error
            sample["image"], sample["has_image"] = pixels, count > 0
            if self.images.most > 1:
                sample["n_images"] = count
        sample["index"] = row
        if self._output == "torch":
            sample = _with_tensors(sample)
        return sample if self._transform is None else self._transform(sample)

    def _record(self, row: int) -> VQARecord | None:
        """The record of a row; None where nothing of it is needed any more."""
        return self.store.parsed(row)

    def _texts_of(self, row: int, record: VQARecord | None) -> Sample:
        assert record is not None
        question, answer = (record.question, record.answer) if self._texts is None else self._texts(record)
        sample: Sample = {"question": question, "answer": answer}
        if self.tokens is not None:
            sample["input_ids"], sample["attention_mask"] = self.tokens(question)
            sample["labels"] = self.tokens.labels(answer)
        for name in self._ids:
            sample[name] = getattr(record, name)
        return sample

    def _usable(self, row: int) -> Sample | None:
        """The sample of a row; None where its image cannot be used and that was allowed."""
        if not self._skips:
            return self._sample(row)
        try:
            return self._sample(row)
        except (ImageError, StoreError) as error:
            self.skipped.note(row, error)
            return None

    def _close_store(self) -> None:
        if self._own_store:
            self.store.close()

    def close(self) -> None:
        """Give back the cache, and the store where it was opened here; more than once is fine."""
        if self.images is not None:
            self.images.close()
        self._close_store()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.store.rows:,} records of {self.store.kind} {str(self.store.path)!r}>"


def at_row(store: Store, row: int, error: PenstockError) -> PenstockError:
    """The same error with the row that it is of."""
    kind = ImageError if isinstance(error, ImageError) else StoreError
    return kind(f"{store.path}: row {row:,}: {error.message}", hint=error.hint)


def collate(samples: Sequence[Sample]) -> Sample:
    """A batch of samples: arrays (or tensors) of equal shape are stacked, numbers become an array, texts a list."""
    batch: Sample = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        if isinstance(first, np.ndarray):
            batch[name] = np.stack(values)
        elif isinstance(first, (bool, int, float)):
            batch[name] = np.array(values)
        elif hasattr(first, "new_empty"):  # a tensor
            import torch

            batch[name] = torch.stack(values)
        else:
            batch[name] = values
    return batch


def _vqa_store(data: Store | str | os.PathLike[str], on_error: str, options: dict[str, Any]) -> VQAStore:
    if isinstance(data, Store):
        if options:
            raise UsageError(f"{', '.join(options)}: options of penstock.open, but the store is open already")
        store = data
    else:
        if strange := sorted({"batch_size", "shuffle", "num_workers"} & options.keys()):
            hint = "DataLoader(dataset, …) takes them; StreamingVQADataset batches and shuffles by itself"
            raise UsageError(f"{', '.join(strange)}: this data set has no such option", hint=hint)
        store = open_store(data, on_error=on_error, **options)
    if not isinstance(store, VQAStore):
        raise UsageError(f"{store.path} is {store.kind}, not a VQA data set", hint="penstock.Loader loads it")
    return store


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("torch", "torch", 'output="torch"') from None


def _with_tensors(sample: Sample) -> Sample:
    import torch

    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in sample.items()}
