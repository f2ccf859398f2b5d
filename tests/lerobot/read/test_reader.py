from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock._src.lerobot.read.frames import FrameFinder
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import DataSetCorrupt, DataSetError
from tests.lerobot import reading
from tests.lerobot.making import CAMERA, make, numbers

SHARED_V21 = Path(__file__).resolve().parents[4] / "shared/data/lerobot/g1_v21"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make(tmp_path / "set", lengths=(12, 7, 9), data_file_bytes=1)
    return tmp_path / "set"


def edit_info(root: Path, **changes: object) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_rows_across_files_and_row_groups(root: Path) -> None:
    data = open_data_set(root)
    everything = np.concatenate([numbers(n, seed)["action"] for seed, n in enumerate((12, 7, 9))])
    for start, stop in ((0, 28), (3, 4), (11, 20), (27, 28), (12, 19)):
        assert np.array_equal(
            np.asarray(reading.rows(data, ["action"], start, stop)["action"]).reshape(-1, 2), everything[start:stop]
        )


def test_an_episode_knows_its_frames(root: Path) -> None:
    found = FrameFinder(open_data_set(root)).find(2, CAMERA)
    assert (found.first, found.count) == (19, 9) and found.path.is_file()


def test_other_directories_are_no_data_sets(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match="not a LeRobot data set"):
        open_data_set(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "", "\x00", '{"codebase_version": "v3.0"}', '{"codebase_version": "v9"}'])
def test_broken_info_is_our_error(root: Path, text: str) -> None:
    (root / "meta/info.json").write_text(text)
    with pytest.raises(DataSetError, match=r"info\.json"):
        open_data_set(root)


@pytest.mark.parametrize(
    "changes", [{"fps": 0}, {"fps": "30"}, {"total_frames": -1}, {"features": 3}, {"data_path": 7}, {"chunks_size": 0}]
)
def test_wrong_values_of_info_are_named(root: Path, changes: dict[str, object]) -> None:
    edit_info(root, **changes)
    with pytest.raises(DataSetCorrupt, match=next(iter(changes))):
        open_data_set(root)


@pytest.mark.parametrize("template", ["../{chunk_index}.mp4", "/etc/{file_index}", "videos/{video_key.__class__}.mp4"])
def test_video_paths_stay_below_the_root(root: Path, template: str) -> None:
    edit_info(root, video_path=template)
    with pytest.raises(DataSetCorrupt):
        open_data_set(root).video_file(0, CAMERA)


def test_a_video_key_cannot_climb_out(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["../../../secret"] = info["features"].pop(CAMERA)
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(DataSetCorrupt, match="leave the data set"):
        open_data_set(root)


def test_a_cut_parquet_file_is_named(root: Path) -> None:
    path = root / "data/chunk-000/file-001.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataSetCorrupt, match=r"file-001\.parquet: not a whole parquet file"):
        reading.rows(open_data_set(root), ["action"], 0, 5)


def test_version_21_is_opened_for_its_metadata_only(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(2,))
    edit_info(tmp_path / "set", codebase_version="v2.1")
    meta = tmp_path / "set/meta"
    (meta / "tasks.jsonl").write_text('{"task_index": 0, "task": "lift"}\n')
    (meta / "episodes.jsonl").write_text('{"episode_index": 0, "length": 2, "tasks": ["lift"]}\n')
    data = open_data_set(tmp_path / "set")
    assert data.tasks == ["lift"] and data.episodes.length.tolist() == [2]
    (meta / "episodes.jsonl").write_text('{"episode_index": 0, "length": 2}\n{"episode_index": 1}\n')
    with pytest.raises(DataSetCorrupt, match="line 2"):
        open_data_set(tmp_path / "set").episodes


@pytest.mark.skipif(not SHARED_V21.exists(), reason="shared data are not here")
def test_a_real_version_21_data_set_is_opened() -> None:
    data = open_data_set(SHARED_V21)
    assert data.info.version == "v2.1" and len(data.episodes) == 100 and data.info.total_frames == 35965
    assert int(data.episodes.length.sum()) == 35965
