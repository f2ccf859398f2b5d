"""The lane behind the reader: order, back-pressure, errors that reach the reader, buffers that come back."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.conversion.cameras.lane import Lane


def lanes_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test-lane")]


def test_jobs_are_done_in_the_order_they_were_put() -> None:
    done: list[int] = []
    with Lane("test-lane") as lane:
        for number in range(50):
            lane.put(lambda number=number: done.append(number), lambda: None)
        lane.drain()
        assert done == list(range(50))
    assert lanes_alive() == []


def test_put_waits_while_the_lane_is_full() -> None:
    gate, put = threading.Event(), []
    with Lane("test-lane", depth=2) as lane:

        def fill() -> None:
            for number in range(6):
                lane.put(gate.wait, lambda: None)
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
        lane.drain()
    assert len(put) == 6


def test_the_first_error_reaches_the_reader_and_every_buffer_comes_back() -> None:
    given_back: list[int] = []
    done: list[int] = []

    def job(number: int) -> None:
        if number == 3:
            raise RuntimeError("the disk is full")
        done.append(number)

    put = 0
    with pytest.raises(RuntimeError, match="disk is full"), Lane("test-lane", depth=2) as lane:
        for number in range(100):
            put += 1
            lane.put(lambda number=number: job(number), lambda number=number: given_back.append(number))
        lane.drain()
    assert done == [0, 1, 2]  # nothing after the failure is done
    assert sorted(given_back) == list(range(put))
    assert lanes_alive() == []


def test_drain_raises_what_the_last_job_raised() -> None:
    def fail() -> None:
        raise ValueError("last")

    with Lane("test-lane") as lane:
        lane.put(fail, lambda: None)
        with pytest.raises(ValueError, match="last"):
            lane.drain()


def test_a_buffer_that_cannot_be_given_back_is_an_error_too() -> None:
    def fail() -> None:
        raise ValueError("released twice")

    with Lane("test-lane") as lane:
        lane.put(lambda: None, fail)
        with pytest.raises(ValueError, match="released twice"):
            lane.drain()


def test_an_interrupted_reader_waits_for_no_more_than_the_job_under_way() -> None:
    gate, begun, done, given_back = threading.Event(), threading.Event(), [], []

    def slow() -> None:
        begun.set()
        gate.wait(60)
        done.append("under way")

    def until_told(lane: Lane) -> None:
        while lane._error is None:  # the job goes on when the reader has told the lane, and waits for it
            time.sleep(0.001)
        gate.set()

    with pytest.raises(KeyboardInterrupt), Lane("test-lane", depth=4) as lane:
        lane.put(slow, lambda: given_back.append(0))
        for number in (1, 2, 3):
            lane.put(lambda: done.append("waiting"), lambda number=number: given_back.append(number))
        assert begun.wait(60)
        threading.Thread(target=until_told, args=(lane,), daemon=True).start()
        raise KeyboardInterrupt
    assert done == ["under way"]
    assert given_back == [0, 1, 2, 3]
    assert lanes_alive() == []
