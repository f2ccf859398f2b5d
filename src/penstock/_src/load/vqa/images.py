"""The images of samples: read, decoded and resized by penstock's media, and kept in memory that all workers share."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.clips.ram_cache import RamCache
from penstock._src.load.engine.images import Fitter, begin_quiet, end_quiet, fit_for
from penstock._src.load.engine.source import Shaping
from penstock._src.load.vqa.workers import current_worker
from penstock._src.stores.vqa.record import VQARecord
from penstock._src.stores.vqa.store import VQAStore
from penstock._src.system.units import format_bytes
from penstock.errors import BudgetExceeded, PenstockError, StoreError, UsageError

COLUMN = "image"
_CHANNELS = 3
_local = threading.local()  # a thread decodes one image at a time


class SampleImages:
    """Makes the images of rows: (channels, height, width), of `most` > 1 images (most, channels, height, width)."""

    def __init__(self, store: VQAStore, shaping: Shaping, most: int, cache_bytes: int) -> None:
        if COLUMN not in store.columns:
            raise StoreError(
                f"{store.path}: there are no images: {' '.join(store.notes) or 'no record names one'}",
                hint="image_root=FOLDER names the folder of the images; load_images=False goes without",
            )
        if most < 1:
            raise UsageError(f"max_images must be 1 or more, not {most}")
        self.store, self.most = store, most
        self.fit = fit_for(store.column(COLUMN), shaping.size_of(COLUMN), shaping.exact, shaping.resize)
        self.table = shaping.float_table(COLUMN, _CHANNELS)
        self.cache: RamCache | None = None
        self._numbers: NDArray[np.int64] | None = None
        if cache_bytes:
            self._make_cache(cache_bytes)

    @property
    def dtype(self) -> str:
        return "uint8" if self.table is None else "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the images of one sample."""
        one = (_CHANNELS, *self.fit.size)
        return one if self.most == 1 else (self.most, *one)

    @property
    def image_bytes(self) -> int:
        """One image in the cache."""
        return _CHANNELS * self.fit.size[0] * self.fit.size[1]

    def _make_cache(self, cache_bytes: int) -> None:
        """Images by number; rows that show the same image share its place."""
        index = self.store.image_numbers(self.most)
        self._numbers = index.values
        sizes = np.full(index.facts["images"], self.image_bytes, np.int64)
        what = (self.store.fingerprint(COLUMN), self.fit.size, self.fit.exact, self.fit.resize)
        self.cache = RamCache.shared(f"vqa {what}", sizes, cache_bytes)

    def fill_cache(self, threads: int) -> list[tuple[int, PenstockError]]:
        """Decode every image once; the rows of those that cannot be used, with the reason."""
        from concurrent.futures import ThreadPoolExecutor

        assert self.cache is not None and self._numbers is not None
        if self.cache.n_places < len(self.cache):
            needed = len(self.cache) * self.image_bytes
            raise BudgetExceeded(
                f"{self.store.path}: {len(self.cache):,} images of {format_bytes(self.image_bytes)} take "
                f"{format_bytes(needed)}, {format_bytes(self.cache.limit_bytes)} of memory are there for them",
                size=needed,
                limit=self.cache.limit_bytes,
                hint="LazyLoadVQADataset(…, cache_images=True) keeps what fits; or raise memory=",
            )
        _, rows = np.unique(self._numbers, return_index=True)
        wanted = [divmod(int(place), self.most) for place in rows if self._numbers.flat[place] >= 0]
        lost: list[tuple[int, PenstockError]] = []

        def make(place: tuple[int, int]) -> None:
            row, number = place
            try:
                self._pixels(row, number, self.store.parsed(row))
            except PenstockError as error:
                lost.append((row, error))

        begin_quiet()
        try:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(make, wanted):
                    pass
        finally:
            end_quiet()
        return sorted(lost, key=lambda each: each[0])

    def read(self, row: int, record: VQARecord | None, out: NDArray[Any]) -> int:
        """Write the images of a row into `out` (of `shape` and `dtype`); how many there are. The rest is zero.

        Without its record, it is read where the image is not in the cache.
        """
        targets = out[None] if self.most == 1 else out
        for number in range(self.most):
            if not self._has(row, number, record):
                targets[number:] = 0
                return number
            pixels = self._pixels(row, number, record, targets[number] if self.table is None else None)
            if self.table is not None:
                self.table.write(pixels, targets[number])
        return self.most

    def _has(self, row: int, number: int, record: VQARecord | None) -> bool:
        if self._numbers is not None:
            return bool(self._numbers[row, number] >= 0)
        return self.store.image_key(row, number, record) is not None

    def _pixels(
        self, row: int, number: int, record: VQARecord | None, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """One image as uint8, in `out` where that is given: from the cache, or decoded, and kept there."""
        place = -1 if self._numbers is None else int(self._numbers[row, number])
        shape = (_CHANNELS, *self.fit.size)
        if self.cache is not None and place >= 0 and (kept := self.cache.get(place)) is not None:
            pixels = kept.reshape(shape)
            if out is None:
                return pixels
            out[...] = pixels
            return out
        target = np.empty(shape, np.uint8) if out is None else out
        data = np.frombuffer(self.store.image_bytes(row, number, record), np.uint8)
        _fitter().fit(data, self.fit, target)
        if self.cache is not None and place >= 0:
            self.cache.put(place, target)
        return target

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.cache is not None:
            state["_numbers"] = None  # mapped anew: it is kept beside the other indexes
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.cache is not None:
            self._numbers = self.store.image_numbers(self.most).values

    def close(self) -> None:
        if self.cache is not None:
            self.cache.close()


def _fitter() -> Fitter:
    fitter: Fitter | None = getattr(_local, "fitter", None)
    if fitter is None:
        if current_worker() is not None:
            begin_quiet()  # the workers are the parallel part
        fitter = _local.fitter = Fitter()
    return fitter
