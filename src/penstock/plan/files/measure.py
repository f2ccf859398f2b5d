"""What the samples of a data set take in memory, measured: from headers and samples of the real files."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ImageError, PenstockError, StoreError
from penstock.media.image.codec import size_of
from penstock.plan.files.json_records import json_lines, json_records
from penstock.stores.opening import open_store
from penstock.stores.store import Store

_RECORDS = 256  # that are looked at
_IMAGES = 64
_TEXTS = 64
_JSON_LINES = (".jsonl", ".ndjson")
_IMAGE_NAMES = (".jpg", ".jpeg", ".png")
_IMAGE_KEYS = ("image", "images", "image_path", "image_file", "img", "img_path", "file_name")


@dataclass(frozen=True)
class Measured:
    """Samples on disk: how many, and what one of them takes when it is in memory."""

    kind: str
    samples: int
    stored_bytes: int
    images: float
    """Of one sample."""
    image_pixels: float
    """Height × width × channels of one image, on average; 0 where none could be read."""
    record_bytes: float
    """Everything else of one sample: numbers, texts, the Python objects that hold them."""
    notes: tuple[str, ...] = ()


def measure_files(path: str | os.PathLike[str]) -> Measured:
    """A JSON or JSON Lines file, a folder of images, or whatever `penstock.open` opens."""
    place = Path(path)
    if place.is_file() and place.suffix.lower() in (".json", *_JSON_LINES):
        return _json_file(place)
    try:
        store = open_store(place)
    except PenstockError:
        if place.is_dir() and next(_image_files(place), None) is not None:
            return _image_folder(place)
        raise
    with store:
        is_measured_here = any(column.varies for column in store.columns.values()) and place.is_dir()
        return _image_folder(place) if is_measured_here else _store(store)


# Stores


def _store(store: Store) -> Measured:
    images = [column for column in store.columns.values() if column.is_picture]
    numbers = sum(column.row_bytes for column in store.columns.values() if not column.is_picture)
    pixels = sum(column.row_bytes for column in images) / max(len(images), 1)
    rows = np.unique(np.linspace(0, max(store.rows - 1, 0), _TEXTS).astype(np.int64))
    texts = 0.0
    for name, column in store.columns.items():
        if column.kind == "text" and store.rows:
            found = store.texts(name, rows)
            texts += sum(map(sys.getsizeof, found)) / max(len(found), 1)
    return Measured(
        store.kind, store.rows, store.stored_bytes, float(len(images)), pixels, numbers + texts, tuple(store.notes)
    )


# Folders of images


def _image_folder(place: Path) -> Measured:
    chosen, count, stored = _Reservoir(_IMAGES), 0, 0
    for file in _image_files(place):
        count += 1
        stored += file.stat().st_size
        chosen.add(Path(file.path))
    pixels, notes = _mean_pixels(chosen.items)
    names = sum(sys.getsizeof(str(each)) for each in chosen.items) / max(len(chosen.items), 1)
    return Measured("image folder", count, stored, 1.0, pixels, names, notes)


def _image_files(place: Path) -> Iterator[os.DirEntry[str]]:
    pending = [str(place)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.name.lower().endswith(_IMAGE_NAMES):
                    yield entry


def _mean_pixels(files: list[Any]) -> tuple[float, tuple[str, ...]]:
    sizes: list[int] = []
    failed: list[str] = []
    for file in files:
        try:
            height, width = size_of(Path(file).read_bytes())
            sizes.append(3 * height * width)
        except (OSError, ImageError) as error:
            failed.append(f"{file}: {getattr(error, 'strerror', None) or getattr(error, 'message', error)}")
    notes = (
        (f"{len(failed)} of {len(files)} images that were looked at cannot be read, as {failed[0]}",) if failed else ()
    )
    return (sum(sizes) / len(sizes) if sizes else 0.0), notes


# JSON


def _json_file(place: Path) -> Measured:
    records, samples, notes = _lines(place) if place.suffix.lower() in _JSON_LINES else _list(place)
    if not samples:
        raise StoreError(f"{place} has no records", hint="a list of objects, or one object a line (.jsonl)")
    names = [_image_names(record) for record in records]
    images = sum(map(len, names)) / max(len(names), 1)
    chosen = _Reservoir(_IMAGES)
    for name in (name for each in names for name in each):
        chosen.add(_image_path(place, name))
    pixels, image_notes = _mean_pixels(chosen.items)
    if not images and records and isinstance(records[0], Mapping) and "image_id" in records[0]:
        images = 1.0
        image_notes = ("images are named by image_id: their sizes are not known here",)
    held = sum(object_bytes(record) for record in records) / max(len(records), 1)
    kind = "JSON Lines" if place.suffix.lower() in _JSON_LINES else "JSON"
    return Measured(kind, samples, place.stat().st_size, images, pixels, held, (*notes, *image_notes))


def _list(place: Path) -> tuple[list[Any], int, tuple[str, ...]]:
    """Records that are looked at, and how many there are in the longest list."""
    counts: Counter[str] = Counter()
    chosen: dict[str, _Reservoir] = {}
    for name, record in json_records(place):
        counts[name] += 1
        chosen.setdefault(name, _Reservoir(_RECORDS)).add(record)
    if not counts:
        return [], 0, ()
    longest = max(counts, key=lambda name: counts[name])
    return chosen[longest].items, counts[longest], ()


def _lines(place: Path) -> tuple[list[Any], int, tuple[str, ...]]:
    chosen, count = _Reservoir(_RECORDS), 0
    for _, line in json_lines(place):
        count += 1
        chosen.add(line)
    records: list[Any] = []
    broken = 0
    for line in chosen.items:
        try:
            records.append(json.loads(line))
        except ValueError:
            broken += 1
    notes = (f"{broken} of {len(chosen.items)} lines that were looked at are no JSON",) if broken else ()
    return records, count, notes


def _image_names(record: Any) -> list[str]:
    if not isinstance(record, Mapping):
        return []
    for key in _IMAGE_KEYS:
        value = record.get(key)
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and value:
            return [each for each in value if isinstance(each, str)]
    return []


def _image_path(place: Path, name: str) -> Path:
    """Beside the file, or in `images` beside it."""
    beside = place.parent / name
    return beside if beside.exists() else place.parent / "images" / name


def object_bytes(value: Any) -> int:
    """What a record takes as Python objects."""
    size = sys.getsizeof(value)
    if isinstance(value, Mapping):
        # Keys are one object in all records that the decoder has made.
        return size + sum(object_bytes(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return size + sum(map(object_bytes, value))
    return size


class _Reservoir:
    """A fixed number of items, each as likely as any other; the same for the same input."""

    def __init__(self, most: int) -> None:
        self._most, self._seen = most, 0
        self._random = random.Random(0)
        self.items: list[Any] = []

    def add(self, item: Any) -> None:
        self._seen += 1
        if len(self.items) < self._most:
            self.items.append(item)
        elif (place := self._random.randrange(self._seen)) < self._most:
            self.items[place] = item
