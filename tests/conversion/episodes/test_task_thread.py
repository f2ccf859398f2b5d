"""The lane behind the reader: order, back-pressure, errors that reach the reader, buffers that come back."""

from __future__ import annotations

import threading
import time

import pytest

from penstock._src.conversion.cameras.image_pass import TaskThread


def lanes_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test-lane")]


def test_jobs_are_done_in_the_order_they_were_put() -> None:
    done: list[int] = []
    with TaskThread("test-lane") as worker:
        for number in range(50):
            worker.put(lambda number=number: done.append(number), lambda: None)
        worker.drain()
        assert done == list(range(50))
    assert lanes_alive() == []


def test_put_waits_while_the_queue_is_full() -> None:
    gate, put = threading.Event(), []
    with TaskThread("test-lane", depth=2) as worker:

        def fill() -> None:
            for number in range(6):
                worker.put(gate.wait, lambda: None)
                put.append(number)

        reader = threading.Thread(target=fill)
        reader.start()
        while len(put) < 3:
            time.sleep(0.005)
        reader.join(timeout=0.1)
        # One job is under way and two wait; the fourth is not accepted before the gate opens.
        assert reader.is_alive() and len(put) == 3
        gate.set()
        reader.join()
        worker.drain()
    assert len(put) == 6


def test_the_first_error_reaches_the_reader_and_every_buffer_comes_back() -> None:
    given_back: list[int] = []
    done: list[int] = []

    def job(number: int) -> None:
        if number == 3:
            raise RuntimeError("the disk is full")
        done.append(number)

    put = 0
    with pytest.raises(RuntimeError, match="disk is full"), TaskThread("test-lane", depth=2) as caught:
        for number in range(100):
            put += 1
            caught.put(lambda number=number: job(number), lambda number=number: given_back.append(number))
        caught.drain()
    assert done == [0, 1, 2]  # nothing after the failure is done
    assert sorted(given_back) == list(range(put))
    assert lanes_alive() == []


def test_drain_raises_what_the_last_job_raised() -> None:
    def fail() -> None:
        raise ValueError("last")

    with TaskThread("test-lane") as worker:
        worker.put(fail, lambda: None)
        with pytest.raises(ValueError, match="last"):
            worker.drain()


def test_a_buffer_that_cannot_be_given_back_is_an_error_too() -> None:
    def fail() -> None:
        raise ValueError("released twice")

    with TaskThread("test-lane") as worker:
        worker.put(lambda: None, fail)
        with pytest.raises(ValueError, match="released twice"):
            worker.drain()


def test_an_interrupted_reader_waits_for_no_more_than_the_job_under_way() -> None:
    gate, started, done, given_back = threading.Event(), threading.Event(), [], []

    def slow() -> None:
        started.set()
        gate.wait(60)
        done.append("under way")

    def wait_until_caught(caught: TaskThread) -> None:
        while caught._error is None:  # the job goes on when the reader has told the lane, and waits for it
            time.sleep(0.001)
        gate.set()

    with pytest.raises(KeyboardInterrupt), TaskThread("test-lane", depth=4) as caught:
        caught.put(slow, lambda: given_back.append(0))
        for number in (1, 2, 3):
            caught.put(lambda: done.append("waiting"), lambda number=number: given_back.append(number))
        assert started.wait(60)
        threading.Thread(target=wait_until_caught, args=(caught,), daemon=True).start()
        raise KeyboardInterrupt
    assert done == ["under way"]
    assert given_back == [0, 1, 2, 3]
    assert lanes_alive() == []
