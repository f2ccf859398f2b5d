"""A folder of images: what stands beside each (0001.json, 0001.txt) is its record, else its folder names the answer.

The names are listed once, into a file of the cache directory that is read as JSONL. Directories that changed since
are noticed by their times, without listing them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.stores.caches import open_file
from penstock._src.stores.vqa.files import RecordFile, text_record
from penstock._src.stores.vqa.index import Index, kept_index
from penstock._src.stores.vqa.scanning import line_spans
from penstock._src.stores.vqa.tar_shard import IMAGE_SUFFIXES
from penstock._src.system.cache_directory import cache_directory
from penstock._src.system.files import ByteSource, LocalSource, replacing, walk
from penstock.errors import UsageError

_SIDECARS = ("json", "txt")


class ImageFolder(RecordFile):
    """One record for every image below a folder, sorted by name."""

    label = "image folder"

    def __init__(self, path: Path) -> None:
        self.path = path
        listing = _kept_listing(path)
        self._paths = [] if listing is None else [listing]
        self._source: ByteSource
        stems = {name.rpartition(".")[0] for name in _names(path) if _is_image(name)}
        others = [name for name in _names(path) if name.endswith(".json") and name.rpartition(".")[0] not in stems]
        if others:
            self.notes = (f"{others[0]} lies beside the images: penstock.open({str(path / others[0])!r}) reads it",)
        if listing is None:
            self._source = _temporary_listing(path)
            self.index = Index(np.concatenate([np.empty((0, 2), np.int64), *line_spans(self._source)]))
        else:
            self._source = open_file(str(listing))
            self.index = kept_index("folder", [listing], 2, lambda facts: line_spans(self._source))

    def read(self, number: int) -> tuple[bytes, bytes]:
        start, stop = self.index.values[number].tolist()
        line = self._source.read(start, stop - start)
        beside = json.loads(line).get("file")
        if beside is None:
            return line, b""
        with open_file(str(self.path / beside)) as source:
            data = source.read(0, source.size_bytes)
        return (text_record(data) if beside.endswith(".txt") else data), line

    def where(self, number: int) -> str:
        start, stop = self.index.values[number].tolist()
        named = json.loads(self._source.read(start, stop - start))
        return str(self.path / (named.get("file") or named["image"]))

    @property
    def paths(self) -> list[Path]:
        return self._paths

    @property
    def stored_bytes(self) -> int:
        return self._source.size_bytes

    def close(self) -> None:
        self._source.close()


def has_images(folder: Path) -> bool:
    """Whether there are images in a folder, or one folder below."""
    for here, folders, names in walk(folder):
        if any(_is_image(name) for name in names):
            return True
        if here != folder:
            folders.clear()
    return False


def _kept_listing(folder: Path) -> Path | None:
    """The listing as it is kept, or made now; None where there is no place for it."""
    key = hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:40]
    try:
        place = cache_directory() / "indexes" / f"{key}.listing"
        directories = place.with_suffix(".directories")
        if _is_current(folder, directories) and place.is_file():
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        times: list[list[Any]] = []
        with replacing(place) as fresh, fresh.open("wb") as file:
            for line in _lines(folder, times):
                file.write(line)
        with replacing(directories) as fresh:
            fresh.write_text(json.dumps(times), encoding="utf-8")
        return place
    except (OSError, UsageError):
        return None


def _is_current(folder: Path, directories: Path) -> bool:
    try:
        times = json.loads(directories.read_text(encoding="utf-8"))
        return bool(times) and all((folder / name).stat().st_mtime_ns == time_ns for name, time_ns in times)
    except (OSError, ValueError, TypeError):
        return False


def _temporary_listing(folder: Path) -> LocalSource:
    with tempfile.TemporaryFile(prefix="penstock-listing-") as file:
        for line in _lines(folder, []):
            file.write(line)
        file.flush()
        return LocalSource(folder, os.dup(file.fileno()))


def _lines(folder: Path, times: list[list[Any]]) -> Iterator[bytes]:
    """A line for every image, one directory at a time; the directories and their times go to `times`."""
    for here, folders, names in walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = "" if here == folder else f"{here.relative_to(folder).as_posix()}/"
        times.append([relative, here.stat().st_mtime_ns])
        there = set(names)
        for name in sorted(filter(_is_image, names)):
            stem = name.rpartition(".")[0]
            beside = next((f"{stem}.{suffix}" for suffix in _SIDECARS if f"{stem}.{suffix}" in there), None)
            record: dict[str, str] = {"image": relative + name}
            if beside is not None:
                record["file"] = relative + beside
            else:
                record["answer"] = relative.rstrip("/").rpartition("/")[2]
            yield json.dumps(record).encode() + b"\n"


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def _is_image(name: str) -> bool:
    return name.lower().endswith(tuple(f".{each}" for each in IMAGE_SUFFIXES)) and not name.startswith(".")
