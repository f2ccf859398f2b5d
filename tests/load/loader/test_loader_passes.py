"""Passes of a loader that end in ways nobody planned: replaced, interrupted, forgotten, closed elsewhere, forked."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock._src.load.choose_engine import ThreadEngine
from penstock._src.load.engine.thread_pool import start_thread
from penstock._src.load.loader import Loader
from penstock._src.load.process.engine import ProcessEngine
from penstock._src.load.sampling.window import Window
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock.errors import StoreCorrupt, UsageError
from tests.load.image_store import ArraySource, ArrayStore
from tests.threads import earlier_threads, left_running

SIZE = (24, 32)


def _loader(store: Any, window: Any = None, **options: Any) -> Loader:
    return Loader(store, window, **{"batch_size": 8, "image_size": SIZE, "threads": 2, "output": "numpy", **options})


def _indices(loader: Loader) -> list[int]:
    return [int(row) for batch in loader for row in batch["index"]]


def test_of_two_iterators_the_later_one_rules() -> None:
    loader = _loader(ArrayStore([40]), Window(columns=["state"]))
    expected = _indices(loader)
    loader.set_epoch(0)
    first, second = iter(loader), iter(loader)
    with pytest.raises(UsageError, match="another one"):
        next(first)
    assert [int(row) for batch in second for row in batch["index"]] == expected
    with pytest.raises(UsageError, match="another one"):
        list(zip(loader, loader, strict=True))


def test_a_pass_does_not_begin_where_another_place_was_set_meanwhile() -> None:
    loader = _loader(ArrayStore([40]), Window(columns=["state"]))
    started = iter(loader)
    loader.set_epoch(3)
    with pytest.raises(UsageError, match="ended"):
        next(started)
    assert loader.epoch == 3 and len(_indices(loader)) == 40 and loader.epoch == 4


def test_a_batch_that_was_refused_counts_as_not_handed_out() -> None:
    store = ArrayStore([40], broken=[20])
    loader = _loader(store, Window(columns=["cam"]), shuffle=False, view="off")
    handed: list[int] = []
    with pytest.raises(StoreCorrupt):
        for batch in loader:
            handed += batch["index"].tolist()
    assert loader.state_dict()["position"] == len(handed) == 16
    resumed = _loader(ArrayStore([40]), Window(columns=["cam"]), shuffle=False, view="off")
    resumed.load_state_dict(loader.state_dict())
    assert handed + _indices(resumed) == list(range(40))


def test_stats_are_there_after_the_end() -> None:
    with _loader(ArrayStore([20]), view="ram") as loader:
        list(map(len, loader))
    found = loader.stats()
    assert found["samples"] == 20 and all(view["rows"] == 20 for view in found["views"].values())


def test_closing_while_another_thread_iterates() -> None:
    loader = _loader(ArrayStore([400]), view="ram", batch_size=4)
    began, ended = threading.Event(), []

    def use() -> None:
        try:
            for _ in itertools.count():
                for _ in loader:
                    began.set()
        except UsageError as error:
            ended.append(error)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    assert began.wait(60)
    loader.close()
    thread.join(60)
    assert not thread.is_alive() and len(ended) == 1


_CLOSED_BY_A_SIGNAL = """
import os, signal, sys, threading
from penstock import Loader, Window
from penstock.errors import UsageError
from tests.load.image_store import ArraySource, ArrayStore

has_begun, closing, read = threading.Event(), threading.Event(), ArraySource.read

def waiting(self, rows, scratch):  # of threads; an engine process is stopped
    for image in read(self, rows, scratch):
        if has_begun.is_set():
            closing.wait()
        yield image

def end(number, frame):
    if frame.f_code.co_name in ("wait", "receive", "_has_come") and not closing.is_set():
        closing.set()
        if pid is not None:
            os.kill(pid, signal.SIGCONT)
        loader.close()

ArraySource.read = waiting
loader = Loader(ArrayStore([400]), Window(columns=["cam"]), batch_size=8, image_size=(24, 32), memory="512MiB",
                view="off", threads=2, output="numpy", engine=sys.argv[1])
batches = iter(loader)
next(batches)
has_begun.set()
pid = getattr(loader._engine, "pid", None)
if pid is not None:
    os.kill(pid, signal.SIGSTOP)
signal.signal(signal.SIGALRM, end)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # again and again, until it comes into the wait for a batch
try:
    for _ in batches:
        pass
except UsageError:
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("ended")
"""


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_signal_handler_closes_a_loader_whose_thread_waits_for_a_batch(engine: str) -> None:
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    words = [sys.executable, "-W", "ignore", "-c", _CLOSED_BY_A_SIGNAL, engine]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def _in_the_midst(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, of: str, act: Callable[[], None]
) -> list[BaseException]:
    """What a loop over the loader raises where another thread acts while it is within that method; nothing where the
    method lets the other one wait for so long that the loop has ended before."""
    inside, go_on, raised = threading.Event(), threading.Event(), []
    method = getattr(Loader, of)

    def waiting(self: Loader, *words: Any) -> Any:
        if not inside.is_set():
            inside.set()
            go_on.wait(60)
        return method(self, *words)

    def use() -> None:
        try:
            for _ in loader:
                pass
        except BaseException as error:
            raised.append(error)

    monkeypatch.setattr(Loader, of, waiting)
    threads = [threading.Thread(target=each, daemon=True) for each in (use, act)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    threads[1].join(0.2)  # it may have to wait for the method
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return raised


@pytest.mark.parametrize("of", ["_start_pass", "_begin_work", "_new_pass", "_count"])
def test_closing_just_as_another_thread_begins(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = earlier_threads()
    loader = _loader(ArrayStore([40]), view="off")
    raised = _in_the_midst(loader, monkeypatch, of, loader.close)
    assert all(isinstance(each, UsageError) for each in raised)
    assert left_running(before) == []


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_pass_begins_when_the_one_before_is_over_whoever_ends_that(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a thread that feeds a training is replaced by another one, and has not ended yet."""
    where, method = (ThreadEngine, "give_up") if engine == "thread" else (ProcessEngine, "cancel")
    end, ending, begun, errors = getattr(where, method), threading.Event(), threading.Event(), list[BaseException]()

    def slow_end(self: Any, *jobs: Any) -> None:
        if threading.current_thread() is feeder and not ending.is_set():
            ending.set()
            begun.wait(1)  # the next pass begins meanwhile, if it can
        end(self, *jobs)

    def feed() -> None:
        try:
            for _ in loader:
                break
        except BaseException as error:
            errors.append(error)

    def feed_next() -> None:
        try:
            for batch in loader:
                found.append([int(row) for row in batch["index"]])
                begun.set()
                feeder.join()
        except BaseException as error:
            errors.append(error)
        begun.set()

    with _loader(ArrayStore([80]), Window(columns=["raw"]), engine=engine, shuffle=False, memory="512MiB") as loader:
        monkeypatch.setattr(where, method, slow_end)
        found: list[list[int]] = []
        feeder, next_one = threading.Thread(target=feed), threading.Thread(target=feed_next, daemon=True)
        feeder.start()
        assert ending.wait(600)
        next_one.start()
        feeder.join()
        next_one.join(120)
        assert not errors and not next_one.is_alive()
        assert found == [list(range(first, first + 8)) for first in range(0, 80, 8)]
        assert loader._engine is not None and len(loader._engine.slots) == loader.memory_split.slots


def test_closing_between_the_call_of_iter_and_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    before = earlier_threads()
    loader = _loader(ArrayStore([40]), view="off")
    end_pass = Loader._end_pass

    def and_closed(self: Loader) -> None:
        end_pass(self)
        self.close()  # as another thread would just now

    monkeypatch.setattr(Loader, "_end_pass", and_closed)
    with pytest.raises(UsageError, match="this pass has ended"):
        _indices(loader)
    assert left_running(before) == []


@pytest.mark.parametrize("of", ["_start_pass", "_begin_work", "_new_pass", "_count"])
def test_a_place_that_is_set_just_as_another_thread_takes_a_batch_stays(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _loader(ArrayStore([40]), Window(columns=["state"])) as loader:
        raised = _in_the_midst(loader, monkeypatch, of, lambda: loader.set_epoch(5))
        assert all(isinstance(each, UsageError) for each in raised)
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)


def test_interrupts_at_any_moment_leave_a_loader_that_works() -> None:
    code = (
        "import random, signal\n"
        "from tests.load.image_store import ArrayStore\nfrom penstock._src.load.loader import Loader\n"
        "loader = Loader(ArrayStore([400], size=(8, 10)), batch_size=8, image_size=(6, 8), threads=2, output='numpy')\n"
        "def interrupt(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, interrupt)\nrandom.seed(5)\n"
        "for _ in range(120):\n"
        "    try:\n        try:\n            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.006))\n"
        "            for batch in loader: pass\n"
        "        finally:\n            signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    except KeyboardInterrupt:\n        pass\n"
        "batch = None\nloader.set_epoch(0)\nprint(sum(len(batch['index']) for batch in loader))\nloader.close()\n"
    )
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["400"]), done.stderr


class _Slow(ArrayStore):
    """A store that gives the first rows at once; others wait for a sign, and their thread collects garbage."""

    def __init__(self, lengths: Sequence[int], at_once: int) -> None:
        super().__init__(lengths)
        self.at_once = at_once
        self.asked, self.go_on = threading.Event(), threading.Event()

    def images(self, name: str) -> ImageSource:
        store = self

        class Waiting(ArraySource):
            def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
                if max(rows) >= store.at_once:
                    store.asked.set()
                    if store.go_on.wait(60):
                        gc.collect()
                yield from super().read(rows, scratch)

        return Waiting(self.raw, frozenset(), [])


def test_a_forgotten_loader_that_its_own_thread_collects_ends() -> None:
    store = _Slow([60], at_once=8)  # the first batch

    class Trainer:
        pass

    earlier = earlier_threads()
    gc.disable()
    try:
        trainer = Trainer()
        trainer.me = trainer  # type: ignore[attr-defined]
        options: dict[str, Any] = {"threads": 1, "view": "off", "shuffle": False}
        trainer.loader = _loader(store, Window(columns=["raw"]), **options)  # type: ignore[attr-defined]
        taken = iter(trainer.loader)  # type: ignore[attr-defined]
        trainer.batches = taken  # type: ignore[attr-defined]
        next(taken)
        assert store.asked.wait(60)  # the only thread is at work for a later batch
        del trainer, taken
        store.go_on.set()  # … and collects the loader whose thread it is
        assert left_running(earlier) == [], "it waits for itself"
    finally:
        gc.enable()


def test_a_program_that_forks_after_opencv_used_threads() -> None:
    code = (
        "import os, sys, cv2, numpy as np\ncv2.setNumThreads(4)\n"
        "for _ in range(3): cv2.resize(np.zeros((2000, 2000, 3), np.uint8), (900, 900))\n"
        "from tests.load.image_store import ArrayStore\nfrom penstock._src.load.loader import Loader\n"
        "loader = Loader(ArrayStore([40]), batch_size=8, image_size=(24, 32), threads=2)\n"
        "if len(sys.argv) > 1: batches = iter(loader); next(batches)\n"
        "child = os.fork()\n"
        "if child == 0:\n    os._exit(0 if sum(len(batch['index']) for batch in loader) == 40 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "print(sum(len(batch['index']) for batch in loader))\n"
    )
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    for words in ([], ["in the middle of a pass"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stdout.strip()) == (0, "40"), done.stderr


def test_several_threads_take_from_one_iterator() -> None:
    loader = _loader(ArrayStore([1200], size=(8, 10)), batch_size=4, view="off")
    batches, barrier = iter(loader), threading.Barrier(3)
    taken: list[list[int]] = [[], [], []]
    errors: list[BaseException] = []

    def take(number: int) -> None:
        barrier.wait(60)
        try:
            for batch in batches:
                taken[number] += batch["index"].tolist()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)
    assert sorted(itertools.chain(*taken)) == list(range(1200)) and loader.epoch == 1
    loader.close()


def test_closing_ends_all_threads_that_wait_for_one_iterator() -> None:
    store = _Slow([60], at_once=8)
    # One thread: of two, both may come to the next batches before the first is complete.
    loader = _loader(store, Window(columns=["raw"]), view="off", shuffle=False, threads=1)
    batches, ended = iter(loader), []
    next(batches)

    def take() -> None:
        try:
            ended.append(next(batches, None))
        except UsageError as error:
            ended.append(error)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert store.asked.wait(60)
    closing = threading.Thread(target=loader.close, daemon=True)
    closing.start()
    store.go_on.set()
    for thread in (*threads, closing):
        thread.join(60)
    assert not any(thread.is_alive() for thread in (*threads, closing)) and len(ended) == 3


def test_an_iterator_that_is_closed_or_dropped_ends_its_pass() -> None:
    before = earlier_threads()
    loader = _loader(ArrayStore([80]), Window(columns=["state"]), batch_size=4)
    batches = iter(loader)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert loader._pass is None and next(batches, None) is None
    for _ in loader:
        break
    assert loader._pass is None
    loader.close()
    assert left_running(before) == []


def test_ctrl_c_in_the_start_of_a_thread_stays_ctrl_c() -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("release unlocked lock")

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with pytest.raises(KeyboardInterrupt):
        start_thread(Interrupted())
    with pytest.raises(RuntimeError, match="can't start"):
        start_thread(Refused())
