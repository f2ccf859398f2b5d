"""Fault 20 for LeRobot v2.1: EIO, a full disk or SIGKILL at the N-th change of a file, then resumed to the same bytes.

The same as test_fault_20_every_write.py, whose job this is, with the other sink.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.faults.injection import KINDS, Injector
from tests.faults.jobs import call_of_many, contents, leftovers, make_sources
from tests.faults.test_fault_20_every_write import EVERY, check_result, chosen_calls


def call(sources: list[Path], out: Path, **more: Any) -> dict[str, Any]:
    return call_of_many(sources, out, output="v2.1", video="copy", **more)


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Injector]:
    with Injector(tmp_path_factory.mktemp("injection")) as started:
        yield started


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_sources(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, sources: list[Path]) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    penstock.convert(**call(sources, out))
    return contents(out)


@pytest.mark.timeout(0 if EVERY else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_20_a_new_v21_data_set_is_absent_or_whole_and_resumes_to_the_same_bytes(
    kind: str, injector: Injector, sources: list[Path], wanted: dict[str, bytes], tmp_path: Path
) -> None:
    calls = injector.run(call(sources, tmp_path / "count" / "out"), under=tmp_path).calls
    assert calls > 100
    for number in chosen_calls(calls, kind)[:: 1 if EVERY else 2]:
        out = tmp_path / f"case_{number}" / "out"
        result = injector.run(call(sources, out), under=out.parent, number=number, kind=kind)
        check_result(result, kind, number, out)
        if out.exists():
            assert contents(out) == wanted, (kind, number)
        again = injector.run(call(sources, out, resume=True), under=out.parent)
        assert again.code == 0, (kind, number, again.error)
        assert contents(out) == wanted and leftovers(out) == [], (kind, number)
        shutil.rmtree(out.parent)


@pytest.mark.timeout(0 if EVERY else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_20_a_v21_data_set_that_is_appended_to_is_the_old_one_or_the_new_one(
    kind: str, injector: Injector, sources: list[Path], wanted: dict[str, bytes], tmp_path: Path
) -> None:
    started = tmp_path / "begun" / "out"
    penstock.convert(**call(sources[:1], started))
    before = contents(started)
    counting = shutil.copytree(started, tmp_path / "count" / "out")
    calls = injector.run(call(sources[1:], counting, append=True), under=counting.parent).calls
    assert contents(counting) == wanted
    for number in chosen_calls(calls, kind)[:: 1 if EVERY else 2]:
        out = shutil.copytree(started, tmp_path / f"case_{number}" / "out")
        result = injector.run(call(sources[1:], out, append=True), under=out.parent, number=number, kind=kind)
        check_result(result, kind, number, out)
        assert contents(out) in (before, wanted), (kind, number)
        if contents(out) == before:
            again = injector.run(call(sources[1:], out, append=True, resume=True), under=out.parent)
            assert again.code == 0, (kind, number, again.error)
        assert contents(out) == wanted, (kind, number)
        shutil.rmtree(out.parent)
