"""Views, mixes and threads that are given in a wrong way: told by what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock.errors import BudgetExceeded, UsageError
from tests.load.replay_files import write_replay


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_replay(tmp_path_factory.mktemp("given") / "data.hdf5")


def test_views_of_columns_that_are_not_there_are_refused(path: Path) -> None:
    words: dict[str, Any] = {"image_size": (8, 8), "memory": "128MiB", "batch_size": 4}
    with penstock.open(path) as store:
        views = penstock.build_view(store, ["observations/left_image"], (8, 8), where="ram", memory="128MiB")
        view = views["observations/left_image"]
        with pytest.raises(UsageError, match="'left_image'"):
            penstock.Loader(store, view={"left_image": view}, **words)
        with pytest.raises(UsageError, match="not a view"):
            penstock.Loader(store, view={"observations/left_image": 1}, **words)  # type: ignore[dict-item]
        window = penstock.Window(columns=["actions", "observations/right_image"])
        with penstock.Loader(store, window, view=views, **words) as loader:  # of a column that the window leaves out
            assert len(next(iter(loader))["actions"]) == 4
        view.close()


def test_stores_of_a_mix_that_differ_in_one_dimension_show_it(path: Path, tmp_path: Path) -> None:
    other = write_replay(tmp_path / "other.hdf5")
    with h5py.File(other, "r+") as file:
        rewards = file["rewards"][:]
        del file["rewards"]
        file["rewards"] = rewards[:, np.newaxis]
    with penstock.open(path) as one, penstock.open(other) as two, pytest.raises(UsageError) as caught:
        penstock.Loader(penstock.Mix({one: 1, two: 1}), memory="128MiB")
    assert "() float32" in str(caught.value) and "(1,) float32" in str(caught.value)


def test_threads_are_called_threads(path: Path) -> None:
    with penstock.open(path) as store:
        for words in ("many", "cpu*0"):
            with pytest.raises(UsageError, match=r"^threads: "):
                penstock.Loader(store, threads=words, memory="128MiB")


def test_a_quality_that_is_no_number(path: Path) -> None:
    with penstock.open(path) as store, pytest.raises(UsageError, match="quality 'a'"):
        penstock.build_view(store, image_size=(8, 8), where="ram", encoding="jpeg", quality="a")  # type: ignore[arg-type]


def test_the_hint_about_the_memory_of_a_build_can_be_followed_in_python(path: Path) -> None:
    with penstock.open(path) as store, pytest.raises(BudgetExceeded) as caught:
        penstock.build_view(store, image_size=(8, 8), where="ram", memory="64KiB")
    assert 'for example memory="16MiB"' in str(caught.value)
