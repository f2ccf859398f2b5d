"""A conversion into a bucket that is killed at any moment is resumed to the objects of an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.faults.injection import Injector
from tests.faults.jobs import make_sources
from tests.remote.killing import Killing
from tests.remote.server import LOST, RangeServer, Request
from tests.remote.writing import call, etags, same_in_every_run, staged

KILLED = -9
MOMENTS, LOCAL_MOMENTS = 6, 3


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    (tmp_path / "recordings").mkdir()
    return make_sources(tmp_path / "recordings")


@pytest.fixture
def injector(server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Injector]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "built").mkdir()
    with Injector(tmp_path / "built") as started:
        yield started


def spread(count: int, moments: int) -> list[int]:
    """Numbers from 1 to `count`, the first and the last among them."""
    return sorted({1 + round(each * (count - 1) / (moments - 1)) for each in range(moments)})


@pytest.mark.timeout(240)
def test_killed_at_a_request(server: RangeServer, injector: Injector, sources: list[Path], tmp_path: Path) -> None:
    """Every other time the store has done what was asked."""
    killing = Killing(injector._server.pid)

    def fault(request: Request) -> int | str | None:
        if not killing.hits():
            return None
        killing.kill()
        return LOST if killing.after else 503

    penstock.convert(**call(sources[:1], "s3://b/begun"))
    begun = dict(server.buckets["b"])
    for more in ({}, {"append": True}):

        def begin(url: str, more: dict[str, bool] = more) -> None:
            if more:
                name = url.removeprefix("s3://b/")
                copies = {key.replace("begun", name, 1): each for key, each in begun.items()}
                server.buckets["b"].update(copies)

        used = sources[1:] if more else sources
        begin("s3://b/whole")
        server.fault = fault
        killing.arm(0, after=False)
        assert injector.run(call(used, "s3://b/whole", **more), under=tmp_path).code == 0
        requests, wanted = killing.seen, same_in_every_run(etags("s3://b/whole"))
        for case, number in enumerate(spread(requests, MOMENTS)):
            url = f"s3://b/case_{number}"
            begin(url)
            killing.arm(number, after=case % 2 == 1)
            killed = injector.run(call(used, url, **more), under=tmp_path)
            assert killed.code in (KILLED, 0), (number, killed.error)
            killing.arm(0, after=False)
            again = injector.run(call(used, url, resume=True, **more), under=tmp_path)
            assert again.code == 0, (number, again.error)
            assert same_in_every_run(etags(url)) == wanted, (number, killing.after)
            assert staged() == [], number
        server.buckets["b"].clear()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["killed before", "killed after", "half a write", "ENOSPC"])
def test_killed_or_refused_at_a_local_write(
    kind: str, server: RangeServer, injector: Injector, sources: list[Path], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    whole = injector.run(call(sources, "s3://b/whole"), under=cache)
    assert whole.code == 0, whole.error
    wanted = same_in_every_run(etags("s3://b/whole"))
    for number in spread(whole.calls, LOCAL_MOMENTS):
        url = f"s3://b/case_{number}"
        broken = injector.run(call(sources, url), under=cache, number=number, kind=kind)
        assert broken.code in (KILLED, 0, 1), (number, broken.error)
        assert "Traceback" not in broken.error, (number, broken.error)
        again = injector.run(call(sources, url, resume=True), under=cache)
        assert again.code == 0, (number, again.error)
        assert same_in_every_run(etags(url)) == wanted, number
        assert staged() == [], number
