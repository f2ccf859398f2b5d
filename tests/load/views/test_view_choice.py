"""Which view `view="auto"` takes, and what the loader's numbers tell of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock._src.load.views import view_opening
from penstock._src.load.views.build import build_view
from penstock._src.load.views.view import View
from penstock.errors import UsageError
from tests.load.image_store import ArrayStore

SIZE = (24, 32)
ROWS = 100


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    return tmp_path


def _loader(store: ArrayStore, **options: Any) -> Loader:
    words = {"batch_size": 8, "image_size": SIZE, "threads": 2, "output": "numpy", **options}
    return Loader(store, Window(columns=["cam"]), **words)


def _built(store: ArrayStore, **options: Any) -> View:
    (view,) = build_view(store, "cam", SIZE, **options).values()
    view.close()
    return view


def test_a_view_on_disk_of_a_few_rows_gives_way_to_memory() -> None:
    store = ArrayStore([ROWS])
    few = _built(store, limit="60kB")
    assert few.capacity < ROWS // 2
    with _loader(store) as loader:
        (view,) = loader._views
        assert view.path is None and view.capacity == ROWS
        message = f"view: cam on disk, {few.capacity} of 100 rows are there; it is not used, because memory holds 100"
        assert message in loader.notes
        for _ in range(2):
            for _ in loader:
                pass
        assert loader.stats()["images_made"] == ROWS


def test_a_view_on_disk_that_holds_more_than_memory_would_is_taken() -> None:
    store = ArrayStore([ROWS])
    half = _built(store, limit="150kB")
    with _loader(store, view="off") as without:
        fixed = without.memory_split.fixed_bytes
    with _loader(store, memory=fixed + 120_000) as loader:
        assert [view.path for view in loader._views] == [half.path]
    whole = _built(store)
    with _loader(store) as loader:
        assert [view.path for view in loader._views] == [whole.path]


@pytest.mark.parametrize("spare", [0, 200_000])
def test_how_much_memory_would_hold_all_rows_is_reported(spare: int) -> None:
    store = ArrayStore([ROWS * 40])
    with _loader(store, view="off") as without:
        memory = without.memory_split.fixed_bytes + spare
    with _loader(store, memory=memory, view="ram") as loader:
        (notes,) = [note for note in loader.notes if "more memory all rows have a place" in note]
        assert bool(loader._views) == bool(spare) and ("view: none" in notes) != bool(spare)
    memory += int(notes.partition("with ")[2].partition(" MiB")[0]) << 20
    with _loader(store, memory=memory, view="ram") as loader:
        assert [view.capacity for view in loader._views] == [store.rows]
        assert not [note for note in loader.notes if "more memory" in note]


def test_a_view_that_may_only_be_read_counts_by_the_rows_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArrayStore([ROWS])
    with _loader(store, view="disk") as loader:
        next(iter(loader))
        (path,) = [view.path for view in loader._views]
    opened = view_opening._open

    def for_reading(path: Path) -> tuple[int, bool, str]:
        fd, _, wrong = opened(path)
        return fd, False, wrong

    monkeypatch.setattr(view_opening, "_open", for_reading)
    with _loader(store) as loader:
        assert [view.path for view in loader._views] == [None]
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_CACHE", str(path.parent.parent) if path else "")
    with _loader(store) as loader:
        assert [view.path for view in loader._views] == [path], "it can still be filled"


def test_one_row_that_cannot_be_decoded_is_no_reason_to_decode_all_others_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArrayStore([ROWS], broken=[7])
    built = _built(store, where="disk", on_error="skip")
    opened = view_opening._open
    monkeypatch.setattr(view_opening, "_open", lambda path: (opened(path)[0], False, ""))
    with _loader(store, on_error="skip") as loader:
        assert [view.path for view in loader._views] == [built.path]


# Numbers


def test_stats_report_rows_that_a_view_refused_and_why() -> None:
    store = ArrayStore([ROWS])
    views = build_view(store, "cam", SIZE, where="ram", encoding="jpeg", limit="60kB")
    with _loader(store, view=views) as loader:
        for _ in loader:
            pass
        (stats,) = loader.stats()["views"].values()
    assert stats["refused"] > 1 and stats["damaged"] == 0
    assert stats["notes"] == list(views["cam"].notes) and "is full" in stats["notes"][0]
    assert json.loads(json.dumps(loader.stats()))["views"] == loader.stats()["views"]
    views["cam"].close()


def test_stats_report_rows_that_were_found_damaged() -> None:
    store = ArrayStore([ROWS])
    built = _built(store)
    assert built.path is not None
    with open(built.path, "r+b") as file:
        file.seek(built.layout.rows_at + 3 * built.spec.row_bytes)
        file.write(b"\xaa" * 50)
    with _loader(store) as loader:
        for _ in loader:
            pass
        (stats,) = loader.stats()["views"].values()
    assert (stats["rows"], stats["damaged"], stats["refused"], stats["notes"]) == (ROWS, 1, 0, [])


# Without a home directory


def test_a_user_without_a_home_directory_loads_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it answers where there is neither HOME nor entry
    store = ArrayStore([ROWS])
    with _loader(store) as loader:
        assert [view.path for view in loader._views] == [None]
    for place in (None, "~/views"):
        if place is not None:
            monkeypatch.setenv("PENSTOCK_CACHE", place)
        with pytest.raises(UsageError, match=r"no home directory.*\n.*PENSTOCK_CACHE"):
            _loader(store, view="disk")
