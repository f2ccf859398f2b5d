"""Episodes for a policy: which of them train and which validate, their statistics, the loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock.errors import PenstockError, UsageError

from .columns import Columns, check_cameras, choose_columns, open_for, unused_cameras
from .faults import Faults
from .loading import Loading, make_loaders
from .messages import Language, message
from .ranges import format_ranges
from .task import task_of
from .words import in_words

_BLOCK_BYTES = 4 << 20
_LEAST_STD = 1e-2  # joints that hardly move would be blown up to noise


@dataclass(frozen=True)
class Stats:
    """Of one column, over the training episodes."""

    count: int
    mean: list[float]
    std: list[float]
    min: list[float]
    max: list[float]

    @property
    def scale(self) -> list[float]:
        """What to divide by."""
        return [max(value, _LEAST_STD) for value in self.std]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Split:
    """Episodes by their places among those that were opened."""

    train: tuple[int, ...]
    val: tuple[int, ...]


def split_episodes(count: int, val_share: float, seed: int) -> Split:
    """At random, but always the same for one seed; at least one episode on either side."""
    if count < 2:
        raise UsageError(
            f"{count} episode: one to train on and one to validate on are needed",
            hint="a --dataset with more of them, or more of it by --episodes",
        )
    shuffled = np.random.default_rng(seed).permutation(count).tolist()
    val = min(count - 1, max(1, round(count * val_share)))
    return Split(tuple(sorted(shuffled[val:])), tuple(sorted(shuffled[:val])))


def streamed_stats(store: penstock.Store, names: Sequence[str], faults: Faults | None = None) -> dict[str, Stats]:
    """Mean, spread and range of number columns, a few megabytes at a time; what is no number goes to `faults`."""
    running: dict[str, _Running] = {name: _Running() for name in names}
    for start, block in store.number_blocks(list(running), _BLOCK_BYTES):
        for name, values in block.items():
            flat = values.reshape(len(values), -1).astype(np.float64)
            if faults is not None:
                faults.look(store, name, start, flat)
            with np.errstate(invalid="ignore", over="ignore"):
                running[name].add(flat)
    return {name: each.stats() for name, each in running.items()}


class _Running:
    """Blocks are joined by their means and squares about them, which loses no digits however many there are."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: NDArray[np.float64] | None = None
        self._squares: Any = 0.0
        self._min: Any = np.inf
        self._max: Any = -np.inf

    def add(self, values: NDArray[np.float64]) -> None:
        if not len(values):
            return
        mean = values.mean(0)
        squares = np.square(values - mean).sum(0)
        before = mean if self._mean is None else self._mean
        total = self._count + len(values)
        away = mean - before
        self._squares = self._squares + squares + away**2 * (self._count * len(values) / total)
        self._mean = before + away * (len(values) / total)
        self._count = total
        self._min, self._max = np.minimum(self._min, values.min(0)), np.maximum(self._max, values.max(0))

    def stats(self) -> Stats:
        if self._mean is None:
            raise UsageError("no rows to take statistics of")
        std = np.sqrt(self._squares / self._count)
        return Stats(self._count, *(np.asarray(each).tolist() for each in (self._mean, std, self._min, self._max)))


class Data:
    """The two loaders over one data set, with what the policy must know of it; a context manager."""

    def __init__(
        self,
        path: Path,
        chunk_size: int,
        batch_size: int,
        seed: int,
        loading: Loading,
        cameras: Sequence[str] = (),
        val_share: float = 0.2,
        episodes: Sequence[int] | None = None,
        goes_on: bool = False,
    ) -> None:
        """`goes_on`: a run that was begun without a camera that only some files have may be resumed."""
        self.path, self._chunk_size, self._batch_size = path, chunk_size, batch_size
        with open_for(path, cameras, episodes) as whole:
            self.columns = choose_columns(whole, cameras)
            if not goes_on:
                check_cameras(whole, self.columns)
            self._store_notes = [*map(in_words, whole.notes), *unused_cameras(whole)]
            self.split = split_episodes(whole.episodes, val_share, seed)
            self.kind = whole.kind
            self.episode_rows: list[int] = np.diff(whole.episode_starts).tolist()
            self.numbers = [whole.episode_number(place) for place in range(whole.episodes)]
        names = [self.columns.state, self.columns.action, *self.columns.cameras]
        self._stores = [
            penstock.open(path, episodes=[self.numbers[place] for place in places], columns=names)
            for places in (self.split.train, self.split.val)
        ]
        self.image_size = _image_size(self._stores[0], self.columns, loading.image_size)
        self.state_dim, self.action_dim = (
            int(np.prod(self._stores[0].columns[name].shape)) for name in (self.columns.state, self.columns.action)
        )
        self.task = task_of(self._stores[0], self.columns.cameras[0])
        self.stats, self.val_stats = self._take_stats()
        self.train, self.val = make_loaders(
            self._stores, loading, batch_size, seed=seed, output="torch",
            window=penstock.Window({self.columns.action: range(chunk_size)}, columns=names),
        )  # fmt: skip

    def _take_stats(self) -> list[dict[str, Stats]]:
        """Of both sides of the split; what is no number on either is refused before the first step."""
        faults = Faults()
        found = [streamed_stats(store, [self.columns.state, self.columns.action], faults) for store in self._stores]
        faults.check(self.path, self.numbers)
        for name, stats in found[0].items():
            if not np.isfinite([*stats.mean, *stats.std]).all():
                raise PenstockError(f"{self.path}: the numbers of {name} are too large to have a mean and a spread")
        return found

    def describe(self, language: Language = "en") -> str:
        """In a line."""
        height, width = self.image_size
        return message(
            "data", language, kind=self.kind, train=len(self.split.train), train_samples=self.train.samples,
            val=len(self.split.val), val_samples=self.val.samples, cameras=len(self.columns.cameras), height=height,
            width=width, state=self.state_dim, action=self.action_dim,
        )  # fmt: skip

    @property
    def shapes(self) -> dict[str, str]:
        """Of every column, in words."""
        columns = self._stores[0].columns.values()
        return {each.name: f"{'×'.join(map(str, each.shape)) or '1'} {each.dtype}" for each in columns}

    def notes(self) -> list[str]:
        """What is left out of the data, and what works, but hardly as it was meant."""
        rows = [self.episode_rows[number] for number in self.split.train]
        sizes = size_notes(rows, self._chunk_size, self._batch_size)
        return [*self._store_notes, *spread_notes(self.stats), *sizes]

    def close(self) -> None:
        """End threads and give memory back."""
        self.train.close()
        self.val.close()
        for store in self._stores:
            store.close()

    def __enter__(self) -> Data:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def spread_notes(stats: Mapping[str, Stats]) -> list[str]:
    """Which numbers hardly move, so that they are not divided by their own spread."""
    notes = []
    for name, each in stats.items():
        small = [at for at, std in enumerate(each.std) if std < _LEAST_STD]
        if small:
            notes.append(
                f"{name}: the spread of {len(small):,} of {len(each.std):,} numbers ({format_ranges(small)}) is below "
                f"{_LEAST_STD:g}: they are divided by {_LEAST_STD:g} instead, and so is their L1"
            )
    return notes


def size_notes(episode_rows: Sequence[int], chunk_size: int, batch_size: int) -> list[str]:
    """What is odd about these sizes for training episodes of so many rows."""
    notes, samples = [], sum(episode_rows)
    if batch_size > samples:
        notes.append(f"--batch_size {batch_size:,} is more than all {samples:,} samples: an epoch is a single step")
    short = sum(rows < chunk_size for rows in episode_rows)
    if 2 * short > len(episode_rows):
        padded = 100 * padding_share(episode_rows, chunk_size)
        notes.append(
            f"--chunk_size {chunk_size:,} is longer than {short:,} of {len(episode_rows):,} training episodes "
            f"(the longest has {max(episode_rows):,} rows): {padded:.0f} % of all actions are padding"
        )
    return notes


def padding_share(episode_rows: Sequence[int], chunk_size: int) -> float:
    """Of the actions of all samples, those beyond the end of their episode."""
    inside = 0
    for rows in episode_rows:
        cut = min(rows, chunk_size)  # samples near the end, which have 1, 2, … actions left
        inside += cut * (cut + 1) // 2 + (rows - cut) * chunk_size
    return 1 - inside / (sum(episode_rows) * chunk_size)


def _image_size(store: penstock.Store, columns: Columns, asked: tuple[int, int] | None) -> tuple[int, int]:
    """(height, width) that all cameras have in a batch."""
    if asked is not None:
        return asked
    stored: Mapping[str, tuple[int, ...]] = {name: store.columns[name].shape[:2] for name in columns.cameras}
    sizes = sorted(set(stored.values()))
    if len(sizes) > 1:
        told = ", ".join("×".join(map(str, size)) for size in sizes)
        raise UsageError(f"{store.path}: cameras of {told} pixels", hint="--image_size 480x640 makes them one size")
    return sizes[0][0], sizes[0][1]
