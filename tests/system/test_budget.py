"""Reservations never exceed the limit, and name who holds what."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from penstock._src.system import budget as budget_module
from penstock._src.system.budget import Budget, Reservation
from penstock._src.system.limits import MemoryCandidate, MemoryLimit
from penstock._src.system.units import GIB, MIB
from penstock.errors import BudgetExceeded, UsageError

PATIENCE_S = 60.0  # how long a thread may take before the test calls it stuck


def test_reservations_add_up_and_come_back() -> None:
    budget = Budget(100)
    with budget.reserve("a", 60) as held:
        other = budget.reserve("b", 30)
        assert (budget.used_bytes, budget.free_bytes, budget.by_name()) == (90, 10, {"a": 60, "b": 30})
        held.resize(10)
        assert budget.used_bytes == 40
    other.release()
    other.release()
    assert (budget.used_bytes, budget.peak_bytes, budget.by_name()) == (0, 90, {})


def test_what_does_not_fit_is_refused_with_needs_free_limit_and_holders() -> None:
    budget = Budget(100 * MIB)
    budget.reserve("fetch buffer", 80 * MIB)
    with pytest.raises(BudgetExceeded) as caught:
        budget.reserve("encoder", 30 * MIB)
    assert (caught.value.size, caught.value.limit) == (30 * MIB, 100 * MIB)
    for part in ("100 MiB", "encoder", "needs 30 MiB", "20 MiB free", "fetch buffer 80 MiB", "--memory 112MiB"):
        assert part in str(caught.value)
    assert budget.used_bytes == 80 * MIB


def test_growth_that_does_not_fit_changes_nothing() -> None:
    budget = Budget(100)
    held = budget.reserve("a", 60)
    with pytest.raises(BudgetExceeded):
        held.resize(101)
    assert (held.n_bytes, budget.used_bytes) == (60, 60)


def test_many_threads_never_exceed_the_limit_together() -> None:
    budget = Budget(100)
    over: list[int] = []

    def work(seed: int) -> None:
        for step in range(60):
            try:
                with budget.reserve(f"t{seed}", (seed * 37 + step * 11) % 100 + 1):
                    if budget.used_bytes > 100:
                        over.append(budget.used_bytes)
            except BudgetExceeded:
                continue

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "deadlock"
    assert over == []
    assert (budget.used_bytes, budget.by_name()) == (0, {})
    assert 0 < budget.peak_bytes <= 100


@pytest.mark.parametrize("bad", [0, -1, True, "twelve", "auto", 1.5, None])
def test_a_budget_is_a_positive_number_of_bytes(bad: object) -> None:
    with pytest.raises(UsageError):
        Budget(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-1, True, "12", 1.5])
def test_a_reservation_is_a_number_of_bytes(bad: object) -> None:
    with pytest.raises(UsageError):
        Budget(10).reserve("a", bad)  # type: ignore[arg-type]


def test_numpy_integers_are_numbers_too() -> None:
    budget = Budget(10)
    budget.reserve("a", np.int64(4))  # type: ignore[arg-type]
    assert type(budget.used_bytes) is int


@pytest.mark.parametrize(
    ("available", "expected"), [(1 * GIB, 512 * MIB), (64 * GIB, 2 * GIB), (100 * MIB, 256 * MIB), (0, 256 * MIB)]
)
def test_auto_is_half_of_what_is_free_within_bounds(
    monkeypatch: pytest.MonkeyPatch, available: int, expected: int
) -> None:
    candidate = MemoryCandidate("cgroup v2 / memory.max", 64 * GIB, available)
    limit = MemoryLimit(64 * GIB, available, candidate.name, candidate.name, (candidate,))
    monkeypatch.setattr(budget_module, "read_memory_limit", lambda: limit)
    budget = Budget.parse("auto")
    assert budget.limit_bytes == expected
    assert "cgroup v2 / memory.max" in budget.source


def test_a_budget_is_parsed_from_text_number_and_itself() -> None:
    assert Budget.parse("512MiB").limit_bytes == 512 * MIB == Budget("512MiB").limit_bytes
    assert Budget.parse(4096).limit_bytes == 4096
    budget = Budget(5)
    assert Budget.parse(budget) is budget
    for bad in ("0", "lots", 0):
        with pytest.raises(UsageError):
            Budget.parse(bad)


def test_a_process_budget_counts_the_interpreter_once() -> None:
    budget = Budget.for_process("4GiB")
    held = budget.by_name()["interpreter"]
    assert 5 * MIB < held < 4 * GIB
    assert Budget.for_process(budget).by_name()["interpreter"] == held


def test_auto_is_what_is_held_and_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = MemoryCandidate("cgroup v2 / memory.max", 64 * GIB, GIB)
    limit = MemoryLimit(64 * GIB, GIB, candidate.name, candidate.name, (candidate,))
    monkeypatch.setattr(budget_module, "read_memory_limit", lambda: limit)
    monkeypatch.setattr(budget_module, "rss_bytes", lambda: 3 * GIB)  # a notebook
    budget = Budget.for_process(" Auto")
    assert budget.free_bytes == 512 * MIB and budget.by_name() == {"interpreter": 3 * GIB}


def test_a_budget_below_the_interpreter_itself_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match="interpreter"):
        Budget.for_process("1MiB")


class BudgetMachine(RuleBasedStateMachine):
    """Any sequence of calls keeps the books: the sum of what is held is what is used, and is never over the limit."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(1000)
        self.books: dict[int, tuple[Reservation, int]] = {}
        self.peak = 0

    def _note(self, reservation: Reservation, size: int) -> None:
        self.books[id(reservation)] = (reservation, size)
        self.peak = max(self.peak, sum(each for _, each in self.books.values()))

    @rule(target=held, name=st.sampled_from("abc"), size=st.integers(0, 600))
    def reserve(self, name: str, size: int) -> Reservation:
        used = sum(each for _, each in self.books.values())
        if used + size > 1000:
            with pytest.raises(BudgetExceeded):
                self.budget.reserve(name, size)
            size = 0
        reservation = self.budget.reserve(name, size)
        self._note(reservation, size)
        return reservation

    @rule(reservation=held, size=st.integers(0, 600))
    def resize(self, reservation: Reservation, size: int) -> None:
        before = self.books[id(reservation)][1]
        used = sum(each for _, each in self.books.values())
        if used - before + size > 1000:
            with pytest.raises(BudgetExceeded):
                reservation.resize(size)
        else:
            reservation.resize(size)
            self._note(reservation, size)

    @rule(reservation=consumes(held), times=st.integers(1, 2))
    def release(self, reservation: Reservation, times: int) -> None:
        for _ in range(times):
            reservation.release()
        self._note(reservation, 0)

    @invariant()
    def the_books_agree(self) -> None:
        by_name: dict[str, int] = {}
        for reservation, size in self.books.values():
            assert reservation.n_bytes == size
            if size:
                by_name[reservation.name] = by_name.get(reservation.name, 0) + size
        assert self.budget.by_name() == by_name
        assert self.budget.used_bytes == sum(by_name.values()) <= 1000
        assert self.budget.peak_bytes == self.peak


BudgetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBudgetMachine = BudgetMachine.TestCase
