"""Fault 20: EIO, a full disk or SIGKILL at the N-th change of a file. The output is absent or whole; resume ends in the
bytes of an undisturbed run.

Every call of every kind takes many minutes (PENSTOCK_EVERY_WRITE=1); without it each kind gets calls that are spread
over the whole job, other ones for each kind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.faults.injection import KINDS, Injector, Result
from tests.faults.jobs import call_of_many as call
from tests.faults.jobs import contents, leftovers, make_sources

EVERY = os.environ.get("PENSTOCK_EVERY_WRITE") == "1"
SAMPLED = 5  # calls of each kind
KILLED = -9


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Injector]:
    with Injector(tmp_path_factory.mktemp("injection")) as started:
        yield started


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_sources(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, sources: list[Path]) -> dict[str, bytes]:
    """What an undisturbed run gives."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    penstock.convert(**call(sources, out))
    return contents(out)


def chosen_calls(calls: int, kind: str) -> range:
    """All of them, or some for each kind: other ones, from the first to the last."""
    step = 1 if EVERY else max(1, calls // SAMPLED)
    return range(1 + list(KINDS).index(kind) * step // len(KINDS), calls + 1, step)


def check_result(result: Result, kind: str, number: int, out: Path) -> None:
    where = f"{kind} at call {number}: {result.error}"
    assert result.code in ((0, 1) if kind in ("EIO", "ENOSPC") else (KILLED, 0)), where
    assert "Traceback" not in result.error, where


@pytest.mark.timeout(0 if EVERY else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_20_a_new_data_set_is_absent_or_whole_and_resumes_to_the_same_bytes(
    kind: str, injector: Injector, sources: list[Path], wanted: dict[str, bytes], tmp_path: Path
) -> None:
    calls = injector.run(call(sources, tmp_path / "count" / "out"), under=tmp_path).calls
    assert calls > 100  # the job is large enough to be broken in many places
    for number in chosen_calls(calls, kind):
        out = tmp_path / f"case_{number}" / "out"
        result = injector.run(call(sources, out), under=out.parent, number=number, kind=kind)
        check_result(result, kind, number, out)
        if out.exists():
            assert contents(out) == wanted, (kind, number)
        again = injector.run(call(sources, out, resume=True), under=out.parent)
        assert again.code == 0, (kind, number, again.error)
        assert contents(out) == wanted, (kind, number)
        assert leftovers(out) == [], (kind, number)
        shutil.rmtree(out.parent)


@pytest.mark.timeout(0 if EVERY else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_20_a_data_set_that_is_appended_to_is_the_old_one_or_the_new_one(
    kind: str, injector: Injector, sources: list[Path], wanted: dict[str, bytes], tmp_path: Path
) -> None:
    started = tmp_path / "begun" / "out"
    penstock.convert(**call(sources[:1], started))
    before = contents(started)
    more: dict[str, Any] = {"append": True}
    counting = _copy(started, tmp_path / "count")
    calls = injector.run(call(sources[1:], counting, **more), under=counting.parent).calls
    assert contents(counting) == wanted
    for number in chosen_calls(calls, kind):
        out = _copy(started, tmp_path / f"case_{number}")
        result = injector.run(call(sources[1:], out, **more), under=out.parent, number=number, kind=kind)
        check_result(result, kind, number, out)
        assert contents(out) in (before, wanted), (kind, number)
        if contents(out) == before:
            again = injector.run(call(sources[1:], out, resume=True, **more), under=out.parent)
            assert again.code == 0, (kind, number, again.error)
        assert contents(out) == wanted, (kind, number)
        shutil.rmtree(out.parent)


@pytest.mark.timeout(0 if EVERY else 900)  # twice the conversions of the others
@pytest.mark.parametrize("kind", KINDS)
def test_20_a_data_set_that_is_replaced_is_the_old_one_or_the_new_one(
    kind: str, injector: Injector, sources: list[Path], wanted: dict[str, bytes], tmp_path: Path
) -> None:
    started = tmp_path / "begun" / "out"
    penstock.convert(**call(sources[:1], started))
    before = contents(started)
    counting = _copy(started, tmp_path / "count")
    calls = injector.run(call(sources, counting, overwrite=True), under=counting.parent).calls
    # Up to its end this is a new data set, which the test above breaks everywhere.
    for number in range(max(1, calls - (calls if EVERY else 24)), calls + 1, 1 if EVERY else 2):
        out = _copy(started, tmp_path / f"case_{number}")
        result = injector.run(call(sources, out, overwrite=True), under=out.parent, number=number, kind=kind)
        check_result(result, kind, number, out)
        assert contents(out) in (before, wanted), (kind, number)
        again = injector.run(call(sources, out, overwrite=True), under=out.parent)
        assert again.code == 0, (kind, number, again.error)
        assert contents(out) == wanted, (kind, number)
        assert leftovers(out) == [], (kind, number)
        shutil.rmtree(out.parent)


def _copy(data_set: Path, into: Path) -> Path:
    into.mkdir()
    return Path(shutil.copytree(data_set, into / data_set.name))
