"""Records by number: every format is a `RecordFile`, whose index says where the bytes of a record lie.

| file | a row of its index |
|---|---|
| JSONL, a JSON array, an object with an array | where the record begins and ends |
| VQAv2 questions with annotations | the question, and the annotation of the same `question_id` |
| a tar shard | the text of a sample, and its image |
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.caches import Lru, open_file
from penstock._src.stores.vqa.index import Index, kept_index
from penstock._src.stores.vqa.record import MalformedRecord
from penstock._src.stores.vqa.scanning import element_spans, line_number, line_spans
from penstock._src.system.files import ByteSource
from penstock.errors import StoreCorrupt, StoreError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
ARRAY_KEYS = ("questions", "annotations", "data", "records", "examples", "samples")
_PEEK_BYTES = 1 << 20
_MOST_COUNTED_BYTES = 4 << 30  # counting the lines before a place takes a second per GiB or so
_SUBTYPE = re.compile(rb'"data_subtype"\s*:\s*"(\w{1,64})"')
_SUBTYPE_OF_NAME = re.compile(r"((?:train|val|test)(?:-dev)?\d{4})")
_NOWHERE = -1


class RecordFile(ABC):
    """The records of one file (or pair of files)."""

    label: str
    """In words: "JSONL"."""
    path: Path
    index: Index
    subtype: str = ""
    """Of COCO images: "train2014"."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    @abstractmethod
    def read(self, number: int) -> tuple[bytes, bytes]:
        """The bytes of a record, and those of what completes it (empty: nothing does)."""

    @abstractmethod
    def where(self, number: int) -> str:
        """Where a record lies, for messages."""

    @property
    def paths(self) -> list[Path]:
        """The files that the records depend on."""
        return [self.path]

    @property
    @abstractmethod
    def stored_bytes(self) -> int:
        """Of the records, without images that lie elsewhere."""

    def has_stored_image(self, number: int) -> bool:
        """Whether the image lies with the record, which else names it."""
        return False

    def stored_image(self, number: int) -> bytes:
        """The image that lies with the record."""
        raise NotImplementedError(f"{self.label}: images are named in the records")

    @abstractmethod
    def close(self) -> None:
        """Give files back."""


class SingleRecordFile(RecordFile):
    """The records of one file, which stays open; one of many is open while it is used."""

    width: int
    """Numbers in a row of the index."""

    def __init__(self, path: Path, index: Index | None = None, opened: Lru[ByteSource] | None = None) -> None:
        """`index`: where it is known; `opened`: the files of many that are open."""
        self.path = path
        self._opened = opened
        self._source = open_file(str(path)) if opened is None else None
        self.index = self._make_index() if index is None else index

    @abstractmethod
    def _make_index(self) -> Index:
        """As it is kept, or built."""

    @property
    def source(self) -> ByteSource:
        if self._source is None and self._opened is not None:
            return self._opened.get(self.path, lambda: open_file(str(self.path)))
        assert self._source is not None
        return self._source

    @property
    def stored_bytes(self) -> int:
        return self.source.size_bytes

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        if self._opened is not None:
            self._opened.clear()


class JsonFile(SingleRecordFile):
    """Lines, or the elements of an array."""

    width = 2

    def _make_index(self) -> Index:
        return kept_index(f"json {self.layout}", [self.path], self.width, lambda facts: self._spans())

    @cached_property
    def layout(self) -> str:
        return json_layout(self.path, self.source)

    @property
    def label(self) -> str:  # type: ignore[override]
        return "JSONL" if self.layout == "lines" else "JSON"

    def _spans(self) -> Iterator[NDArray[np.int64]]:
        return line_spans(self.source) if self.layout == "lines" else element_spans(self.source, (self.layout,))

    def read(self, number: int) -> tuple[bytes, bytes]:
        start, stop = self.index.values[number].tolist()
        return self.source.read(start, stop - start), b""

    def where(self, number: int) -> str:
        return _where(self.source, int(self.index.values[number, 0]), number, counts_lines=self.layout == "lines")


class QuestionFile(RecordFile):
    """VQAv2: questions, and their annotations where there are any."""

    label = "VQAv2"

    def __init__(self, path: Path, annotations: Path | None) -> None:
        self.path = path
        self._questions = JsonFile(path)
        self._answers = None if annotations is None else JsonFile(annotations)
        self.subtype = _subtype(path)
        self.index = self._questions.index
        if self._answers is None:
            self.notes = (f"no annotations of {path.name} were found: annotations=FILE names them",)
            return
        self.index = kept_index("VQAv2 pair", self.paths, 4, self._join)
        self.notes = (f"answers are those of {self._answers.path.name}",)
        without, unused = self.index.facts["without"], self.index.facts["unused"]
        if without or unused:
            self.notes += (f"{without:,} questions have no annotation, {unused:,} annotations no question",)

    def _join(self, facts: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
        """Questions with the annotation of the same question_id: 24 bytes per record while it is made."""
        assert self._answers is not None
        question_ids, answer_ids = _ids(self._questions, -1), _ids(self._answers, -2)
        order = np.argsort(answer_ids, kind="stable")
        places = np.minimum(np.searchsorted(answer_ids, question_ids, sorter=order), len(order) - 1)
        matches = order[places] if len(order) else places
        has_answer = answer_ids[matches] == question_ids if len(order) else np.zeros(len(question_ids), np.bool_)
        facts["without"] = int(np.count_nonzero(~has_answer))
        facts["unused"] = len(answer_ids) - len(np.unique(matches[has_answer]))
        spans = np.full((len(question_ids), 4), _NOWHERE, np.int64)
        spans[:, :2] = self._questions.index.values
        spans[has_answer, 2:] = self._answers.index.values[matches[has_answer]]
        yield spans

    def read(self, number: int) -> tuple[bytes, bytes]:
        if self._answers is None:
            return self._questions.read(number)
        start, stop, first, last = self.index.values[number].tolist()
        question = self._questions.source.read(start, stop - start)
        return question, b"" if first == _NOWHERE else self._answers.source.read(first, last - first)

    def where(self, number: int) -> str:
        return self._questions.where(number)

    @property
    def paths(self) -> list[Path]:
        return [self.path] if self._answers is None else [self.path, self._answers.path]

    @property
    def stored_bytes(self) -> int:
        return self._questions.stored_bytes + (0 if self._answers is None else self._answers.stored_bytes)

    def close(self) -> None:
        self._questions.close()
        if self._answers is not None:
            self._answers.close()


def open_json(path: Path, annotations: Path | None) -> RecordFile:
    """The records of a file of JSON; VQAv2 questions come with their annotations."""
    file = JsonFile(path)
    if file.layout != "questions":
        if annotations is not None:
            file.close()
            raise StoreError(f"{path} is not a file of VQAv2 questions: annotations= belongs to those")
        return file
    file.close()
    return QuestionFile(path, annotations or _annotations_beside(path))


def json_layout(path: Path, source: ByteSource) -> str:
    """ "lines", "array", or the key of the array that the file's object holds."""
    if path.suffix.lower() != ".json":
        return "lines"
    head = source.read(0, _PEEK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"["):
        return "array"
    first, newline, _ = head.partition(b"\n")
    if newline and _is_record(first):  # many who mean JSONL write .json
        return "lines"
    for key in ARRAY_KEYS:
        if re.search(rb'"' + key.encode() + rb'"\s*:\s*\[', head):
            return key
    if not newline and _is_record(first):
        return "lines"
    raise StoreCorrupt(
        f"{path}: neither an array of records nor one record per line: it begins with {head[:40]!r}",
        hint=f"an array, an object with one at {', '.join(ARRAY_KEYS)}, or one record on each line",
    )


def _is_record(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and not any(isinstance(record.get(key), list) for key in ARRAY_KEYS)


def _ids(records: JsonFile, none: int) -> NDArray[np.int64]:
    """The question_id of every record; `none` where there is none, or the record is malformed."""
    ids = np.full(len(records), none, np.int64)
    for number in range(len(records)):
        try:
            ids[number] = json.loads(records.read(number)[0])["question_id"]
        except (ValueError, TypeError, KeyError, OverflowError):
            continue  # reported when the record is asked for
    return ids


def _subtype(path: Path) -> str:
    """Which part of COCO the images are of: the file says it, or its name."""
    with open_file(str(path)) as source:
        for place in (0, max(0, source.size_bytes - 4096)):
            if match := _SUBTYPE.search(source.read(place, 4096)):
                return match[1].decode()
    named = _SUBTYPE_OF_NAME.search(path.name)
    return named[1] if named else ""


def _annotations_beside(path: Path) -> Path | None:
    """v2_OpenEnded_mscoco_train2014_questions.json → v2_mscoco_train2014_annotations.json."""
    name = path.name.replace("questions", "annotations")
    for wanted in (name, name.replace("OpenEnded_", "")):
        beside = path.with_name(wanted)
        if wanted != path.name and beside.is_file():
            return beside
    return None


def _where(source: ByteSource, offset: int, number: int, *, counts_lines: bool) -> str:
    if counts_lines and offset <= _MOST_COUNTED_BYTES:
        return f"{source.path}: line {line_number(source, offset):,} (byte {offset:,})"
    return f"{source.path}: record {number:,} (byte {offset:,})"


def text_record(data: bytes) -> bytes:
    """A text that stands for the answer, as a record."""
    try:
        return json.dumps({"answer": data.decode("utf-8").strip()}).encode()
    except UnicodeDecodeError as error:
        raise MalformedRecord(f"not UTF-8: {error.reason} at byte {error.start:,}") from None
