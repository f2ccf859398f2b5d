"""HDF5 stores of every layout: episodes, columns and roles, and every row as h5py gives it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

from penstock._src.stores.hdf5.store import Hdf5Store, open_hdf5
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from penstock.errors import StoreCorrupt, StoreError
from tests.stores import hdf5_files as files

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "hdf5"


def assert_rows(store: Hdf5Store, name: str, expected: Any, rows: np.ndarray) -> None:
    """The rows of a column, in this order, are those of `expected` (pixels, bytes of images, or numbers)."""
    column = store.column(name)
    if not column.is_image:
        found = store.numbers(name, rows)
        assert found.dtype == column.dtype and found.shape == (len(rows), *column.shape)
        assert np.array_equal(found, np.asarray(expected)[rows], equal_nan=True), name
        return
    source = store.images(name)
    order = np.argsort(source.keys(rows), kind="stable")
    ordered = rows[order]
    assert len(source.runs(ordered)) == len(rows)
    count = 0
    for row, image in zip(ordered.tolist(), source.read(ordered.tolist(), Scratch()), strict=True):
        assert np.array_equal(image, expected[row]), (name, row)
        if column.encoding == "raw" and column.kind == "image":
            assert image.shape == column.shape and image.dtype == np.uint8
        count += 1
    assert count == len(rows)


def any_order(rows: int, seed: int = 0) -> np.ndarray:
    """Every row, some twice, shuffled."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([np.arange(rows), rng.integers(0, rows, 5)])).astype(np.int64)


@pytest.mark.parametrize("first", [False, True])
def test_replay_steps_are_cut_after_terminals_and_timeouts(tmp_path: Path, first: bool) -> None:
    written = files.replay(tmp_path / "replay.hdf5", first=first)
    with open_store(tmp_path / "replay.hdf5") as store:
        assert isinstance(store, Hdf5Store)
        assert store.kind == "replay HDF5" and store.rows == 15 and store.episode_starts.tolist() == [0, 4, 11, 15]
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [True, False, False]
        assert store.roles == {
            "action": "actions", "state": "observations/joint", "reward": "rewards", "terminal": "terminals",
            "timeout": "timeouts",
        }  # fmt: skip
        image = store.columns["observations/left_image"]
        assert image.shape == (files.HEIGHT, files.WIDTH, 3) and image.way == "file"
        assert ("transposed view" in image.why) == first
        assert store.columns["rewards"].shape == ()
        assert_rows(store, "observations/left_image", written["left"], any_order(15))
        for name in ("actions", "rewards", "terminals", "timeouts", "observations/joint"):
            assert_rows(store, name, written[name], any_order(15))
        assert "contiguous" in store.describe() and "neither terminal nor timeout" in store.describe()
        assert store.stored_bytes == sum(np.asarray(written[name]).nbytes for name in store.columns)


def test_some_episodes_of_replay_steps_in_the_order_asked(tmp_path: Path) -> None:
    written = files.replay(tmp_path / "replay.hdf5")
    rows = np.concatenate([np.arange(11, 15), np.arange(0, 4)])
    words: dict[str, Any] = {"episodes": [2, 0], "columns": ["actions", "/observations/left_image"]}
    with open_hdf5(tmp_path / "replay.hdf5", **words, check=False) as store:
        assert list(store.columns) == ["actions", "observations/left_image"] and store.roles == {"action": "actions"}
        assert store.episode_starts.tolist() == [0, 4, 8]
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [False, True]
        assert_rows(store, "actions", written["actions"][rows], any_order(8))
        assert_rows(store, "observations/left_image", written["left"][rows], any_order(8))
        blocks = list(store.number_blocks(["actions"], 3 * 64))
        assert [start for start, _ in blocks] == [0, 3, 6]
        assert np.array_equal(np.concatenate([block["actions"] for _, block in blocks]), written["actions"][rows])
    for wrong, text in (([3], "no episode 3, it has 3"), ([-1], "counted from 0"), ([1, 1], "more than once")):
        with pytest.raises(StoreError, match=text):
            open_hdf5(tmp_path / "replay.hdf5", episodes=wrong, check=False)
    with pytest.raises(StoreError, match="has no column 'action'"):
        open_hdf5(tmp_path / "replay.hdf5", columns=["action"], check=False)


def test_robomimic_demonstrations_in_natural_order(tmp_path: Path) -> None:
    written = files.robomimic(tmp_path / "demos.hdf5", (5, 7, 6))
    demos = list(written.values())
    with open_store(tmp_path / "demos.hdf5") as store:
        assert isinstance(store, Hdf5Store)
        assert store.kind == "robomimic HDF5" and store.fps == 20 and store.episode_starts.tolist() == [0, 5, 12, 18]
        assert store.ends_terminal is not None and store.ends_terminal.all()
        assert store.roles["action"] == "actions" and store.roles["terminal"] == "dones"
        for name in demos[0]:
            assert_rows(store, name, np.concatenate([demo[name] for demo in demos]), any_order(18))
        assert store.columns["obs/agentview_image"].way == "unpacked chunks"
        assert any("masks: train" in note for note in store.notes)
    with open_hdf5(tmp_path / "demos.hdf5", mask="train", check=False) as store:
        assert store.episode_starts.tolist() == [0, 5, 11]
        assert_rows(store, "actions", np.concatenate([demos[0]["actions"], demos[2]["actions"]]), any_order(11))
    with open_hdf5(tmp_path / "demos.hdf5", episodes=[2], check=False) as store:
        assert_rows(store, "obs/agentview_image", demos[2]["obs/agentview_image"], any_order(6))
    with pytest.raises(StoreError, match="has no mask/valid"):
        open_hdf5(tmp_path / "demos.hdf5", mask="valid", check=False)
    with pytest.raises(StoreError, match="no episode 3, it has 3"):
        open_hdf5(tmp_path / "demos.hdf5", episodes=[3], check=False)


@pytest.mark.parametrize("raw", [True, False])
def test_a_directory_of_episode_files(tmp_path: Path, raw: bool) -> None:
    lengths = [4, 6, 3]
    written = [
        files.aloha(tmp_path / f"episode_{number}.hdf5", rows, seed=10 * number, raw=raw, fps=50)
        for number, rows in zip((0, 2, 10), lengths, strict=True)
    ]
    (tmp_path / "notes.txt").write_text("not an episode")
    with open_store(tmp_path) as store:
        assert isinstance(store, Hdf5Store)
        assert store.kind == "ALOHA episodes" and store.fps == 50 and store.ends_terminal is None
        assert store.episode_starts.tolist() == [0, 4, 10, 13]
        assert store.columns["observations/images/cam_high"].encoding == ("raw" if raw else "jpeg")
        assert store.columns["observations/images/cam_high"].shape == (files.HEIGHT, files.WIDTH, 3)
        for name, own in (("cam_high", "observations/images/cam_high"), ("cam_low", "observations/images/cam_low")):
            assert_rows(store, own, [row for episode in written for row in episode[name]], any_order(13))
        assert_rows(store, "action", np.concatenate([episode["action"] for episode in written]), any_order(13))
        observed = {"state": "observations/qpos", "velocity": "observations/qvel", "effort": "observations/effort"}
        assert store.roles == {"action": "action", **observed}
        assert store.episode_of(np.array([0, 4, 12])).tolist() == [0, 1, 2]


def test_a_directory_of_replay_files(tmp_path: Path) -> None:
    one = files.replay(tmp_path / "part_1.h5")
    two = files.replay(tmp_path / "part_2.h5", ends=(3, 20), rows=20)
    actions = np.concatenate([one["actions"], two["actions"]])
    with open_hdf5(tmp_path, check=False) as store:
        assert store.episode_starts.tolist() == [0, 4, 11, 15, 18, 35]
        assert_rows(store, "actions", actions, any_order(35))
        assert_rows(store, "observations/left_image", np.concatenate([one["left"], two["left"]]), any_order(35))
    with open_hdf5(tmp_path, episodes=[4, 1], check=False) as store:
        assert_rows(store, "actions", np.concatenate([actions[18:], actions[4:11]]), any_order(24))
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [False, False]


def test_damaged_and_absent_files_do_not_matter_to_the_other_episodes(tmp_path: Path) -> None:
    written = [files.aloha(tmp_path / f"episode_{number}.hdf5", 4, seed=number) for number in range(4)]
    (tmp_path / "episode_1.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with open_hdf5(tmp_path, episodes=[3, 0], check=False) as store:
        assert_rows(store, "action", np.concatenate([written[3]["action"], written[0]["action"]]), any_order(8))
    with pytest.raises(StoreError, match="episode_1"):
        open_hdf5(tmp_path, check=False)
    with pytest.raises(StoreError, match="no episode 4, it has 4"):
        open_hdf5(tmp_path, episodes=[0, 4], check=False)


def test_files_that_do_not_agree_are_named(tmp_path: Path) -> None:
    files.aloha(tmp_path / "episode_0.hdf5", 4, raw=True)
    files.aloha(tmp_path / "episode_1.hdf5", 5, raw=True)
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = np.zeros((5, 15))
    with pytest.raises(StoreError, match=r"_1.hdf5: a row of observations/qpos is <f8 15, in .*_0.hdf5 it is <f8 14"):
        open_hdf5(tmp_path, check=False)
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as file:
        del file["observations/qpos"]
    with pytest.raises(StoreError, match=r"episode_1.hdf5: there is no observations/qpos"):
        open_hdf5(tmp_path, check=False)
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as file:
        file["observations/qpos"] = np.zeros((4, 14))
        file["observations/more"] = np.zeros((5, 2))
    with pytest.raises(StoreError, match=r"observations/qpos has 4 rows, the episode has 5"):
        open_hdf5(tmp_path, check=False)
    with open_hdf5(tmp_path, columns=["action"], check=False) as store:
        assert store.rows == 9
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = np.zeros((5, 14))
    with open_hdf5(tmp_path, check=False) as store:
        assert any("observations/more is left out" in note for note in store.notes)
    files.replay(tmp_path / "episode_2.hdf5")
    with pytest.raises(StoreError, match="laid out as replay"):
        open_hdf5(tmp_path, check=False)


def test_images_of_another_size_are_named(tmp_path: Path) -> None:
    files.aloha(tmp_path / "episode_0.hdf5", 3)
    files.aloha(tmp_path / "episode_1.hdf5", 3)
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as file:
        small = cv2.imencode(".jpg", np.zeros((24, 64, 3), np.uint8))[1].reshape(-1)
        del file["observations/images/cam_low"]
        file["observations/images/cam_low"] = np.stack([small] * 3)
    with pytest.raises(StoreError, match=r"cam_low is jpeg 24×64, in .* it is jpeg 48×64"):
        open_hdf5(tmp_path, check=False)


def test_depth_gray_ragged_and_odd_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gray = rng.integers(0, 256, (6, 10, 12), dtype=np.uint8)
    depth = rng.integers(0, 9000, (6, 10, 12), dtype=np.uint16)
    metres = rng.random((6, 10, 12, 1)).astype(np.float32)
    rows = files.encoded(6, 3, ".png")
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file["observations/images/gray_image"] = gray
        file["observations/depth/front"] = depth.astype(">u2")
        file["observations/depth/metres"] = metres
        own = file.create_dataset("observations/images/own", (6,), dtype=h5py.vlen_dtype(np.uint8), chunks=(4,))
        for i, row in enumerate(rows):
            own[i] = row
        file["action"] = np.arange(12).reshape(6, 2).astype(">i2")
        file["one"] = np.arange(6.0).reshape(6, 1)
        file["words"] = np.array(["a"] * 6, dtype=h5py.string_dtype())
        file["short"] = np.zeros((5, 2))
        file["single"] = 3
    with open_hdf5(tmp_path / "one.h5") as store:
        assert store.columns["observations/images/gray_image"].shape == (10, 12, 1)
        assert store.columns["observations/depth/front"].kind == "depth"
        assert store.columns["observations/depth/metres"].dtype == "float32"
        assert store.columns["observations/images/own"].way == "heap"
        assert store.columns["one"].shape == (1,) and store.columns["action"].dtype == "int16"
        assert_rows(store, "observations/images/gray_image", gray[..., None], any_order(6))
        assert_rows(store, "observations/depth/front", depth, any_order(6))
        assert_rows(store, "observations/depth/metres", metres[..., 0], any_order(6))
        assert_rows(store, "observations/images/own", rows, any_order(6))
        assert_rows(store, "action", np.arange(12).reshape(6, 2), any_order(6))
        assert store.columns["observations/images/own"].stored_bytes > sum(len(row) for row in rows) // 2
        left_out = " ".join(store.notes)
        assert "words is left out: neither JPEG nor PNG" in left_out
        assert "short is left out: 5 rows, the episode has 6" in left_out
        for call in (lambda: store.images("action"), lambda: store.numbers("observations/depth/front", np.zeros(1))):
            with pytest.raises(StoreError, match="is no"):
                call()
        for wrong in (-1, 6):
            with pytest.raises(StoreError, match=f"row {wrong} was requested, there are 6"):
                store.numbers("action", np.array([0, wrong]))
            with pytest.raises(StoreError, match=f"row {wrong} was requested, there are 6"):
                list(store.images("observations/depth/front").read([0, wrong], Scratch()))
        with pytest.raises(StoreError, match="did you mean 'action'"):
            store.numbers("actio", np.zeros(1, np.int64))


def test_channels_that_may_be_first_or_last_are_asked_for(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file["cam"] = pixels
        file["action"] = np.zeros((4, 2))
    with open_hdf5(tmp_path / "one.h5", check=False) as store:
        assert list(store.columns) == ["action"] and 'channels="last" or "first"' in store.notes[0]
    with open_hdf5(tmp_path / "one.h5", channels="last", check=False) as store:
        assert_rows(store, "cam", pixels, any_order(4))
    with open_hdf5(tmp_path / "one.h5", channels="first", check=False) as store:
        assert store.columns["cam"].shape == (8, 3, 3)
        assert_rows(store, "cam", pixels.transpose(0, 2, 3, 1), any_order(4))
        assert pickle.loads(pickle.dumps(store)).columns["cam"].shape == (8, 3, 3)
    with pytest.raises(StoreError, match="channels='middle'"):
        open_hdf5(tmp_path / "one.h5", channels="middle", check=False)  # type: ignore[arg-type]


def _sums(store: Hdf5Store, name: str, rows: np.ndarray) -> list[int]:
    return [int(image.sum(dtype=np.int64)) for image in store.images(name).read(rows.tolist(), Scratch())]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """The same images in every kind of storage."""
    path = tmp_path_factory.mktemp("mixed") / "mixed.hdf5"
    pixels = np.random.default_rng(1).integers(0, 256, (41, 12, 16, 3), dtype=np.uint8)
    storages: dict[str, dict[str, Any]] = {
        "file": {}, "chunks": {"chunks": (3, 12, 16, 3)}, "parts": {"chunks": (4, 5, 16, 3)},
        "gzip": {"chunks": (5, 12, 16, 3), "compression": "gzip", "shuffle": True},
        "guessed": {"chunks": (7, 4, 9, 2), "compression": "gzip"},
        "lzf": {"chunks": (6, 12, 16, 3), "compression": "lzf"},
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, storage in storages.items():
            file.create_dataset(f"observations/{name}_image", data=pixels, **storage)
        file["actions"] = np.arange(41 * 3, dtype=np.float32).reshape(41, 3)
        file["terminals"] = np.arange(41) % 10 == 9
        hole = file.create_dataset("observations/hole_image", pixels.shape, "u1", chunks=(5, 12, 16, 3), fillvalue=9)
        hole[:10] = pixels[:10]
    return path, {"pixels": pixels, "hole": np.concatenate([pixels[:10], np.full((31, 12, 16, 3), 9, np.uint8)])}


def test_four_threads_read_every_kind_of_storage_at_once(mixed: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, written = mixed
    with open_hdf5(path) as store:
        names = [name for name, column in store.columns.items() if column.is_image]
        ways = {name.split("/")[1].split("_")[0]: store.columns[name].way for name in names}
        assert ways == {
            "file": "file", "chunks": "chunks", "parts": "unpacked chunks", "gzip": "unpacked chunks",
            "guessed": "unpacked chunks", "lzf": "library", "hole": "chunks",
        }  # fmt: skip
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for turn, name in enumerate(names * 2):
                    expected = written["hole" if "hole" in name else "pixels"]
                    assert_rows(store, name, expected, any_order(41, 100 * seed + turn))
                    rows = any_order(41, seed)
                    assert np.array_equal(store.numbers("actions", rows)[:, 0], rows * 3)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures and not any(thread.is_alive() for thread in threads)


def test_rows_of_one_packed_chunk_are_one_run(mixed: tuple[Path, dict[str, np.ndarray]]) -> None:
    with open_hdf5(mixed[0], check=False) as store:
        rows = np.array([0, 4, 5, 6, 12], np.int64)
        assert store.images("observations/gzip_image").runs(rows).tolist() == [0, 0, 1, 1, 2]
        assert store.images("observations/lzf_image").runs(rows).tolist() == [0, 0, 0, 1, 2]
        for name in ("file", "chunks"):
            assert store.images(f"observations/{name}_image").runs(rows).tolist() == [0, 1, 2, 3, 4]
            assert store.images(f"observations/{name}_image").scratch_bytes == 12 * 16 * 3


def _child(store: Hdf5Store, pipe: Any) -> None:
    rows = np.arange(41)
    pipe.send({name: _sums(store, name, rows) for name, column in store.columns.items() if column.is_image})


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_read_for_themselves(mixed: tuple[Path, dict[str, np.ndarray]], method: str) -> None:
    context = multiprocessing.get_context(method)
    with open_hdf5(mixed[0], check=False) as store:
        expected = {name: _sums(store, name, np.arange(41)) for name in store.columns if "image" in name}
        mine, theirs = context.Pipe()
        child = context.Process(target=_child, args=(store, theirs))
        child.start()
        assert mine.poll(120), "the child hangs"
        assert mine.recv() == expected
        child.join(60)
        assert child.exitcode == 0
        again = {name: _sums(store, name, np.arange(41)) for name in expected}
        assert again == expected, "the parent reads on"


def test_a_pickle_is_small_and_refuses_other_data(tmp_path: Path) -> None:
    for number in range(3):
        files.aloha(tmp_path / f"episode_{number}.hdf5", 4, seed=number)
    store = open_hdf5(tmp_path, episodes=[0, 2], check=False)
    held = pickle.dumps(store)
    assert len(held) < 3000
    with pickle.loads(held) as other:
        assert other.rows == 8 and other.fingerprint("action") == store.fingerprint("action")
        assert other.fingerprint("action") != other.fingerprint("observations/qpos")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed already"):
        store.numbers("action", np.zeros(1, np.int64))
    files.aloha(tmp_path / "episode_2.hdf5", 4, seed=9)
    with pytest.raises(StoreCorrupt, match="was changed"), pickle.loads(held) as other:
        other.numbers("action", np.arange(8))


def test_fingerprints_follow_files_and_their_part(tmp_path: Path) -> None:
    path = tmp_path / "replay.hdf5"
    files.replay(path)
    with open_hdf5(path, check=False) as whole, open_hdf5(path, episodes=[0, 1], check=False) as part:
        assert whole.fingerprint("actions") != part.fingerprint("actions")
        before = whole.fingerprint("actions")
    with open_hdf5(path, check=False) as again:
        assert again.fingerprint("actions") == before
    os.utime(path, ns=(1, 1))
    with open_hdf5(path, check=False) as touched:
        assert touched.fingerprint("actions") != before


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_files_that_others_recorded() -> None:
    expected = {"offline_rl_flat": (20_000, 10), "offline_rl_empty": (0, 0), "robosuite_lift_panda": (412, 1)}
    for name, (rows, episodes) in expected.items():
        path = SHARED / f"{name}.hdf5"
        with h5py.File(path) as oracle, open_hdf5(path) as store:
            assert (store.rows, store.episodes) == (rows, episodes), store.notes
            group = oracle["data"][next(iter(oracle["data"]))] if "data" in oracle else oracle
            for column in store.columns:
                if rows:
                    assert_rows(store, column, group[column][()], any_order(rows)[:500])
                blocks = [block[column] for _, block in store.number_blocks([column], 10_000)]
                assert not rows or np.array_equal(np.concatenate(blocks), group[column][()])
