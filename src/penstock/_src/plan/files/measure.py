"""What the samples of a data set take in memory, measured: from headers and samples of the real files."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.media.image.codec import size_of
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Store
from penstock._src.stores.vqa.files import JSON_SUFFIXES, JsonFile
from penstock.errors import ImageError, PenstockError, StoreError

_RECORDS = 256  # that are looked at
_IMAGES = 64
_TEXTS = 64
_IMAGE_NAMES = (".jpg", ".jpeg", ".png")
_IMAGE_KEYS = ("image", "images", "image_path", "image_file", "img", "img_path", "file_name")


@dataclass(frozen=True)
class MeasuredFiles:
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


def measure_files(path: str | os.PathLike[str]) -> MeasuredFiles:
    """A JSON or JSON Lines file, a folder of images, or whatever `penstock.open` opens."""
    place = Path(path)
    if place.is_file() and place.suffix.lower() in JSON_SUFFIXES:
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


def _store(store: Store) -> MeasuredFiles:
    images = [column for column in store.columns.values() if column.is_image]
    numbers = sum(column.row_bytes for column in store.columns.values() if not column.is_image)
    pixels = sum(column.row_bytes for column in images) / max(len(images), 1)
    rows = np.unique(np.linspace(0, max(store.rows - 1, 0), _TEXTS).astype(np.int64))
    texts = 0.0
    for name, column in store.columns.items():
        if column.kind == "text" and store.rows:
            found_texts = store.texts(name, rows)
            texts += sum(map(sys.getsizeof, found_texts)) / max(len(found_texts), 1)
    return MeasuredFiles(
        store.kind, store.rows, store.stored_bytes, float(len(images)), pixels, numbers + texts, tuple(store.notes)
    )


# Folders of images


def _image_folder(place: Path) -> MeasuredFiles:
    chosen, count, stored = _Reservoir(_IMAGES), 0, 0
    for file in _image_files(place):
        count += 1
        stored += file.stat().st_size
        chosen.add(Path(file.path))
    pixels, notes = _mean_pixels(chosen.items)
    names = sum(sys.getsizeof(str(each)) for each in chosen.items) / max(len(chosen.items), 1)
    return MeasuredFiles("image folder", count, stored, 1.0, pixels, names, notes)


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
    notes = (f"{len(failed)} of {len(files)} images checked cannot be read, such as {failed[0]}",) if failed else ()
    return (sum(sizes) / len(sizes) if sizes else 0.0), notes


# JSON


def _json_file(place: Path) -> MeasuredFiles:
    with closing(JsonFile(place)) as file:
        samples, label = len(file), file.label
        if not samples:
            raise StoreError(f"{place} has no records", hint="a list of objects, or one object a line (.jsonl)")
        looked_at = np.unique(np.linspace(0, samples - 1, _RECORDS).astype(np.int64)).tolist()
        records = [record for number in looked_at if (record := _parsed(file.read(number)[0])) is not None]
    broken = len(looked_at) - len(records)
    notes = (f"{broken} of {len(looked_at)} records checked are not JSON",) if broken else ()
    names = [_image_names(record) for record in records]
    images = sum(map(len, names)) / max(len(names), 1)
    files = [_image_path(place, name) for each in names for name in each]
    pixels, image_notes = _mean_pixels(files[:: -(-len(files) // _IMAGES) or 1])
    if not images and records and isinstance(records[0], Mapping) and "image_id" in records[0]:
        images = 1.0
        image_notes = ("images are named by image_id: their sizes are not known here",)
    held = sum(object_bytes(record) for record in records) / max(len(records), 1)
    return MeasuredFiles(label, samples, place.stat().st_size, images, pixels, held, (*notes, *image_notes))


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


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
