from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from penstock._src.conversion.commit import snapshot
from penstock._src.conversion.commit.snapshot import SavedState
from penstock._src.lerobot.stats import NumericStats
from penstock.errors import DataSetCorrupt

TREE = {
    "text": "größe",
    "none": None,
    "bytes": b"\0\1\2",
    "list": [np.arange(5), {"x": np.ones((2, 3), np.float32)}, 1.5],
    "empty": np.empty((3, 0)),
    "small": np.array([1, 0], np.uint8),
}


def test_a_tree_comes_back_exactly(tmp_path: Path) -> None:
    saved = snapshot.write(tmp_path / "state-000001.bin", TREE, fsync=True)
    assert SavedState.from_json(saved.to_json()) == saved
    found = snapshot.read(tmp_path, saved)
    assert found["text"] == "größe" and found["none"] is None and found["bytes"] == b"\0\1\2"
    assert np.array_equal(found["list"][0], np.arange(5)) and found["list"][1]["x"].dtype == np.float32
    assert found["list"][2] == 1.5 and found["empty"].shape == (3, 0) and found["small"].tolist() == [1, 0]


def test_no_cut_and_no_foreign_file_is_taken_for_a_state(tmp_path: Path) -> None:
    path = tmp_path / "state-000001.bin"
    snapshot.write(path, TREE, fsync=False)
    content = path.read_bytes()
    for size in range(0, len(content), 11):
        path.write_bytes(content[:size])
        with pytest.raises(DataSetCorrupt):
            snapshot.read(tmp_path, SavedState(path.name, zlib.crc32(content), len(content)))


@pytest.mark.parametrize("name", ["../state-000001.bin", "a/b.bin", "state"])
def test_names_stay_in_their_directory(name: str) -> None:
    with pytest.raises(ValueError, match="not the name"):
        SavedState.from_json({"name": name, "crc": "00", "bytes": 1})


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_statistics_go_on_as_if_nothing_had_happened(tmp_path: Path, dtype: str) -> None:
    random = np.random.default_rng(1)
    rows = (random.normal(size=(6000, 2)) * 9).astype(dtype)
    if dtype.startswith("float"):
        rows[100:4000:7, 1] = np.nan
    straight, broken = NumericStats((2,), dtype), NumericStats((2,), dtype)
    for number, start in enumerate(range(0, 6000, 300)):
        one, two = NumericStats((2,), dtype), NumericStats((2,), dtype)
        one.add(rows[start : start + 300])
        two.add(rows[start : start + 300])
        straight.merge(one)
        saved = snapshot.write(tmp_path / f"state-{number:06d}.bin", broken.to_state(), fsync=False)
        broken = NumericStats.from_state(snapshot.read(tmp_path, saved))
        broken.merge(two)
    assert broken.to_json() == straight.to_json() and broken.bad == straight.bad
    assert [sketch.rank_error_bound for sketch in (broken._sketch, straight._sketch)] == [
        straight._sketch.rank_error_bound
    ] * 2
