"""Which episodes have all of their files, which cameras have none, and what the files themselves say they are."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock._src.cli import main
from penstock._src.lerobot.check.dataset import check
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock._src.stores.opening import open_store
from penstock.errors import DataSetCorrupt, StoreError, UsageError
from tests.conversion import version21
from tests.conversion.version21 import CAMERA, Video
from tests.lerobot import making
from tests.stores.lerobot_sets import LENGTHS, images, jpegs

SHARED = Path(__file__).resolve().parents[4] / "shared/data/lerobot/g1_v21"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    making.make(folder / "new", LENGTHS, video_file_bytes=1, data_file_bytes=1)
    version21.make(folder / "old")
    return {name: folder / name for name in ("new", "old")}


@pytest.fixture(params=["old", "new"])
def root(request: pytest.FixtureRequest, tmp_path: Path, made: dict[str, Path]) -> Path:
    return Path(shutil.copytree(made[request.param], tmp_path / request.param))


def video(root: Path, episode: int) -> Path:
    return version21.video_path(root, episode) if root.name == "old" else _file(root, episode)


def _file(root: Path, episode: int) -> Path:
    return next((root / "videos").rglob(f"file-{episode:03d}.mp4"))


def camera(root: Path) -> str:
    return CAMERA if root.name == "old" else making.CAMERA


def break_video(path: Path, how: str) -> None:
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "absent":
        path.write_bytes(b"" if how == "empty" else POINTER)


@pytest.mark.parametrize(
    ("how", "message"),
    [("absent", "is absent"), ("folder", "is absent"), ("empty", "is empty"), ("pointer", "is a Git LFS pointer")],
)
def test_opening_names_the_whole_episodes_and_opens_them(root: Path, how: str, message: str) -> None:
    break_video(video(root, 1), how)
    with pytest.raises(DataSetCorrupt) as caught:
        open_store(root)
    assert message in caught.value.message and "(episode 1)" in caught.value.message
    assert 'episodes="whole" opens those that are whole: episodes=[0, 2] (2 of 3)' in str(caught.value.hint)
    store = open_store(root, episodes="whole")
    assert store.episode_numbers is not None and store.episode_numbers.tolist() == [0, 2]
    assert any("1 of 3 episodes is left out: [1]" in note and message in note for note in store.notes)
    for _ in Loader(store, Window(columns=[camera(root), "action"]), batch_size=4, threads=1, memory="256MiB"):
        pass
    again = pickle.loads(pickle.dumps(store))
    assert again.episode_numbers.tolist() == [0, 2] and again.rows == store.rows


def test_a_whole_data_set_is_opened_whole(root: Path) -> None:
    store, every = open_store(root, episodes="whole"), open_store(root)
    assert store.rows == every.rows and store.notes == every.notes == ()
    assert store.fingerprint("action") == every.fingerprint("action")


def test_rows_that_are_absent_count_too_and_nothing_whole_is_an_error(root: Path) -> None:
    for path in sorted((root / "data").rglob("*.parquet"))[:2]:
        path.unlink()
    assert open_store(root, episodes="whole").episode_numbers.tolist() == [2]  # type: ignore[union-attr]
    video(root, 2).unlink()
    with pytest.raises(DataSetCorrupt, match=r"data/.* is absent \(episode 0\)") as caught:
        open_store(root, episodes="whole")
    assert "fetch the data set again" in str(caught.value.hint)
    only = open_store(root, episodes="whole", columns=[camera(root)])
    assert only.episode_numbers is not None and only.episode_numbers.tolist() == [0, 1]


def test_whole_is_a_word_of_data_sets_and_the_only_one(tmp_path: Path, root: Path) -> None:
    with pytest.raises(UsageError, match="episodes='all' is not a list of numbers"):
        open_store(root, episodes="all")
    (tmp_path / "file.hdf5").write_bytes(b"")
    with pytest.raises(StoreError, match="is no LeRobot data set"):
        open_store(tmp_path / "file.hdf5", episodes="whole")


def test_inspect_opens_the_whole_episodes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video(root, 1).unlink()
    assert main(["inspect", str(root)]) == 0
    assert "→ --episodes whole opens those that are whole" in capsys.readouterr().out
    assert main(["inspect", str(root), "--episodes", "whole"]) == 0
    shown = capsys.readouterr().out
    assert "2 episodes" in shown and "1 of 3 episodes is left out: [1]" in shown


def test_a_camera_of_git_lfs_pointers_is_not_taken_for_one_without_files(root: Path) -> None:
    for episode in range(3):
        break_video(video(root, episode), "pointer")
    with pytest.raises(DataSetCorrupt, match="is a Git LFS pointer") as caught:
        open_store(root)
    assert "`git lfs pull`" in str(caught.value.hint) and f"without {camera(root)!r}" in str(caught.value.hint)


def test_a_camera_without_any_file_is_left_out_and_the_rest_is_loaded(root: Path) -> None:
    information = root / "meta/info.json"
    tree = json.loads(information.read_text())
    tree["features"]["observation.images.ghost"] = tree["features"][camera(root)]
    information.write_text(json.dumps(tree))
    store = open_store(root)
    assert "observation.images.ghost" not in store.columns and camera(root) in store.columns
    assert store.notes == ("observation.images.ghost is left out: none of its video files is there",)
    batch = next(iter(Loader(store, batch_size=4, threads=1, memory="256MiB")))
    assert len(batch["action"]) == len(batch[camera(root)]) == 4
    with pytest.raises(DataSetCorrupt, match=r"observation\.images\.ghost"):
        open_store(root, columns=["action", "observation.images.ghost"])
    assert not check(root).is_clean


def test_cameras_of_a_data_set_without_video_path_are_left_out_or_found(root: Path) -> None:
    template = json.loads((root / "meta/info.json").read_text())["video_path"]
    version21.edit_info(root, video_path=None)
    with pytest.raises(DataSetCorrupt) as caught:
        open_store(root)
    assert f'in meta/info.json set "video_path": "{template}"' in str(caught.value.hint)
    shutil.rmtree(root / "videos")
    assert open_store(root).notes == (f"{camera(root)} is left out: none of its video files is there",)


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64()])
def test_an_episode_of_which_the_table_names_no_video_is_not_whole(
    tmp_path: Path, made: dict[str, Path], kind: pa.DataType
) -> None:
    root = Path(shutil.copytree(made["new"], tmp_path / "new"))
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.ParquetFile(path).read()
    for name in ("chunk_index", "file_index"):
        key = f"videos/{making.CAMERA}/{name}"
        values = [0, None, 0 if name == "chunk_index" else 2]
        table = table.set_column(table.column_names.index(key), key, pa.array(values, kind))
    pq.write_table(table, path)
    with pytest.raises(DataSetCorrupt, match=r"the metadata names no video of .* \(episode 1\)"):
        open_store(root)
    store = open_store(root, episodes="whole")
    assert np.array_equal(images(store.images(making.CAMERA), [0])[0].shape, (32, 48, 3))
    assert next(store.images(making.CAMERA).read([12], _scratch())).tobytes() == jpegs()[2, 0]


def _scratch() -> object:
    from penstock._src.stores.store import Scratch

    return Scratch()


def test_the_codec_is_that_of_the_file(
    tmp_path: Path, made: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = version21.make(tmp_path / "old", video=Video("mjpeg"))
    tree = json.loads((root / "meta/info.json").read_text())
    tree["features"][CAMERA]["info"]["video.codec"] = "av1"
    (root / "meta/info.json").write_text(json.dumps(tree))
    store = open_store(root)
    assert (store.columns[CAMERA].encoding, store.columns[CAMERA].way) == ("mjpeg", "packets")
    assert store.notes == (f"{CAMERA} is mjpeg, as its files say; meta/info.json says av1",)
    version21.video_path(root, 0).unlink()
    assert main(["inspect", "--json", str(root)]) == 0
    assert json.loads(capsys.readouterr().out)["features"][CAMERA]["codec"] == "mjpeg"


def shorten(root: Path, frames: float, episodes: tuple[int, ...] = (0, 1, 2)) -> None:
    """Let to_timestamp of episodes be so many frames short."""
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.ParquetFile(path).read()
    key = f"videos/{making.CAMERA}/to_timestamp"
    values = table.column(key).to_pylist()
    for episode in episodes:
        values[episode] -= frames / making.FPS
    pq.write_table(table.set_column(table.column_names.index(key), key, pa.array(values)), path)


@pytest.mark.parametrize("limits", [{}, {"video_file_bytes": 1}])
def test_a_video_end_one_frame_short_is_noted_and_the_frames_are_read(tmp_path: Path, limits: dict[str, int]) -> None:
    making.make(tmp_path / "set", LENGTHS, **limits)
    shorten(tmp_path / "set", 1)
    store = open_store(tmp_path / "set")
    found = [each.tobytes() for each in store.images(making.CAMERA).read(list(range(28)), _scratch())]  # type: ignore[arg-type]
    assert found == list(jpegs().values())
    assert store.notes == (
        f"{making.CAMERA}: to_timestamp of 3 episodes is not where their frames end (episode 0: 11 frames for 12 "
        "rows); the frames in the file count",
    )


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_a_public_data_set_that_was_fetched_in_part() -> None:
    store = open_store(SHARED, episodes="whole")
    assert store.episode_numbers is not None and store.episode_numbers.tolist() == [1, 2, 4, 5]
    assert store.columns["observation.images.cam_high"].encoding == "av1"
    assert any("96 of 100 episodes are left out" in note for note in store.notes)
