"""Windows from `delta_timestamps` take the rows, and mask the padding, that the real LeRobot does."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from lerobot.datasets.dataset_reader import DatasetReader
from lerobot.datasets.feature_utils import check_delta_timestamps, get_delta_indices

from penstock._src.load.sampling.window import Window
from penstock.errors import UsageError
from tests.load.memory_store import MemoryStore

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]

_LENGTHS = [7, 1, 12]


@pytest.mark.parametrize("fps", [10, 30, 50])
def test_rows_and_masks_are_lerobots(fps: int) -> None:
    delta = {"state": [-2 / fps, -1 / fps, 0.0], "action": [each / fps for each in range(8)]}
    store = MemoryStore(_LENGTHS, fps=float(fps))
    edges = store.episode_starts
    episodes = [
        {"dataset_from_index": int(edges[e]), "dataset_to_index": int(edges[e + 1])} for e in range(store.episodes)
    ]
    check_delta_timestamps(delta, fps, 1e-4)
    theirs = SimpleNamespace(_meta=SimpleNamespace(episodes=episodes), delta_indices=get_delta_indices(delta, fps))
    needs = Window.from_delta_timestamps(delta).bind(store).needs(np.arange(store.rows))
    for row in range(store.rows):
        episode = int(store.episode_of(np.array([row]))[0])
        rows, masks = DatasetReader._get_query_indices(theirs, row, episode)  # type: ignore[arg-type]
        for name in delta:
            assert needs.rows[name][row].tolist() == rows[name]
            assert needs.pads[name][row].tolist() == masks[f"{name}_is_pad"].tolist()


def test_what_lerobot_refuses_is_refused() -> None:
    delta = {"action": [0.0, 0.05]}
    with pytest.raises(ValueError):
        check_delta_timestamps(delta, 30, 1e-4)
    with pytest.raises(UsageError):
        Window.from_delta_timestamps(delta).bind(MemoryStore(_LENGTHS, fps=30.0))
