"""Files of a data set that lie in another folder than info.json says: where they are, and what to change."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from penstock._src.system.files import walk
from penstock.errors import DataSetCorrupt

if TYPE_CHECKING:
    from penstock._src.lerobot.read.reader import DataSet

_MOST_FILES = 50_000
_CHUNK = re.compile(r"(chunk[-_]?)(\d+)\Z")
_LAST_NUMBER = re.compile(r"(\d+)(?=\D*\Z)")


def find_elsewhere(data: DataSet, key: str | None) -> str | None:
    """Where files of a camera (or of the rows, None) lie that info.json does not name, and what to change.

    Walks the folder of the data set: for messages about absent files only.
    """
    template = data.info.data_path if key is None else data.info.video_path
    named = _named(data, key, template) if template is not None else set()
    suffix = ".mp4" if key is not None else ".parquet"
    others = {path for path in _files(data.root, suffix) if path not in named}
    setting = "data_path" if key is None else "video_path"
    for candidate, _ in Counter(_template(path, key, is_v30=data.is_v30) for path in sorted(others)).most_common(8):
        files = sorted(_named(data, key, candidate) & others) if candidate is not None else []
        if files:
            where = f"{len(files):,} files lie elsewhere, e.g. {files[0]}"
            if key is None and data.is_v30:
                return f"{where}: readers of v3.0 look for rows in data/ alone, so move them there"
            return f'{where}: in meta/info.json set "{setting}": "{candidate}"'
    return None


def _named(data: DataSet, key: str | None, template: str) -> set[str]:
    try:
        return set(data.named_files(key, template)[0])
    except DataSetCorrupt:  # a template that cannot be filled names nothing
        return set()


def _files(root: Path, suffix: str) -> Iterator[str]:
    """The files with this suffix, relative to the root; the metadata and hidden folders are not looked at."""
    seen = 0
    for folder, folders, names in walk(root):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in ("meta", "penstock"))
        for name in names:
            if name.endswith(suffix):
                yield (folder / name).relative_to(root).as_posix()
        seen += len(names)
        if seen > _MOST_FILES:
            return


def _template(path: str, key: str | None, *, is_v30: bool) -> str | None:
    """The template of info.json that gives this path; None where none does."""
    *folders, name = PurePosixPath(path).parts
    chunk, number = ("chunk_index", "file_index") if is_v30 else ("episode_chunk", "episode_index")
    parts = [_CHUNK.sub(lambda match: match[1] + _field(chunk, match[2]), each) for each in folders]
    parts = ["{video_key}" if each == key else each for each in parts]
    stem, suffix = os.path.splitext(name)
    start = "{video_key}_" if key is not None and stem.startswith(f"{key}_") else ""
    if key is not None and not start and "{video_key}" not in parts:
        return None
    stem = stem.removeprefix(f"{key}_") if start else stem
    made = "/".join([*parts, start + _LAST_NUMBER.sub(lambda match: _field(number, match[1]), stem) + suffix])
    return made if f"{{{number}" in made else None


def _field(name: str, digits: str) -> str:
    return f"{{{name}:0{len(digits)}d}}" if digits.startswith("0") and len(digits) > 1 else f"{{{name}}}"
