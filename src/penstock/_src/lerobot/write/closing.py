"""Closing a data set: tables and metadata, streamed from the journal; and going on with a closed one.

A closed data set has the statistics of every episode in its metadata, and its journal has none. Whoever continues it
moves them to penstock/episodes first (`keep_statistics`), and `close` writes them from there again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.lerobot import layout, tables
from penstock._src.lerobot.features import Description
from penstock._src.lerobot.layout import EpisodePlace, UnsyncedNames
from penstock._src.lerobot.stats import STATISTICS, Stats
from penstock._src.system.closing import on_error
from penstock.errors import DataSetCorrupt

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

KEPT_DIR = f"{layout.OWN_DIR}/episodes"

_BATCH_EPISODES = 128


def write_episodes(root: Path, description: Description, records: Iterable[Mapping[str, Any]], *, fsync: bool) -> None:
    """Write meta/episodes/chunk-CCC/file-FFF.parquet; statistics that the journal has no more come from where they are
    kept."""
    schema = tables.episodes_schema(description.features)
    rows = _episode_rows(root, records, description.fps)
    position = layout.FIRST_FILE
    batch = list(islice(rows, _BATCH_EPISODES))
    while batch:
        place = {"chunk_index": position.chunk, "file_index": position.file}
        in_table = {f"meta/episodes/{name}": number for name, number in place.items()}
        path = root / layout.fill_template(layout.EPISODES_PATH, **place)
        with layout.writing(path, "cannot make the directory"):
            path.parent.mkdir(parents=True, exist_ok=True)
        with _small_file(path, schema, fsync=fsync) as writer:
            groups = 0
            while batch and groups < tables.most_row_groups(len(schema)):
                if groups and path.stat().st_size >= description.data_file_bytes:
                    break
                writer.write_table(tables.episodes_table([row | in_table for row in batch], schema))
                groups += 1
                batch = list(islice(rows, _BATCH_EPISODES))
        position = position.next(description.chunks_size)


def _episode_rows(root: Path, records: Iterable[Mapping[str, Any]], fps: int) -> Iterator[dict[str, Any]]:
    known = _read_kept(root)
    for record in records:
        stats = record.get("stats")
        if stats is None:
            stats = kept_statistics(root, record["episode_index"], known)
        yield episode_row(root, record, stats, fps)


@contextmanager
def _small_file(path: Path, schema: pa.Schema, *, fsync: bool) -> Iterator[pq.ParquetWriter]:
    """A table of the metadata, whole behind the block."""
    import pyarrow.parquet as pq

    with tables.write_errors(path, "cannot write the table"):
        writer = pq.ParquetWriter(str(path), schema, compression="snappy")
        with on_error(lambda: tables.abandon_writer(writer)):
            yield writer
        tables.close_writer(writer)
    if fsync:
        layout.fsync_file(path)


def kept_statistics(root: Path, episode_index: int, known: Iterator[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Those of an episode among the ones that `keep_statistics` kept, in order."""
    for number, stats in known:
        if number == episode_index:
            return stats
    raise DataSetCorrupt(
        f"{root / KEPT_DIR}: the statistics of episode {episode_index} are missing",
        hint="convert the recordings again into an empty directory",
    )


def _read_kept(root: Path) -> Iterator[tuple[int, dict[str, Stats | None]]]:
    """(episode, statistics by feature) of the kept table, a few at a time."""
    from penstock._src.lerobot.metadata import open_parquet

    for _, path in layout.numbered_files(root / KEPT_DIR, ".parquet"):
        with open_parquet(path) as file, tables.arrow_errors(path, "cannot be read", DataSetCorrupt):
            first = f"/{STATISTICS[0]}"
            names = [name for name in file.schema_arrow.names if name.startswith("stats/") and name.endswith(first)]
            keys = [name.removeprefix("stats/").removesuffix(first) for name in names]
            wanted = ["episode_index", *(f"stats/{key}/{name}" for key in keys for name in STATISTICS)]
            for batch in file.iter_batches(batch_size=_BATCH_EPISODES, columns=wanted, use_threads=False):
                for row in batch.to_pylist():
                    yield row["episode_index"], {key: _stats(row, key) for key in keys}


def _stats(row: dict[str, Any], key: str) -> Stats | None:
    stats = {name: row[f"stats/{key}/{name}"] for name in STATISTICS}
    return None if stats["count"] is None else stats


def keep_statistics(root: Path, names: UnsyncedNames, source: str, target: str) -> None:
    """Before a closed data set is continued: the statistics of its episodes move to where `close` finds them.

    Killed within, this is done again: the journal says that the data set is closed until it is through.
    """
    remove_info(root, names)
    if (root / source).exists():
        drop_statistics(root)  # what an earlier continuation did not come to remove
        with layout.writing(root / target, "cannot keep the statistics of the episodes"):
            (root / target).parent.mkdir(exist_ok=True)
            os.replace(root / source, root / target)
        names.forget(root / source)
        names.add(root / source)
        names.add(root / target)
        names.sync()


def drop_statistics(root: Path) -> None:
    """Remove what `keep_statistics` kept: the data set is closed, and has its own again."""
    with layout.writing(root / KEPT_DIR, "cannot remove the directory"):
        if (root / KEPT_DIR).is_dir():
            shutil.rmtree(root / KEPT_DIR)


def remove_info(root: Path, names: UnsyncedNames) -> None:
    """Remove meta/info.json for good, before anything else changes: the directory is no finished data set then."""
    if (root / layout.INFO_PATH).exists():
        layout.remove(root / layout.INFO_PATH)
        names.add(root / layout.INFO_PATH)
        names.sync()


def episode_row(root: Path, record: Mapping[str, Any], stats: Mapping[str, Stats | None], fps: int) -> dict[str, Any]:
    """The row of the episodes table, without the place of the row itself."""
    place = EpisodePlace.from_json(record, root / layout.JOURNAL_PATH)
    row: dict[str, Any] = {
        "episode_index": record["episode_index"],
        "tasks": list(record["tasks"]),
        "length": record["rows"],
        "data/chunk_index": place.data.chunk,
        "data/file_index": place.data.file,
        "dataset_from_index": record["first_row"],
        "dataset_to_index": record["first_row"] + record["rows"],
    }
    for key, span in place.videos.items():
        row[f"videos/{key}/chunk_index"] = span.position.chunk
        row[f"videos/{key}/file_index"] = span.position.file
        # Frame numbers divided once: sums of durations would drift away from the frames.
        row[f"videos/{key}/from_timestamp"] = span.first_frame / fps
        row[f"videos/{key}/to_timestamp"] = (span.first_frame + span.frames) / fps
    for key, entry in stats.items():
        for name in STATISTICS:
            row[f"stats/{key}/{name}"] = None if entry is None else entry[name]
    return row


def write_tasks(path: Path, texts: Sequence[str], name: str, *, fsync: bool) -> None:
    table = tables.tasks_table(texts, name)
    with _small_file(path, table.schema, fsync=fsync) as writer:
        writer.write_table(table)


def write_json(path: Path, tree: Mapping[str, Any], *, fsync: bool) -> None:
    text = json.dumps(tree, indent=4, ensure_ascii=False, allow_nan=False)
    layout.write_text_durably(path, text, fsync=fsync)
