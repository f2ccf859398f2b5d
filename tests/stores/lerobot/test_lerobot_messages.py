"""What a LeRobot store tells of data that others wrote: columns nobody declared, and what packed images are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock._src.stores.lerobot.store import LeRobotStore
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from penstock.errors import DataSetCorrupt
from tests.conversion import version21
from tests.lerobot import making
from tests.stores.lerobot_sets import LENGTHS, jpegs

V21 = (12, 9)


def data_files(root: Path) -> list[Path]:
    return sorted((root / "data").rglob("*.parquet"))


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_columns_that_info_does_not_declare_are_noted(tmp_path: Path, version: str) -> None:
    root = tmp_path / "set"
    if version == "v3.0":
        making.make(root, LENGTHS)
    else:
        version21.make(root, V21)
    assert open_store(root).notes == ()
    for path in data_files(root):
        table = pq.ParquetFile(path).read()
        pq.write_table(table.append_column("force", pa.array([0.5] * table.num_rows)), path)
    with open_store(root) as store:
        message = "force is left out: it is a column of the data files that meta/info.json does not declare"
        assert store.notes == (message,)
        assert "note: force is left out" in store.describe() and "force" not in store.columns
    with open_store(root, columns=["action"]) as store:
        assert store.notes == ()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """JPEG in snappy row groups of five."""
    root = tmp_path / "set"
    making.make(root, LENGTHS, features=making.IMAGE_FEATURES)
    for path in data_files(root):
        pq.write_table(pq.ParquetFile(path).read(), path, row_group_size=5, compression="snappy")
    return root


def test_packed_jpegs_are_called_so(packed: Path) -> None:
    expected = jpegs()
    for episodes in (None, [1]):
        with LeRobotStore(packed, episodes=episodes) as store:
            column = store.columns[making.IMAGE]
            assert (column.encoding, column.way) == ("jpeg", "table") and "packed in row groups of" in column.why
            assert store._table is not None and not store._table._blocks, "nothing is kept of the look"
            found = next(iter(store.images(making.IMAGE).read([0], Scratch()))).tobytes()
            assert found == expected[0 if episodes is None else 1, 0]


def test_a_damaged_first_image_is_reported_when_it_is_read(packed: Path) -> None:
    (path,) = data_files(packed)
    group = pq.ParquetFile(path).metadata.row_group(0)
    leaf = next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema.endswith(".bytes"))
    with path.open("r+b") as file:
        file.seek(leaf.data_page_offset)
        file.write(bytes([0xFF]) * leaf.total_compressed_size)
    with LeRobotStore(packed) as store:
        assert store.columns[making.IMAGE].way == "table"
        with pytest.raises(DataSetCorrupt):
            next(iter(store.images(making.IMAGE).read([0], Scratch())))
