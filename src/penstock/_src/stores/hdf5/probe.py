"""A look at a whole HDF5 file, in a child: every question that will be asked of it, and the texts that are wanted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock._src.stores.hdf5.guard import Line, run_guarded
from penstock._src.system.files import for_library

Texts = dict[tuple[str, str | None], Any]
"""By (group, attribute), or by (data set, None) for a data set that is one string."""

_MOST_NODES = 20_000
_MOST_SECONDS = 30.0
_LARGEST_TEXT_BYTES = 4 << 20
_LARGEST_READ_BYTES = 16 << 20


def probe_file(path: Path, names: Sequence[str]) -> Texts:
    """The texts under the given names, from a file that was opened, walked and read here and there without harm."""
    lines = run_guarded(f"{__name__}:walk", [str(path.absolute()), list(names)], {0: path})
    return {(line["node"], line["name"]): line["text"] for line in lines}


def walk(arguments: Any) -> Iterator[Line]:
    """Go as far as the file's own hard links lead, read a little of everything, and give the wanted texts."""
    try:
        yield from _walk(*arguments)
    except Exception:
        return  # an error in words: the parent meets it again, and knows what it was doing


def _walk(path: str, names: Sequence[str]) -> Iterator[Line]:
    import h5py

    with h5py.File(for_library(path), "r", locking="best-effort") as file:
        seen = 0
        until = time.monotonic() + _MOST_SECONDS
        waiting = [("", h5py.h5g.open(file.id, b"/"))]
        visited = set()
        while waiting and seen < _MOST_NODES and time.monotonic() < until:
            yield {"at": 0}
            node, group = waiting.pop()
            address = h5py.h5o.get_info(group).addr
            if address in visited:
                continue
            visited.add(address)
            for name in names:
                if (text := text_attribute(group, name)) is not None:
                    yield {"node": node or "/", "name": name, "text": text}
            for name in h5py.Group(group):
                seen += 1
                key = name.encode("utf-8", "surrogateescape")
                if group.links.get_info(key).type != h5py.h5l.TYPE_HARD:
                    continue
                child = quietly(h5py.h5o.open, group, key)
                place = f"{node}/{name}" if node else name
                if isinstance(child, h5py.h5g.GroupID):
                    waiting.append((place, child))
                elif isinstance(child, h5py.h5d.DatasetID):
                    text = quietly(probe_data_set, child, name in names)
                    if text is not None:
                        yield {"node": place, "name": None, "text": text}


def text_attribute(node: Any, name: str) -> Any:
    import h5py

    if not h5py.h5a.exists(node, name.encode()):
        return None
    handle = h5py.h5a.open(node, name.encode())
    if not isinstance(handle.get_type(), h5py.h5t.TypeStringID) or handle.get_storage_size() > _LARGEST_TEXT_BYTES:
        return None
    return quietly(lambda: _plain(h5py.Group(node).attrs[name]))


def probe_data_set(node: Any, wanted: bool = False) -> Any:
    """Everything that the parent will ask of a data set; its text where that is wanted."""
    import h5py

    plist = node.get_create_plist()
    if plist.get_layout() == h5py.h5d.VIRTUAL or plist.get_external_count():
        return None
    data = h5py.Dataset(node)
    if h5py.check_string_dtype(data.dtype) is not None:
        return _plain(data[()]) if wanted and data.size == 1 and data.nbytes <= _LARGEST_TEXT_BYTES else None
    if data.dtype.hasobject or not data.size:
        return None
    if not data.shape:
        data[()]  # a single value: `success` of an episode
        return None
    rows = data.shape[0]
    row_bytes = data.nbytes // rows
    if data.chunks is not None:
        probe_chunks(data)
        row_bytes = max(row_bytes, 2 * data.dtype.itemsize * math.prod(data.chunks))
    else:
        data.fillvalue  # noqa: B018 - a damaged one crashes the library
    if row_bytes <= _LARGEST_READ_BYTES:
        data[0], data[rows - 1]
    return None


def probe_chunks(data: Any) -> None:
    """The fill value, and where the first chunk and the last one lie."""
    data.fillvalue  # noqa: B018 - a damaged one crashes the library
    for row in {0, data.shape[0] - 1}:
        data.id.get_chunk_info_by_coord((row // data.chunks[0] * data.chunks[0],) + (0,) * (len(data.shape) - 1))


def quietly(call: Any, *arguments: Any) -> Any:
    """An error is the parent's to find and to name."""
    try:
        return call(*arguments)
    except Exception:
        return None


def _plain(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value[:_LARGEST_TEXT_BYTES].encode("utf-8", "replace").decode() if isinstance(value, str) else None
