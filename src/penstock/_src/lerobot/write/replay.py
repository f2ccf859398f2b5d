"""Replaying an episode of a worker output: its rows flush by flush, its frames sample by sample.

A worker output is a data set that is never closed (`LeRobotSink(…, is_worker_output=True)`). It may still be growing:
what it has committed does not change any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import columns, layout, tables
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.layout import EpisodePlace
from penstock._src.lerobot.metadata import open_parquet
from penstock._src.lerobot.write.videos import table_from
from penstock._src.media.mp4.writer import SampleTable
from penstock._src.system.files import ReadErrors, open_source
from penstock.errors import DataSetCorrupt

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 8 * layout.MIB
_ERRORS = ReadErrors(DataSetCorrupt)


@dataclass(frozen=True)
class FlushedRows:
    """The rows of one flush, as they were given to it; `task_index` are numbers of the worker output."""

    values: dict[str, Any]
    count: int
    task_index: NDArray[np.int64]
    where: str


def read_rows(root: Path, episode_index: int, features: Sequence[Feature]) -> Iterator[FlushedRows]:
    """Each row group was one flush, and becomes one again."""
    path = layout.part_path(root, episode_index)
    stored = [feature for feature in features if feature.dtype != "video"]
    with open_parquet(path) as file:
        for number in range(file.num_row_groups):
            with tables.arrow_errors(path, f"cannot read row group {number}", DataSetCorrupt):
                table = file.read_row_group(number, use_threads=False)
            where = f"{path}: row group {number}"
            values = {feature.key: _values(feature, table, where) for feature in stored}
            yield FlushedRows(values, table.num_rows, columns.to_numpy(table.column("task_index"), (), where), where)


def _values(feature: Feature, table: pa.Table, where: str) -> Any:
    column = table.column(feature.key)
    if feature.dtype == "image":
        images = (chunk.field("bytes") for chunk in column.chunks)
        return [memoryview(value.as_buffer()) for chunk in images for value in chunk]
    if feature.is_text:
        return column.to_pylist()
    return columns.to_numpy(column, feature.shape, f"{where}, {feature.key!r}")


def copy_frames(root: Path, key: str, record: Mapping[str, Any], frames: Mapping[str, Any], sink: Any) -> None:
    """Copy samples to the video of an episode, a few MiB at a time; one that several rows show is stored once, too.

    `record` is the episode's in the journal, `frames` what was kept of it (`FinishedEpisode.kept`).
    """
    span = EpisodePlace.from_json(record, root).videos[key]
    path = layout.video_path(root, key, span.position)
    kept = frames["videos"][key]
    table = table_from(kept, span.end_bytes)
    encoded = kept["pix_fmt"] == ""
    if encoded:
        sink.set_codec(kept["stsd"], kept["info"])
    # Used again for every run: fresh memory costs more than the copy itself.
    buffer = bytearray(max(min(PIECE_BYTES, int(table.sizes.sum())), int(table.sizes.max())))
    with open_source(path, _ERRORS) as source:
        for start, stop, repeated in _runs(table):
            if repeated:
                sink.repeat(stop - start)
                continue
            offsets, sizes = table.offsets[start:stop].tolist(), table.sizes[start:stop].tolist()
            data = memoryview(buffer)[: sum(sizes)]
            source.read_into(data, offsets[0])
            pieces = [data[offset - offsets[0] :][:size] for offset, size in zip(offsets, sizes, strict=True)]
            keys = [bool(flag) for flag in table.keys[start:stop]] if encoded else None
            shifts = table.shifts[start:stop].tolist() if len(table.shifts) else None
            sink.append(pieces, keys, shifts=shifts, checked=True)


def _runs(table: SampleTable) -> Iterator[tuple[int, int, bool]]:
    """Samples that lie side by side and are copied together, or that repeat the one before: (first, end, repeated)."""
    steps = np.diff(table.offsets)
    repeated = [False, *(steps == 0).tolist()]
    neighbours = [True, *(steps == table.sizes[:-1]).tolist()]
    start, held_bytes = 0, 0
    for number, size in enumerate(table.sizes.tolist()):
        apart = repeated[number] != repeated[start] or not (repeated[number] or neighbours[number])
        if number > start and (apart or held_bytes + size > PIECE_BYTES):
            yield start, number, repeated[start]
            start, held_bytes = number, 0
        held_bytes += 0 if repeated[number] else size
    yield start, len(table.sizes), repeated[start]
