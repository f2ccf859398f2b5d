"""Stores of very many episodes: found without an object for each, and without the footers of all row groups."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.metadata import tasks_of_episodes
from penstock._src.stores.lerobot import parquet_pages
from penstock._src.stores.lerobot import part as lerobot_part
from penstock._src.stores.lerobot.part import Spans, TableFile
from penstock.errors import DataSetCorrupt


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    cuts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.booleans()), min_size=0, max_size=6),
    data=st.data(),
)
def test_runs_of_rows_are_those_of_a_plain_loop(lengths: list[int], cuts: list[Any], data: st.DataObject) -> None:
    """Files that end anywhere, leave a gap or are absent; episodes in any order."""
    end = np.cumsum(lengths)
    episodes = SimpleNamespace(first_row=(end - lengths).astype(np.int64), end_row=end.astype(np.int64))
    firsts, files, at = [], [], 0
    for rows, gap, is_there in cuts:
        if is_there:
            firsts.append(at)
            files.append(TableFile("file", rows, 1, at))
        at += rows + gap
    numbers = np.array(data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(1, len(lengths)))])
    found, missing = lerobot_part._cut(
        SimpleNamespace(episodes=episodes),
        numbers,
        np.array(firsts, np.int64),
        files,  # type: ignore[arg-type]
    )
    runs, expected = _plain(episodes, numbers.tolist(), firsts, files)
    assert missing == expected
    if missing is None:
        assert _runs(found) == runs


def _plain(
    episodes: SimpleNamespace, numbers: list[int], firsts: list[int], files: list[TableFile]
) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
    """[(row of the store, file, row of the file)] where runs begin; or the first (episode, row) that is in no file."""
    runs: list[tuple[int, int, int]] = []
    at, before = 0, (-1, -1)
    for number in numbers:
        for row in range(int(episodes.first_row[number]), int(episodes.end_row[number])):
            here = [n for n, first in enumerate(firsts) if first <= row < first + files[n].rows]
            if not here:
                return [], (number, row)
            place = (here[0], row - firsts[here[0]])
            if place != (before[0], before[1] + 1):
                runs.append((at, *place))
            before, at = place, at + 1
    return runs, None


def _runs(spans: Spans) -> list[tuple[int, int, int]]:
    return list(zip(spans.starts[:-1].tolist(), spans.file.tolist(), spans.first.tolist(), strict=True))


def small_episodes(root: Path, episodes: int, rows: int = 3) -> Path:
    features = (Feature("action", "float32", (2,)),)
    with DataSetWriter(root, fps=30, features=features, fsync=False) as writer:
        for number in range(episodes):
            with writer.episode(rows=rows, task=f"task {number % 3}") as episode:
                episode.write_rows({"action": np.full((rows, 2), number, np.float32)})
                episode.commit(grouped=True)
    return root


def test_a_large_footer_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_episodes(tmp_path / "set", 120)
    path = root / "data/chunk-000/file-000.parquet"
    monkeypatch.setattr(parquet_pages, "_SMALL_BYTES", 1 << 30)
    with penstock.open(root) as small:
        assert parquet_pages.beginning_of_large(path, "index") is None  # small: read whole, and checked so
        wanted = small.numbers("action", np.arange(small.rows))
    monkeypatch.setattr(parquet_pages, "_SMALL_BYTES", 1000)
    monkeypatch.setattr(lerobot_part, "_ends", _not_asked)
    assert parquet_pages.beginning_of_large(path, "index") == (0, 360)
    assert parquet_pages.beginning_of_large(path, "episode_index") == (0, 360)
    assert parquet_pages.beginning_of_large(path, "action") is None
    with penstock.open(root) as store:
        assert store.episodes == 120 and (store.numbers("action", np.arange(store.rows)) == wanted).all()


def _not_asked(*_: object) -> None:
    raise AssertionError("the statistics say it")


def test_a_large_footer_that_disagrees_with_the_table_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = small_episodes(tmp_path / "set", 40)
    path = root / "data/chunk-000/file-000.parquet"
    monkeypatch.setattr(parquet_pages, "_SMALL_BYTES", 1000)
    table = pq.read_table(path)
    for cut in (table.slice(0, 119), table.slice(1, 119)):
        pq.write_table(cut, path, row_group_size=3)
        with pytest.raises(DataSetCorrupt):
            penstock.open(root)


@given(
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=6), first=st.integers(-(2**40), 2**40), strange=st.booleans()
)
def test_the_beginning_of_a_footer_is_what_the_library_reads(
    rows: list[int], first: int, strange: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("footer") / "file.parquet"
    schema = pa.schema([("α", pa.list_(pa.bool_())), ("index", pa.int64()), ("text", pa.string())])
    at = first
    with pq.ParquetWriter(path, schema, write_statistics=["index"] if not strange else False) as writer:
        for count in rows:
            index = list(range(at, at + count))
            writer.write_table(pa.table([[[True, False]] * count, index, ["x" * 40] * count], schema=schema))
            at += count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_pages, "_SMALL_BYTES", 0)
        found = parquet_pages.beginning_of_large(path, "index")
        data = path.read_bytes()
        for length in range(0, len(data), 97):  # cut, or with wrong bytes: never more than an answer or none
            path.write_bytes(data[:length] + bytes(3) + data[length + 3 :])
            parquet_pages.beginning_of_large(path, "index")
    assert found == (None if strange else (first, sum(rows)))


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
