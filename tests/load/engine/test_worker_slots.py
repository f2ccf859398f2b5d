"""Slots between processes: used again when a batch is gone, never while one is kept, and nothing stays behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._src.load.engine import worker_slots
from penstock._src.load.engine.slots import SlotLayout, lay_out
from penstock._src.load.engine.worker_slots import SlotPool, receive
from penstock.errors import StoreError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory without a name"),
]

LAYOUT = lay_out({"image": ((4, 1000), "uint8"), "state": ((4, 3), "float32")})
LARGE = lay_out({"image": ((8, 1000), "uint8")})


def _built(pool: SlotPool, value: int, layout: SlotLayout = LAYOUT) -> tuple[Any, int]:
    """A ticket of a batch that is full of a value, and where it lies."""
    lease = pool.lease(layout)
    assert lease is not None
    for array in lease.arrays.values():
        array[...] = value
    return pool.hand_over(lease), lease.slot.number


def _slot_files() -> int:
    """Descriptors and mappings of slots in this process, without those that earlier tests forgot."""
    gc.collect()
    held = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            held += "penstock-batch" in os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the one of the list itself
    return held + Path("/proc/self/maps").read_text().count("penstock-batch")


def test_a_batch_arrives_as_it_was_built() -> None:
    pool = SlotPool()
    ticket, _ = _built(pool, 7)
    arrays = receive(ticket).arrays
    assert list(arrays) == ["image", "state"]
    assert arrays["image"].shape == (4, 1000) and (arrays["image"] == 7).all()
    assert arrays["state"].dtype == np.float32 and (arrays["state"] == 7).all()


def test_a_slot_is_used_again_when_the_last_array_is_gone() -> None:
    pool = SlotPool()
    ticket, first = _built(pool, 1)
    part = receive(ticket).arrays["image"][2]
    second_ticket, second = _built(pool, 2)
    assert second != first and (part == 1).all()
    del part
    _, third = _built(pool, 3)
    assert third == first and len(pool) == 2
    assert (receive(second_ticket).arrays["image"] == 2).all()


def test_a_batch_that_is_not_handed_over_frees_its_slot_where_it_was_built() -> None:
    pool = SlotPool()
    lease = pool.lease(LAYOUT)
    assert lease is not None
    number, kept = lease.slot.number, lease.arrays["state"]
    del lease
    other = pool.lease(LAYOUT)
    assert other is not None and other.slot.number != number
    del kept
    again = pool.lease(LAYOUT)
    assert again is not None and again.slot.number == number


def test_what_the_builder_itself_keeps_is_not_overwritten_either() -> None:
    pool = SlotPool()
    lease = pool.lease(LAYOUT)
    assert lease is not None
    lease.arrays["image"][...] = 5
    kept = lease.arrays["image"]
    receive(pool.hand_over(lease))  # type: ignore[arg-type]  # and dropped at once
    del lease
    _built(pool, 6)
    assert (kept == 5).all()


def test_a_slot_has_one_receiver_at_a_time() -> None:
    pool = SlotPool()
    lease = pool.lease(LAYOUT)
    assert lease is not None
    assert pool.hand_over(lease) is not None
    assert pool.hand_over(lease) is None


def test_batches_of_other_sizes_take_the_place_of_smaller_ones() -> None:
    pool = SlotPool()
    receive(_built(pool, 1)[0])
    ticket, large = _built(pool, 2, LARGE)
    assert len(pool) == 1 and len(ticket.given_back) == 1
    receive(ticket)
    assert _built(pool, 3)[1] == large


def test_slots_are_bounded_and_idle_ones_given_back() -> None:
    before = _slot_files()
    pool = SlotPool()
    kept = [receive(_built(pool, value % 250)[0]) for value in range(worker_slots._MOST_SLOTS)]
    assert pool.lease(LAYOUT) is None
    assert all((lease.arrays["image"] == value).all() for value, lease in enumerate(kept))
    del kept
    for _ in range(2 * worker_slots._IDLE_LEASES):
        receive(_built(pool, 1)[0])
    assert len(pool) == 1
    pool._give_back(pool._slots[0])
    del pool
    assert _slot_files() == before


def test_a_batch_that_a_forked_child_sees_is_never_overwritten() -> None:
    pool = SlotPool()
    ticket, first = _built(pool, 9)
    lease = receive(ticket)
    pid = os.fork()
    if pid == 0:
        del lease  # says nothing about what the parent holds
        os._exit(0)
    os.waitpid(pid, 0)
    assert _built(pool, 1)[1] != first
    assert (lease.arrays["image"] == 9).all()
    del lease  # the child may still look at it
    numbers = {_built(pool, 2)[1] for _ in range(3)}
    assert first not in numbers


def test_a_slot_of_after_a_fork_is_used_again() -> None:
    pool = SlotPool()
    receive(_built(pool, 1)[0])
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    numbers = set()
    for _ in range(3):
        ticket, number = _built(pool, 2)
        receive(ticket)
        numbers.add(number)
    assert len(numbers) == 1


def _build_many(tickets: Any, answers: Any) -> None:
    pool = SlotPool()
    while (value := answers.get()) is not None:
        tickets.put(_built(pool, value)[0])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_slots_of_a_child_are_mapped_once_and_go_with_it(start: str) -> None:
    before = _slot_files()
    context: Any = multiprocessing.get_context(start)
    tickets, values = context.Queue(), context.Queue()
    child = context.Process(target=_build_many, args=(tickets, values), daemon=True)
    child.start()
    places = set()
    for value in range(5):
        values.put(value)
        lease = receive(tickets.get(timeout=120))
        assert (lease.arrays["image"] == value).all()
        places.add(lease.arrays["image"].ctypes.data)
        del lease
    assert len(places) == 1
    values.put(8)
    kept = receive(tickets.get(timeout=120))
    child.kill()
    child.join()
    del child
    assert (kept.arrays["image"] == 8).all()
    del kept
    assert _slot_files() == before


def test_a_slot_of_a_process_that_has_ended_is_an_error_in_words() -> None:
    pool = SlotPool()
    ticket, _ = _built(pool, 1)
    pool._give_back(pool._slots[0])
    with pytest.raises(StoreError, match=r"worker \d+ cannot be opened.*\n.*prefetch_factor"):
        receive(ticket)
