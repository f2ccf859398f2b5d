"""A file that cannot be written where it was asked for: what, where, why, and what would help."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock.errors import OutputFailed, UsageError
from penstock.profile import export_html, export_trace, save

ALL = pytest.mark.parametrize("write", [save, export_html, export_trace])
Write = Callable[[Any], Any]


@ALL
def test_a_directory_that_is_not_there_is_to_be_made(write: Write, tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match="No such file or directory") as told:
        write(tmp_path / "none" / "run.out")
    assert "directory" in str(told.value.hint) and "disk" not in str(told.value.hint)


@ALL
def test_a_file_is_no_directory(write: Write, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputFailed, match="Not a directory") as told:
        write(tmp_path / "file" / "run.out")
    assert "directory" in str(told.value.hint) and "disk" not in str(told.value.hint)


@ALL
def test_a_directory_is_no_file(write: Write, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with pytest.raises(OutputFailed, match="Is a directory") as told:
        write(tmp_path / "place")
    assert "file" in str(told.value.hint) and "disk" not in str(told.value.hint)
    assert [each.name for each in tmp_path.iterdir()] == ["place"]


@ALL
@pytest.mark.parametrize("path", ["", "."])
def test_a_path_without_a_name_is_refused(write: Write, path: str) -> None:
    with pytest.raises(UsageError, match="is no name of a file"):
        write(path)


@ALL
def test_nothing_half_written_is_left(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "run.out")
    assert not list(tmp_path.iterdir())
    assert profile.is_enabled()
