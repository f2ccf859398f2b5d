"""A tar shard: members of one name are a sample (0001.jpg with 0001.json), found by one pass over the headers."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.content import foreign_content
from penstock._src.stores.vqa.files import SingleRecordFile, text_record
from penstock._src.stores.vqa.index import Index, kept_index
from penstock.errors import StoreCorrupt

IMAGE_SUFFIXES = ("jpg", "jpeg", "png")
TEXT_SUFFIXES = ("json", "txt", "cls", "caption")
_NOWHERE = -1
_ROWS_AT_ONCE = 4096


class TarShard(SingleRecordFile):
    """The samples of one tar file, each with its text and its image."""

    label = "tar"
    width = 4

    def _make_index(self) -> Index:
        index = kept_index("tar", [self.path], self.width, self._scan)
        if left := index.facts["left"]:
            self.notes = (f"{self.path.name}: {left:,} members are neither images nor texts and are left out",)
        return index

    def _scan(self, facts: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
        """(text, image) of every sample: the members that follow each other under one name."""
        facts["left"] = 0
        rows: list[list[int]] = []
        held = None
        try:
            with self.source.as_file() as file, tarfile.open(fileobj=file, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    archive.__dict__["members"].clear()  # the library keeps all that it has seen
                    folder, _, name = member.name.rpartition("/")
                    key, _, suffix = name.partition(".")
                    kind = _kind(suffix.lower())
                    if not member.isfile() or kind is None:
                        facts["left"] += member.isfile()
                        continue
                    if (folder, key) != held:
                        held = folder, key
                        if len(rows) >= _ROWS_AT_ONCE:
                            yield np.array(rows, np.int64)
                            rows = []
                        rows.append([_NOWHERE] * 4)
                    rows[-1][2 * kind : 2 * kind + 2] = member.offset_data, member.offset_data + member.size
        except tarfile.TarError as error:
            raise _no_tar(self.path, error) from error
        if rows:
            yield np.array(rows, np.int64)

    def read(self, number: int) -> tuple[bytes, bytes]:
        start, stop = self.index.values[number, :2].tolist()
        if start == _NOWHERE:
            return b'{"answer": ""}', b""
        data = self.source.read(start, stop - start)
        return (data if data.lstrip()[:1] == b"{" else text_record(data)), b""

    def has_stored_image(self, number: int) -> bool:
        return bool(self.index.values[number, 2] != _NOWHERE)

    def stored_image(self, number: int) -> bytes:
        start, stop = self.index.values[number, 2:].tolist()
        return self.source.read(start, stop - start)

    def where(self, number: int) -> str:
        places = self.index.values[number]
        return f"{self.path}: sample {number:,} (byte {int(places[places != _NOWHERE].min()):,})"

    @property
    def stored_bytes(self) -> int:
        texts = self.index.values[:, 1] - self.index.values[:, 0]
        return int(texts.sum())


def _kind(suffix: str) -> int | None:
    if suffix in TEXT_SUFFIXES:
        return 0
    return 1 if suffix in IMAGE_SUFFIXES else None


def _no_tar(path: Path, error: Exception) -> StoreCorrupt:
    foreign = foreign_content(path, "tar")
    if foreign is not None:
        return StoreCorrupt(f"{path} is {foreign.what}, not a tar file", hint=foreign.hint)
    return StoreCorrupt(f"{path}: not a readable tar file: {error}", hint="the file is cut or damaged")
