"""What happened between two moments, where threads and pages come and go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from penstock import profile
from penstock._src.profile.record.session import of_epoch
from penstock._src.profile.stats import Snapshot, between
from tests.profile.made import MAIN, MS, stats


def read(_: int) -> None:
    with profile.span("read"):
        pass


def test_threads_that_are_made_anew_for_every_epoch_count_each_call_once() -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(10)))
    for epoch in range(5):
        before = profile.snapshot()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read, range(10)))
        profile.mark_epoch(epoch)
        assert profile.callback(since=before)["penstock/read/calls"] == 10
    found = of_epoch(4)
    assert found is not None and found.by_name()["read"].count == 10


def test_a_page_of_a_new_owner_is_told_apart_from_what_the_one_before_did() -> None:
    before = Snapshot(
        spans=(stats("a", [MS] * 5, thread="x"), stats("a", [MS] * 100, thread="y"), stats("b", [MS], thread="y")),
        process=MAIN,
    )
    after = Snapshot(
        spans=(stats("a", [MS] * 100 + [4 * MS] * 7, thread="x"), stats("a", [MS] * 5 + [4 * MS], thread="z"),
               stats("b", [MS], thread="x")),
        process=MAIN,
    )  # fmt: skip
    (found,) = between(before, after).spans
    assert (found.name, found.count, found.total_ns, found.histogram[0][1]) == ("a", 8, 32 * MS, 8)
