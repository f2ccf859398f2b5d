"""Which loop is the training: validation and epochs, steps that are marked by hand, the table of one epoch."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock import profile
from penstock._src.profile.record import spans
from penstock._src.profile.record import steps as steps_module
from penstock._src.profile.record.steps import Steps, steps
from penstock._src.profile.stats import EpochStats
from penstock.errors import UsageError
from tests.profile.batches import Batches


def fed(clock: list[int], loader: Batches, *, step_ns: int) -> None:
    """A pass over a loader."""
    for _ in loader:
        clock[0] += step_ns - loader.wait_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [time.perf_counter_ns()]
    monkeypatch.setattr(steps_module, "perf_counter_ns", lambda: now[0])
    return now


def test_the_wait_for_batches_is_no_own_time_of_the_span_around_the_loop(
    clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "perf_counter_ns", lambda: clock[0])

    class Fetching(Batches):
        @property
        def wait_ns(self) -> int:
            with profile.span("fetch"):  # in the loop's own thread, 30 of the 70
                clock[0] += 30
            return 70

        @wait_ns.setter
        def wait_ns(self, value: int) -> None: ...

    with profile.span("epoch"):
        for _ in Fetching(clock, 5):
            clock[0] += 10
    told = profile.snapshot().by_name()
    assert {name: (each.total_ns, each.self_ns) for name, each in told.items()} == {
        "epoch": (400, 50), "data_wait": (350, 200), "fetch": (150, 150)
    }  # fmt: skip


@pytest.mark.parametrize("validates_first", [False, True])
def test_batches_of_a_validation_are_no_steps(clock: list[int], validates_first: bool) -> None:
    training, validation = Batches(clock, 10, wait_ns=2), Batches(clock, 25, wait_ns=4)
    for _ in range(2):
        if validates_first:
            fed(clock, validation, step_ns=5)
        fed(clock, training, step_ns=100)
        if not validates_first:
            fed(clock, validation, step_ns=5)
        profile.mark_epoch()
    told = steps().stats()
    assert (told.count, told.total_ns, told.wait_total_ns, told.batches) == (20, 2000, 40, 20)
    assert {(each.duration_ns, each.wait_ns) for each in told.series} == {(100, 2)}
    assert [(each.steps, each.steps_ns, each.wait_ns) for each in steps().epochs()] == [(10, 1000, 20)] * 2


def test_the_loop_whose_steps_took_longest_in_all_is_the_training(clock: list[int]) -> None:
    short, long = Batches(clock, 50, wait_ns=4), Batches(clock, 5, wait_ns=2)
    fed(clock, short, step_ns=10)
    assert steps().stats().count == 50
    fed(clock, long, step_ns=1000)
    assert steps().stats().count == 5
    assert steps().batches_of(id(long)) == 5 and steps().batches_of(id(short)) == 0


def test_loaders_of_one_data_set_are_one_with_gradients_and_without_apart(clock: list[int]) -> None:
    torch = pytest.importorskip("torch")
    data = object()
    for _ in range(3):
        fed(clock, Batches(clock, 5, dataset=data), step_ns=100)
        with torch.no_grad():
            fed(clock, Batches(clock, 4, dataset=data), step_ns=50)
    assert durations() == [100] * 15


def test_a_validation_without_gradients_is_not_the_training_however_long_it_takes(
    clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = [False]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(is_grad_enabled=lambda: wants[0]))
    training, validation = Batches(clock, 10), Batches(clock, 400)
    fed(clock, validation, step_ns=50)
    assert durations_of(steps()) == {50}  # as long as there is nothing else
    for _ in range(3):
        wants[0] = True
        fed(clock, training, step_ns=100)
        wants[0] = False
        fed(clock, validation, step_ns=50)
    assert durations_of(steps()) == {100}
    for data in [object() for _ in range(steps_module.MAX_LOOPS)]:  # made anew, they do not drive it out
        fed(clock, Batches(clock, 400, dataset=data), step_ns=50)
    assert durations_of(steps()) == {100}
    assert steps().stats().count == steps().batches_of(id(training)) == 30


def durations_of(made: Steps) -> set[int]:
    return {point.duration_ns for point in made.stats().series}


def durations() -> list[int]:
    return [point.duration_ns for point in profile.snapshot().steps.series]


def test_a_pass_that_is_left_in_its_midst_ends_with_its_last_whole_step(clock: list[int]) -> None:
    loader = Batches(clock, 50)
    for _ in range(3):
        for number, _ in enumerate(loader):
            clock[0] += 100
            if number == 4:
                break
        clock[0] += 5000  # validation, checkpoint
    assert durations() == [110] * 12


def test_passes_of_one_loader_in_one_function_are_one_loop_on_any_line(clock: list[int]) -> None:
    loader = Batches(clock, 5)
    batches = iter(loader)
    for _ in range(20):
        try:
            next(batches)
        except StopIteration:
            batches = iter(loader)
            next(batches)
        clock[0] += 100
    assert durations() == [110] * 19


def test_a_marked_step_waits_for_all_of_its_loaders(clock: list[int]) -> None:
    first, second = Batches(clock, 10), Batches(clock, 10, wait_ns=7)
    for _ in zip(first, second, strict=True):
        clock[0] += 100
        profile.mark_step()
    told = profile.snapshot().steps
    assert durations() == [117] * 10 and told.wait_total_ns == 10 * 17


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_step_in_which_a_validation_ends_is_not_counted(clock: list[int], is_marked: bool) -> None:
    torch = pytest.importorskip("torch")
    validation = Batches(clock, 7, wait_ns=9)
    for number, _ in enumerate(Batches(clock, 20)):
        clock[0] += 100
        if number % 5 == 4:
            with torch.no_grad():
                fed(clock, validation, step_ns=10)
        if is_marked:
            profile.mark_step()
    assert durations() == [110] * 16


@pytest.mark.parametrize("marks_epochs", [True, False])
def test_a_step_of_several_batches_begins_with_the_first_of_them(clock: list[int], marks_epochs: bool) -> None:
    loader = Batches(clock, 8)
    for _ in range(2):
        for number, _ in enumerate(loader):
            clock[0] += 100
            if number % 4 == 3:
                profile.mark_step()
        clock[0] += 5000
        if marks_epochs:
            profile.mark_epoch()
    assert durations() == [440] * 4 and profile.snapshot().steps.wait_total_ns == 16 * 10


def test_a_step_may_go_on_over_the_end_of_a_pass(clock: list[int]) -> None:
    loader = Batches(clock, 3)
    done = 0
    for _ in range(4):
        for _ in loader:
            clock[0] += 100
            done += 1
            if done % 2 == 0:
                profile.mark_step()
    assert durations() == [220] * 6


def test_marked_steps_do_not_wait_for_a_validation_or_in_another_thread(clock: list[int]) -> None:
    torch = pytest.importorskip("torch")
    training, validation, ahead = Batches(clock, 4), Batches(clock, 6, wait_ns=900), Batches(clock, 6, wait_ns=900)
    for _ in range(2):
        for _ in training:
            clock[0] += 100
            profile.mark_step()
        with torch.no_grad():
            for _ in validation:
                clock[0] += 50
        worker = threading.Thread(target=lambda: list(ahead))
        worker.start()
        worker.join()
    told = profile.snapshot().steps
    assert (durations(), told.wait_total_ns, told.batches) == ([110] * 8, 80, 8)


def test_time_that_belongs_to_no_step_can_be_taken_out(clock: list[int]) -> None:
    for number, _ in enumerate(Batches(clock, 5)):
        clock[0] += 100
        if number == 2:
            clock[0] += 7000
            steps().shift(7000)
    assert durations() == [110] * 5


def test_steps_marked_by_hand_count_from_the_second_on_in_every_epoch() -> None:
    marks = Steps()
    for epoch in range(2):
        marks.mark_step(None, 100 * epoch + 10)
        marks.mark_step(None, 100 * epoch + 30)
        marks.mark_epoch(None, 100 * epoch + 40)
    assert [each.duration_ns for each in marks.stats().series] == [20, 70, 20]
    assert marks.epochs() == (EpochStats(0, 10, 30, 1, 20, 0), EpochStats(1, 40, 100, 2, 90, 0))


def test_marks_by_hand_after_a_loader_was_asked_are_the_steps(clock: list[int]) -> None:
    batches = iter(Batches(clock, 9))
    next(batches)
    clock[0] += 90
    profile.mark_step()
    next(batches)
    clock[0] += 90
    profile.mark_step()
    told = steps().stats()
    assert [(each.duration_ns, each.wait_ns) for each in told.series] == [(100, 10), (100, 10)]
    assert told.batches == 1


def test_what_is_no_number_is_no_reason_to_fail(tmp_path: Path) -> None:
    profile.gauge("loss", 2.0)
    for value in (math.nan, math.inf):
        profile.gauge("loss", value)
        profile.log_timing("elsewhere", value)
    profile.log_timing("elsewhere", 0.5)
    told = json.loads(profile.save(tmp_path / "run.json").read_text(encoding="utf-8"))
    assert told["gauges"]["loss"]["max"] == 2.0
    assert profile.snapshot().by_name()["elsewhere"].count == 1
    profile.disable()
    profile.log_timing("elsewhere", math.nan)


def test_the_table_of_an_epoch_holds_that_epoch_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for epoch in range(3):
        for _ in range(4):
            for _ in range(epoch + 1):
                with profile.span("work"):
                    pass
            profile.mark_step()
        profile.mark_epoch()
    for epoch, calls in ((0, 4), (1, 8), (2, 12)):
        profile.print_timing_stats(epoch=epoch)
        shown = capsys.readouterr().out
        assert shown.startswith(f"Epoch {epoch} took: ")
        assert re.search(rf"^work +\| total: .* calls: +{calls}× ", shown, re.MULTILINE)
    profile.print_timing_stats()
    assert re.search(r"^work .* calls: +24× ", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(UsageError, match="epoch 7 has not ended"):
        profile.print_timing_stats(epoch=7)
