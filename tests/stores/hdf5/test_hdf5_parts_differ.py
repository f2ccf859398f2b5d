"""Files and demonstrations that are not all alike: used where that is meant, else refused or told, never in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.stores.hdf5.store import open_hdf5
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from penstock.errors import StoreError
from tests.stores import hdf5_files as files


@pytest.mark.parametrize("storage", [{}, {"chunks": (2,)}, {"chunks": (2,), "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("opaque", [False, True])
def test_padded_jpegs_have_the_width_of_their_own_file(tmp_path: Path, opaque: bool, storage: dict[str, Any]) -> None:
    expected: list[np.ndarray] = []
    for number, width in enumerate((1500, 2000, 2000, 1501, 2000)):
        rows = files.encoded(3, number)
        dtype = f"{'V' if opaque else 'S'}{width}"
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.zeros((5, 2))
            made = file.create_dataset("observations/images/cam", (5,), dtype, **storage)
            made[:3] = np.array([row.tobytes().ljust(width, b"\0") for row in rows]).astype(dtype)
        expected += [*rows, np.empty(0, np.uint8), np.empty(0, np.uint8)]
    with open_hdf5(tmp_path) as store:
        assert store.columns["observations/images/cam"].encoding == "jpeg"
        source = store.images("observations/images/cam")
        for row, image in enumerate(source.read(range(25), Scratch())):
            assert image[: len(expected[row])].tobytes() == expected[row].tobytes(), row
            assert len(expected[row]) or not image.any()


def steps(path: Path, *ends: str) -> Path:
    with h5py.File(path, "w") as file:
        file["actions"] = np.zeros((6, 2))
        for name in ends:
            file[name] = np.arange(6) == 2
    return path


@pytest.mark.parametrize("columns", [None, ["actions"]])
def test_ends_that_only_a_later_file_has_are_refused(tmp_path: Path, columns: list[str] | None) -> None:
    steps(tmp_path / "a.hdf5", "terminals")
    steps(tmp_path / "b.hdf5", "terminals", "timeouts")
    with pytest.raises(StoreError, match=r"b\.hdf5: timeouts says where episodes end, .*a\.hdf5 has none") as found:
        open_hdf5(tmp_path, columns=columns)
    assert "open them one by one" in str(found.value.hint)
    steps(tmp_path / "a.hdf5", "terminals", "timeouts")
    steps(tmp_path / "b.hdf5", "terminals")
    with pytest.raises(StoreError, match=r"b\.hdf5: there is no timeouts, which") as found:
        open_hdf5(tmp_path, columns=columns)
    assert "open them one by one" in str(found.value.hint), "no columns= does without the ends"


def test_an_empty_file_ends_nothing(tmp_path: Path) -> None:
    steps(tmp_path / "a.hdf5", "terminals")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["actions"], file["terminals"], file["timeouts"] = np.zeros((0, 2)), np.zeros(0, bool), np.zeros(0, bool)
    with open_hdf5(tmp_path, check=False) as store:
        assert store.episode_starts.tolist() == [0, 3, 6]


def demos(path: Path, count: int, more: dict[int, list[str]], lacking: tuple[int, ...] = ()) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(count):
            names = ["obs/eef", *([] if number in lacking else ["actions"]), *more.get(number, [])]
            for name in names:
                file[f"data/demo_{number}/{name}"] = np.full((4, 2), number, np.float32)
    return path


def test_columns_that_the_first_demonstration_lacks_are_noted_once(tmp_path: Path) -> None:
    more = {2: ["obs/wrist"], 3: ["obs/wrist", "rewards", "infos/deep/goal"], 7: ["obs/wrist"]}
    with open_hdf5(demos(tmp_path / "demos.hdf5", 9, more)) as store:
        assert set(store.columns) == {"actions", "obs/eef"}
        assert sorted(store.notes) == [
            "infos/deep/goal is left out: data/demo_0 has none, data/demo_3 has",
            "obs/wrist is left out: data/demo_0 has none, data/demo_2 and 2 more have",
            "rewards is left out: data/demo_0 has none, data/demo_3 has",
        ]
    with open_hdf5(tmp_path / "demos.hdf5", columns=["actions"], check=False) as store:
        assert store.notes == ()
    with open_hdf5(tmp_path / "demos.hdf5", episodes=[0, 2], check=False) as store:
        assert [note.split()[0] for note in store.notes] == ["obs/wrist"], "of what is opened"


def test_columns_that_the_first_file_lacks_are_noted_once(tmp_path: Path) -> None:
    demos(tmp_path / "a.hdf5", 2, {})
    demos(tmp_path / "b.hdf5", 2, {1: ["obs/wrist"]})
    demos(tmp_path / "c.hdf5", 2, {0: ["obs/wrist"], 1: ["obs/wrist"]})
    with open_hdf5(tmp_path, check=False) as store:
        message = "obs/wrist is left out: data/demo_0 of a.hdf5 has none, data/demo_1 of b.hdf5 and 2 more have"
        assert store.notes == (message,)
    root = tmp_path / "aloha"
    root.mkdir()
    for number in range(3):
        with h5py.File(root / f"episode_{number}.hdf5", "w") as file:
            file["action"], file["meta/version"] = np.zeros((4, 2)), 1
            if number:
                file["meta/times"] = np.zeros(4)
    with open_hdf5(root, check=False) as store:
        assert "meta/times is left out: episode_0.hdf5 has none, episode_1.hdf5 and 1 more have" in store.notes


def test_demonstrations_without_actions_are_noted(tmp_path: Path) -> None:
    path = demos(tmp_path / "demos.hdf5", 9, {}, (1, 4, 5, 7, 8))
    message = "5 groups without actions left out: data/demo_1, data/demo_4, data/demo_5 and 2 more"
    with open_hdf5(path) as store:
        assert store.episodes == 4 and store.notes == (message,)
    demos(tmp_path / "more.hdf5", 2, {}, (1,))
    with open_hdf5(tmp_path, check=False) as store:
        assert store.notes == (f"demos.hdf5: {message}", "more.hdf5: 1 group without actions left out: data/demo_1")
    with h5py.File(path, "a") as file:
        file["mask/train"] = np.array([b"demo_0", b"demo_4"])
    with pytest.raises(StoreError, match=r"mask/train names data/demo_4, which is not there, or has no actions"):
        open_hdf5(path, mask="train", check=False)


def test_single_values_are_noted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        file["action"], file["observations/task"], file["seed"] = np.zeros((4, 2)), "pour", 3
    with open_hdf5(tmp_path / "one.hdf5") as store:
        why = "is left out: a single value without rows"
        assert store.notes == (f"observations/task {why}", f"seed {why}")
    with pytest.raises(StoreError, match="seed cannot be a column: a single value"):
        open_hdf5(tmp_path / "one.hdf5", columns=["seed"], check=False)


def test_columns_is_a_list(tmp_path: Path) -> None:
    steps(tmp_path / "one.hdf5", "terminals")
    with pytest.raises(StoreError, match="columns='actions' is a text") as found:
        open_store(tmp_path / "one.hdf5", columns="actions")
    assert found.value.hint == "columns=['actions']"
