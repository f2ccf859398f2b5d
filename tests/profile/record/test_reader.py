"""A reader beside a writer: every order of their word reads and stores gives the sums of a prefix of the events."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from penstock._src.profile.record import layout as at
from penstock._src.profile.record import reader as reading
from penstock._src.profile.record.buffer import add_events

N_EVENTS, FOLD_EVERY = 4, 2
NODE = 3
RESET_NS = 7
Step = list[tuple[int, int]]  # words stored at once: (place in the page, value)


def _duration_ns(number: int) -> int:
    """Powers of two at first: no other choice of events has the sum of a prefix."""
    return 1 << number if number < 20 else number


def _event(number: int) -> tuple[int, int, int, int]:
    return 1000 * number + RESET_NS, _duration_ns(number), 0, number << at.TAG_BITS | NODE


def _write(number: int) -> Iterator[Step]:
    """What `struct.pack_into` does: clears the place, then stores word after word, the tag last."""
    word = at.RING_AT // at.WORD + (number - 1) % N_EVENTS * at.EVENT_WORDS
    yield [(word, 0), (word + 1, 0)]
    yield [(word + 2, 0), (word + 3, 0)]
    for place, value in enumerate(_event(number)):
        yield [(word + place, value)]


def _fold(number: int) -> Iterator[Step]:
    """The copy that does not hold is written, then it is the one that holds."""
    folds = number // FOLD_EVERY
    rows = np.zeros((at.N_NODES, at.ROW_WORDS), np.int64)
    add_events(rows, np.array([_event(each) for each in range(1, number + 1)], np.int64))
    copy = at.SUMS_AT // at.WORD + (folds & 1) * at.SUMS_WORDS
    row = copy + at.SUMS_HEADER + NODE * at.ROW_WORDS
    yield [(copy + at.S_SEQUENCE, number), (copy + at.S_RESET_NS, RESET_NS)]
    yield [(row + place, int(value)) for place, value in enumerate(rows[NODE]) if value]
    yield [(at.P_FOLDS, folds)]


def _steps(first: int, last: int) -> list[Step]:
    """All stores that record these events, in the order in which the owner makes them."""
    steps: list[Step] = []
    for number in range(first, last + 1):
        if number > 1 and (number - 1) % FOLD_EVERY == 0:
            steps += _fold(number - 1)
        steps += _write(number)
    return steps


class Page:
    """A page whose owner goes on at given word reads of the reader."""

    def __init__(self, recorded: int, last: int) -> None:
        self.steps = _steps(recorded + 1, last)
        self.words = np.zeros(at.PAGE_BYTES // at.WORD, np.int64)
        self.words[at.P_NODES] = NODE + 1
        for step in _steps(1, recorded):
            self._store(step)
        self._shared = np.array(sorted({word for step in self.steps for word, _ in step}))
        self._at_first = self.words[self._shared].copy()
        self.start({})

    def start(self, bursts: dict[int, int]) -> None:
        """From the beginning: so many stores before the reader's word read of that number."""
        self.words[self._shared] = self._at_first
        self._bursts, self._left = bursts, iter(self.steps)
        self.reads = 0

    def _store(self, step: Step) -> None:
        for word, value in step:
            self.words[word] = value

    def pread(self, _: int, size: int, offset: int) -> bytes:
        """Word after word; between words that nobody writes the order makes no difference."""
        first, last = offset // at.WORD, (offset + size) // at.WORD
        copy = self.words[first:last].copy()
        for word in self._shared[slice(*np.searchsorted(self._shared, (first, last)))].tolist():
            for step in itertools.islice(self._left, self._bursts.get(self.reads, 0)):
                self._store(step)
            copy[word - first] = self.words[word]
            self.reads += 1
        return copy.tobytes()


@pytest.fixture
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at, "N_EVENTS", N_EVENTS)
    monkeypatch.setattr(at, "FOLD_EVERY", FOLD_EVERY)


def _read(page: Page, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[tuple[int, ...]]]:
    monkeypatch.setattr(reading.os, "pread", page.pread)
    rows, ring = reading._consistent(0, 0, RESET_NS)
    row = rows[NODE]
    sums = [row[at.R_COUNT], row[at.R_TOTAL], row[at.R_SELF], row[at.R_HISTOGRAM :].sum()]
    return [int(each) for each in sums], [tuple(event) for event in ring.tolist()]


def _problem(recorded: int, last: int, sums: list[int], events: list[tuple[int, ...]]) -> str:
    count = sums[0]
    total = sum(_duration_ns(number) for number in range(1, count + 1))
    if not recorded <= count <= last or sums != [count, total, total, count]:
        return f"sums {sums}, and {count} events have {total}"
    kept = [event[3] >> at.TAG_BITS for event in events]
    if events != [_event(number) for number in kept] or kept != list(range(count - len(kept) + 1, count + 1)):
        return f"events {events} after {count}"
    return ""


@pytest.mark.parametrize(("recorded", "last"), [(0, 2), (1, 3), (2, 4), (4, 6), (5, 7)])
@pytest.mark.usefixtures("small_ring")
def test_every_interleaving_of_a_writer_and_a_reader_gives_a_prefix(
    recorded: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer goes on twice while the reader looks, at any two word reads and for any number of stores."""
    page = Page(recorded, last)
    _read(page, monkeypatch)
    n_reads, n_steps = page.reads, len(page.steps)
    wrong = []
    for early, late in itertools.combinations(range(n_reads), 2):
        for first, second in itertools.product(range(1, n_steps), repeat=2):
            if first + second <= n_steps:
                page.start({early: first, late: second})
                if problem := _problem(recorded, last, *_read(page, monkeypatch)):
                    wrong.append((early, late, first, second, problem))
    assert wrong[:5] == []


@pytest.mark.usefixtures("small_ring")
def test_a_reader_waits_while_the_writer_folds_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the sums change while it copies, it does not take what it saw for one moment's."""
    recorded, last = 1, 2001
    page = Page(recorded, last)
    a_fold = len(list(_write(1))) * FOLD_EVERY + len(list(_fold(FOLD_EVERY)))
    page.start(dict.fromkeys(range(8, 100_000, 13), a_fold))
    sums, events = _read(page, monkeypatch)
    assert _problem(recorded, last, sums, events) == ""
    assert sums[0] > 300  # far more than a hundred folds came in between
