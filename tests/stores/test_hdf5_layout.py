"""What kind of file it is, said in words; channels first or last; what is an image."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from penstock._src.cli import main
from penstock._src.stores.hdf5.array import Hdf5Array
from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.hdf5.layout import episode_spans, recognise
from penstock.errors import StoreError
from tests.stores import hdf5_files as files

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "hdf5"


def test_layouts_are_distinguished(tmp_path: Path) -> None:
    files.aloha(tmp_path / "aloha.h5", rows=3)
    files.robomimic(tmp_path / "demos.h5")
    files.replay(tmp_path / "replay.h5", first=True)
    expected = {"aloha": [3], "demos": [5, 7, 6], "replay": [4, 7, 4]}
    for name, kind in (("aloha", "aloha"), ("demos", "robomimic"), ("replay", "replay")):
        with Hdf5File(tmp_path / f"{name}.h5") as file:
            layout = recognise(file)
            assert layout.kind == kind and layout.why
            assert [span.stop - span.start for span in episode_spans(file, layout)] == expected[name]
            if name == "replay":
                left = layout.member("observations/left_image")
                assert left is not None and (left.content, left.channels) == ("pixels", "first")
            if name == "aloha":
                high = layout.member("observations/images/cam_high")
                assert high is not None and high.content == "jpeg"


def test_channels_that_may_be_first_or_last_are_not_guessed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images/cam"] = np.zeros((2, 3, 64, 3), np.uint8)
        file["images/deep"] = np.zeros((2, 10, 64, 1), np.uint8)
        file["action"] = np.zeros((2, 2))
    with Hdf5File(tmp_path / "x.h5") as file:
        cam = recognise(file).member("images/cam")
        assert cam is not None and cam.content == "other" and "hdf5.channels=last" in cam.why
        text = recognise(file, "first").member("images/cam")
        assert text is not None and text.channels == "first"
        deep = recognise(file, "first").member("images/deep")
        assert deep is not None and deep.channels == "last"


def test_a_mask_that_is_not_there(tmp_path: Path) -> None:
    files.robomimic(tmp_path / "demos.h5")
    with Hdf5File(tmp_path / "demos.h5") as file:
        layout = recognise(file)
        assert [span.group for span in episode_spans(file, layout, "train")] == ["data/demo_0", "data/demo_10"]
        with pytest.raises(StoreError, match="has no mask/valid"):
            episode_spans(file, layout, "valid")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_files_that_others_recorded() -> None:
    expected = {
        "offline_rl_flat": ("replay", 20_000),
        "offline_rl_empty": ("replay", 0),
        "robosuite_lift_panda": ("robomimic", 412),
    }
    for name, (kind, rows) in expected.items():
        path = SHARED / f"{name}.hdf5"
        with h5py.File(path) as oracle, Hdf5File(path) as file:
            layout = recognise(file)
            assert (layout.kind, sum(span.stop - span.start for span in episode_spans(file, layout))) == (kind, rows)
            for member in layout.members:
                array = Hdf5Array(file, f"{layout.groups[0]}/{member.name}".strip("/"))
                middle = array.count // 2
                assert np.array_equal(array.rows(middle, array.count), oracle[array.name][middle:])


def test_inspect_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.aloha(tmp_path / "episode_0.hdf5", rows=3)
    assert main(["inspect", str(tmp_path / "episode_0.hdf5")]) == 0
    shown = capsys.readouterr().out
    assert "one episode" in shown and "contiguous: one run of bytes" in shown and "give fps=50" in shown
    assert main(["inspect", str(tmp_path), "fps=50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conversion"]["features"]["observation.images.cam_high"]["stored_as"] == "copied"
    assert main(["inspect", str(tmp_path / "episode_0.hdf5"), "fps=50", "--suggest-config"]) == 0
    assert "topic: observations/qpos" in capsys.readouterr().out
