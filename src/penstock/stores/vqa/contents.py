"""What a path of VQA data holds: one file of records, several in a folder, or a folder of images."""

from __future__ import annotations

import os
from pathlib import Path

from penstock import formats
from penstock.errors import StoreError
from penstock.stores.vqa.files import JSON_SUFFIXES, RecordFile, open_json
from penstock.stores.vqa.folder import ImageFolder, has_images
from penstock.stores.vqa.tar_shard import TarShard
from penstock.system.files import as_path

METADATA = "metadata.jsonl"
"""In a folder of images: a record for each, with its `file_name`."""
_LINES = (".jsonl", ".ndjson")
_SHARD = ".tar"


def open_files(path: Path, annotations: str | os.PathLike[str] | None) -> list[RecordFile]:
    """The files of records at a path, in the order of their names."""
    beside = None if annotations is None else as_path(annotations)
    if not path.is_dir():
        return [_open(path, beside)]
    if beside is not None:
        raise StoreError(f"{path} is a folder: annotations= belongs to a file of questions")
    files = files_in(path)
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
    return (bool(files_in(path)) or has_images(path)) and not any(each.marks(path) for each in others)


def files_in(path: Path) -> list[Path]:
    """The files of records right in a folder: its metadata.jsonl, else all shards, else all files of lines."""
    if (path / METADATA).is_file():
        return [path / METADATA]
    named = sorted(each for each in path.iterdir() if not each.name.startswith(".") and each.is_file())
    shards = [each for each in named if each.name.lower().endswith(_SHARD)]
    return shards or [each for each in named if each.name.lower().endswith(_LINES)]


def _open(path: Path, annotations: Path | None) -> RecordFile:
    if path.name.lower().endswith(_SHARD):
        return TarShard(path)
    if path.suffix.lower() not in JSON_SUFFIXES:
        raise StoreError(f"{path}: VQA records lie in files named {', '.join((*JSON_SUFFIXES, _SHARD))}")
    return open_json(path, annotations)
