"""`VQAStore`: questions, answers and images by row, whatever they are written in.

store = penstock.open("train.jsonl", image_root="coco/train2017")
store.record(17)                          # Record(question=…, answer=…, images=(…,))
store.texts("question", np.array([3, 5]))
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.caches import Lru
from penstock._src.stores.store import Column, ImageSource, Store, row_numbers
from penstock._src.stores.vqa.contents import open_files
from penstock._src.stores.vqa.files import RecordFile
from penstock._src.stores.vqa.images import ImageFacts, RecordImages, find_root, image_facts, image_name
from penstock._src.stores.vqa.index import Index, identity, kept_index
from penstock._src.stores.vqa.record import MalformedRecord, VQARecord, keys_for, parse
from penstock._src.system.files import RemotePath, as_path
from penstock.errors import ImageError, StoreCorrupt, StoreError, UsageError

ON_ERROR = ("raise", "skip")
_KEPT_RECORDS = 1024  # the columns of a batch come from the same records
_SAMPLES = 16
_REASONS = 4  # malformed records named in a note
_REASON_CHARACTERS = 240  # all of them fit into the header of an index, in any script


class VQAStore(Store):
    """Records of one file, or of several in a folder; each file is an episode."""

    fps = None
    episodes_from = "files"

    def __init__(
        self,
        path: Path,
        *,
        episodes: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        annotations: str | os.PathLike[str] | None = None,
        image_root: str | os.PathLike[str] | None = None,
        fields: Mapping[str, str] | None = None,
        on_error: str = "raise",
        allow_external: bool = False,
    ) -> None:
        if on_error not in ON_ERROR:
            raise UsageError(f"on_error={on_error!r}", hint=f"one of {', '.join(ON_ERROR)}")
        self.path = path
        self._options = {
            "episodes": None if episodes is None else list(episodes),
            "columns": None if columns is None else list(columns),
            "annotations": None if annotations is None else str(_absolute(as_path(annotations))),
            "image_root": None if image_root is None else str(_absolute(as_path(image_root))),
            "fields": None if fields is None else dict(fields),
            "on_error": on_error,
            "allow_external": allow_external,
        }
        self._keys = keys_for(fields)
        self._files = _chosen(open_files(path, annotations), episodes, path)
        self.episode_numbers = None if episodes is None else np.asarray(episodes, np.int64)
        self.kind = f"VQA, {self._files[0].label}"
        self._bad = [self._malformed(file) if on_error == "skip" else None for file in self._files]
        lengths = [
            len(file) - (0 if bad is None else len(bad)) for file, bad in zip(self._files, self._bad, strict=True)
        ]
        self.episode_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._starts: list[int] = self.episode_starts.tolist()
        self._recent: Lru[VQARecord] = Lru(_KEPT_RECORDS)
        self._sample_records(image_root, allow_external)
        self.columns = self._columns(columns)
        self.notes = self._notes()

    # Records

    def record(self, row: int) -> VQARecord:
        """The record of a row; a malformed one is an error that names its file and place."""
        return self._recent.get(row, lambda: self._parsed(*self._located(row)))

    def parsed(self, row: int) -> VQARecord:
        """As `record`, for who asks for each row once."""
        return self._parsed(*self._located(row))

    def _parsed(self, file: RecordFile, number: int) -> VQARecord:
        try:
            return parse(*file.read(number), self._keys)
        except MalformedRecord as error:
            raise StoreCorrupt(
                f"{file.where(number)}: {error}", hint='on_error="skip" leaves malformed records out'
            ) from error

    def _located(self, row: int) -> tuple[RecordFile, int]:
        starts = self._starts
        if not 0 <= row < starts[-1]:
            raise StoreError(f"{self.path}: row {row:,} was requested, there are {starts[-1]:,}")
        place = 0
        if len(starts) > 2:
            place = int(np.searchsorted(self.episode_starts, row, side="right")) - 1
        number, bad = row - starts[place], self._bad[place]
        if bad is not None and len(bad):
            # Of the good ones, the n-th has as many bad ones before it as there are with fewer good ones before them.
            number += int(np.searchsorted(bad.values[:, 1], number, side="right"))
        return self._files[place], number

    def _malformed(self, file: RecordFile) -> Index:
        """(number, good records before it) of the records that cannot be parsed: one pass over them, kept."""

        def build(facts: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
            reasons: list[str] = []
            count = 0
            for number in range(len(file)):
                try:
                    parse(*file.read(number), self._keys)
                except MalformedRecord as error:
                    if len(reasons) < _REASONS:
                        reasons.append(f"{file.where(number)}: {error}"[:_REASON_CHARACTERS])
                    yield np.array([[number, number - count]], np.int64)
                    count += 1
            facts["reasons"] = reasons

        spelled = json.dumps(sorted((name, list(keys)) for name, keys in self._keys.items()))
        index = kept_index(f"malformed {spelled}", file.paths, 2, build)
        return Index(np.array(index.values), index.facts)  # few, and a mapping would keep a descriptor for each file

    # Columns

    def _sample_records(self, image_root: str | os.PathLike[str] | None, allow_external: bool) -> None:
        """Read some records spread over the store: which columns there are, and what images are like."""
        rows = np.unique(np.linspace(0, max(self.rows - 1, 0), min(_SAMPLES, self.rows)).astype(np.int64)).tolist()
        self._samples: list[VQARecord] = []
        names = []
        has_stored = False
        for row in rows:
            try:
                record = self.parsed(row)
            except StoreCorrupt:
                if row == rows[-1] and not self._samples:
                    raise  # none of them is a record: these are no VQA data
                continue  # reported when it is asked for
            file, number = self._located(row)
            self._samples.append(record)
            if file.has_stored_image(number):
                has_stored = True
            elif (name := image_name(record, 0, file.subtype)) is not None:
                names.append(name)
        first, subtype = (names[0] if names else None), self._files[0].subtype
        root = None if image_root is None else as_path(image_root)
        self._root = find_root(self.path, root, first, subtype, allow_external)
        self._missing = first if first is not None and self._root is None and not has_stored else None
        self._has_images = has_stored or self._root is not None
        images = []
        for row in rows if self._has_images else ():
            try:
                images.append(self.image_bytes(row))
            except (ImageError, StoreError):
                continue  # reported when it is asked for
        self._facts = image_facts(images)
        self._seen_images = hashlib.sha256(b"".join(hashlib.sha256(data).digest() for data in images)).hexdigest()
        self._has_images = self._has_images and self._facts != ImageFacts()

    def _columns(self, requested: Sequence[str] | None) -> dict[str, Column]:
        seen = self._samples
        numbers = [name for name in ("question_id", "image_id") if any(getattr(record, name) >= 0 for record in seen)]
        texts = ["question", "answer", *(["conversation"] if any(record.turns for record in seen) else [])]
        share_bytes = sum(file.stored_bytes for file in self._files) // len(texts + numbers)
        why = f"one read at its place in {'the file' if len(self._files) == 1 else 'its file'}, parsed when asked for"
        columns = {name: Column(name, "text", (), "str", "text", "record", why, share_bytes) for name in texts}
        for name in numbers:
            columns[name] = Column(name, "numbers", (), "int64", "numbers", "record", why, share_bytes)
        if self._has_images:
            facts = self._facts
            shape = (facts.height, facts.width, 3)
            size = int(facts.mean_bytes * self.rows)
            why_images = f"one read of the stored bytes; the size is the largest of {len(seen)} that were looked at"
            columns["image"] = Column("image", "image", shape, "uint8", facts.encoding, "file", why_images, size, True)
        if isinstance(requested, str):
            raise StoreError(f"columns={requested!r} is one text", hint=f"columns=[{requested!r}]")
        self.columns = columns
        return columns if requested is None else {name: self.column(name) for name in requested}

    def _notes(self) -> tuple[str, ...]:
        notes = [note for file in self._files for note in file.notes]
        for bad in self._bad:
            if bad is not None and len(bad):
                named = "; ".join(bad.facts["reasons"])
                more = f"; and {len(bad) - _REASONS:,} more" if len(bad) > _REASONS else ""
                notes.append(f"{len(bad):,} malformed records are left out: {named}{more}")
        if self._missing is not None:
            notes.append(f"no images: {self._missing} was not found; image_root=FOLDER names their folder")
        several = max((len(record.images) for record in self._samples), default=0)
        if several > 1:
            notes.append(f"records have up to {several} images; the column has the first of each")
        return tuple(notes)

    @property
    def malformed(self) -> int:
        """How many records were left out because they cannot be parsed (`on_error="skip"`)."""
        return sum(len(bad) for bad in self._bad if bad is not None)

    # What every store offers

    def images(self, name: str) -> ImageSource:
        if self.column(name).kind != "image":
            raise StoreError(f"{self.path}: {name!r} is not an image column")
        return RecordImages(self.image_bytes, self._facts)

    def image_bytes(self, row: int, number: int = 0, record: VQARecord | None = None) -> bytes:
        """An image of a row as it is stored; `record`: that of the row, where it is parsed already."""
        file, place = self._located(row)
        if number == 0 and file.has_stored_image(place):
            return file.stored_image(place)
        name = image_name(record or self.record(row), number, file.subtype)
        if name is None:
            raise ImageError(f"{file.where(place)}: the record has no image {number}")
        if self._root is None:
            raise ImageError(f"{file.where(place)}: {name} was not found", hint="image_root=FOLDER names the folder")
        return self._root.read(name)

    def image_key(self, row: int, number: int = 0, record: VQARecord | None = None) -> str | None:
        """The key of a row's image: equal keys are the same image. None: there is none."""
        file, place = self._located(row)
        if number == 0 and file.has_stored_image(place):
            return f"{file.path}:{place}"
        return image_name(record or self.record(row), number, file.subtype)

    def image_numbers(self, most: int = 1) -> Index:
        """For each row, the numbers of its first `most` images, -1 for none: the same image has the same number.

        One pass over all records, kept as the other indexes are.
        """

        def build(facts: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
            digests = np.zeros((self.rows, most), np.uint64)
            for row in range(self.rows):
                for number in range(most):
                    if (key := self._key_of(row, number)) is None:
                        break
                    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
                    digests[row, number] = int.from_bytes(digest, "little") | 1
            distinct, numbers = np.unique(digests, return_inverse=True)
            numbers = numbers.reshape(digests.shape)
            if len(distinct) and not distinct[0]:  # no image
                numbers = numbers - 1
            facts["images"] = int(numbers.max(initial=-1)) + 1
            yield numbers.astype(np.int64)

        option_key = json.dumps([most, self._options["fields"], self._options["on_error"], self._options["episodes"]])
        return kept_index(f"images {option_key}", [path for file in self._files for path in file.paths], most, build)

    def _key_of(self, row: int, number: int) -> str | None:
        try:
            return self.image_key(row, number)
        except StoreCorrupt:
            return None  # reported when it is asked for

    def texts(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        if self.column(name).kind != "text":
            raise StoreError(f"{self.path}: {name!r} is not a text column")
        records = [self.record(row) for row in row_numbers(rows, f"{self.path}: {name}").tolist()]
        if name == "conversation":
            return [
                json.dumps([{"role": role, "content": text} for role, text in record.turns], ensure_ascii=False)
                for record in records
            ]
        return [getattr(record, name) for record in records]

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self.column(name).kind != "numbers":
            raise StoreError(f"{self.path}: {name!r} is not a numbers column")
        chosen = row_numbers(rows, f"{self.path}: {name}").tolist()
        return np.array([getattr(self.record(row), name) for row in chosen], np.int64)

    def fingerprint(self, name: str) -> str:
        root = None if self._root is None else str(self._root.folder)
        files = [identity(path) for file in self._files for path in file.paths]
        made_of = [name, self._options, root, self._seen_images, files]
        return hashlib.sha256(json.dumps(made_of, default=str).encode()).hexdigest()

    def file_of(self, row: int, name: str = "") -> Path:
        return self._located(row)[0].path

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        path, words = self.reopening()
        return _reopen, (str(path), words)

    def reopening(self) -> tuple[Path, dict[str, Any]]:
        return _absolute(self.path), dict(self._options)


def _absolute(path: Path) -> Path:
    return path if isinstance(path, RemotePath) else path.absolute()


def _chosen(files: list[RecordFile], episodes: Sequence[int] | None, path: Path) -> list[RecordFile]:
    if episodes is None:
        return files
    if wrong := [number for number in episodes if not 0 <= number < len(files)]:
        raise StoreError(f"{path}: there is no file {wrong[0]} among {len(files)}")
    return [files[number] for number in episodes]


def _reopen(path: str, words: dict[str, Any]) -> VQAStore:
    return VQAStore(as_path(path), **words)
