"""Numbers that do not fit in memory: gathered in blocks, read once, laid out once for all processes."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._src.load.engine import tables
from penstock._src.load.engine.batch_tasks import begin_job
from penstock._src.load.engine.fetch import SampleFetcher
from penstock._src.load.engine.job import BatchJob, BatchPart
from penstock._src.load.engine.tables import Numbers
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock._src.load.settings import Mix
from tests.lerobot import making
from tests.load.image_store import ArrayStore
from tests.load.view_rows import open_files

ROWS, WIDTH, STEPS, BATCH = 120, 50_000, 3, 24
ROW_BYTES = WIDTH * 4
BLOCK = 5 * ROW_BYTES
WINDOW = Window({"points": range(STEPS)}, columns=["points"])


class PointStore(ArrayStore):
    """Rows of `points` of 200 kB each; `asked` has the rows of every read."""

    def __init__(self, way: str = "file") -> None:
        super().__init__([ROWS])
        self.way = way
        self.values["points"] = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
        size = self.values["points"].nbytes
        column = replace(self.columns["state"], name="points", shape=(WIDTH,), way=way, stored_bytes=size)
        self.columns = {**self.columns, "points": column}
        self.asked: list[NDArray[np.int64]] = []

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        self.asked.append(rows)
        return super().numbers(name, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return PointStore, (self.way,)


class LaidOutAlready(PointStore):
    """What a process finds that need not read all rows again."""

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        raise AssertionError(f"{names} are read again")


@pytest.fixture(autouse=True)
def small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_BYTES", BLOCK)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))


def peak_bytes(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("way", ["file", "table"])
@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "parts of a mix"])
def test_a_batch_of_large_rows_is_made_without_a_second_copy(way: str, parts: int) -> None:
    store = PointStore(way)
    samples = SampleFetcher(store, WINDOW, memory=1 << 20)
    samples.numbers.fill()
    wanted = np.random.default_rng(0).permutation(ROWS)[:BATCH]
    job = BatchJob(BATCH, samples.arrays(BATCH), {})
    places = [np.arange(first, BATCH, parts) for first in range(parts)]
    cut = [BatchPart(samples._source, each, wanted[each]) for each in places]
    assert peak_bytes(lambda: begin_job(job, cut, ThreadPool(0))) < 4 * BLOCK < job.arrays["points"].nbytes
    rows = np.minimum(wanted[:, None] + np.arange(STEPS), ROWS - 1)
    assert np.array_equal(job.arrays["points"], store.values["points"][rows])
    samples.close()


def test_rows_that_several_samples_need_are_read_once() -> None:
    store = PointStore()
    numbers = Numbers(store, ["points"], 0)
    rows = np.arange(40)[:, None] + np.arange(STEPS)
    out = np.empty((40, STEPS, WIDTH), np.float32)
    numbers.gather("points", rows, out)
    assert np.array_equal(out, store.values["points"][rows])
    read = sum(len(np.unique(asked)) for asked in store.asked)
    assert read <= 42 + len(store.asked), "beyond each row once: those at the seams of blocks"
    assert all(len(asked) <= BLOCK // ROW_BYTES for asked in store.asked)


def test_few_small_rows_are_read_in_one_call_as_they_come() -> None:
    store = PointStore()
    out = np.empty((4, 4), np.float32)
    Numbers(store, ["state"], 0).gather("state", np.array([7, 3, 7, 0]), out)
    assert np.array_equal(out, store.values["state"][[7, 3, 7, 0]])
    assert [asked.tolist() for asked in store.asked] == [[7, 3, 7, 0]]


@pytest.mark.parametrize("make", [lambda: PointStore(), lambda: Mix([(PointStore(), 1)])], ids=["store", "mix"])
def test_a_row_larger_than_a_block_is_planned_for(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"batch_size": 2, "memory": "64MiB", "threads": 1, "output": "numpy"}
    with Loader(make(), Window(columns=["points", "state"]), **options) as loader:
        assert loader.memory_split.table_bytes == ROWS * 16
    monkeypatch.setattr(tables, "BLOCK_BYTES", ROW_BYTES - 1)
    with Loader(make(), Window(columns=["points", "state"]), **options) as loader:
        assert loader.memory_split.table_bytes == ROWS * 16 + 3 * ROW_BYTES


# In a file


def _fetched(samples: SampleFetcher) -> NDArray[Any]:
    found: NDArray[Any] = samples.fetch([5, 0, 119])["points"]
    return found


def test_a_table_in_a_file_travels_as_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = SampleFetcher(PointStore("table"), WINDOW, memory=1 << 20)
    expected = _fetched(samples)
    data = pickle.dumps(samples)
    assert len(data) < 5000
    monkeypatch.setattr(PointStore, "number_blocks", LaidOutAlready.number_blocks)
    monkeypatch.setenv("PENSTOCK_CACHE", "/proc/nowhere")  # nothing can be laid out there
    again = pickle.loads(data)
    assert np.array_equal(_fetched(again), expected)
    third = pickle.loads(pickle.dumps(again))
    samples.close()
    again.close()
    assert np.array_equal(_fetched(third), expected)
    third.close()


def test_a_table_in_a_file_is_no_memory_of_this_process() -> None:
    samples = SampleFetcher(PointStore("table"), WINDOW, memory=1 << 20)
    expected = samples.store.numbers("points", np.arange(ROWS))
    out = np.empty((ROWS, WIDTH), np.float32)
    samples.numbers.fill()
    order = np.random.default_rng(1).permutation(ROWS)
    samples.numbers.gather("points", order, out)
    assert np.array_equal(out, expected[order])
    assert "numbers-" not in Path("/proc/self/maps").read_text()
    samples.close()


def test_closing_gives_numbers_back(tmp_path: Path) -> None:
    before = open_files()
    with Loader(PointStore("table"), Window(columns=["points", "state"]), batch_size=2, memory="64MiB") as loader:
        next(iter(loader))
        assert loader._sources[0].numbers.in_memory() and loader._sources[0].numbers.laid_out
    assert not loader._sources[0].numbers._tables and not loader._sources[0].numbers.laid_out
    assert not open_files() - before


def test_a_cache_in_memory_is_no_place_for_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "lies_in_memory", lambda place: place == tmp_path)
    monkeypatch.setattr(tables.tempfile, "gettempdir", lambda: str(tmp_path.parent))
    (note,) = Numbers(PointStore("table"), ["points"], 0).describe()
    assert f"a temporary file in {tmp_path.parent}, because" in note
    monkeypatch.setattr(tables, "lies_in_memory", lambda place: True)
    (note,) = Numbers(PointStore("table"), ["points"], 0).describe()
    assert f"in {tmp_path} (memory beyond the budget" in note


def test_the_file_goes_with_the_last_who_has_it(tmp_path: Path) -> None:
    before = open_files()
    samples = SampleFetcher(PointStore("table"), WINDOW, memory=1 << 20)
    samples.numbers.fill()
    again = pickle.loads(pickle.dumps(samples))
    assert not list(tmp_path.iterdir())
    del samples, again
    assert not open_files() - before


@pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning")
def test_spawned_workers_lay_nothing_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from penstock.torch import Dataset, collate

    making.make(tmp_path / "set", (12, 7, 9))
    with Dataset(tmp_path / "set", Window(columns=["action"]), memory=200, view="off", threads=1) as dataset:
        assert any("a temporary file in" in note for note in dataset.notes)
        expected = collate(dataset.__getitems__(range(28)))["action"]
        monkeypatch.setenv("PENSTOCK_CACHE", "/proc/nowhere")
        words = {"num_workers": 1, "multiprocessing_context": "spawn", "timeout": 120, "collate_fn": collate}
        (batch,) = torch.utils.data.DataLoader(dataset, batch_size=28, **words)
        assert torch.equal(batch["action"], expected)
