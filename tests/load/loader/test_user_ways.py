"""What people do with a loader: words that are wrong, values of other types, scripts that just end."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.transition import Transition
from penstock._src.load.sampling.window import Window
from penstock._src.load.settings import Mix
from penstock._src.stores.store import Store
from penstock.errors import PenstockError, UsageError
from tests.load.memory_store import MemoryStore
from tests.stores import hdf5_files as files

SMALL = {"image_size": 16, "memory": "256MiB"}
IMAGE = "observations/left_image"


@pytest.fixture
def store(tmp_path: Path) -> Any:
    files.replay(tmp_path / "replay.hdf5", ends=(10, 22), rows=30)
    with penstock.open(tmp_path / "replay.hdf5") as opened:
        yield opened


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"image_size": {"observations/left_imag": 16}}, f"names 'observations/left_imag'.*\n.*there: {IMAGE}"),
        ({"image_size": True}, r"image_size True is not \(height, width\)"),
        ({"image_size": (3, 16, 16)}, r"image_size \(3, 16, 16\) is not"),
        ({"dtype": "float32", "normalize": {"mean": [0] * 3, "std": [1] * 3}}, r"(.|\n)*normalize=\(mean, std\)"),
        ({"dtype": "float32", "normalize": "imagenet"}, r"normalize='imagenet' is not \(mean, std\)"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, not 2.5"),
        ({"batch_size": "64"}, "batch_size must be a whole number, not '64'"),
        ({"view": None}, "view=None\n.*auto, off, ram, disk"),
        ({"view": True}, "view=True"),
        ({"shard": ("a", 2)}, r"shard=\('a', 2\)\n.*two whole numbers"),
        ({"max_skip_rate": 2}, "max_skip_rate=2\n.*from 0 to 1"),
        ({"max_skip_rate": "1%"}, "max_skip_rate='1%'"),
        ({"gpu_decode": "yes"}, "gpu_decode='yes'"),
        ({"window": {"action": range(3)}}, r"is not a window\n.*Window\("),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(store: Store, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Loader(store, **{**SMALL, **words})


def test_what_is_no_store_is_reported_how_to_become_one(store: Store) -> None:
    with pytest.raises(UsageError, match=r'a path.*\n.*penstock.open\("datasets/run"\)'):
        Loader("datasets/run")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"list is not a store\n.*Mix"):
        Loader([store])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="stores with weights"):
        Mix([store])  # type: ignore[list-item]
    for weight in (float("nan"), -1.0, 0.0, "much"):
        with pytest.raises(UsageError, match="weights must be"):
            Mix({store: weight})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="is not a store"):
        penstock.build_view("datasets/run")  # type: ignore[arg-type]


def test_opening_refuses_words_it_does_not_know(store: Store) -> None:
    with pytest.raises(UsageError, match=r"episodes=1 .*\n.*episodes=\[1\]"):
        penstock.open(store.path, episodes=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no option 'episode'"):
        penstock.open(store.path, episode=[1])


def test_stores_of_a_mix_that_differ_are_reported_by_the_shape_of_a_sample(store: Store, tmp_path: Path) -> None:
    files.robomimic(tmp_path / "demos.hdf5")
    with penstock.open(tmp_path / "demos.hdf5") as other, pytest.raises(UsageError, match="'actions' is 16 float32 in"):
        Loader(Mix({store: 1, other: 1}), Window(columns=["actions"]))


def test_sizes_and_devices_of_other_types_are_taken(store: Store) -> None:
    sizes: list[Any] = [(np.int64(16), np.int64(8)), [16, 8], {IMAGE: (16, 8)}]
    for size in sizes:
        with Loader(store, image_size=size, memory="256MiB", output="numpy") as loader:
            assert next(iter(loader))[IMAGE].shape[1:] == (3, 16, 8)


def test_a_device_that_is_the_cpu_by_another_name(store: Store) -> None:
    torch = pytest.importorskip("torch")
    for device in ("cpu:0", torch.device("cpu")):
        with Loader(store, device=device, gpu_decode=True, **SMALL) as loader:
            assert next(iter(loader))[IMAGE].device.type == "cpu"
            assert any('gpu_decode needs device="cuda"' in note for note in loader.notes)
    with pytest.raises(UsageError, match="device='gpu'"):
        Loader(store, device="gpu", **SMALL)


def test_a_loader_is_neither_copied_nor_pickled(store: Store) -> None:
    with Loader(store, **SMALL) as loader:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(UsageError, match=r"neither copied nor pickled\n.*stores and windows can be pickled"):
                way(loader)
        assert len(list(loader)) == len(loader)


def test_stats_answer_after_the_end(store: Store) -> None:
    with Loader(store, view="ram", output="numpy", **SMALL) as loader:
        for _ in loader:
            pass
        before = loader.stats()
    assert loader.stats() == before and next(iter(before["views"].values()))["rows"] == 30


def test_stats_leave_out_a_view_that_its_maker_closed(store: Store) -> None:
    views = penstock.build_view(store, image_size=16, where="ram")
    with Loader(store, view=views, output="numpy", **SMALL) as loader:
        assert len(loader.stats()["views"]) == 1
        views[IMAGE].close()
        assert loader.stats()["views"] == {}


def test_a_batch_larger_than_the_data_takes_the_memory_of_the_data(store: Store) -> None:
    with Loader(store, batch_size=1_000_000, view="off", output="numpy", **SMALL) as loader:
        assert len(loader) == 1 and len(next(iter(loader))["index"]) == 30
        assert loader.stats()["memory"]["slot_bytes"] < 1 << 20


def test_a_view_on_disk_is_noted(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    for there in (0, 30):
        with Loader(store, view="disk", output="numpy", **SMALL) as loader:
            assert f"view: {IMAGE} on disk, {there} of 30 rows are there" in loader.notes
            for _ in loader:
                pass


def test_epochs_and_states_of_other_types(store: Store) -> None:
    with Loader(store, **SMALL) as loader:
        loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
        assert loader.epoch == 3 and type(loader.epoch) is int
        for epoch in (1.5, "1", -1):
            with pytest.raises(UsageError, match="epoch"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="what state_dict"):
            loader.load_state_dict(None)  # type: ignore[arg-type]


def test_own_next_columns_of_numbers_stand_for_the_state() -> None:
    names = ("actions", "states", "obs/object", "next_obs/object")
    bound = Transition().bind(MemoryStore([4, 3], numbers=names, roles={"state": "states"}))
    assert [output.name for output in bound.outputs][-1] == "next.obs/object"
    assert "next.states" not in [output.name for output in bound.outputs]
    assert bound.count == 7  # every row is a sample


def test_long_windows_are_shown_short_and_empty_stores_say_so() -> None:
    window = Window.from_delta_timestamps({"action": [number / 10 for number in range(100)]})
    assert repr(window) == "Window.from_delta_timestamps({'action': [0, 0.1, … 100 in all …, 9.9]})"
    with pytest.raises(UsageError, match="seconds by column"):
        Window.from_delta_timestamps([0.0, 0.1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there are no rows"):
        Window().bind(MemoryStore([]))


def test_describe_gives_each_reason_once(store: Store) -> None:
    text = store.describe()
    assert text.count("contiguous") == 1 and "numbers, numbers" not in text and "3 episodes" in text
    with penstock.open(store.path, episodes=[0]) as one:
        assert repr(one).endswith("10 rows, 1 episode>") and "in 1 episode," in one.describe()


def test_tasks_given_after_the_end_are_done_by_who_gives_them() -> None:
    pool, done = ThreadPool(2), []
    pool.do(lambda _: done.append("before"))
    pool.close()
    pool.do(lambda _: done.append("after"))
    assert done == ["before", "after"]


_ENDS = """
import sys
import penstock
store = penstock.open(sys.argv[1])
views = penstock.build_view(store, image_size=16, where="ram")
loader = penstock.Loader(store, batch_size=4, image_size=16, memory="256MiB", output="numpy")
batches = iter(loader)
kept = next(batches)
buffer = penstock.MultimodalReplayBuffer(
    16, images=("left_image",), image_size=(16, 16), memory="256MiB", quiet=True, output="numpy"
)
buffer.load_from_hdf5(sys.argv[1])
ahead = penstock.AsyncSampleBuffer(buffer, batch_size=4, queue_size=64)
ahead.get_batch()
print("at the end", flush=True)
"""


def test_a_script_that_closes_nothing_ends_at_once_and_in_silence(store: Store, tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # without a main guard
    script.write_text(_ENDS, encoding="utf-8")
    words = [sys.executable, "-W", "error", str(script), str(store.path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "at the end\n", "")


def test_a_pass_that_was_overtaken_says_so(store: Store) -> None:
    with Loader(store, output="numpy", **SMALL) as loader:
        passes = iter(loader)
        next(passes)
        loader.set_epoch(2)
        with pytest.raises(PenstockError, match="this pass has ended"):
            for _ in passes:
                pass
