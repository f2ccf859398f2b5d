"""Which row each thread is at: no two threads share a place, and a reader that is marked is asked all that it was."""

from __future__ import annotations

import threading

from penstock._src.load.process.row_marks import GuardedReader, RowMarks, RowRef
from penstock._src.stores.store import ImageSource

THREADS = 8


class _SlowPlaces(dict[int, int]):
    """A new thread stores its place only when all others are about to: as if each was interrupted there."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self._barrier = barrier

    def __setitem__(self, thread: int, place: int) -> None:
        self._barrier.wait(120)
        super().__setitem__(thread, place)


def test_threads_that_come_at_once_have_a_place_each() -> None:
    marks, over = RowMarks(), threading.Barrier(THREADS + 1)
    marks._places = _SlowPlaces(threading.Barrier(THREADS))

    def work(row: int) -> None:
        marks.put(0, 1, row)
        over.wait(120)  # a thread that has ended gives its number to the next one
        over.wait(120)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(THREADS)]
    for thread in threads:
        thread.start()
    over.wait(120)
    try:
        assert marks.read() == {RowRef(0, 1, row) for row in range(THREADS)}
    finally:
        over.wait(120)
        for thread in threads:
            thread.join()
        marks.close()


def test_everything_that_a_reader_is_asked_reaches_it() -> None:
    asked = {name for name, each in vars(ImageSource).items() if callable(each) or isinstance(each, property)}
    assert {name for name in asked if not name.startswith("_")} <= set(vars(GuardedReader))
