"""Faults 12, 13 and 14 through the store: what is damaged or hostile is refused with its name, and the rest is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from penstock.errors import DataSetCorrupt, PenstockError
from tests.conversion import version21
from tests.conversion.version21 import CAMERA, Video
from tests.lerobot import making
from tests.stores.lerobot_sets import LENGTHS, V21_LENGTHS, images, jpegs, v21_frames


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    making.make(folder / "new", LENGTHS, video_file_bytes=1, data_file_bytes=1)
    making.make(folder / "shared", LENGTHS)
    version21.make(folder / "old", V21_LENGTHS)
    return {name: folder / name for name in ("new", "shared", "old")}


@pytest.fixture
def old(tmp_path: Path, made: dict[str, Path]) -> Path:
    return Path(shutil.copytree(made["old"], tmp_path / "old"))


@pytest.fixture
def new(tmp_path: Path, made: dict[str, Path]) -> Path:
    return Path(shutil.copytree(made["new"], tmp_path / "new"))


@pytest.fixture
def shared(tmp_path: Path, made: dict[str, Path]) -> Path:
    return Path(shutil.copytree(made["shared"], tmp_path / "shared"))


def refused(root: Path, message: str, **options: object) -> None:
    with pytest.raises(DataSetCorrupt) as caught:
        open_store(root, **options)  # type: ignore[arg-type]
    assert message in caught.value.message


# 14: metadata that disagrees


@pytest.mark.parametrize(
    ("declared", "stored", "value"), [("int32", pa.int64(), 1 << 40), ("uint8", pa.uint16(), 256),
                                      ("float32", pa.float64(), 1e300)],
)  # fmt: skip
def test_numbers_that_the_declared_type_cannot_hold_are_refused(
    old: Path, declared: str, stored: pa.DataType, value: float
) -> None:
    path = version21.data_path(old, 1)
    table = pq.ParquetFile(path).read()
    numbers = [7] * (len(table) - 1)
    for last, is_held in ((9, True), (value, False)):
        column = pa.array([*numbers, last], stored)
        pq.write_table(table.set_column(table.schema.get_field_index("counter"), "counter", column), path)
        information = old / "meta/info.json"
        info = json.loads(information.read_text())
        info["features"]["counter"]["dtype"] = declared
        information.write_text(json.dumps(info))
        store = open_store(old, episodes=[1])
        if is_held:
            assert store.numbers("counter", np.array([0, 8])).tolist() == [7, 9]
            continue
        for read in (
            lambda: store.numbers("counter", np.array([8])), lambda: list(store.number_blocks(["counter"], 1 << 20)),  # noqa: B023
        ):  # fmt: skip
            with pytest.raises(DataSetCorrupt, match=f"which {declared} cannot hold"):
                read()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"total_episodes": 4}, "total_episodes is 4, the episodes table has 3"), ({"total_frames": 33}, "is 33")],
)
def test_totals_that_disagree_are_refused(old: Path, new: Path, change: dict[str, int], message: str) -> None:
    for root in (old, new):
        version21.edit_info(root, **({"total_frames": 34} if root is old and "total_frames" in change else change))
        with pytest.raises(DataSetCorrupt):
            open_store(root, episodes=[1])
    refused(new, message)


def replace(path: Path, name: str, change: dict[int, float], **options: object) -> None:
    table = pq.ParquetFile(path).read()
    values = np.array(table.column(name).to_pylist())
    for place, value in change.items():
        values[place] = value
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(values)), path, **options)


def test_gaps_and_wrong_lengths_of_the_episodes_table_are_refused(shared: Path) -> None:
    path = shared / "meta/episodes/chunk-000/file-000.parquet"
    kept = path.read_bytes()
    replace(path, "dataset_from_index", {1: 13})
    refused(shared, "episode 1: length 7, but rows 13…19 are 6")
    replace(path, "dataset_to_index", {1: 20})
    refused(shared, "episode 1 starts at row 13, the one before ends at 12: an index gap")
    path.write_bytes(kept)
    replace(path, "episode_index", {2: 1})
    refused(shared, "episode 1 stands in the episodes table more than once")


def test_a_gap_in_the_index_of_rows_is_refused(shared: Path, new: Path) -> None:
    replace(shared / "data/chunk-000/file-000.parquet", "index", dict.fromkeys(range(20, 28), 40.0) | {27: 99})
    second = new / "data/chunk-000/file-001.parquet"
    replace(second, "index", {place: place + 13 for place in range(7)})
    for root, row, message in ((shared, 0, "from 0 to 99, the metadata says 0 to 27"), (new, 12, "from 13 to 19")):
        with open_store(root) as store, pytest.raises(DataSetCorrupt, match=f"its index goes {message}.*index gap"):
            store.numbers("action", np.array([row]))


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_rows_that_are_out_of_order_are_refused(shared: Path, block_bytes: int) -> None:
    def read(episodes: list[int] | None = None) -> list[int]:
        store = open_store(shared, episodes=episodes)
        return [len(block["action"]) for _, block in store.number_blocks(["action"], block_bytes)]

    path = shared / "data/chunk-000/file-000.parquet"
    kept = path.read_bytes()
    assert sum(read()) == 28 and sum(read([2, 0])) == 21
    table = pq.ParquetFile(path).read()
    pq.write_table(table.take([*range(5, 9), *range(5), *range(9, 28)]), path)
    with pytest.raises(DataSetCorrupt, match=r"row 4 has frame_index 0, the one before it 8: rows are out of order"):
        read()
    assert sum(read([1, 2])) == 16  # the others are in order
    path.write_bytes(kept)
    replace(path, "episode_index", {14: 0})
    with pytest.raises(DataSetCorrupt, match=r"row 14 is of episode 0, the episodes table has 1 there"):
        read()
    with pytest.raises(DataSetCorrupt, match="`penstock doctor`"):
        list(Loader(open_store(shared), Window(columns=["action"]), batch_size=4, threads=1, memory="256MiB"))


def test_rows_that_are_fewer_than_promised_are_named(old: Path, shared: Path) -> None:
    path = version21.data_path(old, 1)
    pq.write_table(pq.ParquetFile(path).read().slice(0, 8), path)
    store = open_store(old)
    assert store.numbers("counter", np.array([3, 25])).shape == (2,)  # the other files are whole
    for read in (
        lambda: store.numbers("counter", np.array([12])), lambda: list(store.number_blocks(["counter"], 1 << 20)),
        lambda: store.texts("task", np.array([0])),
    ):  # fmt: skip
        with pytest.raises(DataSetCorrupt, match=r"episode_000001.parquet: 8 rows, the metadata says 9"):
            read()
    data = shared / "data/chunk-000/file-000.parquet"
    pq.write_table(pq.ParquetFile(data).read().slice(0, 20), data)
    with pytest.raises(DataSetCorrupt, match="20 rows, the metadata says 28"):
        open_store(shared).numbers("action", np.array([0]))


@pytest.mark.parametrize(
    "template",
    ["../{name}", "/etc/{name}", "data/../../{name}", "data/{{episode_index.__class__}}/{name}",
     "data/{{nobody}}/{name}"],
)  # fmt: skip
def test_paths_that_leave_the_data_set_are_refused(old: Path, new: Path, template: str) -> None:
    for root in (old, new):
        number = "{episode_index}" if root is old else "{file_index}"
        path = template.replace("{name}", f"{number}.parquet").replace("{{", "{").replace("}}", "}")
        for key in ("data_path", "video_path"):
            kept = (root / "meta/info.json").read_text()
            version21.edit_info(root, **{key: path})
            with pytest.raises(DataSetCorrupt, match=r"would leave the data set|unknown field"):
                open_store(root)
            (root / "meta/info.json").write_text(kept)


def test_links_out_of_the_data_set_are_refused_at_first_use(tmp_path: Path, old: Path, new: Path) -> None:
    for root, data, video in (
        (old, version21.data_path(old, 1), version21.video_path(old, 1)),
        (new, new / "data/chunk-000/file-001.parquet", next((new / "videos").rglob("file-001.mp4"))),
    ):
        for number, path in enumerate((video, data)):
            outside = tmp_path / f"{root.name}-{number}"
            shutil.move(path, outside)
            path.symlink_to(outside)
            camera = CAMERA if root is old else making.CAMERA
            with pytest.raises(DataSetCorrupt, match="a symbolic link leads out of the data set"):
                store = open_store(root, episodes=[0, 1])
                if path is video:
                    next(store.images(camera).read([12], Scratch()))
                store.numbers("action", np.array([12]))
            path.unlink()
            shutil.move(outside, path)
        assert open_store(root).numbers("action", np.array([12])).shape[0] == 1


# 13: parquet without a footer


def test_a_cut_parquet_file_is_named(old: Path, new: Path) -> None:
    for path in (version21.data_path(old, 1), new / "data/chunk-000/file-001.parquet"):
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataSetCorrupt, match=r"file-001.parquet: not a whole parquet file"):
        open_store(new).numbers("action", np.array([12]))
    assert open_store(new, episodes=[0, 2]).rows == 21
    store = open_store(old)
    with pytest.raises(DataSetCorrupt, match=r"episode_000001.parquet: not a whole parquet file") as caught:
        store.numbers("action", np.array([0, 12]))
    assert "fetch the file again" in str(caught.value.hint)


# 12: videos


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-400])


def one_frame_less(path: Path) -> None:
    path.unlink()
    version21.encode(path, [version21.image(1, row) for row in range(8)], Video())


def another_size(path: Path) -> None:
    path.unlink()
    version21.encode(path, [version21.image(1, row)[:32, :32] for row in range(9)], Video())


def nonsense(path: Path) -> None:
    path.write_bytes(b"#EXTM3U\n/etc/passwd\n" * 20)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, "claims"), (one_frame_less, "8 frames for 9 rows"), (another_size, "32×32 px, info.json says 64×48"),
     (nonsense, "")],
)  # fmt: skip
def test_a_damaged_video_is_named_and_the_others_are_read(
    old: Path, damage: Callable[[Path], None], message: str
) -> None:
    frames = v21_frames(old)
    damage(version21.video_path(old, 1))
    source = open_store(old).images(CAMERA)
    rows = np.arange(32)
    assert (np.diff(source.keys(rows)) > 0).all() and len(source.runs(rows)) == 32  # sorting needs no whole file
    for _ in range(2):
        with pytest.raises(DataSetCorrupt) as caught:
            next(source.read([14], Scratch()))
        assert f"episode 1, camera {CAMERA!r}" in caught.value.message and message in caught.value.message
        assert "episodes=[…] without 1" in str(caught.value.hint)
    assert np.array_equal(images(source, [3])[0], frames[0, 3])
    assert np.array_equal(images(source, [31])[0], frames[2, 10])


def test_a_frame_that_does_not_decode_is_named_and_the_others_are_read(old: Path) -> None:
    from penstock._src.media.mp4.index import read_index

    frames = v21_frames(old)
    path = version21.video_path(old, 1)
    index = read_index(path)
    data = bytearray(path.read_bytes())
    at, size = int(index.offsets[4]), int(index.sizes[4])
    data[at : at + size] = bytes(size)
    path.write_bytes(data)
    source = open_store(old).images(CAMERA)
    with pytest.raises(DataSetCorrupt, match=r"episode 1, camera .*, frame 4 of the episode"):
        list(source.read([12 + 4], Scratch()))
    assert np.array_equal(images(source, [12 + 6])[0], frames[1, 6])


def test_only_the_episode_whose_frames_are_missing_fails(shared: Path) -> None:
    written = jpegs()
    path = shared / "meta/episodes/chunk-000/file-000.parquet"
    replace(path, "videos/" + making.CAMERA + "/to_timestamp", {1: 25 / 30})
    replace(path, "videos/" + making.CAMERA + "/from_timestamp", {1: 13 / 30})
    source = open_store(shared).images(making.CAMERA)
    message = r"episode 1, camera .* are 12.00 frames at 30 fps, and the file has 6 until the next episode, for 7 rows"
    with pytest.raises(DataSetCorrupt, match=message):
        next(source.read([13], Scratch()))
    assert [each.tobytes() for each in source.read([3, 27], Scratch())] == [written[0, 3], written[2, 8]]


def test_a_video_cut_while_it_is_open_is_an_error(new: Path) -> None:
    source = open_store(new).images(making.CAMERA)
    reading = source.read([0, 11], Scratch())
    next(reading)
    video = next((new / "videos").rglob("file-000.mp4"))
    with video.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(DataSetCorrupt, match=r"row 11, camera .* go beyond the file"):
        next(reading)


def test_what_is_no_data_set_is_refused(tmp_path: Path, new: Path) -> None:
    with pytest.raises(PenstockError, match="does not exist"):
        open_store(tmp_path / "nothing")
    version21.edit_info(new, codebase_version="v9")
    with pytest.raises(PenstockError, match="codebase_version 'v9'"):
        open_store(new)
