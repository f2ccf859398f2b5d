"""Stores of very many episodes: found without an object for each, and without the footers of all row groups."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.metadata import tasks_of_episodes
from penstock.errors import DataSetCorrupt


def small_episodes(root: Path, episodes: int, rows: int = 3) -> Path:
    features = (Feature("action", "float32", (2,)),)
    with DataSetWriter(root, fps=30, features=features, fsync=False) as writer:
        for number in range(episodes):
            with writer.episode(rows=rows, task=f"task {number % 3}") as episode:
                episode.write_rows({"action": np.full((rows, 2), number, np.float32)})
                episode.commit(grouped=True)
    return root


def test_opening_reads_no_footer_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_episodes(tmp_path / "set", 40)
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for cut in (table.slice(0, 119), table.slice(1, 119)):
        pq.write_table(cut, path, row_group_size=3)
        with penstock.open(root) as store, pytest.raises(DataSetCorrupt, match="119 rows, the metadata says 120"):
            store.numbers("action", np.arange(3))


def test_the_tasks_of_episodes_are_kept_once() -> None:
    count = 20_000
    lists = [["reach", "grasp the red cup with the left hand"], None, [], ["reach"]] * (count // 4)
    column = pa.chunked_array([pa.array(lists[:7], pa.list_(pa.string())), pa.array(lists[7:], pa.list_(pa.string()))])
    tracemalloc.start()
    tasks = tasks_of_episodes(column)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{held / count:,.0f} bytes per episode")
    assert held / count < 40
    assert len(tasks) == count and tasks[0] == ("reach", "grasp the red cup with the left hand")
    assert list(tasks[1:4]) == [(), (), ("reach",)] and tasks[-1] == ("reach",)
    assert tasks == [tuple(each or ()) for each in lists]


def test_row_groups_of_a_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer holds 2 KB for each column of each: without a bound, memory follows the number of episodes."""
    monkeypatch.setattr("penstock._src.lerobot.tables.MOST_COLUMN_CHUNKS", 60)
    root = small_episodes(tmp_path / "set", 25)
    groups = [pq.ParquetFile(path).num_row_groups for path in sorted((root / "data").rglob("*.parquet"))]
    assert sum(groups) == 25 and max(groups) == 10  # of six columns
    with penstock.open(root) as store:
        assert store.numbers("action", np.arange(store.rows))[:, 0].tolist() == np.repeat(np.arange(25.0), 3).tolist()
    writer = DataSetWriter.resume(root, fsync=False)
    assert writer.episodes == 25
    writer.close()
