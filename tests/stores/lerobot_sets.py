"""LeRobot data sets for the tests of the store, and what their rows must be, found without the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.media.image import codec
from penstock._src.media.video import decode
from penstock._src.stores.store import ImageSource, Scratch
from tests.conversion import version21
from tests.lerobot import making

LENGTHS = (12, 7, 9)
V21_LENGTHS = (12, 9, 11)


def rows_of(lengths: Sequence[int], episodes: Sequence[int] | None) -> list[tuple[int, int]]:
    """(episode, row of the episode) of every row of a store."""
    chosen = range(len(lengths)) if episodes is None else episodes
    return [(episode, row) for episode in chosen for row in range(lengths[episode])]


def v21_frames(root: Path, lengths: Sequence[int] = V21_LENGTHS) -> dict[tuple[int, int], np.ndarray]:
    """Every frame as media.decode gives it."""
    found = {}
    for episode, length in enumerate(lengths):
        for row, rgb in decode.frames(version21.video_path(root, episode), range(length)):
            found[episode, row] = rgb
    return found


def jpegs(lengths: Sequence[int] = LENGTHS) -> dict[tuple[int, int], bytes]:
    return {(e, row): data for e, n in enumerate(lengths) for row, data in enumerate(making.jpegs(n, e))}


def images(source: ImageSource, rows: Sequence[int]) -> list[np.ndarray]:
    """Read in the order of the keys, as a loader does; returned in the order asked, decoded."""
    order = np.argsort(source.keys(np.asarray(rows, np.int64)), kind="stable")
    wanted = [int(rows[place]) for place in order]
    found: dict[int, Any] = {}
    for place, frame in zip(order.tolist(), source.read(wanted, Scratch()), strict=True):
        found[place] = codec.decode(frame.tobytes()) if frame.ndim == 1 else frame.copy()
    return [found[place] for place in range(len(rows))]
