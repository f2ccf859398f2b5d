"""The messages that a run of rows needs, each once, in the order in which the rows need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.align import Pick


@dataclass(frozen=True)
class CameraRuns:
    """A camera's share of a run of rows: distinct messages and how many rows each stands for."""

    numbers: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    lengths: list[int]
    held_rows: int  # leading rows that still show the last picture of the run before


@dataclass(frozen=True)
class VectorNeeds:
    """A vector part's share: distinct messages, and for each row where its value (or two) lies among them."""

    pick: Pick
    numbers: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64] | None


@dataclass(frozen=True)
class Requests:
    """What to fetch; `owners[k]` is the position of the share that asked for message k, `slots[k]` its place there."""

    topic_ids: NDArray[np.int32]
    numbers: NDArray[np.int64]
    owners: list[int]
    slots: list[int]

    def __len__(self) -> int:
        return len(self.owners)


def camera_runs(pick: Pick, start: int, stop: int, last_number: int | None) -> CameraRuns:
    left = np.asarray(pick.left[start:stop], dtype=np.int64)
    begins = np.flatnonzero(np.concatenate(([True], left[1:] != left[:-1])))
    lengths = np.diff(np.append(begins, len(left)))
    held = 0
    if last_number is not None and int(left[0]) == last_number:
        held = int(lengths[0])
        begins, lengths = begins[1:], lengths[1:]
    return CameraRuns(left[begins], begins, lengths.tolist(), held)


def vector_needs(pick: Pick, start: int, stop: int) -> VectorNeeds:
    pick = pick[start:stop]
    if pick.right is None:
        numbers, first, places = _distinct(pick.left)
        return VectorNeeds(pick, numbers, first, places, None)
    numbers, first, places = _distinct(np.stack((pick.left, pick.right), axis=1).reshape(-1))
    return VectorNeeds(pick, numbers, first // 2, places[0::2], places[1::2])


def _distinct(values: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct values, where each is first, and each value's place among them (np.unique loads 13 ms of numpy.ma)."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    is_new = np.concatenate(([True], ranked[1:] != ranked[:-1]))
    places = np.empty(len(values), dtype=np.int64)
    places[order] = np.cumsum(is_new) - 1
    return ranked[is_new].astype(np.int64), order[is_new], places


def merge(shares: Sequence[CameraRuns | VectorNeeds], topic_ids: Sequence[int]) -> Requests:
    """One list for the reader, row by row: what belongs together in time lies together in the file."""
    counts = [len(share.numbers) for share in shares]
    rows = np.concatenate([share.first_rows for share in shares])
    owners = np.repeat(np.arange(len(shares)), counts)
    slots = np.concatenate([np.arange(count) for count in counts])
    numbers = np.concatenate([share.numbers for share in shares])
    order = np.lexsort((owners, rows))
    ids = np.repeat(np.asarray(topic_ids, dtype=np.int32), counts)
    return Requests(ids[order], numbers[order], owners[order].tolist(), slots[order].tolist())
