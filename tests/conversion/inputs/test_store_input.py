"""A store that brings only what every store must: it is converted, and what is read back is what it held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import penstock
from penstock._src.conversion.inputs import store as store_input
from penstock._src.conversion.inputs.store import StoreInput
from penstock._src.stores.store import Column, ImageArray, ImageSource, Scratch, Store
from penstock.errors import ConfigError, ImageError, StoreError
from tests.conversion import datasets
from tests.stores import hdf5_files as files

LENGTHS = (5, 0, 7)
ROWS = sum(LENGTHS)


class Memory(Store):
    """Arrays by column; uint8 of four dimensions are images, lists are encoded ones."""

    kind = "memory"
    fps = 10.0

    def __init__(self, path: Path, values: dict[str, Any], lengths: Sequence[int] = LENGTHS) -> None:
        self.path, self.values = path, values
        self.episode_starts = np.cumsum([0, *lengths], dtype=np.int64)
        self.columns = {name: _column(name, each) for name, each in values.items()}

    def images(self, name: str) -> ImageSource:
        return _Images(self.values[name])

    def numbers(self, name: str, rows: Any) -> Any:
        return self.values[name][rows]

    def fingerprint(self, name: str) -> str:
        return name

    def close(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, (self.path, self.values)


class _Images(ImageSource):
    def __init__(self, values: Any) -> None:
        self._values = values
        self.scratch_bytes = max(each.nbytes for each in values)

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            if not self._values[row].size:
                raise ImageError("nothing there")
            yield self._values[row]


def _column(name: str, values: Any) -> Column:
    if isinstance(values, list):
        return Column(name, "image", (files.HEIGHT, files.WIDTH, 3), "uint8", "jpeg", "file", "", 0)
    is_depth = values.dtype == np.uint16 and values.ndim == 3
    kind: Any = "depth" if is_depth else "image" if values.ndim == 4 else "numbers"
    encoding = "numbers" if kind == "numbers" else "raw"
    return Column(name, kind, values.shape[1:], str(values.dtype), encoding, "file", "", values.nbytes)


def columns() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "state": rng.normal(size=(ROWS, 3)),
        "action": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "count": np.arange(ROWS),
        "front_image": files.images(ROWS, 1),
        "wrist": files.encoded(ROWS, 2),
        "depth": rng.integers(0, 5000, (ROWS, 24, 32), dtype=np.uint16),
    }


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Converts columns that a store of its own kind holds; the file stands for whatever it reads."""

    def converted(values: dict[str, Any], out: str, **asked: Any) -> Any:
        path = tmp_path / "store.h5"
        path.write_bytes(b"\x89HDF\r\n\x1a\n")
        opened = lambda path, means, begun=None: StoreInput(Memory(path, values), means, begun)  # noqa: E731
        monkeypatch.setattr(store_input, "open_hdf5_input", opened)
        return penstock.convert(path, tmp_path / out, **asked)

    return converted


def test_rows_images_and_distances_are_read_back(convert: Any, tmp_path: Path) -> None:
    made = columns()
    report = convert(made, "out", task="stack")
    out = tmp_path / "out"
    assert (report.episodes, report.frames) == (2, ROWS)
    assert report.lost == {"episode without a usable row": 1} and report.exit_code == 3
    assert datasets.problems(out, full=True) == [] and datasets.info(out)["fps"] == 10
    assert np.array_equal(datasets.values(out, "observation.state"), made["state"].astype(np.float32))
    assert np.array_equal(datasets.values(out, "action"), made["action"])
    assert datasets.values(out, "count").reshape(-1).tolist() == made["count"].tolist()
    assert datasets.samples(out, "observation.images.wrist") == [row.tobytes() for row in made["wrist"]]
    for sample, expected in zip(datasets.samples(out, "observation.images.front"), made["front_image"], strict=True):
        found = cv2.cvtColor(cv2.imdecode(np.frombuffer(sample, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        assert np.abs(found.astype(int) - expected).mean() < 3
    for cell, expected in zip(
        datasets.table(out).column("observation.images.depth").to_pylist(), made["depth"], strict=True
    ):
        assert np.array_equal(cv2.imdecode(np.frombuffer(cell["bytes"], np.uint8), cv2.IMREAD_UNCHANGED), expected)


def test_a_row_without_an_image_is_left_out_and_counted(convert: Any, tmp_path: Path) -> None:
    made = columns()
    made["wrist"][3] = np.empty(0, np.uint8)
    report = convert(made, "out")
    assert report.lost["unusable image: wrist"] == 1
    rows = [row for row in range(ROWS) if row != 3]
    assert datasets.values(tmp_path / "out", "count").reshape(-1).tolist() == rows
    assert datasets.samples(tmp_path / "out", "observation.images.wrist") == [made["wrist"][r].tobytes() for r in rows]


def test_what_follows_each_row_is_not_kept_twice(convert: Any, tmp_path: Path) -> None:
    made = {"obs/joint_pos": np.arange(ROWS * 2.0).reshape(ROWS, 2), "actions": np.zeros((ROWS, 1))}
    made["next_obs/joint_pos"] = np.concatenate([made["obs/joint_pos"][1:], made["obs/joint_pos"][-1:]])
    made["next_obs/joint_pos"][4] = made["obs/joint_pos"][4]  # nothing follows the last row of an episode
    report = convert(made, "out")
    assert any("each is the observation of the row after (all 10 rows" in note for note in report.notes)
    assert "next.observation.state" not in datasets.info(tmp_path / "out")["features"]
    made["next_obs/joint_pos"][7] += 1
    convert(made, "kept")
    found = datasets.values(tmp_path / "kept", "next.observation.state")
    assert np.array_equal(found, made["next_obs/joint_pos"].astype(np.float32))


def test_columns_may_be_named_sliced_and_are_asked_for_by_name(convert: Any, tmp_path: Path) -> None:
    made = columns()
    convert(made, "out", features={"observation.state": {"topic": "state", "field": "[1:3]", "scale": 2.0}})
    expected = (made["state"][:, 1:] * 2).astype(np.float32)
    assert np.array_equal(datasets.values(tmp_path / "out", "observation.state"), expected)
    with pytest.raises(StoreError, match=r"features.action: .*has no column 'actoin'") as refused:
        convert(made, "never", features={"action": "actoin"})
    assert "did you mean 'action'?" in str(refused.value)
    with pytest.raises(ConfigError, match="relative values are for recordings, not for stores"):
        convert(made, "never", features={"action": {"topic": "action", "relative_start": True}})
