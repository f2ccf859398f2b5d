"""Which view a loader gets: the one rule of `view="auto"` and of a plan.

Memory is first: a view there holds the part of the rows that the budget leaves room for. A view on disk that is there
already spares the filling, and is taken where it holds about as many rows. A new view on disk is made by those who ask
for it, and by a plan, which has measured that it pays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

ViewKind = Literal["off", "ram", "disk"]

LEAST_SHARE = 0.02  # of the rows: below, a view in memory is not worth its bookkeeping
ENOUGH = 0.9  # of the rows that a new view would hold: one that is there, and may be filled, is taken instead


def share_in_memory(full_bytes: Iterable[int], left_bytes: int, least: float = LEAST_SHARE) -> float:
    """The part of all rows that views in `left_bytes` hold; 0 where it is less than `least`."""
    needed_bytes = sum(full_bytes)
    share = min(1.0, max(left_bytes, 0) / needed_bytes) if needed_bytes else 0.0
    return share if share >= least else 0.0


def fit_whole(full_bytes: Iterable[int], memory_bytes: int) -> bool:
    """Whether views of all rows take at most half of the memory. The CPU decodes each image once then. Decoding on the
    GPU, in every epoch, takes time from the training step."""
    return sum(full_bytes) <= memory_bytes // 2


def is_enough_on_disk(on_disk: float, in_memory: float) -> bool:
    """Whether a view on disk that is there already is taken: the parts of the rows that it and memory hold."""
    return on_disk > 0 and on_disk >= ENOUGH * in_memory
