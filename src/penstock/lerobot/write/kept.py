"""The statistics of the episodes of a closed data set, kept while it is continued.

A closed data set has the statistics of every episode in meta/episodes, and its journal has none. Whoever continues it
moves that table to penstock/episodes first (`keep_statistics`), and `close` writes them from there into the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot import layout, tables
from penstock.lerobot.layout import FreshNames
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.stats import STATISTICS, Stats

KEPT_DIR = f"{layout.OWN_DIR}/episodes"

_READ_EPISODES = 128


def keep_statistics(root: Path, names: FreshNames) -> None:
    """Before a closed data set is continued: its table of episodes moves to where `close` finds the statistics.

    Killed within, this is done again: the journal says that the data set is closed until it is through.
    """
    kept, table = root / KEPT_DIR, root / layout.EPISODES_DIR
    remove_info(root, names)
    if table.is_dir():
        drop_statistics(root)  # a table that an earlier continuation did not come to remove
        with layout.writing(kept, "cannot keep the table of episodes"):
            os.replace(table, kept)
        names.forget(table)
        names.add(table)
        names.add(kept)
        names.sync()


def remove_info(root: Path, names: FreshNames) -> None:
    """Remove meta/info.json for good, before anything else changes: the directory is no finished data set then."""
    if (root / layout.INFO_PATH).exists():
        layout.remove(root / layout.INFO_PATH)
        names.add(root / layout.INFO_PATH)
        names.sync()


def drop_statistics(root: Path) -> None:
    """Remove the table that `keep_statistics` kept: the data set is closed, and has its own again."""
    with layout.writing(root / KEPT_DIR, "cannot remove the directory"):
        if (root / KEPT_DIR).is_dir():
            shutil.rmtree(root / KEPT_DIR)


def kept_statistics(root: Path) -> Iterator[tuple[int, dict[str, Stats | None]]]:
    """(episode, statistics by feature) of the table that `keep_statistics` kept, in order, a few at a time."""
    for _, path in layout.numbered_files(root / KEPT_DIR, ".parquet"):
        with open_parquet(path) as file, tables.arrow_errors(path, "cannot be read", DataSetCorrupt):
            keys = [name.split("/", 1)[1].rsplit("/", 1)[0] for name in file.schema_arrow.names if _is_first(name)]
            wanted = ["episode_index", *(f"stats/{key}/{name}" for key in keys for name in STATISTICS)]
            for batch in file.iter_batches(batch_size=_READ_EPISODES, columns=wanted, use_threads=False):
                for row in batch.to_pylist():
                    yield row["episode_index"], {key: _stats(row, key) for key in keys}


def _is_first(column: str) -> bool:
    return column.startswith("stats/") and column.endswith(f"/{STATISTICS[0]}")


def _stats(row: dict[str, Any], key: str) -> Stats | None:
    found = {name: row[f"stats/{key}/{name}"] for name in STATISTICS}
    return None if found["count"] is None else found
