"""LeRobot v2.x metadata is read without trust: lines are named, numbers checked, paths confined."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.lerobot.read import version21
from penstock._src.lerobot.read.reader import RowSpan, open_data_set
from penstock._src.stores.lerobot.episode_table import RowStream
from penstock.errors import DataSetCorrupt, PenstockError
from tests.conversion import version21 as making

SHARED = Path(__file__).resolve().parents[4] / "shared/data/lerobot/g1_v21"


def lines(root: Path, name: str, text: str | bytes) -> Path:
    (root / "meta").mkdir(exist_ok=True, parents=True)
    (root / "meta" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"episode_index": 0, "length": 3}\n\nnonsense\n', "line 3 cannot be used: not JSON"),
        ('{"episode_index": 0, "length": 3}\n[]\n', "line 2 cannot be used: a list instead of an object"),
        ('{"episode_index": 0, "length": -1}\n', "line 1 cannot be used: length is -1"),
        ('{"episode_index": 0.5, "length": 1}\n', "episode_index is 0.5"),
        ('{"episode_index": true, "length": 1}\n', "episode_index is True"),
        ('{"episode_index": 1, "length": 1}\n{"episode_index": 1, "length": 1}\n', "line 2 .*stands in line 1, too"),
        ('{"episode_index": 1, "length": 1, "tasks": [4]}\n', "tasks is not a list of texts"),
        (b'{"episode_index": 1, "length": 1, "tasks": ["\xff"]}\n', "line 1 cannot be used: not JSON"),
        ("[" * 100_000 + "\n", "line 1 cannot be used: not JSON"),
        ('{"episode_index": 1, "length": ' + "9" * 30 + "}\n", "length is 9999"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataSetCorrupt, match=message):
        version21.read_episodes(lines(tmp_path, "episodes.jsonl", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"task_index": 1, "task": "a"}\n', "task_index is not 0…0"),
        ('{"task_index": 0, "task": 3}\n', "line 1 cannot be used: task is 3"),
        ('{"task_index": 0, "task": "a"}\n{"task_index": 0, "task": "b"}\n', "line 2 .*has two texts"),
    ],
)
def test_tasks_are_numbered_without_gaps(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataSetCorrupt, match=message):
        version21.read_tasks(lines(tmp_path, "tasks.jsonl", text))


def test_tasks_may_stand_in_any_order(tmp_path: Path) -> None:
    root = lines(tmp_path, "tasks.jsonl", '{"task_index": 1, "task": "b"}\n{"task_index": 0, "task": "a"}\n')
    assert version21.read_tasks(root) == ["a", "b"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataSetCorrupt, match=r"tasks\.jsonl: cannot be read: No such file"):
        version21.read_tasks(tmp_path)


def test_metadata_that_is_a_link_out_of_the_data_set_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"task_index": 0, "task": "a"}\n')
    (tmp_path / "set/meta").mkdir(parents=True)
    (tmp_path / "set/meta/tasks.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(DataSetCorrupt, match="leads out of the data set"):
        version21.read_tasks(tmp_path / "set")


@settings(max_examples=60)
@given(st.binary(max_size=80) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_lines_or_our_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = lines(tmp_path_factory.mktemp("lines"), "episodes.jsonl", data)
    try:
        version21.read_episodes(root)
    except PenstockError:
        pass  # refusing is as good as reading; any other exception fails the test


def test_files_of_an_episode_are_found_by_the_templates(tmp_path: Path) -> None:
    root = making.make(tmp_path / "old", (4, 3), chunks_size=1)
    data = open_data_set(root)
    assert data.video_file(1, making.CAMERA) == root / f"videos/chunk-001/{making.CAMERA}/episode_000001.mp4"
    assert data.row_spans(1) == [RowSpan(root / "data/chunk-001/episode_000001.parquet", 0, 3, 4)]


@settings(max_examples=20)
@given(st.data())
def test_rows_come_in_any_portions_and_from_any_place(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = making.make(tmp_path_factory.mktemp("rows") / "old", (23,), None)
    opened = open_data_set(root)
    expected = making.numbers(0, 23)["observation.state"]
    stream = RowStream(opened, ["observation.state", "remark"], data.draw(st.integers(1, 9)))
    path = making.data_path(root, 0)
    for _ in range(3):
        start = data.draw(st.integers(0, 22))
        stop = data.draw(st.integers(start + 1, 23))
        stream.begin([RowSpan(path, start, stop)])
        at = start
        while at < stop:
            rows = min(data.draw(st.integers(1, 9)), stop - at)
            taken = stream.take(rows)
            assert np.array_equal(taken["observation.state"], expected[at : at + rows])
            assert taken["remark"] == [f"row {row} of 0" for row in range(at, at + rows)]
            at += rows
    stream.close()


def test_more_rows_than_a_file_has_are_refused(tmp_path: Path) -> None:
    root = making.make(tmp_path / "old", (6,), None)
    stream = RowStream(open_data_set(root), ["counter"], 4)
    stream.begin([RowSpan(making.data_path(root, 0), 0, 9)])
    with pytest.raises(DataSetCorrupt, match="6 rows, 9 are needed"):
        stream.take(9)


def test_names_in_a_mapping_and_channels_first_are_understood(tmp_path: Path) -> None:
    root = making.make(tmp_path / "old", (4,))
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][making.CAMERA] |= {"shape": [3, 48, 64], "names": ["channels", "height", "width"]}
    (root / "meta/info.json").write_text(json.dumps(info))
    features = open_data_set(root).info.features
    assert features[making.CAMERA].shape == (48, 64, 3) and features[making.CAMERA].names[0] == "height"
    assert features["observation.state"].names == ("a", "b", "c", "d", "e")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data set is not here")
def test_a_real_data_set_is_read() -> None:
    data = open_data_set(SHARED)
    assert data.tasks == ["Pick up the yellow bottle on the table."] and len(data.episodes) == 100
    assert data.row_spans(4)[0].path.is_file() and data.video_file(4, "observation.images.cam_high").is_file()
