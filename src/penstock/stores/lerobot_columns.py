"""What the columns of a LeRobot data set are, which files they need, and what they take on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError, StoreError
from penstock.lazy import dataclass
from penstock.lerobot import layout
from penstock.lerobot.check_videos import KNOWN_CODECS
from penstock.lerobot.features import Feature
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.reader import DataSet
from penstock.media.mp4_index import read_index
from penstock.stores.lerobot_part import Presence, Spans, check_metadata, choose, row_spans, video_file
from penstock.stores.lerobot_videos import decoder_bytes
from penstock.stores.store import Column

TASK = "task"
_WHY_TABLE = "parquet: a block of rows is unpacked at a time; loaders read all numbers once, in order"
_WHY_PACKETS = "every frame is a JPEG in the MP4 file, read by its byte offset"
_WHY_VIDEO = "frames depend on others: a seek decodes from the key frame before, reading on is one pass"


@dataclass(frozen=True)
class Opened:
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
    undeclared: tuple[str, ...] = ()
    """Columns of the first data file that info.json does not know."""

    def stored_bytes(self, name: str) -> int:
        return self.shares.get(name, 0)

    def decoder_bytes_beside(self, data: DataSet, name: str) -> int:
        """What decoders of the other cameras hold for a thread that reads from this one now."""
        others = [key for key in self.cameras if key != name and _codec(data, key, self) != "mjpeg"]
        return sum(decoder_bytes(data.info.features[key]) for key in others)


def open_part(data: DataSet, episodes: Iterable[int] | None, columns: Sequence[str] | None) -> Opened:
    """Check the metadata, choose episodes and columns, and find their files; no row and no frame is read."""
    check_metadata(data)
    names = _names(data, columns)
    numbers = choose(data, episodes)
    starts = np.concatenate([[0], np.cumsum(data.episodes.length[numbers])]).astype(np.int64)
    features = data.info.features
    keys = [name for name in names if name in features and features[name].dtype == "video"]
    with_rows = len(keys) < len(names)
    presence = Presence(data, keys, with_rows)
    if len(numbers):
        presence.require(numbers)
    spans = row_spans(data, numbers, presence, episodes is None) if with_rows else None
    cameras: dict[str, tuple[Sequence[str], NDArray[np.int32]]] = {}
    shares: dict[str, int] = {}
    for key in keys:
        cameras[key], shares[key] = _camera(data, key, numbers, presence)
    undeclared: tuple[str, ...] = ()
    if spans is not None:
        table_shares, undeclared = _table_shares(data, spans)
        shares |= table_shares
    return Opened(numbers, starts, names, spans, cameras, shares, undeclared)


def column_of(data: DataSet, name: str, feature: Feature | None, part: Opened, stored_bytes: int) -> Column:
    """The column of a feature; `task` is one without."""
    if feature is None:
        return Column(name, "text", (), "str", "text", "table", "task_index of the row, text of meta/tasks", 0)
    if feature.is_text:
        return Column(name, "text", (), "str", "text", "table", _WHY_TABLE, stored_bytes)
    if feature.dtype == "video":
        codec = _codec(data, name, part)
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
    known = [*features]
    if TASK not in features and "task_index" in features:
        known.append(TASK)
    if columns is None:
        return tuple(known)
    if isinstance(columns, str):
        raise StoreError(f"columns={columns!r} is a text", hint=f"columns=[{columns!r}]")
    for name in columns:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"columns: {', '.join(known)}"
            raise StoreError(f"{data.root} has no column {name!r}", hint=hint)
    return tuple(name for name in known if name in set(columns))


def _camera(
    data: DataSet, key: str, numbers: NDArray[np.int64], presence: Presence
) -> tuple[tuple[Sequence[str], NDArray[np.int32]], int]:
    """The files of a camera, the file of each opened episode, and the bytes that their frames take."""
    by_name: dict[str, int] = {}
    file_of = np.empty(len(numbers), np.int32)
    for place, number in enumerate(numbers.tolist()):
        file_of[place] = by_name.setdefault(video_file(data, number, key), len(by_name))
    sizes = np.array([max(presence.size_of(relative), 0) for relative in by_name], np.float64)
    opened = np.bincount(file_of, data.episodes.length[numbers], len(by_name))
    if not data.is_v30:
        return (tuple(by_name), file_of), int(sizes.sum())
    # Files are shared with episodes that are not open: each has its share by the number of frames.
    videos = data.episodes.videos[key]
    pairs = dict.fromkeys(zip(videos.chunk[numbers].tolist(), videos.file[numbers].tolist(), strict=True), 0)
    for pair, length in zip(
        zip(videos.chunk.tolist(), videos.file.tolist(), strict=True), data.episodes.length.tolist(), strict=True
    ):
        if pair in pairs:
            pairs[pair] += length
    whole = np.array(list(pairs.values()), np.float64)
    return (tuple(by_name), file_of), int((sizes * np.minimum(opened / np.maximum(whole, 1), 1)).sum())


def _table_shares(data: DataSet, spans: Spans) -> tuple[dict[str, int], tuple[str, ...]]:
    """Bytes per column: those of the opened rows' files, divided as the footer of the first file divides them; and
    the columns there that info.json does not declare."""
    counts = np.bincount(spans.file, np.diff(spans.starts), len(spans.files)) if len(spans.file) else np.zeros(0)
    total = sum(
        file.n_bytes * min(float(count) / max(file.rows, 1), 1.0)
        for file, count in zip(spans.files, counts.tolist(), strict=False)
    )
    if not len(spans.file):
        return {}, ()
    features = data.info.features
    path = layout.path_in(data.root, spans.files[int(spans.file[0])].relative)
    with open_parquet(path) as parquet:
        undeclared = tuple(name for name in parquet.schema_arrow.names if name not in features)
        if not parquet.num_row_groups:
            return {}, undeclared
        group = parquet.metadata.row_group(0)
        leaves = [(group.column(number).path_in_schema, group.column(number).total_compressed_size)
                  for number in range(group.num_columns)]  # fmt: skip
    every = max(sum(size for _, size in leaves), 1)
    shares = {
        name: int(total * sum(size for leaf, size in leaves if leaf == name or leaf.startswith(f"{name}.")) / every)
        for name, feature in features.items()
        if feature.dtype != "video"
    }
    return shares, undeclared


def _codec(data: DataSet, key: str, part: Opened) -> str:
    """What info.json says the codec is; else what the first file is. A file that is another is read as what it is."""
    claimed = (data.info.features[key].info or {}).get("video.codec")
    if claimed in KNOWN_CODECS:
        return str(claimed)
    relatives, _ = part.cameras[key]
    if not relatives:
        return "video"
    try:
        return read_index(layout.path_in(data.root, relatives[0])).codec
    except PenstockError:
        return "video"  # what is wrong with the file is said when it is read
