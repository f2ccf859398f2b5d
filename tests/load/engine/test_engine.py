"""How a batch is cut into tasks for threads."""

from __future__ import annotations

import queue
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


class Outside:
    """Work that comes from elsewhere, as messages do; None: none will come any more."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.pool: ThreadPool | None = None

    def listen(self, waits: bool) -> bool | None:
        try:
            task = self.messages.get(waits, 0.01)
        except queue.Empty:
            return False
        if task is None:
            return None
        assert self.pool is not None
        self.pool.do(task)
        return True


class Held:
    """A task that says that it has begun, and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, _: WorkerState) -> None:
        self.begun.set()
        self.may_end.wait()


def test_an_idle_thread_listens_while_others_work() -> None:
    outside, tasks = Outside(), [Held() for _ in range(5)]
    outside.pool = pool = ThreadPool(3, outside.listen)
    for task in tasks[:3]:
        outside.messages.put(task)
        assert task.begun.wait(60)  # though the threads with those before are not done
    outside.messages.put(tasks[3])
    outside.messages.put(tasks[4])
    tasks[1].may_end.set()
    assert tasks[3].begun.wait(60), "a thread that is done listens for more"
    assert not tasks[4].begun.is_set(), "there are three threads"
    for task in tasks:
        task.may_end.set()
    assert tasks[4].begun.wait(60)
    outside.messages.put(None)
    pool.close()


def test_a_pool_that_has_heard_the_last_works_on() -> None:
    outside, task = Outside(), Held()
    outside.pool = pool = ThreadPool(2, outside.listen)
    outside.messages.put(None)
    outside.messages.put(task)
    done: list[str] = []
    for name in ("first", "second"):
        pool.do(lambda _, name=name: done.append(name))
    pool.close()
    assert sorted(done) == ["first", "second"] and not task.begun.is_set()


def test_a_pool_that_grows_uses_its_new_threads() -> None:
    pool, tasks = ThreadPool(1), [Held() for _ in range(3)]
    for task in tasks:
        pool.do(task)
    assert tasks[0].begun.wait(60) and not tasks[1].begun.is_set()
    pool.grow(3)
    pool.grow(2)
    assert pool.count == 3 and all(task.begun.wait(60) for task in tasks)
    for task in tasks:
        task.may_end.set()
    pool.close()


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
