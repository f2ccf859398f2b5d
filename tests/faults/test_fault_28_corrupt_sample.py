"""Fault 28: one corrupt sample while training.

Expected: on_error="raise" (the default) names store, column, row and episode; "skip" leaves the sample out and counts
it, the others stay as they are and in their order; beyond max_skip_rate it raises; resuming stays exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.lerobot.read.frames import FrameFinder
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import PenstockError, StoreCorrupt
from tests.lerobot import making
from tests.stores import hdf5_files as files

Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A store of three episodes, and how the image of a row is spoilt."""

    path: Path
    column: str
    spoil: Callable[[int], None]
    bad: int
    episode: int
    within: int
    takes_along: tuple[int, ...] = ()
    """Rows that cannot be had either: those of the same packed chunk."""

    @property
    def lost(self) -> set[int]:
        return {self.bad, *self.takes_along}


def overwrite(path: Path, offset: int, size: int) -> None:
    """Zeros over the second half of some bytes: the end is not there any more."""
    with path.open("r+b") as file:
        file.seek(offset + size // 2)
        file.write(bytes(size - size // 2))


def lerobot(root: Path) -> Case:
    making.make(root / "set", (12, 7, 9))

    def spoil(row: int) -> None:
        data = open_data_set(root / "set")
        episode = int(np.searchsorted(data.episodes.end_row, row, side="right"))
        found = FrameFinder(data).find(episode, making.CAMERA)
        sample = found.samples[row - int(data.episodes.first_row[episode])]
        overwrite(found.path, int(found.index.offsets[sample]), int(found.index.sizes[sample]))

    return Case(root / "set", making.CAMERA, spoil, bad=14, episode=1, within=2)


def aloha(root: Path) -> Case:
    (root / "episodes").mkdir()
    for number in range(3):
        files.aloha(root / "episodes" / f"episode_{number}.hdf5", 9, number)
    column = "observations/images/cam_low"

    def spoil(row: int) -> None:
        path = root / "episodes" / f"episode_{row // 9}.hdf5"
        with h5py.File(path) as file:
            offset, width = file[column].id.get_offset(), file[column].shape[1]
        overwrite(path, offset + row % 9 * width, width)

    return Case(root / "episodes", column, spoil, bad=21, episode=2, within=3)


def gzip(root: Path) -> Case:
    path, column, rows = root / "replay.hdf5", "observations/left_image", 30
    with h5py.File(path, "w") as file:
        pixels = np.random.default_rng(0).integers(0, 256, (rows, 24, 32, 3), dtype=np.uint8)
        file.create_dataset(column, data=pixels, chunks=(2, 24, 32, 3), compression="gzip")
        file["observations/joint"] = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        file["actions"] = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        file["rewards"] = np.zeros(rows, np.float32)
        file["terminals"] = np.isin(np.arange(rows), (9, 19, 29))

    def spoil(row: int) -> None:
        with h5py.File(path) as file:
            chunk = file[column].id.get_chunk_info(row // 2)
        overwrite(path, chunk.byte_offset, chunk.size)

    return Case(path, column, spoil, bad=12, episode=1, within=2, takes_along=(13,))


@pytest.fixture(params=[lerobot, aloha, gzip], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made: Case = request.param(tmp_path)
    return made


def loader(store: penstock.Store, window: Any = None, **options: Any) -> penstock.Loader:
    words = {"batch_size": 4, "image_size": (16, 16), "threads": 2, "output": "numpy", "view": "off", "seed": 3}
    return penstock.Loader(store, window, **{**words, **options})


def batches(made: penstock.Loader) -> list[Batch]:
    """All batches of the epoch that comes, kept."""
    return [{name: np.array(value) for name, value in batch.items()} for batch in made]


def without(whole: list[Batch], lost: set[int]) -> list[Batch]:
    """What is left of whole batches when the samples of some rows are taken out."""
    left = []
    for batch in whole:
        keep = [place for place, row in enumerate(batch["index"].tolist()) if row not in lost]
        if keep:
            left.append({name: value[keep] for name, value in batch.items()})
    return left


def same(ours: list[Batch], theirs: list[Batch]) -> bool:
    return len(ours) == len(theirs) and all(
        list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(ours, theirs, strict=True)
    )


def test_28_raise_names_store_column_row_and_episode(case: Case) -> None:
    case.spoil(case.bad)
    with penstock.open(case.path) as store, loader(store) as made, pytest.raises(StoreCorrupt) as caught:
        batches(made)
    text = caught.value.message
    assert str(case.path) in text and case.column in text and 'on_error="skip"' in str(caught.value.hint)
    reported = {
        (row, f"row {row:,} (row {case.within + row - case.bad} of episode {case.episode})") for row in case.lost
    }
    assert any(where in text for _, where in reported), text


@pytest.mark.parametrize(("view", "threads"), [("off", 1), ("ram", 3)])
def test_28_skip_leaves_the_sample_out_and_nothing_else(case: Case, view: str, threads: int) -> None:
    with penstock.open(case.path) as store, loader(store) as made:
        whole = batches(made)
        total = made.samples
    case.spoil(case.bad)
    options: dict[str, Any] = {"on_error": "skip", "max_skip_rate": 0.2, "view": view, "threads": threads}
    with penstock.open(case.path) as store, loader(store, **options) as made:
        for epoch in (1, 2):
            made.set_epoch(0)
            assert same(batches(made), without(whole, case.lost))
            assert made.stats()["skipped"] == epoch * len(case.lost)
            assert made.stats()["samples"] == epoch * (total - len(case.lost))


def test_28_beyond_the_rate_it_raises_with_the_numbers(case: Case) -> None:
    rows = [case.bad, case.bad - 8, case.bad - 4]
    for row in rows:
        case.spoil(row)
    with penstock.open(case.path) as store:
        with loader(store, on_error="skip", max_skip_rate=0.01) as made, pytest.raises(PenstockError) as caught:
            batches(made)
        assert "max_skip_rate=0.01" in caught.value.message and case.column in caught.value.message
        with loader(store, on_error="skip", max_skip_rate=0.5) as made:
            batches(made)
            assert made.stats()["skipped"] == len(rows) * len(case.lost)


def test_28_resuming_behind_any_batch_gives_the_same_tail(case: Case) -> None:
    case.spoil(case.bad)
    options: dict[str, Any] = {"on_error": "skip", "max_skip_rate": 0.5}
    with penstock.open(case.path) as store:
        with loader(store, **options) as made:
            whole = batches(made)
        for taken in range(len(whole)):
            with loader(store, **options) as first:
                iterator = iter(first)
                for _ in range(taken):
                    next(iterator)
                state = first.state_dict()
                del iterator
            with loader(store, threads=1, **options) as second:
                second.load_state_dict(state)
                assert same(batches(second), whole[taken:])


def test_28_a_row_that_two_samples_need_takes_both(case: Case) -> None:
    case.spoil(case.bad)
    window = penstock.Window({case.column: [-1, 0]})
    options: dict[str, Any] = {"shuffle": False, "on_error": "skip", "max_skip_rate": 0.5}
    with penstock.open(case.path) as store, loader(store, window, **options) as made:
        seen = np.concatenate([batch["index"] for batch in batches(made)]).tolist()
        gone = sorted({row + step for row in case.lost for step in (0, 1)})
        assert seen == [row for row in range(made.samples) if row not in gone]
        assert made.stats()["skipped"] == len(gone)


def test_28_ranks_yield_equally_many_batches_or_one_of_them_raises(tmp_path: Path) -> None:
    case = lerobot(tmp_path)
    case.spoil(case.bad)
    counts = []
    with penstock.open(case.path) as store:
        for rank in range(2):
            with loader(store, on_error="skip", shard=(rank, 2)) as made:
                counts.append(len(batches(made)))
        assert counts == [7, 7]
        raised = []
        for rank in range(2):  # one sample for each rank: a rank that loses it has nothing
            with loader(store, on_error="skip", shard=(rank, 2), batch_size=2) as made:
                try:
                    assert len(batches(made)) == 14
                except PenstockError as error:
                    raised.append(f"{error.message} {error.hint}")
    assert len(raised) == 1 and "none of the 1 samples of rank" in raised[0] and "larger batch_size" in raised[0]
