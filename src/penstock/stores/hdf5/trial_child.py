"""What runs in the child that looks at an HDF5 file first: it may crash or hang, and nobody else does."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_MOST_NODES = 20_000
_MOST_SECONDS = 30.0
_MOST_CPU_SECONDS = 10
_MOST_MEMORY_BYTES = 8 << 30
_LARGEST_TEXT_BYTES = 4 << 20
_LARGEST_READ_BYTES = 16 << 20


def main() -> None:
    """Walk the file as far as its own hard links lead, read a little of everything, and print the wanted texts."""
    limit_myself()
    import h5py

    path, names = json.load(sys.stdin)
    found: list[list[Any]] = []
    with h5py.File(path, "r", locking="best-effort") as file:
        seen = 0
        until = time.monotonic() + _MOST_SECONDS
        waiting = [("", h5py.h5g.open(file.id, b"/"))]
        visited = set()
        while waiting and seen < _MOST_NODES and time.monotonic() < until:
            node, group = waiting.pop()
            address = h5py.h5o.get_info(group).addr
            if address in visited:
                continue
            visited.add(address)
            found += [[node or "/", name, text] for name in names if (text := text_attribute(group, name)) is not None]
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
                    text = quietly(look_at, child, name in names)
                    if text is not None:
                        found.append([place, None, text])
    sys.stdout.write(json.dumps(found))


def limit_myself() -> None:
    """Whatever becomes of the parent: a child that hangs ends by itself, and takes neither machine nor memory."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_SECONDS, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or soft > _MOST_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, hard))
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # an encoder may have raised the parent's


def text_attribute(node: Any, name: str) -> Any:
    import h5py

    if not h5py.h5a.exists(node, name.encode()):
        return None
    handle = h5py.h5a.open(node, name.encode())
    if not isinstance(handle.get_type(), h5py.h5t.TypeStringID) or handle.get_storage_size() > _LARGEST_TEXT_BYTES:
        return None
    return quietly(lambda: _plain(h5py.Group(node).attrs[name]))


def look_at(node: Any, wanted: bool) -> Any:
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
    data.fillvalue  # noqa: B018 - a damaged one crashes the library
    rows = data.shape[0]
    row_bytes = data.nbytes // rows
    if data.chunks is not None:
        for row in {0, rows - 1}:
            node.get_chunk_info_by_coord((row // data.chunks[0] * data.chunks[0],) + (0,) * (len(data.shape) - 1))
        row_bytes = max(row_bytes, 2 * data.dtype.itemsize * _product(data.chunks))
    if row_bytes <= _LARGEST_READ_BYTES:
        data[0], data[rows - 1]
    return None


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


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


if __name__ == "__main__":
    main()
