"""The predicted memory: what it is made of, and the setting that fits where it does not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.load.clips.memory import PROCESS_BYTES, ClipMemory, LoaderMemory, loader_memory
from penstock._src.system.limits import MemoryCandidate, MemoryLimit
from penstock.errors import BudgetExceeded

MIB, GIB = 1 << 20, 1 << 30


def _limit(n_bytes: int) -> MemoryLimit:
    return MemoryLimit(n_bytes, n_bytes, "test", "test", (MemoryCandidate("test", n_bytes, n_bytes),))


def _loader(name: str = "train", workers: int = 10, prefetch: int = 4, is_pinned: bool = False) -> LoaderMemory:
    shapes = {"blur": ((5, 3, 256, 256), "float32"), "index": ((), "int64")}
    return loader_memory(name, shapes, batch_size=2, workers=workers, prefetch=prefetch, worker_bytes=30 * MIB,
                         is_pinned=is_pinned)  # fmt: skip


def test_batches_under_way_workers_and_pinned_rounding_are_counted() -> None:
    loader = _loader()
    batch = 2 * (5 * 3 * 256 * 256 * 4) + 2 * 8
    assert loader.batch_bytes == batch
    assert loader.n_batches == 50  # of each worker 4 under way, and one that the loop holds
    assert loader.n_bytes == 10 * 30 * MIB + 50 * batch
    assert _loader(workers=1).n_batches == 6  # both that the loop holds are of this one
    assert _loader(workers=0).n_bytes == 2 * batch
    pinned = _loader(is_pinned=True)
    assert pinned.batch_bytes == 8 * MIB + 16  # 7.5 MiB are pinned as 8
    assert pinned.n_batches == 42  # 10 × 4 under way, and 2 that the loop holds
    assert pinned.slots_bytes == 2 * 10 * batch and loader.slots_bytes == 0
    assert pinned.n_bytes == 10 * 30 * MIB + 42 * pinned.batch_bytes + pinned.slots_bytes


def test_the_cache_counts_once_and_loaders_for_every_gpu() -> None:
    memory = ClipMemory(3, _loader(), _loader("val", 2, 2), GIB)
    assert memory.n_bytes == GIB + 3 * (PROCESS_BYTES + memory.train.n_bytes + _loader("val", 2, 2).n_bytes)
    text = memory.describe()
    assert "cache 1 GiB; 3 processes 72 MiB; train: 30 workers 900 MiB, 150 batches × 7.5 MiB; val: 6" in text


@pytest.mark.parametrize(
    ("memory", "available", "advice"),
    [
        (
            ClipMemory(1, _loader(), None, 0),
            600 * MIB,
            "DATALOADER.TRAIN_PREFETCH_FACTOR: 1 and",
        ),
        (ClipMemory(1, _loader(workers=1, prefetch=1), None, 0), 62 * MIB, "DATA.DTYPE: uint8 fits"),
        (ClipMemory(1, _loader(), None, 4 * GIB), 2 * GIB, "DATA.USE_RAM_CACHE: false fits"),
        (
            ClipMemory(1, _loader(), _loader("val", 2, 2), 0),
            200 * MIB,
            "TRAIN_WORKERS: 3 and VAL_WORKERS: 2",
        ),
        (ClipMemory(1, _loader(), None, GIB), 10 * MIB, "a smaller DATA.CROP_SIZE"),
    ],
)
def test_what_cannot_fit_is_refused_with_what_can(memory: ClipMemory, available: int, advice: str) -> None:
    with pytest.raises(BudgetExceeded) as error:
        memory.check(_limit(available))
    assert advice in str(error.value)
    assert (error.value.size, error.value.limit) == (memory.n_bytes, available)


def test_what_is_in_the_cache_already_is_not_needed_again() -> None:
    memory = ClipMemory(1, _loader(workers=0), None, GIB)
    with pytest.raises(BudgetExceeded):
        memory.check(_limit(100 * MIB))
    memory.check(_limit(100 * MIB), held_bytes=GIB)


@given(
    st.integers(1, 4), st.integers(1, 12), st.integers(1, 6), st.integers(0, 4 * GIB), st.booleans(),
    st.integers(1 * MIB, 8 * GIB),
)  # fmt: skip
def test_what_is_advised_fits(
    gpus: int, workers: int, prefetch: int, cache: int, is_pinned: bool, available: int
) -> None:
    memory = ClipMemory(gpus, _loader("train", workers, prefetch, is_pinned), _loader("val", 1, 2, is_pinned), cache)
    try:
        memory.check(_limit(available))
        assert memory.n_bytes <= available
    except BudgetExceeded as error:
        assert memory.n_bytes > available
        found = re.search(r"fits: ([\d.]+) (\w+)", error.hint or "")
        if found:
            shown = float(found[1]) * {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": GIB}[found[2]]
            assert shown <= available * 1.06  # shown with two digits
        else:
            assert "smaller DATA.CROP_SIZE" in (error.hint or "")
