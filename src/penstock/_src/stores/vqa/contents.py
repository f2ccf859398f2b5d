"""What a path of VQA data holds: one file of records, several in a folder, or a folder of images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src import formats
from penstock._src.stores.caches import Lru
from penstock._src.stores.spike.folders import SPIKE_SUFFIX
from penstock._src.stores.vqa.files import JSON_SUFFIXES, JsonFile, RecordFile, SingleRecordFile, open_json
from penstock._src.stores.vqa.folder import ImageFolder, has_images
from penstock._src.stores.vqa.index import Index, kept_index
from penstock._src.stores.vqa.tar_shard import TarShard
from penstock._src.system.files import ByteSource, as_path
from penstock.errors import StoreError

METADATA = "metadata.jsonl"
"""In a folder of images: a record for each, with its `file_name`."""
_LINES = (".jsonl", ".ndjson")
_SHARD = ".tar"
_MANY = 64  # files that are open at a time, of those in a folder


def open_files(path: Path, annotations: str | os.PathLike[str] | None) -> list[RecordFile]:
    """The files of records at a path, in the order of their names."""
    beside = None if annotations is None else as_path(annotations)
    if not path.is_dir():
        return [_open(path, beside)]
    if beside is not None:
        raise StoreError(f"{path} is a folder: annotations= belongs to a file of questions")
    files = files_in(path)
    if len(files) > _MANY:
        return _open_many(files)
    return [_open(each, None) for each in files] if files else [ImageFolder(path)]


def is_vqa_folder(path: Path) -> bool:
    """Whether a folder holds records (JSONL, tar shards) or images, and nothing that another format reads."""
    try:
        names = [each.name for each in path.iterdir()]
    except OSError:
        return False
    others = [each for each in formats.all_formats() if each.kind != "vqa"]
    if any(each.is_named(name) for name in names for each in others if each.suffixes):
        return False
    if any(name.lower().endswith(SPIKE_SUFFIX) for name in names):
        return False
    return (bool(files_in(path)) or has_images(path)) and not any(each.marks(path) for each in others)


def files_in(path: Path) -> list[Path]:
    """The files of records right in a folder: its metadata.jsonl, else all shards, else all files of lines."""
    if (path / METADATA).is_file():
        return [path / METADATA]
    named = sorted(each for each in path.iterdir() if not each.name.startswith(".") and each.is_file())
    shards = [each for each in named if each.name.lower().endswith(_SHARD)]
    return shards or [each for each in named if each.name.lower().endswith(_LINES)]


def _open_many(paths: Sequence[Path]) -> list[RecordFile]:
    """Shards beyond what a process may have open: one index of all of them, and a few that are open at a time."""
    kind: type[SingleRecordFile] = TarShard if paths[0].name.lower().endswith(_SHARD) else JsonFile

    def indexes() -> Iterator[NDArray[np.int64]]:
        for path in paths:
            file = kind(path)
            yield np.array(file.index.values)
            file.close()

    def lengths() -> Iterator[NDArray[np.int64]]:
        return (np.array([[len(index)]], np.int64) for index in indexes())

    counts = kept_index(f"{kind.__name__} lengths", paths, 1, lambda facts: lengths()).values[:, 0]
    joined = kept_index(f"{kind.__name__} joined", paths, kind.width, lambda facts: indexes())
    ends = np.cumsum(counts).tolist()
    opened: Lru[ByteSource] = Lru(_MANY)
    spans = zip(paths, [0, *ends], ends, strict=False)
    return [kind(path, Index(joined.values[start:end], path=joined.path), opened) for path, start, end in spans]


def _open(path: Path, annotations: Path | None) -> RecordFile:
    if path.name.lower().endswith(_SHARD):
        return TarShard(path)
    if path.suffix.lower() not in JSON_SUFFIXES:
        raise StoreError(f"{path}: VQA records lie in files named {', '.join((*JSON_SUFFIXES, _SHARD))}")
    return open_json(path, annotations)
