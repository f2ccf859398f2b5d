"""A file whose bytes can be read at any place, and how many bytes of a padded row are its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from penstock.media.image import jpeg
from penstock.system.files import ByteSource

_TAIL_STEP_BYTES = 4096


class OpenFile(Protocol):
    """A file whose bytes can be read at any place."""

    @property
    def path(self) -> Path: ...

    @property
    def source(self) -> ByteSource: ...

    @property
    def size_bytes(self) -> int: ...


def end_of_picture(row: memoryview) -> int:
    """Where the picture ends in a row that is padded with zeros: a JPEG ends in ff d9, a PNG in the 82 of its IEND."""
    end = len(row)
    while end > 0:
        start = max(0, end - _TAIL_STEP_BYTES)
        kept = bytes(row[start:end]).rstrip(b"\0")
        if kept:
            return start + len(kept)
        end = start
    return 0


def picture_bytes(row: memoryview) -> int:
    """How many bytes of a padded row are its picture; other padding than zeros is told by the JPEG's own markers."""
    end = end_of_picture(row)
    if bytes(row[end - 2 : end]) == b"\xff\xd9" or bytes(row[:2]) != b"\xff\xd8":
        return end
    found = jpeg.end_of(row[:end])
    return end if found is None else found
