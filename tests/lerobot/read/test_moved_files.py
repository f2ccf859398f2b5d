"""Files of a data set in another folder than info.json says: they are found, and the words to change are right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock._src.lerobot import layout
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.read import moved_files
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.stores.opening import open_store
from penstock.errors import DataSetCorrupt
from tests.conversion import version21
from tests.lerobot import making

KEY = version21.CAMERA


def moved(root: Path, to: str) -> Path:
    """Every video at the path that a template gives."""
    for episode in range(3):
        path = root / layout.fill_template(to, key=KEY, episode_index=episode, episode_chunk=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(version21.video_path(root, episode), path)
    return root


@pytest.mark.parametrize(
    "template",
    [
        "videos/{video_key}/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.mp4",
        "video/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "videos/{video_key}/{episode_index}.mp4",
        "videos/{video_key}_episode_{episode_index:06d}.mp4",
    ],
)
def test_the_template_to_write_into_info_is_named_and_right(tmp_path: Path, template: str) -> None:
    root = moved(version21.make(tmp_path / "old"), template)
    hints = []
    with pytest.raises(DataSetCorrupt, match="is absent") as caught:
        open_store(root)
    hints.append(str(caught.value.hint))
    with pytest.raises(DataSetCorrupt, match="the video file is missing") as caught:
        penstock.convert(root, tmp_path / "new")
    hints.append(str(caught.value.hint))
    hints += [str(problem.hint) for problem in check(root).problems if "not there" in problem.message]
    assert len(hints) == 5 and all(f'in meta/info.json set "video_path": "{template}"' in hint for hint in hints), hints
    version21.edit_info(root, video_path=template)
    assert open_store(root).rows == 32 and check(root).is_clean


def test_files_of_version_30_are_found(tmp_path: Path) -> None:
    making.make(tmp_path / "set", (12, 7, 9), video_file_bytes=1)
    root = tmp_path / "set"
    shutil.move(root / "videos", root / "movies")
    template = layout.VIDEO_PATH.replace("videos", "movies")
    with pytest.raises(DataSetCorrupt) as caught:
        open_store(root)
    assert f"3 files lie elsewhere, e.g. movies/{making.CAMERA}/chunk-000/file-000.mp4" in str(caught.value.hint)
    assert f'"video_path": "{template}"' in str(caught.value.hint)
    hints = [problem.hint for problem in check(root).problems if "not there" in problem.message]
    assert len(hints) == 3 and all(hint is not None and template in hint for hint in hints)
    version21.edit_info(root, video_path=template)
    assert open_store(root).rows == 28


def test_files_that_are_nowhere_and_those_of_other_cameras_are_not_taken_for_them(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old")
    version21.video_path(root, 1).unlink()
    other = root / f"videos/chunk-000/{KEY}_left/episode_000001.mp4"
    other.parent.mkdir()
    shutil.copy(version21.video_path(root, 0), other)
    assert open_data_set(root).elsewhere(KEY) is None


@given(
    episode=st.integers(0, 2_000_000),
    folders=st.lists(st.sampled_from(["videos", "v2", "a b", "chunk-7", "chunk-012", "KEY"]), max_size=4),
    name=st.sampled_from(["episode_%06d", "%d", "cam1_%d", "%03d_x"]),
)
def test_a_template_gives_the_path_that_it_was_made_of(episode: int, folders: list[str], name: str) -> None:
    path = "/".join([*(KEY if each == "KEY" else each for each in folders), name % episode + ".mp4"])
    found = moved_files._template(path, KEY, is_v30=False)
    if "KEY" not in folders:
        assert found is None
        return
    assert found is not None
    chunks = {int(each.split("-")[1]) for each in folders if each.startswith("chunk")}
    if len(chunks) <= 1:
        filled = layout.fill_template(found, key=KEY, episode_index=episode, episode_chunk=max(chunks, default=0))
        assert filled == path


def test_the_metadata_is_not_looked_at(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "old")
    shutil.move(root / "data/chunk-000", root / "rows")
    with pytest.raises(DataSetCorrupt) as caught:
        open_store(root)
    template = "rows/episode_{episode_index:06d}.parquet"
    assert f'"data_path": "{template}"' in str(caught.value.hint)
    version21.edit_info(root, data_path=template)
    assert np.array_equal(open_store(root).numbers("index", np.arange(32)), np.arange(32))
    assert json.loads((root / "meta/info.json").read_text())["data_path"] == template


def test_rows_of_version_30_are_to_be_moved_back(tmp_path: Path) -> None:
    making.make(tmp_path / "set")
    root = tmp_path / "set"
    shutil.move(root / "data", root / "rows")
    for attempt in (lambda: open_store(root), lambda: penstock.convert(root, tmp_path / "new")):
        with pytest.raises(DataSetCorrupt) as caught:
            attempt()
        assert "e.g. rows/chunk-000/file-000.parquet: readers of v3.0 look for rows in data/" in str(caught.value.hint)
    shutil.move(root / "rows", root / "data")
    assert open_store(root).rows == 28
