"""From one epoch to the next: the first batches of the next are made while the last of this one is used."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import profile
from penstock._src.load.device.target import ContinuousPass
from penstock._src.load.engine.job import EpochRecords
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock.errors import PenstockError, StoreCorrupt, UsageError
from tests.load.image_store import ArrayStore
from tests.threads import collect_garbage, earlier_threads, left_running

SIZE = (24, 32)
ROWS = 40


def _loader(store: Any, window: Any = None, **options: Any) -> Loader:
    given = {"batch_size": 8, "image_size": SIZE, "threads": 2, "output": "numpy", "view": "off", **options}
    return Loader(store, window or Window(columns=["cam"]), **given)


def _indices(loader: Loader) -> list[int]:
    return [int(row) for batch in loader for row in batch["index"]]


def _until(is_so: Any) -> bool:
    ends = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > ends:
            return False
        time.sleep(0.002)
    return True


def test_the_next_epoch_is_begun_while_the_last_batch_is_used() -> None:
    store = ArrayStore([ROWS])
    with _loader(store, prefetch=2) as loader:
        for number, _ in enumerate(loader):
            if number < len(loader) - 1:
                assert len(store.log) <= ROWS
            else:
                assert _until(lambda: len(store.log) >= ROWS + 8)
        assert _until(lambda: len(store.log) == ROWS + 3 * 8)  # there are four slots, and the loop still has one batch
        made = store.log[ROWS : ROWS + 3 * 8]  # by two threads: the last images of one batch among those of the next
        first = next(iter(loader))["index"].tolist()
        assert loader.epoch == 1 and set(first) <= set(made)
        assert all(store.log.count(row) == 2 for row in first)  # it was not made anew


def _counting(loader: Loader) -> list[int]:
    """A loop that counts batches, and never asks whether there is one more."""
    batches = iter(loader)
    return [int(row) for _ in range(len(loader)) for row in next(batches)["index"]]


@pytest.mark.parametrize("keeps", [False, True])
def test_loops_that_never_ask_for_more_lose_nothing_of_what_was_made_ahead(keeps: bool) -> None:
    store = ArrayStore([ROWS])
    with _loader(store, prefetch=2) as loader:
        expected = [loader._order.at(epoch, np.arange(ROWS)).tolist() for epoch in range(6)]
        kept = []
        for epoch in range(5):
            if keeps:
                kept.append(iter(loader))
                found = [int(row) for _ in range(len(loader)) for row in next(kept[-1])["index"]]
            else:
                found = _counting(loader)
            assert found == expected[epoch]
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (epoch, ROWS)
        if keeps:
            current = kept.pop()
            for stale in kept:
                with pytest.raises(UsageError, match="this pass has ended"):
                    next(stale)
            assert next(current, None) is None and loader.epoch == 5
            kept.clear()
        assert _indices(loader) == expected[5]
        assert len(store.log) <= 7 * ROWS  # six epochs, and what is ahead now


def test_a_break_at_the_last_batch_is_no_end_of_what_was_made_ahead() -> None:
    store = ArrayStore([ROWS])
    with _loader(store, prefetch=2) as loader:
        for epoch in range(6):
            found: list[int] = []
            for number, batch in enumerate(loader, 1):
                found += batch["index"].tolist()
                if number == len(loader):
                    break
            assert found == loader._order.at(epoch, np.arange(ROWS)).tolist()
        assert len(store.log) <= 7 * ROWS
        state = loader.state_dict()
        loader.load_state_dict(state)  # at the end of an epoch: that pass has no batches left
        assert _indices(loader) == [] and loader.epoch == 6
        assert _indices(loader) == loader._order.at(6, np.arange(ROWS)).tolist()


def test_no_image_is_decoded_twice_for_a_view() -> None:
    store = ArrayStore([9, 11])
    with _loader(store, view="ram", prefetch=8) as loader:
        for _ in range(3):
            _indices(loader)
        assert sorted(store.log) == list(range(20)) and loader.stats()["view_hits"] == 40


@pytest.mark.parametrize("threads", [1, 3])
def test_the_order_of_epochs_is_that_of_loaders_that_begin_there(threads: int) -> None:
    def of(epoch: int) -> list[int]:
        with _loader(ArrayStore([ROWS]), seed=5) as fresh:
            fresh.set_epoch(epoch)
            return _indices(fresh)

    expected = [of(epoch) for epoch in range(5)]
    with _loader(ArrayStore([ROWS]), seed=5, threads=threads, prefetch=9) as loader:
        assert [_indices(loader) for _ in range(4)] == expected[:4]
        loader.set_epoch(4)  # what most training loops say
        assert _indices(loader) == expected[4]
        loader.set_epoch(2)  # another one than was made ahead
        assert _indices(loader) == expected[2] and _indices(loader) == expected[3]
        state = json.loads(json.dumps(loader.state_dict()))
        assert (state["epoch"], state["position"]) == (4, 0)
        loader.load_state_dict({**state, "epoch": 1, "position": 16})
        assert _indices(loader) == expected[1][16:] and loader.epoch == 2


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_walk_through_epochs_gives_the_order(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 20))
    store = ArrayStore([rows])
    size = data.draw(st.integers(1, 12))
    with _loader(store, Window(columns=["state"]), batch_size=size, drop_last=False) as loader:
        order = loader._order
        for _ in range(data.draw(st.integers(1, 6))):
            what = data.draw(st.sampled_from(["whole", "part", "epoch", "state"]))
            if what == "epoch":
                loader.set_epoch(data.draw(st.integers(0, 3)))
            elif what == "state":
                position = data.draw(st.integers(0, rows))
                loader.load_state_dict({**loader.state_dict(), "position": position})
            before = loader.state_dict()
            most = data.draw(st.integers(1, 3)) if what == "part" else 10**6
            found: list[int] = []
            for number, batch in enumerate(loader, 1):
                found += batch["index"].tolist()
                if number == most:
                    break
            epoch = loader.epoch if loader.state_dict()["position"] else loader.epoch - 1
            start = before["position"] if before["epoch"] == epoch else 0
            assert found == order.at(epoch, np.arange(start, start + len(found))).tolist()
            if what == "part":
                loader.set_epoch(loader.epoch)


def test_a_profile_counts_the_epochs_that_were_used() -> None:
    collect_garbage()
    profile.reset()
    store = ArrayStore([ROWS])
    with _loader(store, prefetch=9) as loader:
        for epoch in range(3):
            _indices(loader)
            assert _until(lambda epoch=epoch: _is_made(loader, store, epoch + 1))
            found = profile.snapshot().by_name()
            assert found["00_TOTAL_getitem"].count == found["03b_image_decode"].count == (epoch + 1) * ROWS
            assert profile.snapshot().counters["images_decoded"] == (epoch + 1) * ROWS
            assert found["plan_batch"].count == (epoch + 1) * len(loader)
        profile.reset()
        _indices(loader)
        assert profile.snapshot().by_name()["03b_image_decode"].count == ROWS


def _is_made(loader: Loader, store: ArrayStore, epoch: int) -> bool:
    """Whether all batches of an epoch that has not begun lie there, complete."""
    resting = loader._paused
    if resting is None or resting._own.n_complete < len(loader) or len(store.log) < (epoch + 1) * ROWS:
        return False
    # What waits to be told: of each batch its work, and that it was planned.
    return len(resting._own._epoch_records._held.get(epoch, ())) == 2 * len(loader)


def test_a_first_epoch_is_counted_however_late_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ContinuousPass.begin
    store = ArrayStore([ROWS])

    def late(running: ContinuousPass, *arguments: Any) -> Any:
        assert _until(lambda: running._own.n_complete == ROWS // 8 and len(store.log) == ROWS)  # all batches are made
        return begin(running, *arguments)

    monkeypatch.setattr(ContinuousPass, "begin", late)
    collect_garbage()
    profile.reset()
    with _loader(store, prefetch=9) as loader:
        _indices(loader)
        found = profile.snapshot().by_name()
        assert found["plan_batch"].count == len(loader)


def test_epoch_records_lose_nothing_where_an_epoch_begins_just_as_batches_are_held() -> None:
    for _ in range(200):
        records, reported = EpochRecords(), []
        begin = threading.Barrier(3)

        def add(
            records: EpochRecords = records, begin: threading.Barrier = begin, reported: list[int] = reported
        ) -> None:
            begin.wait()
            for number in range(20):
                records.add(1, lambda number=number: reported.append(number))  # type: ignore[misc]

        threads = [threading.Thread(target=add) for _ in range(2)]
        for each in threads:
            each.start()
        begin.wait()
        records.begin(1)
        for each in threads:
            each.join()
        assert len(reported) == 40
        records.add(2, lambda: reported.append(-1))  # noqa: B023
        assert len(reported) == 40


def test_what_rests_between_epochs_ends_with_its_loader() -> None:
    before = earlier_threads()
    closed = _loader(ArrayStore([ROWS]))
    _indices(closed)
    closed.close()
    forgotten = _loader(ArrayStore([ROWS]))
    _indices(forgotten)
    slots = weakref.ref(forgotten._engine.slots)
    enabled = gc.isenabled()
    gc.disable()  # no cycle may hold it: its memory is given back at once
    try:
        del forgotten
        assert _until(lambda: slots() is None)
    finally:
        if enabled:
            gc.enable()
    assert not left_running(before)


def test_a_fork_between_epochs_begins_anew_in_the_child() -> None:
    with _loader(ArrayStore([ROWS]), threads=1) as loader:
        _indices(loader)
        expected = loader._order.at(1, np.arange(ROWS)).tolist()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # nobody waits for ever for a child that hangs
            try:
                os.write(write, json.dumps(_indices(loader)).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            assert json.load(pipe) == expected
        os.waitpid(child, 0)
        assert _indices(loader) == expected


class _SpoiltLater(ArrayStore):
    """Whose images can be read once."""

    def images(self, name: str) -> Any:
        source, log = super().images(name), self.log

        class Source(type(source)):  # type: ignore[misc]
            def read(self, rows: Any, scratch: Any) -> Any:
                for image in super().read(rows, scratch):
                    if len(log) > ROWS:
                        raise StoreCorrupt("spoilt meanwhile")
                    yield image

        source.__class__ = Source
        return source


def test_what_was_made_ahead_reports_its_losses_in_its_own_epoch() -> None:
    with _loader(_SpoiltLater([ROWS])) as loader:
        assert len(_indices(loader)) == ROWS
        assert _until(lambda: len(loader._mix.stores[0].log) > ROWS)
        with pytest.raises(StoreCorrupt, match="spoilt meanwhile"):
            _indices(loader)
        assert loader.state_dict()["epoch"] == 1


class _Slow(ArrayStore):
    """Whose numbers come when they are let go."""

    def __init__(self) -> None:
        super().__init__([ROWS])
        self.go = threading.Event()

    def images(self, name: str) -> Any:
        source, go = super().images(name), self.go

        class Source(type(source)):  # type: ignore[misc]
            def read(self, rows: Any, scratch: Any) -> Any:
                if min(rows) >= 16:
                    go.wait(60)
                return super().read(rows, scratch)

        source.__class__ = Source
        return source


@pytest.mark.parametrize("how", ["close", "set_epoch", "iter"])
def test_a_thread_that_waits_learns_that_its_pass_was_ended(how: str) -> None:
    store = _Slow()
    loader = _loader(store, shuffle=False, threads=1)
    ended: list[Any] = []
    taken: list[int] = []

    def take() -> None:
        try:
            for batch in loader:
                taken.append(len(batch["index"]))
            ended.append("the epoch is over")
        except UsageError as error:
            ended.append(error.message)

    thread = threading.Thread(target=take)
    thread.start()

    def is_waiting() -> bool:
        if len(taken) != 2 or loader._pass is None:
            return False
        lock = loader._pass._own._take_lock  # an RLock has no `locked()` before Python 3.14
        if lock.acquire(blocking=False):
            lock.release()
            return False
        return True

    assert _until(is_waiting)
    turn = loader._turn
    ending = {"close": loader.close, "set_epoch": lambda: loader.set_epoch(5), "iter": lambda: iter(loader)}[how]
    other = threading.Thread(target=ending)
    other.start()
    assert _until(lambda: loader._turn is not turn)
    store.go.set()
    other.join(60)
    thread.join(60)
    assert len(ended) == 1 and "this pass has ended" in ended[0]
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == {"close": (0, 16), "set_epoch": (5, 0), "iter": (1, 0)}[how]
    loader.close()


def test_an_iterator_from_which_nothing_was_taken_does_not_use_up_a_place() -> None:
    with _loader(ArrayStore([ROWS]), Window(columns=["state"])) as loader:
        expected = _indices(loader)
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 16})
        iter(loader)
        assert _indices(loader) == expected[16:] and loader.epoch == 1
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 16})
        next(iter(loader))
        assert len(_indices(loader)) == ROWS and loader.epoch == 2  # that pass was left in its midst


def test_a_rank_may_lose_the_part_of_its_own_samples() -> None:
    store = ArrayStore([400], broken=range(0, 400, 8))  # an eighth
    options: dict[str, Any] = {"batch_size": 40, "on_error": "skip", "max_skip_rate": 0.06}
    for shard in (None, (0, 4), (3, 4)):
        with _loader(store, shard=shard, **options) as loader, pytest.raises(PenstockError, match=r"_rate=0\.06 of"):
            for _ in loader:
                pass
