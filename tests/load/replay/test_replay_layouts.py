"""What a replay buffer says of files as others write them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock


def steps(path: Path, *, compression: str | None) -> Path:
    with h5py.File(path, "w") as file:
        for name in ("left_image", "right_image", "global_image"):
            images = np.zeros((6, 8, 8, 3), np.uint8)
            file.create_dataset(f"observations/{name}", data=images, compression=compression)
        file["observations/joint"], file["actions"] = np.zeros((6, 3)), np.zeros((6, 2))
        file["rewards"], file["terminals"] = np.zeros(6), np.arange(6) == 5
    return path


@pytest.mark.parametrize("compression, way", [("lzf", "(through h5py, slower)"), (None, "(file)")])
def test_the_way_to_images_is_reported_in_plain_words(
    tmp_path: Path, compression: str | None, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.MultimodalReplayBuffer(2, 3, output="numpy") as buffer:
        buffer.load_from_hdf5(steps(tmp_path / "steps.hdf5", compression=compression))
    shown = capsys.readouterr().out
    assert f"read from disk when sampled {way}" in shown
    assert "no 'timeouts' column: an episode cut off by a time limit is joined to the next" in shown


def test_the_notes_of_a_conversion_use_the_same_words(tmp_path: Path) -> None:
    report = penstock.convert(steps(tmp_path / "steps.hdf5", compression=None), tmp_path / "out", fps=10)
    assert any("no 'timeouts' column: an episode cut off" in note for note in report.notes)
