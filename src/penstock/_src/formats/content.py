"""What a file is when it is not what its name says: a Git LFS pointer, nothing at all, a web page, packed data."""

from __future__ import annotations

import os
import re
import shlex
from typing import NamedTuple

from penstock._src.formats import registry
from penstock._src.system import units
from penstock._src.system.files import open_source

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 1024
_LFS = re.compile(rb"version https://(git-lfs|hawser)\.github\.com/spec/v1\s")
_LFS_SIZE = re.compile(rb"^size (\d{1,18})$", re.MULTILINE)
_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_XML = re.compile(rb"(\xef\xbb\xbf)?\s*<\?xml\b", re.IGNORECASE)
_AGAIN = "fetch or copy it again"
_TAKEN = "penstock takes recordings (.bag, .db3, .mcap), HDF5 files, and LeRobot data sets by their directory"
# Magic, name, command that unpacks it.
_PACKED = (
    (b"\x1f\x8b", "gzip", "gzip -dc {} > NEW"),
    (b"BZh", "bzip2", "bzip2 -dc {} > NEW"),
    (b"\xfd7zXZ\0", "xz", "xz -dc {} > NEW"),
    (ZSTD_MAGIC, "zstd", "zstd -d {} -o NEW"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d {} NEW"),
    (b"PK\x03\x04", "zip", "unzip {}"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x {}"),
)
# Files that are parts of data: magic, where it stands, what it is, the word by which a caller asks for it.
_PARTS = (
    (b"PAR1", 0, "a parquet file", "parquet"),
    (b"ftyp", 4, "an MP4 video", "mp4"),
    (b"ustar", 257, "a tar archive", "tar"),
)


class ForeignContent(NamedTuple):
    """What a file is instead, as the rest of a sentence ("is …"), and what to do."""

    what: str
    hint: str


def foreign_content(path: str | os.PathLike[str], wanted: str = "") -> ForeignContent | None:
    """What a file is, where its first bytes show that it is something else than wanted; None where they do not.

    `wanted`: the kind or the family of a format, "parquet", "mp4" or "json". Whoever opens such a file asks here before
    it says that the file is broken, so that every command gives one answer.
    """
    try:
        with open_source(path) as source:
            size, head = source.size_bytes, source.read(0, _HEAD_BYTES)
    except OSError:
        return None  # opening it says why it cannot be opened
    if not head:
        return ForeignContent("empty: 0 bytes", f"nothing was written to it, or a copy failed: {_AGAIN}")
    if _LFS.match(head):
        named = _LFS_SIZE.search(head)
        data = f" for data of {units.format_size(int(named[1]))}" if named else ""
        hint = "`git lfs pull` in its repository fetches the data"
        return ForeignContent(f"a Git LFS pointer ({size:,} bytes{data})", hint)
    if _PAGE.match(head):
        hint = "download the file itself instead of the page about it (a 'raw' or 'resolve' address; with a login?)"
        return ForeignContent(f"an HTML page of {size:,} bytes", hint)
    if _XML.match(head):
        return ForeignContent(f"an XML text of {size:,} bytes, such as servers send for an error", _AGAIN)
    for magic, name, command in _PACKED:
        if head.startswith(magic):
            return ForeignContent(
                f"compressed with {name}", f"unpack it first: {command.format(shlex.quote(str(path)))}"
            )
    for magic, at, name, kind in _PARTS:
        if kind != wanted and head.startswith(magic, at):
            return ForeignContent(name, _TAKEN)
    started_as = registry.by_start(head)
    if started_as is not None and wanted not in (started_as.kind, started_as.family):
        hint = f"`penstock inspect {shlex.quote(str(path))}` looks at its content, not at its name"
        return ForeignContent(started_as.noun, hint)
    if not any(head):
        return ForeignContent(f"{size:,} bytes that begin with {len(head):,} zeros", f"a copy did not finish: {_AGAIN}")
    return None
