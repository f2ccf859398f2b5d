"""Images in the rows of a LeRobot data set: plain and packed parquet, JPEG, PNG and depth."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature, depth_feature
from penstock._src.media.image import depth
from penstock._src.stores.lerobot import rows as lerobot_rows
from penstock._src.stores.lerobot.parquet_pages import NotPlain, value_places
from penstock._src.stores.lerobot.store import LeRobotStore
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from penstock._src.system.files import open_source
from penstock.errors import DataSetCorrupt
from tests.conversion import version21
from tests.lerobot import making
from tests.media import depths
from tests.stores.lerobot_sets import LENGTHS, images, jpegs, rows_of

V21 = (12, 9, 11)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plain") / "set"
    making.make(root, LENGTHS, features=making.IMAGE_FEATURES)
    return root


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PNG in snappy row groups of five, as LeRobot's writers pack them."""
    return version21.make(tmp_path_factory.mktemp("packed") / "set", V21, None, stills=True)


@settings(max_examples=15)
@given(data=st.data())
def test_images_are_the_bytes_that_were_written(plain: Path, packed: Path, data: st.DataObject) -> None:
    episodes = data.draw(st.none() | st.sampled_from([[0], [2, 1], [1, 0, 2]]))
    for root, name, lengths in ((plain, making.IMAGE, LENGTHS), (packed, version21.STILL, V21)):
        places = rows_of(lengths, episodes)
        rows = data.draw(st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=20))
        source = LeRobotStore(root, episodes=episodes).images(name)
        written = jpegs() if root is plain else {place: version21.still(*place) for place in places}
        assert [each.tobytes() for each in source.read(rows, Scratch())] == [written[places[row]] for row in rows]
        assert source.scratch_bytes >= max(len(written[places[row]]) for row in rows)


def test_the_way_is_reported(plain: Path, packed: Path) -> None:
    column = open_store(plain).columns[making.IMAGE]
    assert (column.encoding, column.way) == ("jpeg", "file") and "byte offset" in column.why
    column = open_store(packed).columns[version21.STILL]
    assert (column.encoding, column.way) == ("png", "table") and "packed in row groups of" in column.why


def test_rows_of_a_packed_group_are_one_run(plain: Path, packed: Path) -> None:
    source = open_store(packed).images(version21.STILL)
    assert source.runs(np.array([0, 4, 5, 9, 11, 12, 13])).tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert open_store(plain).images(making.IMAGE).runs(np.arange(4)).tolist() == [0, 1, 2, 3]


def test_blocks_are_small_however_large_the_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = version21.make(tmp_path / "set", (40,), None, stills=True)
    path = version21.data_path(root, 0)
    pq.write_table(pq.ParquetFile(path).read(), path)
    monkeypatch.setattr(lerobot_rows, "BLOCK_BYTES", 3 * len(version21.still(0, 0)))
    store = LeRobotStore(root)
    source = store.images(version21.STILL)
    for rows in ([0, 39, 20, 21, 22, 5], list(range(40))):
        found = [each.tobytes() for each in source.read(rows, Scratch())]
        assert found == [version21.still(0, row) for row in rows]
    assert store._table is not None
    blocks = store._table._blocks[version21.STILL]
    assert len(blocks) <= lerobot_rows.BLOCKS_KEPT and store._table._streams.n_open <= 4
    assert max(len(values) for values in blocks._held.values()) <= 4


def test_four_threads_at_once_get_the_right_images(plain: Path, packed: Path) -> None:
    sources = [(open_store(packed).images(version21.STILL), V21), (open_store(plain).images(making.IMAGE), LENGTHS)]
    written = [{place: version21.still(*place) for place in rows_of(V21, None)}, jpegs()]

    def work(seed: int) -> bool:
        random = np.random.default_rng(seed)
        for (source, lengths), expected in zip(sources, written, strict=True):
            places = rows_of(lengths, None)
            rows = random.integers(0, len(places), 30).tolist()
            if [each.tobytes() for each in source.read(rows, Scratch())] != [expected[places[row]] for row in rows]:
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))


@pytest.mark.parametrize(("unit", "made"), [("mm", depths.millimetres), ("m", depths.metres)])
def test_depth_comes_as_it_was_kept(tmp_path: Path, unit: str, made: Any) -> None:
    features = (Feature("action", "float32", (2,)), depth_feature("observation.images.depth", (48, 64), unit))
    kept = [made(number) for number in range(7)]
    with DataSetWriter(tmp_path / "set", fps=10, features=features, robot_type="t", fsync=False) as writer:
        with writer.episode(rows=7, task="task") as episode:
            episode.add_image_sample("observation.images.depth", kept[0])
            data = [depth.encode(each) for each in kept]
            episode.write_rows({"action": np.zeros((7, 2), np.float32), "observation.images.depth": data})
            episode.commit()
        writer.close()
    store = open_store(tmp_path / "set")
    column = store.columns["observation.images.depth"]
    assert (column.kind, column.shape, column.dtype) == ("depth", (48, 64, 1), kept[0].dtype)
    for row, shown in zip((5, 0, 6), images(store.images(column.name), [5, 0, 6]), strict=True):
        assert shown.dtype == kept[row].dtype and np.array_equal(shown, kept[row], equal_nan=unit == "m")


def test_a_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "set", (5,), None, stills=True)
    path = version21.data_path(root, 0)
    table = pq.ParquetFile(path).read()
    column = table.column(version21.STILL).to_pylist()
    column[3] = {"bytes": None, "path": "elsewhere.png"}
    place = table.column_names.index(version21.STILL)
    table = table.set_column(place, table.schema.field(place), pa.array(column, table.schema.field(place).type))
    for options in ({}, {"compression": "none", "use_dictionary": False}):
        pq.write_table(table, path, **options)
        source = open_store(root).images(version21.STILL)
        assert next(source.read([2], Scratch())).tobytes() == version21.still(0, 2)
        with pytest.raises(DataSetCorrupt, match=r"row 3, 'observation.images.still': the image is not in the file"):
            next(source.read([3], Scratch()))


@settings(max_examples=25)
@given(
    values=st.lists(st.binary(max_size=300), min_size=1, max_size=60),
    group=st.integers(1, 40),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.integers(1, 2000),
    required=st.booleans(),
)
def test_places_in_plain_pages_are_those_of_the_values(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes], group: int, version: str, page: int, required: bool
) -> None:
    path = tmp_path_factory.mktemp("pages") / "file.parquet"
    column = pa.array(values, pa.binary())
    table = pa.table([column], schema=pa.schema([pa.field("x", pa.binary(), nullable=not required)]))
    pq.write_table(
        table, path, row_group_size=group, compression="none", use_dictionary=False, data_page_version=version,
        data_page_size=page, write_batch_size=3,
    )  # fmt: skip
    meta = pq.ParquetFile(path)
    levels = meta.schema.column(0).max_definition_level
    found: list[bytes] = []
    data = path.read_bytes()
    with open_source(path) as source:
        for number in range(meta.num_row_groups):
            chunk = meta.metadata.row_group(number).column(0)
            offsets, sizes = value_places(
                source, chunk.data_page_offset, chunk.total_compressed_size, chunk.num_values, levels
            )
            found += [data[at : at + size] for at, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]
    assert found == values


@settings(max_examples=40)
@given(data=st.data())
def test_damaged_pages_never_lead_outside_of_the_chunk(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("pages") / "file.parquet"
    pq.write_table(
        pa.table({"x": pa.array([b"a" * 20, b"b" * 30, b"c" * 5], pa.binary())}), path, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    raw = bytearray(path.read_bytes())
    start, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(start, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with open_source(path) as source:
        try:
            offsets, sizes = value_places(source, start, end - start, 3, 1)
        except NotPlain:
            return
    assert (offsets >= start).all() and (offsets + sizes <= end).all()


@pytest.mark.parametrize("length", [6, 1000, 2**32 - 1])
def test_a_length_that_leaves_its_page_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file.parquet"
    table = pa.table({"x": pa.array([b"a" * 20, b"c" * 5], pa.binary())})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"a" * 20 + (5).to_bytes(4, "little") + b"ccccc") + 20
    raw[at : at + 4] = length.to_bytes(4, "little")
    path.write_bytes(raw)
    with open_source(path) as source, pytest.raises(NotPlain, match="value 1 leaves its page"):
        value_places(source, chunk.data_page_offset, chunk.total_compressed_size, 2, 1)
