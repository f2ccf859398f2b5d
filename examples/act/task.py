"""Which task a policy was trained on: the synthetic one, the only one that can be tried here, is known by its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import penstock
from penstock.errors import UsageError

REACH = "reach"
"""What `penstock demo act` writes into its episodes."""


def task_of(store: penstock.Store, camera: str) -> dict[str, Any]:
    """For the checkpoint: the task's name, "" where it is another one, and the size of its images as stored."""
    height, width = store.columns[camera].shape[:2]
    return {"name": REACH if _is_reach(store) else "", "height": height, "width": width}


def check_task(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that says that it was trained on something else; one from before that says nothing."""
    task = found.get("task", {"name": REACH})
    if not isinstance(task, dict) or task.get("name") != REACH:
        raise UsageError(
            f"{path} was not trained on episodes of `penstock demo act`: its task cannot be tried here",
            hint="val l1 in history.json tells how near a policy of your own data comes; --eval needs the demo's",
        )


def _is_reach(store: penstock.Store) -> bool:
    """By the first and the last episode: what they say, or what the data set says that was made of them."""
    tasks = getattr(store, "tasks", None)
    if tasks is not None:
        return list(tasks) == [REACH]
    return all(_says_reach(store.file_of(row)) for row in (0, store.rows - 1))


def _says_reach(path: Path) -> bool:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            said = file.attrs.get("task"), file.attrs.get("seed")
    except OSError:
        return False
    return isinstance(said[0], str) and said[0] == REACH and said[1] is not None
