"""How a batch is cut into tasks for threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from penstock._src.load.engine import batch_tasks
from penstock._src.load.engine.fetch import SampleFetcher
from penstock._src.load.engine.job import BatchJob, BatchPart
from penstock._src.load.engine.thread_pool import Task, ThreadPool, WorkerState
from penstock._src.load.sampling.window import Window
from tests.load.image_store import ArrayStore


class CountingPool(ThreadPool):
    """Says it has 12 threads, and does every task at once."""

    def __init__(self) -> None:
        super().__init__(0)
        self.given = 0

    def do(self, task: Task, *, is_urgent: bool = False) -> None:
        self.given += 1
        self.count = 0
        super().do(task, is_urgent=is_urgent)


def test_an_urgent_task_goes_before_those_that_wait() -> None:
    pool, begun, may_go = ThreadPool(1), threading.Event(), threading.Event()
    done: list[str] = []

    def hold(_: WorkerState) -> None:
        begun.set()
        may_go.wait()

    def note(name: str) -> Task:
        return lambda _: done.append(name)

    pool.do(hold)
    begun.wait()
    for name in ("first", "second"):
        pool.do(note(name))
    for name in ("urgent", "urgent, too"):
        pool.do(note(name), is_urgent=True)
    may_go.set()
    pool.close()
    assert done == ["urgent", "urgent, too", "first", "second"]


@pytest.mark.parametrize("side", [32, 128, 512])
def test_copies_from_a_view_are_cut_by_bytes_not_by_threads(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_tasks, "_LEAST_COPIED", 64 << 10)
    store = ArrayStore((40,))
    with_view: dict[str, Any] = {"image_size": (side, side), "view": "ram", "threads": 0}
    samples = SampleFetcher(store, Window(columns=["cam", "raw"]), **with_view)
    try:
        numbers = np.random.default_rng(0).permutation(40)
        expected = samples.fetch(numbers)  # fills the view
        job, pool = BatchJob(40, samples.arrays(40), {}), CountingPool()
        pool.count = 12
        batch_tasks.begin_job(job, [BatchPart(samples._source, np.arange(40), numbers)], pool)
        job.wait()
        image = 3 * side * side
        per_task = max(-(-(64 << 10) // image), 1)  # 40 images for 12 threads would be one each
        assert pool.given == 2 * -(-40 // per_task) and job.hits == 80
        assert all((job.arrays[name] == expected[name]).all() for name in ("cam", "raw"))
    finally:
        samples.close()
