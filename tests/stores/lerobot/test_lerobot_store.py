"""A LeRobot data set as a store: numbers, texts and places of rows, whole and in part."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature
from penstock._src.stores.lerobot.store import LeRobotStore
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from penstock.errors import DataSetCorrupt, StoreError
from tests.conversion import version21
from tests.lerobot import making
from tests.stores.lerobot_sets import LENGTHS, V21_LENGTHS, images, rows_of, v21_frames

TASKS = ("lift the cup", "打开抽屉")
ROLLED = {"data_file_bytes": 1, "video_file_bytes": 1}


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("new") / "set"
    making.make(root, LENGTHS, tasks=TASKS)
    return root


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every episode in files of its own."""
    root = tmp_path_factory.mktemp("rolled") / "set"
    making.make(root, LENGTHS, tasks=TASKS, **ROLLED)
    return root


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return version21.make(tmp_path_factory.mktemp("old") / "set", V21_LENGTHS, stills=True)


def test_columns_say_what_they_are(old: Path, new: Path) -> None:
    store = open_store(old)
    assert store.kind == "LeRobot v2.1" and store.rows == 32 and store.episodes == 3 and store.fps == 30
    shown = {name: (each.kind, each.shape, each.dtype, each.encoding, each.way) for name, each in store.columns.items()}
    assert shown["observation.state"] == ("numbers", (5,), "float32", "numbers", "table")
    assert shown["observation.pose"] == ("numbers", (2, 3), "float32", "numbers", "table")
    assert shown["next.done"] == ("numbers", (), "bool", "numbers", "table")
    assert shown["remark"] == ("text", (), "str", "text", "table")
    assert shown["task"] == ("text", (), "str", "text", "table")
    assert shown[version21.CAMERA] == ("image", (48, 64, 3), "uint8", "h264", "video")
    assert shown[version21.STILL][:4] == ("image", (48, 64, 3), "uint8", "png")
    assert store.roles == {"action": "action", "state": "observation.state", "terminal": "next.done"}
    assert "32 rows in 3 episodes at 30 fps" in store.describe()
    newer = open_store(new).columns[making.CAMERA]
    assert (newer.encoding, newer.way) == ("mjpeg", "packets")
    assert 0 < newer.stored_bytes < sum(file.stat().st_size for file in new.rglob("*.mp4")) + 1


def check_numbers(store: LeRobotStore, lengths: tuple[int, ...], episodes: list[int] | None, kind: str) -> None:
    places = rows_of(lengths, episodes)
    made = version21.numbers if kind == "v2.1" else lambda episode, rows: making.numbers(rows, episode)
    for name in ("observation.state", "action"):
        expected = np.stack([made(episode, lengths[episode])[name][row] for episode, row in places])
        order = np.random.default_rng(len(places)).integers(0, len(places), 40)
        assert np.array_equal(store.numbers(name, order), expected[order])
        blocks = list(store.number_blocks([name], 7 * store.columns[name].row_bytes))
        assert [first for first, _ in blocks] == np.cumsum([0, *(len(b[name]) for _, b in blocks[:-1])]).tolist()
        assert np.array_equal(np.concatenate([block[name] for _, block in blocks]), expected)
        assert max(len(block[name]) for _, block in blocks) <= 7
    firsts = np.cumsum((0, *lengths))
    assert store.numbers("index", np.arange(store.rows)).tolist() == [int(firsts[e]) + row for e, row in places]
    assert store.numbers("episode_index", np.arange(store.rows)).tolist() == [e for e, _ in places]
    chosen = range(len(lengths)) if episodes is None else episodes
    expected = np.repeat(range(len(chosen)), [lengths[episode] for episode in chosen])
    assert np.array_equal(store.episode_of(np.arange(store.rows)), expected)


@settings(max_examples=12)
@given(episodes=st.none() | st.permutations(range(3)).flatmap(lambda p: st.integers(1, 3).map(lambda n: list(p[:n]))))
def test_any_episodes_in_any_order_are_rows_from_0_on(
    new: Path, rolled: Path, old: Path, episodes: list[int] | None
) -> None:
    for root, lengths, kind in ((new, LENGTHS, "v3.0"), (rolled, LENGTHS, "v3.0"), (old, V21_LENGTHS, "v2.1")):
        with LeRobotStore(root, episodes=episodes) as store:
            check_numbers(store, lengths, episodes, kind)


def test_every_kind_of_number_and_text_is_the_one_that_was_written(old: Path) -> None:
    store = open_store(old, episodes=[2, 0])
    places = rows_of(V21_LENGTHS, [2, 0])
    rows = np.array([22, 0, 5, 5, 11, 12])
    for name in ("next.done", "counter", "observation.pose"):
        expected = np.stack([version21.numbers(e, V21_LENGTHS[e])[name][row] for e, row in places])
        found = store.numbers(name, rows)
        assert np.array_equal(found, expected[rows]) and found.dtype == expected.dtype
        assert found.shape == (6, *store.columns[name].shape)
    assert store.texts("remark", rows) == [f"row {row} of {e}" for e, row in (places[r] for r in rows)]
    tasks = [version21.TASKS[version21.tasks_of(e, V21_LENGTHS[e])[row]] for e, row in places]
    assert store.texts("task", rows) == [tasks[row] for row in rows]
    assert store.texts("task", np.arange(store.rows)) == tasks


def test_tasks_and_statistics_are_at_hand(new: Path) -> None:
    store = LeRobotStore(new)
    assert store.tasks == list(TASKS)
    assert store.texts("task", np.array([0, 12, 19])) == [TASKS[0], TASKS[1], TASKS[0]]
    assert store.stats is not None and len(store.stats["action"]["mean"]) == 2
    assert store.episode_numbers.tolist() == [0, 1, 2]


def test_columns_leave_the_others_out_and_their_files_alone(tmp_path: Path, new: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(new, root)
    shutil.rmtree(root / "videos")
    rest = open_store(root)
    assert making.CAMERA not in rest.columns and rest.rows == 28
    assert rest.notes == (f"{making.CAMERA} is left out: none of its video files is there",)
    with pytest.raises(DataSetCorrupt, match="is absent") as caught:
        open_store(root, columns=[making.CAMERA])
    assert caught.value.hint == "fetch the data set again", "there are no others"
    store = open_store(root, columns=["action", "task"])
    assert list(store.columns) == ["action", "task"] and store.numbers("action", np.array([3])).shape == (1, 2)
    with pytest.raises(StoreError, match="no column 'actoin'") as caught:
        open_store(new, columns=["actoin"])
    assert caught.value.hint == "did you mean 'action'?"
    shutil.rmtree(tmp_path / "set/data")
    shutil.copytree(new / "videos", root / "videos")
    assert len(images(open_store(root, columns=[making.CAMERA]).images(making.CAMERA), [0, 27])) == 2


def test_wrong_episodes_and_rows_are_named(new: Path) -> None:
    with pytest.raises(StoreError, match="no episode 3") as caught:
        open_store(new, episodes=[0, 3])
    assert caught.value.hint == "there are 0…2"
    with pytest.raises(StoreError, match="episode 1 is asked for twice"):
        open_store(new, episodes=[1, 1])
    with pytest.raises(StoreError, match=r"episodes=\[\] opens nothing"):
        open_store(new, episodes=[])
    with pytest.raises(StoreError, match="'1' is not the number of an episode"):
        open_store(new, episodes=["1"])  # type: ignore[list-item]
    with pytest.raises(StoreError, match="row 28 was requested, there are 28"):
        open_store(new).numbers("action", np.array([0, 28]))
    with pytest.raises(StoreError, match="does not hold numbers but text"):
        open_store(new).numbers("task", np.array([0]))
    with pytest.raises(StoreError, match="is not an image but numbers"):
        open_store(new).images("action")
    for row in (-1, 28):
        with pytest.raises(StoreError, match=f"row {row} was requested, there are 28"):
            list(open_store(new).images(making.CAMERA).read([0, row], Scratch()))


def test_part_of_a_data_set_opens_where_other_files_are_absent(tmp_path: Path, old: Path, rolled: Path) -> None:
    shutil.copytree(old, tmp_path / "old")
    version21.data_path(tmp_path / "old", 0).unlink()
    with pytest.raises(DataSetCorrupt) as caught:
        open_store(tmp_path / "old")
    assert "data/chunk-000/episode_000000.parquet is absent (episode 0)" in caught.value.message
    assert "episodes=[1, 2] (2 of 3)" in str(caught.value.hint)
    store = LeRobotStore(tmp_path / "old", episodes=[2])
    check_numbers(store, V21_LENGTHS, [2], "v2.1")
    frames = v21_frames(old)
    shown = images(store.images(version21.CAMERA), [10, 0])
    assert np.array_equal(shown[0], frames[2, 10]) and np.array_equal(shown[1], frames[2, 0])
    shutil.copytree(rolled, tmp_path / "new")
    (tmp_path / "new/data/chunk-000/file-000.parquet").unlink()
    next((tmp_path / "new/videos").rglob("file-001.mp4")).unlink()
    with pytest.raises(DataSetCorrupt, match=r"data/chunk-000/file-000.parquet is absent") as caught:
        open_store(tmp_path / "new")
    assert "episodes=[2] (1 of 3)" in str(caught.value.hint)
    check_numbers(LeRobotStore(tmp_path / "new", episodes=[2]), LENGTHS, [2], "v3.0")


def test_a_store_crosses_to_other_processes_by_its_words(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(new.parent)
    store = LeRobotStore("set", episodes=[2, 1], columns=["action", making.CAMERA])
    data = pickle.dumps(store)
    assert len(data) < 500
    monkeypatch.chdir("/")
    again = pickle.loads(data)
    assert list(again.columns) == list(store.columns) and again.rows == 16
    assert again.fingerprint(making.CAMERA) != LeRobotStore(new).fingerprint(making.CAMERA)


def test_the_fingerprint_follows_files_and_episodes(tmp_path: Path, rolled: Path) -> None:
    shutil.copytree(rolled, tmp_path / "set")
    names = ("action", making.CAMERA, "task")
    first = {name: LeRobotStore(tmp_path / "set").fingerprint(name) for name in names}
    assert first == {name: LeRobotStore(tmp_path / "set").fingerprint(name) for name in names}
    assert len(set(first.values())) == 3
    for episodes in ([0, 1], [1, 0, 2]):
        part = LeRobotStore(tmp_path / "set", episodes=episodes)
        assert all(part.fingerprint(name) != first[name] for name in names)
    video = next((tmp_path / "set/videos").rglob("file-002.mp4"))
    state = video.stat()
    held = bytearray(video.read_bytes())
    held[len(held) // 2] ^= 1
    video.write_bytes(held)
    os.utime(video, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert LeRobotStore(tmp_path / "set").fingerprint(making.CAMERA) != first[making.CAMERA], "of equal size and time"
    os.utime(video, ns=(1, 1))
    part = LeRobotStore(tmp_path / "set")
    assert part.fingerprint(making.CAMERA) != first[making.CAMERA] and part.fingerprint("action") == first["action"]


def test_a_closed_store_says_so(new: Path) -> None:
    store = open_store(new)
    store.numbers("action", np.array([0]))
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.numbers("action", np.array([0]))
    with pytest.raises(StoreError, match="is closed"):
        store.images(making.CAMERA)


def test_language_is_json(tmp_path: Path) -> None:
    from penstock._src.lerobot import language

    features = (Feature("action", "float32", (2,)), Feature(language.PERSISTENT, "language", (1,)))
    entry = language.subtask("reach", 0.0)
    with DataSetWriter(tmp_path / "set", fps=10, features=features, robot_type="t", fsync=False) as writer:
        with writer.episode(rows=3, task="task") as episode:
            text = [[entry], [entry], []]
            episode.write_rows({"action": np.zeros((3, 2), np.float32), language.PERSISTENT: text})
            episode.commit()
        writer.close()
    store = open_store(tmp_path / "set")
    first, _, last = store.texts(language.PERSISTENT, np.arange(3))
    assert json.loads(first)[0]["content"] == "reach" and json.loads(last) == []


def test_two_million_rows_open_without_memory_per_row(tmp_path: Path, new: Path) -> None:
    episodes, length = 2000, 1000
    root = tmp_path / "set"
    shutil.copytree(new / "meta", root / "meta")
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    numbers = np.arange(episodes)
    zeros = np.zeros(episodes, np.int64)
    table = {
        "episode_index": numbers, "length": np.full(episodes, length), "dataset_from_index": numbers * length,
        "dataset_to_index": (numbers + 1) * length, "data/chunk_index": zeros, "data/file_index": zeros,
        f"videos/{making.CAMERA}/chunk_index": zeros, f"videos/{making.CAMERA}/file_index": numbers // 20,
        f"videos/{making.CAMERA}/from_timestamp": numbers % 20 * length / 30,
        f"videos/{making.CAMERA}/to_timestamp": (numbers % 20 + 1) * length / 30,
    }  # fmt: skip
    arrays = {name: pa.array(values) for name, values in table.items()}
    pq.write_table(pa.table({**arrays, "tasks": pa.array([["lift the cup"]] * episodes)}), path)
    (root / "data/chunk-000").mkdir(parents=True)
    index = np.arange(episodes * length)
    rows = {"index": index, "task_index": np.zeros(len(index), np.int64), "frame_index": index % length}
    pq.write_table(pa.table(rows), root / "data/chunk-000/file-000.parquet", row_group_size=100_000)
    videos = root / "videos" / making.CAMERA / "chunk-000"
    videos.mkdir(parents=True)
    for number in range(episodes // 20):
        (videos / f"file-{number:03d}.mp4").write_bytes(bytes(1000))
    version21.edit_info(root, total_episodes=episodes, total_frames=len(index))
    open_store(new).close()  # what is imported on the way is not counted
    tracemalloc.start()
    try:
        store = open_store(root, columns=["index", "task", making.CAMERA])
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.rows == 2_000_000 and held < 2 * store.rows and peak < 8 * store.rows
    wanted = np.array([1_999_999, 0, 1_234_567])
    assert store.numbers("index", wanted).tolist() == wanted.tolist()
