"""The loader used in ways nobody planned: mixtures that differ, budgets that are shared, disks that fail, sizes nobody
expects."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._src.load.engine import fetch
from penstock._src.load.engine.fetch import SampleFetcher
from penstock._src.load.engine.images import Fitter, fit_for
from penstock._src.load.engine.job import BatchJob
from penstock._src.load.engine.source import Shaping, sources_of
from penstock._src.load.engine.thread_pool import ThreadPool, WorkerState
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.position_map import encoded_by_all
from penstock._src.load.sampling.window import Window
from penstock._src.load.settings import Mix
from penstock._src.stores.store import Column, ImageArray, ImageSource, Scratch
from penstock._src.system.budget import Budget
from penstock.errors import BudgetExceeded, StoreCorrupt, UsageError
from tests.load.image_store import ArraySource, ArrayStore

SIZE = (24, 32)


def _loader(store: Any, window: Any = None, **options: Any) -> Loader:
    return Loader(store, window, **{"batch_size": 8, "image_size": SIZE, "threads": 2, "output": "numpy", **options})


def _indices(loader: Loader) -> list[int]:
    return [int(row) for batch in loader for row in batch["index"]]


# Mixtures


def test_a_short_last_batch_of_a_mixture_may_leave_a_rank_without_samples() -> None:
    mix = Mix([(ArrayStore([5], name="one"), 1), (ArrayStore([4], name="two"), 1)])
    sizes = []
    for rank in range(4):
        loader = _loader(mix, shard=(rank, 4), batch_size=4, drop_last=False, view="off")
        sizes.append([len(batch["index"]) for batch in loader])
    assert sorted(map(sum, sizes)) == [2, 2, 2, 3] and all(len(each) == 3 for each in sizes)


def test_stores_of_a_mixture_have_the_same_texts() -> None:
    bare = ArrayStore([9], name="bare")
    bare.columns = {name: column for name, column in bare.columns.items() if name != "task"}
    for pair in ((ArrayStore([9]), bare), (bare, ArrayStore([9]))):
        with pytest.raises(UsageError, match="'task'"):
            _loader(Mix([(each, 1) for each in pair]))


def test_the_numbers_of_many_stores_share_one_part_of_the_memory() -> None:
    stores = []
    for number in range(6):
        store = ArrayStore([64], name=str(number))
        wide = np.full((64, 40_000), number, np.float32)  # 10 MiB each
        store.values["wide"] = wide
        store.columns = {**store.columns, "wide": Column("wide", "numbers", (40_000,), "float32", "numbers", "file",
                                                         "made", wide.nbytes)}  # fmt: skip
        stores.append(store)
    loader = _loader(Mix([(store, 1) for store in stores]), Window(columns=["wide"]), memory="96MiB", batch_size=12)
    assert loader.memory_split.table_bytes <= 24 << 20
    for batch in loader:
        assert sorted(set(batch["wide"][:, 0].tolist())) == sorted(set(batch["wide"][:, -1].tolist()))


# Memory


def test_a_shared_budget_is_given_back_and_not_overdrawn() -> None:
    budget = Budget(230 << 20)
    held = budget.reserve("interpreter", 120 << 20)
    store = ArrayStore([300], size=(120, 160))
    options: dict[str, Any] = {"image_size": (240, 320), "memory": budget, "batch_size": 4}
    loader = _loader(store, Window(columns=["cam"]), view="ram", **options)
    views = sum(view["bytes"] for view in loader.stats()["views"].values())
    assert views + loader.memory_split.fixed_bytes <= 110 << 20
    loader.close()
    assert budget.used_bytes == held.n_bytes
    with _loader(store, Window(columns=["cam"]), view="off", **options) as second:
        assert len(list(itertools.islice(second, 30))) == 30  # kept: more slots than at first
    assert budget.used_bytes == held.n_bytes
    with pytest.raises(UsageError):
        _loader(store, view="cloud", **options)
    assert budget.used_bytes == held.n_bytes
    with pytest.raises(BudgetExceeded):
        _loader(store, memory=budget, batch_size=400, image_size=(240, 320))


def test_a_view_of_everything_lies_within_what_is_left() -> None:
    store = ArrayStore([4000], size=(8, 10))
    window, size = Window(columns=["cam"]), (6, 8)
    roomy = _loader(store, window, view="off", image_size=size)
    pixels = 4000 * 3 * 6 * 8
    for spare in (0, 4000, 20_000, 40_000):
        limit = roomy.memory_split.fixed_bytes + pixels + spare
        with _loader(store, window, view="ram", image_size=size, memory=limit) as loader:
            held = sum(view["bytes"] for view in loader.stats()["views"].values())
            assert held + loader.memory_split.fixed_bytes <= limit


def test_each_packed_column_keeps_blocks_of_its_own() -> None:
    store = ArrayStore([9])
    for name in ("cam", "raw"):
        column = store.columns[name]
        store.columns = {**store.columns, name: Column(name, "image", column.shape, "uint8", "png", "table", "", 1)}
    one = _loader(store, Window(columns=["cam"]), view="off").memory_split.thread_bytes
    other = _loader(store, Window(columns=["raw"]), view="off").memory_split.thread_bytes
    both = _loader(store, Window(columns=["cam", "raw"]), view="off").memory_split.thread_bytes
    needs = [store.images(name).scratch_bytes for name in ("cam", "raw")]
    assert both >= max(one, other) + min(needs)


# Rows


class _Failing(ArrayStore):
    """One row of the disk cannot be read."""

    def images(self, name: str) -> ImageSource:
        class Failing(ArraySource):
            def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
                for row in rows:
                    if row == 7:
                        raise OSError(5, "Input/output error")
                    yield from super().read([row], scratch)

        return Failing(self.raw, frozenset(), [])


def test_a_disk_that_fails_is_reported_with_the_row() -> None:
    store = _Failing([20])
    with pytest.raises(StoreCorrupt, match=r"raw, row 7 .*Input/output error"):
        _indices(_loader(store, Window(columns=["raw"]), view="off"))
    loader = _loader(store, Window(columns=["raw"]), view="off", on_error="skip")
    assert sorted(_indices(loader)) == [row for row in range(20) if row != 7]


def test_a_column_of_no_numbers() -> None:
    store = ArrayStore([20])
    store.values["nothing"] = np.empty((20, 0), np.float32)
    column = Column("nothing", "numbers", (0,), "float32", "numbers", "file", "", 0)
    store.columns = {**store.columns, "nothing": column}
    for window, shape in ((Window(columns=["nothing"]), (8, 0)), (Window(nothing=[0, 1]), (8, 2, 0))):
        batch = next(iter(_loader(store, window, view="off")))
        assert batch["nothing"].shape == shape


def test_samples_fetched_by_two_threads_at_once_do_not_mix() -> None:
    store = ArrayStore([32])
    fetcher = SampleFetcher(store, Window(columns=["raw"]), image_size=SIZE, view="off", threads=0)
    expected = fetcher.fetch(range(32))["raw"].copy()
    wrong: list[int] = []

    def use(first: int) -> None:
        for _ in range(20):
            for row in range(first, 32, 2):
                if not np.array_equal(fetcher.fetch([row])["raw"][0], expected[row]):
                    wrong.append(row)

    threads = [threading.Thread(target=use, args=(first,), daemon=True) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    workers: list[WorkerState] = []
    pool = ThreadPool(0)
    for _ in range(2):
        thread = threading.Thread(target=lambda: pool.do(workers.append))
        thread.start()
        thread.join(60)
    assert workers[0].scratch is not workers[1].scratch
    pool.close()


def test_a_child_that_is_interrupted_as_its_threads_start_does_not_wait_for_its_parents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetcher = SampleFetcher(ArrayStore([4]), Window(columns=["raw"]), image_size=SIZE, view="off", threads=1)
    expected = fetcher.fetch([1])["raw"]
    parents = fetcher._pool
    assert parents is not None
    fetcher._pid = -1  # as a child of a fork finds it

    def interrupted(threads: int) -> ThreadPool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "ThreadPool", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetcher.fetch([1])
    assert np.array_equal(fetcher.fetch([1])["raw"], expected) and fetcher._pool is not parents
    fetcher.close()
    parents.close()


class _LateWriter(ArrayStore):
    """Row 0 fails at once; the others come when told."""

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__(lengths)
        self.go_on, self.waits = threading.Event(), threading.Event()

    def images(self, name: str) -> ImageSource:
        store = self

        class Late(ArraySource):
            def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
                if 0 in rows:
                    store.waits.wait(60)
                    raise RuntimeError("a fault of the program")
                store.waits.set()
                store.go_on.wait(60)
                yield from super().read(rows, scratch)

        return Late(self.raw, frozenset(), [])


def test_arrays_of_a_fetch_that_failed_are_written_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _LateWriter([2])
    fetcher = SampleFetcher(store, Window(columns=["raw"]), image_size=SIZE, view="off", threads=2)
    out = fetcher.arrays(2)
    out["raw"][...] = 0
    settle = BatchJob.cancel_and_wait

    def settled(job: BatchJob) -> None:
        store.go_on.set()  # not before somebody waits for the writer
        settle(job)

    monkeypatch.setattr(BatchJob, "cancel_and_wait", settled)
    with pytest.raises(RuntimeError, match="a fault"):
        fetcher.fetch([0, 1], out)
    before = out["raw"].copy()
    assert store.go_on.is_set(), "nobody has waited"
    fetcher.close()
    assert np.array_equal(out["raw"], before)


# Images


def _fitted(image: NDArray[Any], shape: tuple[int, ...], size: tuple[int, int] | None, **how: Any) -> NDArray[Any]:
    fit = fit_for(Column("cam", "image", shape, "uint8", "png", "file", "", 0), size, **how)
    out = np.zeros((fit.channels, *fit.size), np.uint8)
    Fitter().fit(image, fit, out)
    return out


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [None, (20, 24), (96, 130)])
@pytest.mark.parametrize("resize", ["linear", "area", "nearest"])
def test_pixels_are_those_of_opencv_however_they_are_stored(
    channels: int, size: tuple[int, int] | None, resize: str
) -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (48, 64, channels), dtype=np.uint8)
    method = {"linear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA, "nearest": cv2.INTER_NEAREST}[resize]
    expected = rgb if size is None else cv2.resize(rgb, size[::-1], interpolation=method)
    expected = expected.reshape(*expected.shape[:2], channels).transpose(2, 0, 1)
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]
    png = cv2.imencode(".png", np.ascontiguousarray(rgb[:, :, order]))[1].reshape(-1)
    planes = np.ascontiguousarray(rgb.transpose(2, 0, 1)).transpose(1, 2, 0)
    for image in (rgb, planes, png):
        assert np.array_equal(_fitted(image, rgb.shape, size, resize=resize), expected)


# On a device


def test_only_jpegs_of_one_size_in_every_store_stay_encoded() -> None:
    def kept(*stores: ArrayStore) -> list[str]:
        sources = sources_of([Window(columns=["cam", "raw"]).bind(store) for store in stores], Shaping(SIZE), 1 << 20)
        encoded = encoded_by_all(sources, lambda column: column.is_jpeg)
        return [column.name for source in sources for column in source.images if encoded(column)]

    assert kept(ArrayStore([5]), ArrayStore([6])) == ["cam", "cam"]
    assert kept(ArrayStore([5]), ArrayStore([6], size=(96, 128))) == []  # one decoder call has room for one size
    plain = ArrayStore([6])
    cam = plain.columns["cam"]
    plain.columns = {**plain.columns, "cam": Column("cam", "image", cam.shape, "uint8", "raw", "file", "", 1)}
    assert kept(ArrayStore([5]), plain) == []


@pytest.mark.parametrize("sizes", [((96, 128), (96, 128)), ((96, 128), (48, 64))])
def test_a_mixture_on_a_device_is_the_one_in_memory(sizes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    one, two = (ArrayStore([20], size=size, name=str(number)) for number, size in enumerate(sizes))
    for store in (one, two):  # numbers that look like an image stay what they are
        store.values["grid"] = np.full((20, 3, 4, 5), 200, np.uint8)
        grid = Column("grid", "numbers", (3, 4, 5), "uint8", "numbers", "file", "", 0)
        store.columns = {**store.columns, "grid": grid}
    norm = {"raw": ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))}
    options: dict[str, Any] = {"view": "off", "exact": True, "dtype": "float32", "normalize": norm}
    mix = Mix([(one, 1), (two, 1)])
    expected = list(_loader(mix, **options))
    with _loader(mix, device="cuda", output="auto", **options) as loader:
        for ours, theirs in zip(loader, expected, strict=True):
            for name in ("raw", "cam", "grid", "state", "index"):
                assert np.allclose(ours[name].cpu().numpy(), theirs[name], atol=0.03 if name == "cam" else 1e-4), name
