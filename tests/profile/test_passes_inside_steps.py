"""A validation every so many steps, in the midst of a pass; and loaders that are made anew for every epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from penstock import profile
from penstock.profile.record import loader_pass
from penstock.profile.record import marks as marks_module
from penstock.profile.record.loader_ids import LoaderIds
from penstock.profile.record.loader_pass import LoaderPass
from penstock.profile.record.marks import marks
from penstock.profile.record.track import MAX_LOADERS, Loop
from tests.profile.told import Batches

STEPS, EVERY = 20, 5


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    profile.enable()
    profile.reset()
    now = [time.perf_counter_ns()]
    monkeypatch.setattr(loader_pass, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(marks_module, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(loader_pass, "_NOT_THE_LOOP", ("penstock.", "tests.profile.told"))
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
    assert marks().fed_by(id(validation)) == 0


def test_marks_inside_the_inner_of_two_loops_are_its_steps(clock: list[int]) -> None:
    outer, inner = Batches(clock, 3, wait_ns=1000), Batches(clock, 4)
    for _ in outer:
        for _ in inner:
            clock[0] += 100
            profile.mark_step()
    assert told()[0] == [110] * 4 + 2 * [1110, *[110] * 3]


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


def test_a_pass_inside_a_wait_is_a_part_of_that_wait(clock: list[int]) -> None:
    inner = Batches(clock, 3, wait_ns=20)

    class Outer(Batches):
        def __iter__(self) -> Iterator[int]:
            feeding = LoaderPass(self)
            for number in range(self.count):
                start_ns = feeding.ask()
                for _ in inner:
                    pass
                feeding.take(start_ns, True)
                yield number
            feeding.take(feeding.ask(), False)

    for _ in Outer(clock, 5):
        clock[0] += 100
    assert told()[:2] == ([160] * 5, 5 * 60)


def test_loaders_made_anew_for_every_epoch_keep_training_and_validation_apart(clock: list[int]) -> None:
    places = []
    for _ in range(6):
        training = Batches(clock, 10)
        places.append(id(training))
        for _ in training:
            clock[0] += 100
        del training
        validation = Batches(clock, 20, wait_ns=2)
        places.append(id(validation))
        for _ in validation:
            clock[0] += 10
        del validation
    assert told() == ([110] * 60, 600, 60)
    if len(set(places)) == len(places):
        pytest.skip("no id was given again: this showed less than it could")


def test_loaders_without_end_take_no_memory_without_end(clock: list[int]) -> None:
    kept, own = marks(), Batches(clock, 30)
    for _ in own:
        pass
    for _ in range(3 * MAX_LOADERS):
        for _ in Batches(clock, 2):
            pass
    assert len(kept._loops._known) <= MAX_LOADERS + 2 and len(kept._main().fed) <= MAX_LOADERS
    for _ in own:
        pass
    assert len(kept._loops.tracks) == 2


def test_the_number_of_a_loader_is_given_once() -> None:
    numbers = LoaderIds()
    loader, other = Batches([0], 1), Batches([0], 1)
    first = numbers.of(loader)
    assert first == numbers.of(loader) == numbers.at(id(loader)) == numbers.at(first) < 0
    assert numbers.of(other) != first and numbers.is_living(first)
    del loader
    assert not numbers.is_living(first)
    assert len({numbers.of(Batches([0], 1)) for _ in range(10)}) == 10 and len(numbers._known) == 1
    assert numbers.of(3) != numbers.of(3)  # nothing can refer to it weakly


def test_a_pass_that_is_freed_while_the_marks_are_at_work_waits_for_nobody(clock: list[int]) -> None:
    for number, _ in enumerate(Batches(clock, 4)):
        if number == 1:
            inner = iter(Batches(clock, 5))
            next(inner)
            next(inner)
            with marks().lock:
                del inner
    assert len(told()[0]) == 4
    assert Loop("a", 1, True).loader == 0
