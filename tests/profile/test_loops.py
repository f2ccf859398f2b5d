"""Which loop is the training: validation and epochs, steps that are marked by hand, the table of one epoch."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from pathlib import Path

import pytest

from penstock import profile
from penstock.errors import UsageError
from penstock.profile.record import loader_pass
from penstock.profile.record import marks as marks_module
from penstock.profile.record.loader_pass import LoaderPass
from penstock.profile.record.marks import EpochStats, Marks, marks
from penstock.profile.record.track import MAX_TRACKS, Loop
from tests.profile.told import Batches

TRAIN, VALIDATE = Loop("train.py", 10, True), Loop("train.py", 30, True)


def fed(marks: Marks, loop: Loop, start_ns: int, steps: int, *, wait_ns: int, step_ns: int) -> int:
    """A pass of a loop; returns when it was over."""
    for number in range(steps):
        begun = start_ns + number * step_ns
        if number:
            marks.feed_step(begun, 7, loop)
        marks.add_wait(begun, wait_ns, loop)
    end = start_ns + steps * step_ns
    marks.feed_step(end, 7, loop)
    marks.add_wait(end, 1, loop)
    marks.end_feed(loop)
    return end


@pytest.mark.parametrize("validates_first", [False, True])
def test_batches_of_a_validation_are_no_steps(validates_first: bool) -> None:
    marks, now = Marks(), 0
    for _ in range(2):
        if validates_first:
            now = fed(marks, VALIDATE, now, 25, wait_ns=4, step_ns=5)
        now = fed(marks, TRAIN, now, 10, wait_ns=2, step_ns=100)
        if not validates_first:
            now = fed(marks, VALIDATE, now, 25, wait_ns=4, step_ns=5)
        marks.mark_epoch(None, now)
    told = marks.steps()
    assert (told.count, told.total_ns, told.wait_total_ns, told.batches, told.cpu_total_ns) == (20, 2000, 40, 20, 140)
    assert {(each.duration_ns, each.wait_ns) for each in told.series} == {(100, 2)}
    assert [(each.steps, each.steps_ns, each.wait_ns) for each in marks.epochs()] == [(10, 1000, 20)] * 2


def test_a_loop_without_gradients_is_no_training_where_another_has_them() -> None:
    marks = Marks()
    evaluation = Loop("train.py", 10, False)
    now = fed(marks, evaluation, 0, 50, wait_ns=4, step_ns=100)
    assert marks.steps().count == 50  # all there is: inference
    fed(marks, TRAIN, now, 5, wait_ns=2, step_ns=10)
    assert marks.steps().count == 5


def test_loops_without_end_take_no_memory_without_end() -> None:
    marks, now = Marks(), 0
    for line in range(200):
        now = fed(marks, Loop("made", line, True), now, 2, wait_ns=1, step_ns=10)
    now = fed(marks, Loop("made", 0, True), now, 100, wait_ns=1, step_ns=10)
    assert len(marks._loops.tracks) == MAX_TRACKS
    assert marks.steps().count == 100  # its first two were forgotten with the shortest


def test_the_place_in_the_code_tells_loops_apart(clock: list[int]) -> None:
    def loop_of(batches: int) -> None:
        feeding = LoaderPass()
        for _ in range(batches):
            feeding.take(feeding.ask(), True)
            clock[0] += 10
        feeding.take(feeding.ask(), False)

    for _ in range(3):  # a loader made anew for every epoch is the same loop
        feeding = LoaderPass()
        for _ in range(4):
            feeding.take(feeding.ask(), True)
            clock[0] += 100  # of the two loops, which one is longer must not hang on the machine
        feeding.take(feeding.ask(), False)
        loop_of(2)
    told = profile.snapshot().steps
    assert told.count == told.batches == 12  # all of them: the last ask, elsewhere in the code, ends the fourth step


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [time.perf_counter_ns()]
    monkeypatch.setattr(loader_pass, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(marks_module, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(loader_pass, "_NOT_THE_LOOP", ("penstock.", "tests.profile.told"))
    return now


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


def test_two_loaders_that_are_asked_in_turn_feed_the_same_steps(clock: list[int]) -> None:
    first, second = Batches(clock, 10), Batches(clock, 10, wait_ns=7)
    for _ in range(2):
        for _ in zip(first, second, strict=True):
            clock[0] += 100
        clock[0] += 5000
    told = profile.snapshot().steps
    assert durations() == [117] * 20 and told.wait_total_ns == 20 * 17 and told.batches == 20
    assert marks().fed_by(id(first)) == 20 and marks().fed_by(id(second)) == 0


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
            marks().shift(7000)
    assert durations() == [110] * 5


def test_gradients_tell_training_from_validation_in_one_function() -> None:
    torch = pytest.importorskip("torch")

    def run(batches: int, is_training: bool) -> None:
        feeding = LoaderPass()
        with torch.set_grad_enabled(is_training):
            for number in range(batches + 1):
                feeding.take(feeding.ask(), number < batches)

    run(8, False)
    run(3, True)
    run(8, False)
    assert profile.snapshot().steps.count == 3
    assert profile.snapshot().counters["batches_used"] == 19


def test_steps_marked_by_hand_count_from_the_second_on_in_every_epoch() -> None:
    marks = Marks()
    for epoch in range(2):
        marks.mark_step(None, 100 * epoch + 10)
        marks.mark_step(None, 100 * epoch + 30)
        marks.mark_epoch(None, 100 * epoch + 40)
    assert [each.duration_ns for each in marks.steps().series] == [20, 70, 20]
    assert marks.epochs() == (EpochStats(0, 10, 30, 1, 20, 0), EpochStats(1, 40, 100, 2, 90, 0))


def test_marks_by_hand_after_a_loader_was_asked_are_the_steps() -> None:
    marks = Marks()
    marks.add_wait(0, 10, TRAIN)
    marks.mark_step(None, 100)
    marks.feed_step(105, 3, TRAIN)
    marks.add_wait(105, 5, TRAIN)
    marks.mark_step(None, 200)
    told = marks.steps()
    assert [(each.duration_ns, each.wait_ns) for each in told.series] == [(100, 10), (100, 5)]
    assert (told.batches, told.cpu_total_ns) == (1, 3)


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
