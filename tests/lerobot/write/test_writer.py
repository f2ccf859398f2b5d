from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot import layout
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.read.frames import FrameFinder
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import OutputExists
from tests.lerobot import reading
from tests.lerobot.making import (
    CAMERA,
    FEATURES,
    FPS,
    IMAGE,
    IMAGE_FEATURES,
    digests,
    frame,
    jpegs,
    make,
    numbers,
    tree,
)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(12, 7), tasks=("lift the cup", "打开抽屉"))
    data = open_data_set(tmp_path / "set")
    assert data.tasks == ["lift the cup", "打开抽屉"]
    assert data.episodes.length.tolist() == [12, 7] and data.episodes.tasks == [("lift the cup",), ("打开抽屉",)]
    rows = reading.rows(
        data, ["observation.state", "action", "timestamp", "frame_index", "episode_index", "index", "task_index"], 0, 19
    )
    for key in ("observation.state", "action"):
        assert np.array_equal(rows[key], np.concatenate([numbers(12, 0)[key], numbers(7, 1)[key]]))
    frames = np.concatenate([np.arange(12), np.arange(7)])
    assert np.array_equal(rows["timestamp"], (frames / FPS).astype(np.float32))
    assert np.array_equal(rows["frame_index"], frames) and np.array_equal(rows["index"], np.arange(19))
    assert np.array_equal(rows["episode_index"], [0] * 12 + [1] * 7)
    assert np.array_equal(rows["task_index"], [0] * 12 + [1] * 7)
    assert [frame(data.root, row) for row in range(19)] == [*jpegs(12, 0), *jpegs(7, 1)]


def test_the_files_are_those_of_the_format_and_no_other(tmp_path: Path) -> None:
    make(tmp_path / "set")
    assert {path for path in tree(tmp_path / "set") if (tmp_path / "set" / path).is_file()} == {
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        "penstock/journal.jsonl",
        "penstock/state-000003.bin",
        f"videos/{CAMERA}/chunk-000/file-000.mp4",
    }


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make(tmp_path / name, lengths=(12, 7, 9), data_file_bytes=9000, video_file_bytes=9000, tasks=("a", "b"))
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_info_has_lerobots_keys_in_lerobots_order(tmp_path: Path) -> None:
    make(tmp_path / "set")
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert list(info) == [
        "codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks", "chunks_size",
        "data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path", "robot_type", "splits",
    ]  # fmt: skip
    assert info["splits"] == {"train": "0:3"} and info["total_frames"] == 28
    assert list(info["features"])[-5:] == ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    described = info["features"][CAMERA]["info"]
    assert described["video.codec"] == "mjpeg" and described["video.pix_fmt"] == "yuvj420p"
    assert described["video.fps"] == FPS and described["is_depth_map"] is False and described["has_audio"] is False


def test_files_roll_over_between_episodes(tmp_path: Path) -> None:
    lengths = (5, 6, 7, 8, 9)
    make(tmp_path / "set", lengths=lengths, data_file_bytes=1, video_file_bytes=1, chunks_size=2)
    data = open_data_set(tmp_path / "set")
    assert [file.path.relative_to(data.root).as_posix() for file in data.data_files] == [
        f"data/chunk-{n // 2:03d}/file-{n % 2:03d}.parquet" for n in range(5)
    ]
    assert [file.rows for file in data.data_files] == list(lengths)
    assert list(zip(data.episodes.data_chunk, data.episodes.data_file, strict=True)) == [
        (n // 2, n % 2) for n in range(5)
    ]
    for episode, length in enumerate(lengths):
        found = FrameFinder(data).find(episode, CAMERA)
        assert found.path.name == f"file-{episode % 2:03d}.mp4" and found.first == 0
        assert found.index.count == length
    assert np.array_equal(reading.rows(data, ["index"], 0, 35)["index"], np.arange(35))


def test_small_episodes_share_files_up_to_the_limit(tmp_path: Path) -> None:
    make(tmp_path / "probe", lengths=(4,))
    part_bytes = (tmp_path / "probe/data/chunk-000/file-000.parquet").stat().st_size
    make(tmp_path / "set", lengths=(4,) * 7, data_file_bytes=int(3.5 * part_bytes), video_file_bytes=4000)
    data = open_data_set(tmp_path / "set")
    assert [file.rows for file in data.data_files] == [12, 12, 4]
    place = data.episodes.videos[CAMERA]
    assert len(set(place.file.tolist())) > 1
    for number in range(1, 7):
        same_file = place.file[number] == place.file[number - 1]
        assert place.from_s[number] == (place.to_s[number - 1] if same_file else 0.0)
    assert [frame(data.root, row) for row in range(0, 28, 4)] == [jpegs(1, seed)[0] for seed in range(7)]


def test_start_times_of_episodes_are_exact_and_do_not_drift(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(7,) * 30)
    place = open_data_set(tmp_path / "set").episodes.videos[CAMERA]
    assert place.from_s.tolist() == [7 * number / FPS for number in range(30)]


def test_a_long_episode_gets_a_video_of_its_own(tmp_path: Path) -> None:
    rows = int(FPS * layout.LONGEST_SHARED_VIDEO_S)
    with DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[:1], fsync=False) as writer:
        for count in (3, rows, 2):
            with writer.episode(rows=count, task="wait") as episode:
                episode.video(CAMERA).append(jpegs(1))
                episode.video(CAMERA).repeat(count - 1)
                episode.write_rows({}, rows=count)
                episode.commit()
    place = open_data_set(tmp_path / "set").episodes.videos[CAMERA]
    assert place.file.tolist() == [0, 1, 2] and place.from_s.tolist() == [0.0, 0.0, 0.0]


def test_many_episodes_fill_several_batches_of_the_episodes_table(tmp_path: Path) -> None:
    features = (Feature("state", "float32", (1,)),)
    with DataSetWriter(tmp_path / "set", fps=10, features=features, data_file_bytes=1 << 14, fsync=False) as writer:
        for number in range(300):
            with writer.episode(task=f"task {number % 3}") as episode:
                episode.write_rows({"state": np.full(2, number, dtype=np.float32)})
                episode.commit()
    data = open_data_set(tmp_path / "set")
    assert len(data.episodes) == 300 and data.info.total_frames == 600 and len(data.tasks) == 3
    assert np.array_equal(reading.rows(data, ["state"], 0, 600)["state"], np.repeat(np.arange(300), 2))
    assert len(list((tmp_path / "set/meta/episodes").rglob("*.parquet"))) > 1
    table = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-001.parquet").to_pylist()
    assert {row["meta/episodes/file_index"] for row in table} == {1}


def test_an_episode_of_one_row_is_fine(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(1, 1))
    assert open_data_set(tmp_path / "set").info.total_frames == 2


def test_a_directory_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(OutputExists, match="not empty"):
        DataSetWriter(tmp_path, fps=FPS, features=FEATURES)
    assert tree(tmp_path) == {"letter.txt"}


def test_images_lie_in_the_table_as_they_came(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(6, 4), features=IMAGE_FEATURES)
    data = open_data_set(tmp_path / "set")
    assert reading.rows(data, [IMAGE], 3, 8)[IMAGE] == [*jpegs(6, 0)[3:], *jpegs(4, 1)[:2]]
    schema = pq.read_schema(data.data_files[0].path)
    assert str(schema.field(IMAGE).type) == "struct<bytes: binary, path: string>"
    described = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert described[IMAGE] == {"_type": "Image"}
    assert not (tmp_path / "set/videos").exists() and data.info.video_path is None


def test_pages_of_images_stay_small(tmp_path: Path) -> None:
    big = [bytes([number]) * 400_000 for number in range(40)]
    features = (Feature("image", "image", (8, 8, 3)),)
    with (
        DataSetWriter(tmp_path / "set", fps=FPS, features=features, fsync=False) as writer,
        writer.episode(task="x") as episode,
    ):
        episode.write_rows({"image": big})
        episode.commit()
    file = pq.ParquetFile(tmp_path / "set/data/chunk-000/file-000.parquet", buffer_size=1 << 16, pre_buffer=False)
    before = pa.total_allocated_bytes()
    held, read = 0, []
    for batch in file.iter_batches(2, use_threads=False):
        held = max(held, pa.total_allocated_bytes() - before)
        read += [row["bytes"] for row in batch.column("image").to_pylist()]
    assert read == big
    assert held < sum(map(len, big)) / 1.5  # one page of all images would be held whole, and once more as a batch


def test_every_dtype_and_rank_survives(tmp_path: Path) -> None:
    features = (
        Feature("flag", "bool", (1,)),
        Feature("flags", "bool", (3,)),
        Feature("count", "int64", (1,)),
        Feature("small", "uint8", (2,)),
        Feature("exact", "float64", (2,)),
        Feature("matrix", "float32", (2, 3)),
        Feature("cube", "int32", (2, 1, 2)),
        Feature("note", "string", (1,)),
    )
    random = np.random.default_rng(0)
    rows: dict[str, object] = {
        "flag": random.integers(0, 2, 9).astype(bool),
        "flags": random.integers(0, 2, (9, 3)).astype(bool),
        "count": random.integers(-(2**60), 2**60, (9, 1)),
        "small": random.integers(0, 255, (9, 2), dtype=np.uint8),
        "exact": random.normal(size=(9, 2)),
        "matrix": random.normal(size=(9, 2, 3)).astype(np.float32),
        "cube": random.integers(0, 9, (9, 2, 1, 2), dtype=np.int32),
        "note": [f"größe {number}" for number in range(9)],
    }
    with (
        DataSetWriter(tmp_path / "set", fps=FPS, features=features, fsync=False) as writer,
        writer.episode(task="x") as episode,
    ):
        episode.write_rows({key: value[:4] for key, value in rows.items()})  # type: ignore[index]
        episode.write_rows({key: value[4:] for key, value in rows.items()})  # type: ignore[index]
        episode.commit()
    data = open_data_set(tmp_path / "set")
    read = reading.rows(data, list(rows), 2, 9)
    for key, value in rows.items():
        expected = np.asarray(value)[2:].reshape(np.asarray(read[key]).shape)
        assert np.array_equal(np.asarray(read[key]), expected), key
    assert data.stats is not None and np.array(data.stats["matrix"]["q50"]).shape == (2, 3) and "note" not in data.stats


def test_statistics_of_the_data_set_are_those_of_all_rows(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(50, 7))
    rows = np.concatenate([numbers(50, 0)["action"], numbers(7, 1)["action"]]).astype(np.float64)
    data = open_data_set(tmp_path / "set")
    assert data.stats is not None
    found = data.stats["action"]
    np.testing.assert_allclose(found["q10"], np.quantile(rows, 0.1, axis=0), rtol=1e-6)
    np.testing.assert_allclose(found["std"], rows.std(axis=0), rtol=1e-9)
    assert found["count"] == [57] and data.stats[CAMERA]["count"] == [2]
    table = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    np.testing.assert_allclose(table[1]["stats/action/max"], numbers(7, 1)["action"].max(axis=0))
    assert np.array(table[0][f"stats/{CAMERA}/mean"]).shape == (3, 1, 1)


def test_bad_values_are_counted_and_stay_in_the_rows(tmp_path: Path) -> None:
    rows = numbers(5)
    rows["observation.state"][2, 1] = np.nan
    with DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[1:], fsync=False) as writer:
        episode = writer.episode(task="x")
        episode.write_rows({**rows, "action": np.full((5, 2), 1e300)})
        episode.commit()
        assert writer.bad_values() == {
            "observation.state": {"b": {"nan": 1}},
            "action": {"x": {"inf": 5}, "y": {"inf": 5}},
        }
    data = open_data_set(tmp_path / "set")
    assert np.isnan(reading.rows(data, ["observation.state"], 2, 3)["observation.state"][0, 1])
    assert "NaN" not in (tmp_path / "set/meta/stats.json").read_text()


LONG_WRITE = """
import os, sys
import numpy as np
from penstock._src.lerobot.features import Feature
from penstock._src.conversion.commit.writer import DataSetWriter

def rss_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

rows = np.random.default_rng(0).normal(size=(20_000, 4)).astype(np.float32)
with DataSetWriter(sys.argv[1], fps=30, features=[Feature("state", "float32", (4,))], fsync=False) as writer:
    with writer.episode(task="x") as episode:
        for flush in range(100):
            episode.write_rows({"state": rows})
            if flush == 4:
                early = rss_bytes()
        late = rss_bytes()
        episode.commit()
print(early, late, rss_bytes(), "pandas" in sys.modules)
"""


def test_two_million_rows_take_no_more_memory_than_a_hundred_thousand(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LONG_WRITE, str(tmp_path / "set")], capture_output=True, text=True, check=True
    )
    early, late, end = (int(value) for value in ran.stdout.split()[:3])
    assert late - early < 16e6 and end - early < 24e6, (early, late, end)
    assert open_data_set(tmp_path / "set").info.total_frames == 2_000_000


def test_writing_does_not_import_pandas(tmp_path: Path) -> None:
    code = LONG_WRITE.replace("range(100)", "range(5)")
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "set")], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split()[-1] == "False"
