"""What the samples of a data set take in memory, measured: from headers and samples of the real files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.media.image.codec import size_of
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Store
from penstock._src.stores.vqa.record import VQARecord
from penstock._src.stores.vqa.store import VQAStore
from penstock.errors import ImageError, StoreCorrupt, StoreError

_RECORDS = 256  # that are looked at
_IMAGES = 64
_TEXTS = 64


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
    is_vqa: bool = False


def measure_files(path: str | os.PathLike[str]) -> MeasuredFiles:
    """Whatever `penstock.open` opens."""
    with open_store(Path(path)) as store:
        if not store.rows:
            raise StoreError(f"{path} has no records")
        return _vqa(store) if isinstance(store, VQAStore) else _store(store)


def _rows(store: Store, most: int) -> list[int]:
    rows: list[int] = np.unique(np.linspace(0, store.rows - 1, most).astype(np.int64)).tolist()
    return rows


def _store(store: Store) -> MeasuredFiles:
    images = [column for column in store.columns.values() if column.is_image]
    held = float(sum(column.row_bytes for column in store.columns.values() if not column.is_image))
    pixels = sum(column.row_bytes for column in images) / max(len(images), 1)
    rows = np.array(_rows(store, _TEXTS), np.int64)
    for name, column in store.columns.items():
        if column.kind == "text":
            held += sum(map(sys.getsizeof, store.texts(name, rows))) / len(rows)
    return MeasuredFiles(store.kind, store.rows, store.stored_bytes, float(len(images)), pixels, held, (*store.notes,))


def _vqa(store: VQAStore) -> MeasuredFiles:
    rows = _rows(store, _RECORDS)
    records: dict[int, VQARecord] = {}
    for row in rows:
        try:
            records[row] = store.record(row)
        except StoreCorrupt:
            continue
    notes = list(store.notes)
    if len(records) < len(rows):
        notes.append(f"{len(rows) - len(records)} of {len(rows)} records checked cannot be read")
    shown = {row: each for row, each in records.items() if store.image_key(row, record=each) is not None}
    pixels = _pixels(store, shown, notes) if "image" in store.columns else 0.0
    named = sum(len(each.images) or float(each.image_id >= 0 or row in shown) for row, each in records.items())
    held = sum(map(object_bytes, records.values())) / max(len(records), 1)
    images = named / max(len(records), 1)
    kind = store.kind.removeprefix("VQA, ")
    return MeasuredFiles(kind, store.rows, store.stored_bytes, images, pixels, held, tuple(notes), is_vqa=True)


def _pixels(store: VQAStore, records: Mapping[int, VQARecord], notes: list[str]) -> float:
    """Of one image, on average over some of them, by their headers."""
    sizes: list[int] = []
    failed: list[str] = []
    chosen = list(records)[:: -(-len(records) // _IMAGES) or 1]
    for row in chosen:
        try:
            height, width = size_of(store.image_bytes(row, record=records[row]))
            sizes.append(3 * height * width)
        except (ImageError, StoreError) as error:
            failed.append(error.message)
    if failed:
        notes.append(f"{len(failed)} of {len(chosen)} images checked cannot be read, such as {failed[0]}")
    return sum(sizes) / len(sizes) if sizes else 0.0


def object_bytes(value: Any) -> int:
    """What a record takes as Python objects."""
    size = sys.getsizeof(value)
    return size + sum(map(object_bytes, value)) if isinstance(value, (list, tuple)) else size
