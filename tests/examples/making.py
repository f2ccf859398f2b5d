"""Small ALOHA-style episodes with any numbers in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 6


def walk(number: int, *shape: int, rows: int = ROWS) -> Any:
    """What joints could do in an episode of this number."""
    rng = np.random.default_rng(number)
    return np.cumsum(rng.normal(0, 0.1, (rows, *shape)), axis=0).astype(np.float32)


def write_episode(path: Path, state: Any, action: Any, cameras: Sequence[str] = ("cam_high",), width: int = 48) -> None:
    """With raw images of noise, 32 pixels high."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs["fps"] = 50.0
        file["action"], file["observations/qpos"] = action, state
        for number, camera in enumerate(cameras):
            pixels = np.random.default_rng(number).integers(0, 256, (len(action), 32, width, 3), dtype=np.uint8)
            file[f"observations/images/{camera}"] = pixels


def write_walks(directory: Path, episodes: int = 4, dim: int = 3, **words: Any) -> Path:
    """Episodes of float32 walks."""
    for number in range(episodes):
        states, actions = walk(number, dim), walk(100 + number, dim)
        write_episode(directory / f"episode_{number}.hdf5", states, actions, **words)
    return directory
