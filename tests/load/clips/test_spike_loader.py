"""A spike data set under the Loader: clips, views and errors, as of any other store."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import penstock
from penstock._src.stores.spike.store import SpikeStore
from penstock.errors import StoreCorrupt, StoreError
from tests.stores.spike_sets import make_sequence, make_set


def _pixels(path: Path) -> np.ndarray:
    found = cv2.imread(str(path))
    assert found is not None
    return found[:, :, ::-1].transpose(2, 0, 1)


@pytest.mark.parametrize("view", ["off", "ram"])
def test_clips_are_runs_of_rows_of_one_sequence(tmp_path: Path, view: str) -> None:
    make_set(tmp_path, rows=7)
    store = SpikeStore(tmp_path)
    clips = {}
    with penstock.Loader(
        store, penstock.Clip(5), 2, None, "256MiB", view=view, threads=2, output="numpy", drop_last=False
    ) as loader:
        for epoch in range(2):  # the second from what is kept
            for batch in loader:
                assert batch["blur"].shape[1:] == (5, 3, 48, 64)
                assert batch["spike_vox"].shape[1:] == (5, 5, 24, 32) and batch["spike_vox"].dtype == np.uint8
                for place, rows in enumerate(batch["index"]):
                    first = int(np.ravel(rows)[0])
                    clips[epoch, first] = {name: batch[name][place].copy() for name in ("blur", "sharp", "spike_vox")}
    assert sorted(clips) == [(epoch, first) for epoch in (0, 1) for first in (0, 1, 2, 7, 8, 9)]
    for (_, first), clip in clips.items():
        rows = np.arange(first, first + 5)
        np.testing.assert_array_equal(clip["spike_vox"], store.numbers("spike_vox", rows))
        for name in ("blur", "sharp"):
            expected = np.stack([_pixels(store.image_path(name, row)) for row in rows])
            got = clip[name] if clip[name].dtype == np.uint8 else np.rint(clip[name] * 255).astype(np.uint8)
            np.testing.assert_array_equal(got, expected)


def test_a_large_column_of_counts_is_read_where_it_lies(tmp_path: Path) -> None:
    make_sequence(tmp_path / "s", rows=4, plane=(240, 320), image=(240, 320))
    with penstock.Loader(
        penstock.open(tmp_path), penstock.Clip(2), 1, None, memory="64MiB", threads=1, view="off"
    ) as loader:
        assert next(iter(loader))["spike_vox"].shape == (1, 2, 5, 240, 320)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    made = make_set(tmp_path, rows=3)
    broken = made[1].folder / "sharp" / "000012.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with (
        penstock.Loader(penstock.open(tmp_path), None, 6, None, memory="256MiB", threads=1, view="off") as loader,
        pytest.raises(StoreCorrupt, match="sharp") as caught,
    ):
        list(loader)
    assert str(broken) in str(caught.value)


def test_mixed_planes_are_refused_with_the_sequences_that_fit_together(tmp_path: Path) -> None:
    make_sequence(tmp_path / "a")
    make_sequence(tmp_path / "b", plane=(32, 24), image=(64, 48))
    with (
        pytest.raises(StoreError, match=r"the spikes of b are 32×24") as caught,
        penstock.Loader(
            penstock.open(tmp_path, columns=["spike_vox"]), None, 6, None, memory="256MiB", threads=1, view="off"
        ) as loader,
    ):
        list(loader)
    assert "episodes=[0]" in str(caught.value)


def test_a_view_is_built_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    make_set(tmp_path / "set")
    with penstock.open(tmp_path / "set") as store:
        views = penstock.build_view(store, ["blur"], image_size=(24, 32), memory="256MiB", threads=1)
        with penstock.Loader(store, None, 6, (24, 32), "256MiB", view=views, threads=1) as loader:
            batch = next(iter(loader))
            assert batch["blur"].shape == (6, 3, 24, 32)
            assert loader.stats()["view_hits"] == 6
