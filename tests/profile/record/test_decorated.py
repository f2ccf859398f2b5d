"""`@span` and `@gpu_span`: a function stays of the kind that it was, with its parameters and what it returns."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import profile
from penstock._src.profile.record import gpu
from penstock.profile import gpu_span, snapshot, span

BOTH = pytest.mark.parametrize("timed", [span, gpu_span])


@pytest.fixture(autouse=True)
def no_cuda() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")


@BOTH
def test_a_coroutine_function_is_one_still_and_timed_to_its_end(timed: Callable[[str], Any]) -> None:
    @timed("wait")
    async def wait(n: int) -> int:
        await asyncio.sleep(0.02)
        return n

    async def both() -> list[int]:
        return list(await asyncio.gather(wait(1), wait(2)))

    assert inspect.iscoroutinefunction(wait)
    assert asyncio.run(both()) == [1, 2]
    (told,) = snapshot().spans
    assert (told.name, told.path, told.count) == ("wait", (), 2) and told.min_ns > 15_000_000


@BOTH
def test_generator_functions_are_such_still_and_timed_between_their_yields(timed: Callable[[str], Any]) -> None:
    @timed("steps")
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    assert inspect.isgeneratorfunction(numbers)
    assert inspect.isgenerator(numbers())
    for _ in numbers():
        with span("outside"):
            pass
    told = {(*each.path, each.name): each for each in snapshot().spans}
    assert {path: each.count for path, each in told.items()} == {("steps",): 3, ("outside",): 2}


@BOTH
def test_a_generator_function_takes_what_it_took(timed: Callable[[str], Any]) -> None:
    @timed("steps")
    def numbers(a: int, /, b: int = 2, *more: int, begin: int, last: int = 9, **named: int) -> Iterator[Any]:
        """Doc."""
        yield a, b, more, begin, last, named

    with pytest.raises(TypeError, match=r"numbers\(\) missing 1 required"):
        next(numbers(begin=1))
    assert list(numbers(1, begin=5)) == [(1, 2, (), 5, 9, {})]
    assert list(numbers(1, 3, 4, begin=5, last=6, x=7)) == [(1, 3, (4,), 5, 6, {"x": 7})]
    assert (numbers.__doc__, numbers.__name__) == ("Doc.", "numbers")
    assert str(inspect.signature(numbers)).startswith("(a: 'int', /, b: 'int' = 2, *more: 'int', begin: 'int'")

    @timed("only")
    def only(a: int = 1, *, b: int = 2) -> Iterator[int]:
        yield a + b

    assert list(only()) == [3] and list(only(5, b=6)) == [11] and inspect.isgeneratorfunction(only)


@span("module")
def module_level(n: int) -> Iterator[int]:
    yield n


class Data:
    @span("iterate")
    def __iter__(self) -> Iterator[int]:
        yield from (1, 2)


def test_methods_and_pickling_work_as_without_it() -> None:
    assert list(Data()) == [1, 2]
    assert list(pickle.loads(pickle.dumps(module_level))(3)) == [3]
    assert snapshot().by_name()["iterate"].count == 3


# gpu_span on the host's clock


def test_a_stage_that_is_entered_again_inside_itself_ends_as_often() -> None:
    stage = gpu_span("x")
    with stage, stage, stage:
        pass
    with span("later"):
        pass
    told = {each.path: each.count for each in snapshot().spans if each.name == "x"}
    assert told == {(): 1, ("x",): 1, ("x", "x"): 1}
    assert [each.path for each in snapshot().spans if each.name == "later"] == [()]


def test_a_stage_that_is_entered_while_it_is_off_ends_as_often() -> None:
    stage = gpu_span("x")
    with stage:
        profile.disable()
        with stage:
            pass
        profile.enable()
    with stage:
        pass
    assert snapshot().by_name()["x"].count == 2


def test_one_stage_serves_all_threads() -> None:
    stage, barrier = gpu_span("shared"), threading.Barrier(4)

    @stage
    def nested(depth: int) -> None:
        if depth:
            nested(depth - 1)

    def work() -> None:
        barrier.wait(60)
        for _ in range(200):
            with stage:
                nested(2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert snapshot().by_name()["shared"].count == 4 * 200 * 4
    assert {each.path for each in snapshot().spans} == {("shared",) * depth for depth in range(4)}


# gpu_span on the device's clock


class Event:
    """An event of CUDA as far as stages need it; each is recorded a millisecond after the one before."""

    clock_ms = 0

    def __init__(self, enable_timing: bool) -> None:
        self.at_ms = 0

    def record(self) -> None:
        Event.clock_ms += 1
        self.at_ms = Event.clock_ms

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


class Cuda:
    Event = Event

    def current_device(self) -> int:
        return 0

    def is_current_stream_capturing(self) -> bool:
        return False


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_cuda", Cuda)
    monkeypatch.setattr(gpu, "_stages", gpu._Stages())
    monkeypatch.setattr(gpu, "tell_machine", lambda **_: None)


def test_by_the_device_too_a_stage_ends_as_often_as_it_began(device: None) -> None:
    stage = gpu_span("x")
    with stage, stage:
        pass
    (told,) = gpu.stats()
    assert (told.count, told.min_ns, told.max_ns) == (2, 1_000_000, 3_000_000)


def test_a_child_of_fork_has_no_stages_of_its_parent(device: None) -> None:
    with gpu_span("over"):
        pass
    with gpu_span("open"):
        child = os.fork()
        if not child:
            os._exit(len(vars(gpu._local)) + len(gpu.stats()))
    assert os.waitpid(child, 0)[1] == 0
