"""What the columns of a LeRobot data set are, which files they need, and what they take on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import layout
from penstock._src.lerobot.features import ROW_FEATURES, Feature
from penstock._src.lerobot.metadata import open_parquet
from penstock._src.lerobot.read.frames import KNOWN_CODECS, ends_note, file_codec
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.stores.lerobot.part import (
    WHOLE,
    ColumnFiles,
    EpisodeFileTable,
    Spans,
    check_metadata,
    choose,
    row_spans,
)
from penstock._src.stores.lerobot.videos import decoder_bytes
from penstock._src.stores.store import Column
from penstock._src.system.units import name_hint
from penstock.errors import StoreError

TASK = "task"
_WHY_TABLE = "parquet: a block of rows is unpacked at a time; loaders read all numbers once, in order"
_WHY_PACKETS = "every frame is a JPEG in the MP4 file, read by its byte offset"
_WHY_VIDEO = "frames depend on others: a seek decodes from the key frame before, reading on is one pass"


@dataclass(frozen=True)
class OpenPart:
    """The part of a data set that is open: its episodes, and where their rows and frames lie."""

    numbers: NDArray[np.int64]
    """Places in the episodes table."""
    starts: NDArray[np.int64]
    names: tuple[str, ...]
    spans: Spans | None
    """None where no column of the table was asked for."""
    cameras: Mapping[str, tuple[Sequence[str], NDArray[np.int32]]]
    """Per camera: its files, relative to the root, and the file of every episode."""
    shares: Mapping[str, int]
    """Bytes on disk per column."""
    codecs: Mapping[str, str]
    """Per camera: what its first file is. A file that is another is read as what it is."""
    is_whole: bool
    """All episodes are open."""
    notes: tuple[str, ...]

    def stored_bytes(self, name: str) -> int:
        return self.shares.get(name, 0)

    def decoder_bytes_beside(self, data: DataSet, name: str) -> int:
        """What decoders of the other cameras hold for a thread that reads from this one now."""
        others = [key for key in self.cameras if key != name and self.codecs[key] != "mjpeg"]
        return sum(decoder_bytes(data.info.features[key]) for key in others)


def open_part(data: DataSet, episodes: Iterable[int] | str | None, columns: Sequence[str] | None) -> OpenPart:
    """Check the metadata, choose episodes and columns, and find their files; no row and no frame is read."""
    check_metadata(data)
    names = _names(data, columns)
    features = data.info.features
    keys = [name for name in names if name in features and features[name].dtype == "video"]
    with_rows = len(keys) < len(names)
    files = EpisodeFileTable(data, keys, with_rows)
    notes: list[str] = []
    if columns is None:
        empty = _cameras_without_files(data, keys, files)
        names = tuple(name for name in names if name not in empty)
        keys = [key for key in keys if key not in empty]
        notes += [f"{key} is left out: none of its video files is there" for key in empty]
    numbers = choose(data, None if isinstance(episodes, str) else episodes)
    if episodes == WHOLE and not files.whole.all():
        numbers = np.flatnonzero(files.whole)
        if not len(numbers):
            raise files.problem(0)
        notes.append(files.note(numbers))
    files.require(numbers)
    is_whole = (episodes is None or episodes == WHOLE) and len(numbers) == len(data.episodes)
    spans = row_spans(data, numbers, files.of(None)) if with_rows else None
    cameras: dict[str, tuple[Sequence[str], NDArray[np.int32]]] = {}
    shares: dict[str, int] = {}
    for key in keys:
        cameras[key], shares[key] = _camera(data, numbers, files.of(key))
    if spans is not None:
        table_shares, table_notes = _table_shares(data, spans, with_notes=columns is None)
        shares |= table_shares
        notes += table_notes
    codecs = {key: _codec(data, key, cameras[key][0], notes) for key in keys}
    notes += [note for key in keys if (note := ends_note(data, key, numbers)) is not None]
    starts = np.concatenate([[0], np.cumsum(data.episodes.length[numbers])]).astype(np.int64)
    return OpenPart(numbers, starts, tuple(names), spans, cameras, shares, codecs, is_whole, tuple(notes))


def _cameras_without_files(data: DataSet, keys: Sequence[str], files: EpisodeFileTable) -> list[str]:
    """Cameras that are declared, and of which no file is there; refused where their files lie elsewhere."""
    empty = [key for key in keys if len(data.episodes) and not (files.of(key).sizes >= 0).any()]
    for key in empty:
        if data.elsewhere(key) is not None:
            raise files.problem(0)
        files.without_camera(key)
    return empty


def _codec(data: DataSet, key: str, relatives: Sequence[str], notes: list[str]) -> str:
    """What the first file is; where that cannot be read, what info.json says: reading a row gives the error."""
    claimed = (data.info.features[key].info or {}).get("video.codec")
    codec = file_codec(data, key, relatives[:1])
    if codec is None:
        return str(claimed) if claimed in KNOWN_CODECS else "video"
    if claimed is not None and claimed != codec:
        notes.append(f"{key} is {codec}, as its files say; meta/info.json says {claimed}")
    return codec


def column_of(data: DataSet, name: str, feature: Feature | None, part: OpenPart, stored_bytes: int) -> Column:
    """The column of a feature; `task` is one without."""
    if feature is None:
        return Column(name, "text", (), "str", "text", "table", "task_index of the row, text of meta/tasks", 0)
    if feature.is_text:
        return Column(name, "text", (), "str", "text", "table", _WHY_TABLE, stored_bytes)
    if feature.dtype == "video":
        codec = part.codecs[name]
        way, why = ("packets", _WHY_PACKETS) if codec == "mjpeg" else ("video", _WHY_VIDEO)
        kind, dtype = ("depth", "uint16") if feature.is_depth else ("image", "uint8")
        return Column(name, kind, feature.shape, dtype, codec, way, why, stored_bytes)  # type: ignore[arg-type]
    if feature.dtype == "image":
        if feature.is_depth:
            dtype = "uint16" if feature.depth_unit == "mm" else "float32"
            return Column(name, "depth", feature.shape, dtype, "png", "table", _WHY_TABLE, stored_bytes)
        return Column(name, "image", feature.shape, "uint8", "png", "table", _WHY_TABLE, stored_bytes)
    shape = () if feature.is_scalar else feature.shape
    return Column(name, "numbers", shape, feature.dtype, "numbers", "table", _WHY_TABLE, stored_bytes)


def _names(data: DataSet, columns: Sequence[str] | None) -> tuple[str, ...]:
    features = data.info.features
    known = [*features] if TASK in features else [*features, TASK]
    if columns is None:
        return tuple(known)
    if isinstance(columns, str):
        raise StoreError(f"columns={columns!r} is a text", hint=f"columns=[{columns!r}]")
    for name in columns:
        if name not in known:
            raise StoreError(f"{data.root} has no column {name!r}", hint=name_hint(str(name), known, "columns:"))
    return tuple(name for name in known if name in set(columns))


def _camera(
    data: DataSet, numbers: NDArray[np.int64], files: ColumnFiles
) -> tuple[tuple[Sequence[str], NDArray[np.int32]], int]:
    """The files of a camera, the file of each opened episode, and the bytes that their frames take."""
    used, first, place = np.unique(files.of_episode[numbers], return_index=True, return_inverse=True)
    order = np.argsort(first)  # in the order of the opened episodes
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    used, file_of = used[order], rank[place.reshape(-1)]
    relatives = tuple(files.relatives[each] for each in used.tolist())
    sizes = files.sizes[used].astype(np.float64)
    if data.is_v30:  # files are shared with episodes that are not open: each has its share by the number of frames
        lengths = data.episodes.length
        named = files.of_episode >= 0
        whole = np.bincount(files.of_episode[named], lengths[named], len(files.relatives))[used]
        opened = np.bincount(file_of, lengths[numbers], len(used))
        sizes *= np.minimum(opened / np.maximum(whole, 1), 1)
    return (relatives, file_of), int(sizes.sum())


def _table_shares(data: DataSet, spans: Spans, *, with_notes: bool) -> tuple[dict[str, int], list[str]]:
    """Bytes per column: those of the opened rows' files, divided as the footer of the first file divides them; and
    what to know of the columns there."""
    counts = np.bincount(spans.file, np.diff(spans.starts), len(spans.files)) if len(spans.file) else np.zeros(0)
    total = sum(
        file.n_bytes * min(float(count) / max(file.rows, 1), 1.0)
        for file, count in zip(spans.files, counts.tolist(), strict=False)
    )
    if not len(spans.file):
        return {}, []
    features = data.info.features
    path = layout.path_in(data.root, spans.files[int(spans.file[0])].relative)
    with open_parquet(path) as parquet:
        notes = _column_notes(data, parquet.schema_arrow.names) if with_notes else []
        if not parquet.num_row_groups:
            return {}, notes
        group = parquet.metadata.row_group(0)
        leaves = [(group.column(number).path_in_schema, group.column(number).total_compressed_size)
                  for number in range(group.num_columns)]  # fmt: skip
    every = max(sum(size for _, size in leaves), 1)
    shares = {
        name: int(total * sum(size for leaf, size in leaves if leaf == name or leaf.startswith(f"{name}.")) / every)
        for name, feature in features.items()
        if feature.dtype != "video"
    }
    return shares, notes


def _column_notes(data: DataSet, stored: Sequence[str]) -> list[str]:
    """Columns of the first data file that info.json does not know, and columns of the row's place that it lacks."""
    notes = [
        f"{name} is left out: it is a column of the data files that meta/info.json does not declare"
        for name in stored
        if name not in data.info.features
    ]
    derived = [key for key in (each.key for each in ROW_FEATURES) if key not in stored]
    undeclared = [key for key in data.info.undeclared_row_keys if key in stored]
    if derived:
        notes.append(f"{', '.join(derived)}: derived from the episodes table, the data files have no such column")
    if undeclared:
        notes.append(f"{', '.join(undeclared)}: taken from the data files, meta/info.json does not declare it")
    return notes
