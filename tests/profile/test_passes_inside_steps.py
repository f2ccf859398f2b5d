"""A validation every so many steps, in the midst of a pass; and loaders that are made anew for every epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from penstock import profile
from penstock._src.profile.record import loader_pass
from penstock._src.profile.record import steps as steps_module
from penstock._src.profile.record.loader_pass import LoaderPass, loader_id
from penstock._src.profile.record.steps import MAX_LOADERS, MAX_TRACKS, steps
from tests.profile.batches import Batches

STEPS, EVERY = 20, 5


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    profile.enable()
    profile.reset()
    now = [time.perf_counter_ns()]
    for module in (loader_pass, steps_module):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])
    yield now
    profile.reset()


def told() -> tuple[list[int], int, int]:
    steps = profile.snapshot().steps
    return [point.duration_ns for point in steps.series], steps.wait_total_ns, steps.batches


TRAINED = [110] * STEPS, 10 * STEPS, STEPS


def test_a_validation_in_the_midst_of_a_pass_is_no_part_of_the_step(clock: list[int]) -> None:
    training, validation = Batches(clock, STEPS), Batches(clock, 7, wait_ns=900)
    for number, _ in enumerate(training):
        clock[0] += 100
        if number % EVERY == EVERY - 1:
            for _ in validation:
                clock[0] += 50
    assert told() == TRAINED


def test_nor_is_one_that_is_left_after_some_batches(clock: list[int]) -> None:
    training, validation = Batches(clock, STEPS), Batches(clock, 7, wait_ns=900)
    batches = iter(training)
    for number in range(STEPS):
        next(batches)
        clock[0] += 100
        if number % EVERY == EVERY - 1:
            for done, _ in enumerate(validation):
                clock[0] += 50
                if done == 2:
                    break
    next(batches, None)
    assert told() == TRAINED


@pytest.mark.parametrize("has_gradients", [True, False])
def test_nor_is_one_in_a_function_of_its_own(clock: list[int], has_gradients: bool) -> None:
    torch = pytest.importorskip("torch")
    validation = Batches(clock, 7, wait_ns=3)

    def evaluate() -> None:
        with torch.set_grad_enabled(has_gradients):
            for _ in validation:
                clock[0] += 5

    for number, _ in enumerate(Batches(clock, STEPS)):
        clock[0] += 100
        if number % EVERY == EVERY - 1:
            evaluate()
    assert told() == TRAINED


def test_passes_inside_passes_are_taken_out_once(clock: list[int]) -> None:
    training, validation, probe = Batches(clock, STEPS), Batches(clock, 3, wait_ns=900), Batches(clock, 2, wait_ns=7)
    for number, _ in enumerate(training):
        clock[0] += 60
        if number % EVERY == EVERY - 1:
            for _ in validation:
                clock[0] += 50
                for _ in probe:
                    clock[0] += 5
            for _ in probe:
                clock[0] += 5
        clock[0] += 40
    assert told() == TRAINED


def mark_after(validate: Callable[[int], None], number: int) -> None:
    validate(number)
    profile.mark_step()


def mark_before(validate: Callable[[int], None], number: int) -> None:
    profile.mark_step()
    validate(number)


@pytest.mark.parametrize("finish", [mark_before, mark_after])
def test_steps_that_are_marked_do_not_hold_a_validation_either(
    clock: list[int], finish: Callable[[Callable[[int], None], int], None]
) -> None:
    validation = Batches(clock, 7, wait_ns=900)

    def validate(number: int) -> None:
        if number % EVERY == EVERY - 1:
            for _ in validation:
                clock[0] += 50

    for number, _ in enumerate(Batches(clock, STEPS)):
        clock[0] += 100
        finish(validate, number)
    assert told() == TRAINED
    assert steps().use_of(loader_id(validation)).batches == 0


def test_marks_inside_the_inner_of_two_loops_are_its_steps(clock: list[int]) -> None:
    outer, inner = Batches(clock, 3, wait_ns=1000), Batches(clock, 4)
    for _ in outer:
        for _ in inner:
            clock[0] += 100
            profile.mark_step()
    assert told()[0] == 3 * [1110, *[110] * 3]


def test_two_loaders_that_are_asked_in_turn_are_one_loop_with_a_validation_inside(clock: list[int]) -> None:
    first, second, validation = Batches(clock, 10), Batches(clock, 10, wait_ns=7), Batches(clock, 4, wait_ns=900)
    for number, _ in enumerate(zip(first, second, strict=True)):
        clock[0] += 100
        if number % EVERY == EVERY - 1:
            for _ in validation:
                clock[0] += 50
    assert told() == ([117] * 10, 170, 10)


@pytest.mark.parametrize("asked", [1, 3])
def test_a_loader_of_which_each_step_takes_some_batches_belongs_to_it(clock: list[int], asked: int) -> None:
    training, other = Batches(clock, 10), Batches(clock, 100, wait_ns=7)
    more = iter(other)
    for _ in training:
        for _ in range(asked):
            next(more)
        clock[0] += 100
    assert told() == ([110 + 7 * asked] * 10, 10 * (10 + 7 * asked), 10)


def test_one_batch_of_a_pass_begun_for_it_belongs_to_the_step(clock: list[int]) -> None:
    training, other = Batches(clock, 10), Batches(clock, 100, wait_ns=7)
    for _ in training:
        next(iter(other))
        clock[0] += 100
    assert told() == ([117] * 10, 170, 10)


class Outer(Batches):
    """Goes through another loader for each of its batches."""

    def __iter__(self) -> Iterator[int]:
        told = LoaderPass(self)
        inner = Batches(self.clock, 3, wait_ns=20)
        for number in range(self.count):
            start_ns = told.ask()
            for _ in inner:
                pass
            told.take(start_ns, True)
            yield number
        told.take(told.ask(), False)


def test_a_pass_inside_a_wait_is_a_part_of_that_wait(clock: list[int]) -> None:
    for _ in Outer(clock, 5):
        clock[0] += 100
    assert told()[:2] == ([160] * 5, 5 * 60)


def test_a_validation_inside_the_steps_of_such_a_loader_is_no_part_of_them(clock: list[int]) -> None:
    validation = Batches(clock, 3, wait_ns=5)
    for number, _ in enumerate(Outer(clock, 5)):
        clock[0] += 100
        if number == 2:
            for _ in validation:
                clock[0] += 7
    assert told()[:2] == ([160] * 5, 5 * 60)


def test_loaders_made_anew_for_every_epoch_are_one_loop_by_their_data_set(clock: list[int]) -> None:
    rows, other_rows = Batches(clock, 0), Batches(clock, 0)
    for _ in range(6):
        for _ in Batches(clock, 10, dataset=rows):
            clock[0] += 100
        for _ in Batches(clock, 20, wait_ns=2, dataset=other_rows):
            clock[0] += 10
    assert told() == ([110] * 60, 600, 60)


def test_two_loaders_of_one_data_set_that_are_asked_in_turn_feed_the_same_steps(clock: list[int]) -> None:
    rows = Batches(clock, 0)
    for _ in zip(Batches(clock, 10, dataset=rows), Batches(clock, 10, wait_ns=7, dataset=rows), strict=True):
        clock[0] += 100
    assert told() == ([117] * 10, 170, 10)


def test_a_reset_in_the_midst_of_a_pass_begins_with_the_next_batch(clock: list[int]) -> None:
    for number, _ in enumerate(Batches(clock, STEPS)):
        if number == 4:
            profile.reset()
        clock[0] += 100
    assert told() == ([110] * (STEPS - 5), 10 * (STEPS - 5), STEPS - 4)


def test_loaders_without_end_take_no_memory_without_end(clock: list[int]) -> None:
    own = Batches(clock, 30)
    for _ in range(3 * MAX_LOADERS):
        for _ in Batches(clock, 2):
            pass
        for _ in Batches(clock, 2, dataset=own):
            clock[0] += 100
    assert len(steps().tracks) <= MAX_TRACKS and len(steps()._training().use_by_loader) <= MAX_LOADERS
    assert profile.snapshot().steps.count == 6 * MAX_LOADERS


def test_the_number_of_a_loader_is_given_once() -> None:
    loader, other = Batches([0], 1), Batches([0], 1)
    first = loader_id(loader)
    assert first == loader_id(loader) == loader_id(3, loader) != loader_id(other)
    place = id(loader)
    del loader
    assert place not in loader_pass._known
    assert loader_id(3) != loader_id(3)  # nothing can refer to it weakly


def test_a_pass_that_is_freed_while_the_marks_are_at_work_waits_for_nobody(clock: list[int]) -> None:
    for number, _ in enumerate(Batches(clock, 4)):
        if number == 1:
            inner = iter(Batches(clock, 5))
            next(inner)
            next(inner)
            with steps().lock:
                del inner
    assert len(told()[0]) == 4
