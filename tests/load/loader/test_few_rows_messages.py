"""`penstock bench load` and `penstock inspect` of small and of several files say what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock._src.cli import main
from tests.stores import hdf5_files as files


def test_a_file_with_few_rows_is_reported_which_batches_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    files.replay(tmp_path / "replay.hdf5")
    assert main(["bench", "load", str(tmp_path / "replay.hdf5")]) == 1
    out = capsys.readouterr().out
    assert "--batch-sizes 4" in out and "view filled" not in out


def test_a_directory_of_several_hdf5_files_is_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aloha").mkdir()
    for number in range(2):
        files.aloha(tmp_path / "aloha" / f"episode_{number}.hdf5", 5, number)
    files.replay(tmp_path / "replay.hdf5")
    files.robomimic(tmp_path / "demos.hdf5")
    assert main(["inspect", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[-1].startswith("3 inputs; `penstock inspect PATH`")
    assert main(["inspect", str(tmp_path / "replay.hdf5"), str(tmp_path / "demos.hdf5")]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 12  # named, they are shown whole
    assert main(["inspect", str(tmp_path / "aloha")]) == 0
    assert "layout" in capsys.readouterr().out
