"""A LeRobot data set knows which episodes end for good: by its terminal column, read when it is first asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature
from penstock._src.stores.lerobot.rows import RowTable
from penstock._src.stores.lerobot.store import LeRobotStore
from tests.conversion import version21

ROWS = 6
FEATURES = (
    Feature("observation.state", "float32", (3,), None),
    Feature("action", "float32", (2,), None),
    Feature("next.reward", "float32", (1,), None),
)


def make(
    root: Path, last: tuple[float, ...], dtype: str = "bool", shape: tuple[int, ...] = (1,), **limits: int
) -> Path:
    """Episodes of six rows; `last` is what next.done is in the last row of each."""
    features = (*FEATURES, Feature("next.done", dtype, shape, None))
    with DataSetWriter(root, fps=10, features=features, robot_type="t", fsync=False, **limits) as writer:
        for number, value in enumerate(last):
            done = np.zeros((ROWS, *shape), dtype)
            done[-1] = value
            with writer.episode(rows=ROWS, task="x") as episode:
                state = np.full((ROWS, 3), number, np.float32)
                reward = np.zeros((ROWS, 1), np.float32)
                rows = {"observation.state": state, "action": state[:, :2], "next.reward": reward, "next.done": done}
                episode.write_rows({key: values.reshape(ROWS) if values.shape == (ROWS, 1) else values
                                    for key, values in rows.items()})  # fmt: skip
                episode.commit()
        writer.close()
    return root


def samples(store: penstock.Store) -> list[int]:
    with penstock.Loader(store, penstock.Transition(), batch_size=1, shuffle=False, output="numpy") as loader:
        return sorted(int(batch["index"][0]) for batch in loader)


@pytest.mark.parametrize("limits", [{}, {"data_file_bytes": 1}])
def test_terminal_rows_are_samples(tmp_path: Path, limits: dict[str, int]) -> None:
    root = make(tmp_path / "set", (True, False, True), **limits)
    with penstock.open(root) as store:
        assert samples(store) == [row for row in range(18) if row != 11]
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [True, False, True]
    with penstock.open(root, episodes=[1, 2]) as store:
        assert samples(store) == [6, 7, 8, 9, 10, *range(12, 18)]  # `index` of the data set
    with penstock.open(root, episodes=[2], columns=["observation.state"]) as store:
        assert samples(store) == list(range(6)), "which rows are samples does not depend on the columns"


@pytest.mark.parametrize("episodes", [None, [2, 0]])
def test_a_store_of_images_alone_knows_them_too(tmp_path: Path, episodes: list[int] | None) -> None:
    root = version21.make(tmp_path / "set", (12, 9, 11))
    with LeRobotStore(root, episodes=episodes) as whole:
        cameras = [name for name, column in whole.columns.items() if column.is_image]
        expected = whole.ends_terminal
    assert expected is not None and expected.any()
    with LeRobotStore(root, episodes=episodes, columns=cameras) as store:
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == expected.tolist()
    for table in (root / "data").glob("*/*.parquet"):
        table.unlink()
    with LeRobotStore(root, episodes=episodes, columns=cameras) as store:
        assert store.ends_terminal is None, "fetched without its tables"


def test_v21_too(tmp_path: Path) -> None:
    root = version21.make(tmp_path / "set", (12, 9, 11))
    with LeRobotStore(root, episodes=[2, 0]) as store:
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [True, True]


def test_it_is_read_once_and_not_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "set", (True, False))
    asked: list[list[int]] = []
    values = RowTable.values

    def counted(table: RowTable, key: str, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        asked.append(rows.tolist())
        return values(table, key, rows, shape)

    monkeypatch.setattr(RowTable, "values", counted)
    with LeRobotStore(root) as store:
        assert asked == []
        assert store.ends_terminal is not None and store.ends_terminal is store.ends_terminal
        assert asked == [[5, 11]]
        store.ends_terminal = np.array([False, True])
        assert store.ends_terminal.tolist() == [False, True]


def test_nan_and_vectors_say_nothing(tmp_path: Path) -> None:
    with LeRobotStore(make(tmp_path / "nan", (np.nan, 1.0), "float32")) as store:
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [False, True]
    with LeRobotStore(make(tmp_path / "wide", (True, True), shape=(2,))) as store:
        assert store.ends_terminal is None and len(samples(store)) == 10
