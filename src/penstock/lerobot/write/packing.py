"""A journal made small when its data set is closed: lines of episodes packed, statistics left to meta/episodes.

    {"crc":"5a0c11d2","record":{"type":"packed","episodes":64,"zlib":"eNq9…"}}

A closed data set has the statistics of every episode in meta/episodes. Whoever continues it moves that table to
penstock/episodes first (`keep_statistics`), and `close` writes them from there into the new one.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot import layout, tables
from penstock.lerobot.layout import FreshNames
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.stats import STATISTICS, Stats

MARKER = b'{"type":"packed"'
KEPT_DIR = f"{layout.OWN_DIR}/episodes"

_EPISODE = b'{"type":"episode"'
_PACKED_EPISODES = 64
_READ_EPISODES = 128
_LARGEST_BYTES = 256 * layout.MIB


def packed(lines: Iterable[bytes], until: int) -> Iterator[bytes]:
    """The lines of a journal as a closed data set keeps them; the first `until` as they are."""
    each = iter(lines)
    yield from itertools.islice(each, until)
    waiting: list[bytes] = []
    for line in each:
        if not line.startswith(_EPISODE):
            yield from _joined(waiting)
            waiting = []
            yield line
            continue
        if len(waiting) >= _PACKED_EPISODES:
            yield from _joined(waiting)
            waiting = []
        waiting.append(line)
    yield from _joined(waiting)


def _joined(lines: list[bytes]) -> Iterator[bytes]:
    if lines:
        records = [json.loads(line) for line in lines]
        for record in records:
            del record["stats"]
        text = "\n".join(json.dumps(record, separators=(",", ":")) for record in records)
        data = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        made = {"type": "packed", "episodes": len(lines), "zlib": data}
        yield json.dumps(made, separators=(",", ":")).encode()


def unpacked(line: bytes, where: str) -> Iterator[dict[str, Any]]:
    """The records of episodes that a line packs, without statistics."""
    try:
        entry = json.loads(line)
        unzip = zlib.decompressobj()
        text = unzip.decompress(base64.b64decode(entry["zlib"], validate=True), _LARGEST_BYTES)
        if not unzip.eof:
            raise ValueError(f"more than {_LARGEST_BYTES:,} bytes")
        records = [json.loads(each) for each in text.split(b"\n")]
        if len(records) != entry["episodes"]:
            raise ValueError(f"{len(records)} episodes instead of {entry['episodes']}")
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise DataSetCorrupt(f"{where}: a line of packed episodes cannot be used: {error!r}") from error
    yield from records


def keep_statistics(root: Path, names: FreshNames) -> None:
    """Before a closed data set is continued: its table of episodes moves to where `close` finds the statistics.

    Killed within, this is done again: the journal says that the data set is closed until it is through.
    """
    kept, table = root / KEPT_DIR, root / layout.EPISODES_DIR
    if (root / layout.INFO_PATH).exists():
        layout.remove(root / layout.INFO_PATH)
        names.add(root / layout.INFO_PATH)
        names.sync()
    if table.is_dir():
        drop_statistics(root)  # a table that an earlier continuation did not come to remove
        with layout.writing(kept, "cannot keep the table of episodes"):
            os.replace(table, kept)
        names.forget(table)
        names.add(table)
        names.add(kept)
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
