"""Which batches are measured, and what follows from their peaks: nothing is tried that could run out of memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.plan.probe.fit import LinearFit, ProbeFit, ProbePoint, climb, largest_batch
from penstock._src.system.units import GIB, MIB
from penstock.errors import LimitExceeded


class Machine:
    """A model whose peak is the larger of two lines: activations, and an optimizer step."""

    def __init__(self, fixed: int, sample: int, optimizer: int, limit: int) -> None:
        self.fixed, self.sample, self.optimizer, self.limit = fixed, sample, optimizer, limit
        self.tried: list[int] = []

    def peak(self, batch: int) -> int:
        return max(self.fixed + self.sample * batch, self.optimizer)

    def measure(self, batch: int) -> ProbePoint:
        self.tried.append(batch)
        peak = self.peak(batch)
        assert peak <= self.limit, f"batch {batch} runs out of memory"
        return ProbePoint(batch, peak, peak)

    def climb(self, start: int = 2, most: int = 1 << 20, held: int = 0) -> ProbeFit:
        return climb(self.measure, self.limit, start, most, held)


@given(
    st.integers(0, 4 * GIB),
    st.integers(MIB, 600 * MIB),
    st.integers(0, 12 * GIB),
    st.integers(14, 80),
)
def test_no_batch_runs_out_of_memory_and_the_line_is_found(fixed: int, sample: int, optimizer: int, gib: int) -> None:
    machine = Machine(fixed, sample, optimizer, gib * GIB)
    found = machine.climb()
    true = (machine.limit - fixed) // sample
    predicted = found.reserved.largest(machine.limit)
    if found.linearity_error < 0.02 and found.points[-1].reserved_bytes > optimizer:
        assert predicted == pytest.approx(true, abs=1, rel=0.02)
    assert max(machine.tried) <= true


def test_an_optimizer_step_that_outweighs_small_batches_does_not_hide_the_activations() -> None:
    machine = Machine(fixed=2 * GIB, sample=80 * MIB, optimizer=5 * GIB, limit=24 * GIB)
    found = machine.climb()
    assert found.reserved.largest(machine.limit) == (24 * 1024 - 2048) // 80
    assert found.linearity_error < 0.02


def test_only_a_few_steps_are_needed() -> None:
    machine = Machine(fixed=2 * GIB, sample=85 * MIB, optimizer=0, limit=24 * GIB)
    machine.climb()
    assert len(machine.tried) <= 5
    assert 0.3 < max(machine.tried) / ((24 - 2) * 1024 / 85) < 0.7


def test_a_model_that_is_too_large_is_reported_with_both_numbers() -> None:
    def measure(batch: int) -> ProbePoint:
        return ProbePoint(batch, 3 * GIB, 3 * GIB)

    with pytest.raises(LimitExceeded, match="2 samples takes 3 GiB, over the limit of 2 GiB") as caught:
        climb(measure, 2 * GIB, 2, 100)
    assert (caught.value.size, caught.value.limit) == (3 * GIB, 2 * GIB)


def test_points_are_so_far_apart_that_noise_does_not_bend_the_line() -> None:
    machine = Machine(fixed=700 * MIB, sample=12 * MIB, optimizer=0, limit=1000 * MIB)
    found = machine.climb(start=8, held=700 * MIB)
    tried = [point.batch_size for point in found.points]
    assert all(second >= 1.2 * first for first, second in itertools.pairwise(tried))
    assert len(tried) >= 2


def test_without_room_for_a_third_point_above_one_between_checks_the_line() -> None:
    machine = Machine(fixed=700 * MIB, sample=12 * MIB, optimizer=0, limit=1000 * MIB)
    found = machine.climb(start=8, most=17, held=700 * MIB)
    assert machine.tried == [8, 16, 12]
    assert [point.batch_size for point in found.points] == [8, 12, 16]
    assert found.linearity_error == 0


def test_the_most_that_is_asked_for_is_not_passed() -> None:
    machine = Machine(fixed=0, sample=MIB, optimizer=0, limit=24 * GIB)
    machine.climb(most=7)
    assert max(machine.tried) <= 7


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_bisection_finds_the_last_that_fits(last: int, high: int) -> None:
    assert largest_batch(lambda batch: batch <= last, 1, high) == min(last, high)


def test_a_line_knows_the_largest_batch() -> None:
    line = LinearFit(100.0, 10.0)
    assert (line.at(3), line.largest(135), line.largest(109)) == (130, 3, 0)
