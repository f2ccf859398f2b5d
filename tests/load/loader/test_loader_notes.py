"""What `loader.notes` tells: threads and slots, the view of each column or why there is none, where numbers lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.load.engine.fetch import SampleFetcher
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock._src.load.settings import Mix
from penstock._src.load.views.build import build_view
from tests.load.image_store import ArrayStore

SIZE = (24, 32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def _notes(store: Any, window: Any = None, **options: Any) -> tuple[str, ...]:
    # Not the usual 2 GiB: where a machine has less free, a note says so.
    words = {"batch_size": 8, "image_size": SIZE, "threads": 2, "output": "numpy", "memory": "256MiB", **options}
    with Loader(store, window, **words) as loader:
        return loader.notes


def test_threads_numbers_and_that_there_is_no_view() -> None:
    notes = _notes(ArrayStore([200]), view="off", prefetch=2)
    assert notes[0].startswith("threads: 2, 4 slots of ") and len(notes) == 4
    engine = "engine: thread, for numpy batches"
    assert notes[1:] == ("numbers: 7 KiB in memory", engine, "view: none, images are decoded each time")


@pytest.mark.parametrize("where", ["disk", "ram"])
def test_views_that_are_given(where: Any) -> None:
    store = ArrayStore([30])
    views = build_view(store, "cam", SIZE, where=where)
    place = "on disk" if where == "disk" else "in memory"
    assert _notes(store, view=views)[-2:] == (
        f"view: cam {place}, 30 of 30 rows are there, as given",
        "view: raw has none, its images are decoded each time",
    )
    views["cam"].close()


def test_numbers_that_do_not_fit_and_stores_of_a_mix(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "wide.hdf5", "w") as file:
        file["actions"] = np.zeros((1000, 4), np.float32)
        file["observations/wide"] = np.zeros((1000, 9000), np.float32)
    with penstock.open(tmp_path / "wide.hdf5") as store:
        notes = _notes(store, memory="96MiB", view="off")
    assert "numbers: observations/wide are read in place, because they do not fit in memory" in notes
    mix = Mix([(ArrayStore([20], name="one"), 1), (ArrayStore([20], name="two"), 1)])
    expected_notes = [note for note in _notes(mix, Window(columns=["state"])) if note.startswith("numbers")]
    assert expected_notes == ["numbers of one: 320 B in memory", "numbers of two: 320 B in memory"]


def test_a_column_called_index_is_given_and_noted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.hdf5", "w") as file:
        file["actions"] = np.zeros((20, 4), np.float32)
        file["index"] = np.arange(20) * 10
    message = "'index' in a batch is the column of that name, not the row of the store"
    with penstock.open(tmp_path / "own.hdf5") as store:
        with Loader(store, batch_size=20, shuffle=False, output="numpy") as loader:
            assert message in loader.notes and next(iter(loader))["index"].tolist() == list(range(0, 200, 10))
        fetcher = SampleFetcher(store)
        assert message in fetcher.notes
        fetcher.close()
        with Loader(store, Window(columns=["actions"]), batch_size=20, shuffle=False, output="numpy") as loader:
            assert message not in loader.notes and next(iter(loader))["index"].tolist() == list(range(20))
