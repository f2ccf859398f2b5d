"""Views on disk of several columns: all of them fit, or none is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock._src.load.loader import Loader
from penstock._src.load.settings import Mix
from penstock._src.load.views import cache
from penstock._src.load.views.build import build_view
from penstock._src.load.views.view import View
from penstock.errors import LimitExceeded, OutputFailed
from tests.load.image_store import ArrayStore
from tests.load.view_rows import fill, open_files, spec_of

SIZE = (24, 32)
VIEW_BYTES = 106_496  # of one of 40 rows, asserted below


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    return tmp_path / "views"


def _loader(store: Any, **options: Any) -> Loader:
    return Loader(store, **{"batch_size": 8, "image_size": SIZE, "threads": 2, "output": "numpy", **options})


def _build(store: ArrayStore) -> None:
    build_view(store, image_size=SIZE)


def _load(store: ArrayStore) -> None:
    _loader(store, view="disk")


@pytest.mark.parametrize("make", [_load, _build])
def test_what_does_not_fit_together_leaves_nothing(make: Any, views: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with View.on_disk(spec_of(), 20) as old:  # of other data; nobody holds it afterwards
        fill(old, range(20))
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", str(VIEW_BYTES * 3 // 2))
    before = open_files()
    with pytest.raises(LimitExceeded, match="a view of each of 'cam', 'raw' needs 2") as caught:
        make(ArrayStore([40]))
    assert (caught.value.size, caught.value.limit) == (2 * VIEW_BYTES, VIEW_BYTES * 3 // 2)
    assert "build_view(store, limit=…)" in str(caught.value) and "give the view a limit" not in str(caught.value)
    assert list(views.iterdir()) == [old.path] and not open_files() - before
    with _loader(ArrayStore([40])) as loader:  # "auto" finds no empty file where RAM is meant
        assert [view.path for view in loader._views] == [None, None]


def test_a_view_that_was_there_stays_and_makes_no_room_for_its_neighbour(
    views: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArrayStore([40])
    (built,) = build_view(store, "cam", SIZE).values()
    built.close()
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", str(VIEW_BYTES * 3 // 2))
    with pytest.raises(LimitExceeded, match=r"a view of 'raw' \(40 rows\) needs .* beside 1 in use"):
        _load(store)
    assert list(views.iterdir()) == [built.path]
    with View.on_disk(built.spec, 40) as again:
        assert again.n_filled == 40


def test_a_disk_that_fails_at_the_second_view_leaves_none(views: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    create = cache.CacheDirectory.create

    def failing(self: cache.CacheDirectory, name: str, header: bytes, n_bytes: int) -> None:
        if made:
            raise OutputFailed(self.path / name, "it was asked to fail", OSError(5, "no"))
        made.append(name)
        create(self, name, header, n_bytes)

    monkeypatch.setattr(cache.CacheDirectory, "create", failing)
    before = open_files()
    with pytest.raises(OutputFailed, match="asked to fail"):
        _load(ArrayStore([40]))
    assert made and not list(views.iterdir()) and not open_files() - before


def test_one_store_twice_in_a_mix_shares_its_views(views: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArrayStore([40])
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", str(VIEW_BYTES * 5 // 2))  # two, and not four
    with _loader(Mix([(store, 1), (store, 1)]), view="disk") as loader:
        assert len(list(loader)) == 10 and len(list(views.iterdir())) == 2
        assert all(view.n_filled == 40 for view in loader._views) and len(loader._views) == 4
