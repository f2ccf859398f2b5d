"""The first rows of a store are a store: cut within an episode, read as before."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.stores.first_rows import FirstRows
from tests.stores import hdf5_files as files


@pytest.mark.parametrize(("rows", "starts"), [(7, [0, 7]), (12, [0, 12]), (20, [0, 12, 20]), (99, [0, 12, 24])])
def test_rows_and_episodes_of_the_first_rows(tmp_path: Path, rows: int, starts: list[int]) -> None:
    for number in range(2):
        files.aloha(tmp_path / f"episode_{number}.hdf5", 12)
    with penstock.open(tmp_path) as whole, FirstRows(whole, rows) as part:
        assert part.episode_starts.tolist() == starts and part.columns == whole.columns
        chosen = np.arange(part.rows, dtype=np.int64)
        np.testing.assert_array_equal(part.numbers("action", chosen), whole.numbers("action", chosen))
        image = next(name for name, column in whole.columns.items() if column.is_image)
        assert part.fingerprint(image) != whole.fingerprint(image), "a view of it is another one"
        with penstock.Loader(part, batch_size=4, image_size=(8, 8), output="numpy") as loader:
            assert sum(len(batch["index"]) for batch in loader) == part.rows
        with pickle.loads(pickle.dumps(part)) as again:
            assert again.rows == part.rows
