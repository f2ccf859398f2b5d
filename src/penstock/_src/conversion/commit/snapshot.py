"""A state on the disk: plain values and arrays in one checksummed file, read back exactly, and never by pickle."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock._src.lerobot import layout
from penstock._src.system.files import write_file
from penstock.errors import DataSetCorrupt, os_errors

_MAGIC = b"penstock state 1\n"


class SavedState(NamedTuple):
    """The name of a state file, and what it must contain."""

    name: str
    crc: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "crc": f"{self.crc:08x}", "bytes": self.size_bytes}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> SavedState:
        name = str(entry["name"])
        if Path(name).name != name or not name.endswith(".bin"):
            raise ValueError(f"{name!r} is not the name of a state file")
        return cls(name, int(entry["crc"], 16), int(entry["bytes"]))


def write(path: Path, tree: Mapping[str, Any], *, fsync: bool) -> SavedState:
    """Write a tree of JSON values, arrays and bytes; the file counts once what this returns is written down."""
    pieces = _encode(tree)
    crc = size_bytes = 0

    def counted() -> Iterator[bytes | memoryview]:
        nonlocal crc, size_bytes
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
            size_bytes += len(piece)
            yield piece

    with layout.writing(path, "cannot write the state"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, counted(), fsync=fsync)
    return SavedState(path.name, crc, size_bytes)


def read(directory: Path, saved: SavedState) -> dict[str, Any]:
    """The tree that was written; anything else in the file is DataSetCorrupt."""
    path = directory / saved.name
    with os_errors(DataSetCorrupt, f"{path}: the state cannot be read"):
        size_bytes = path.stat().st_size
        data = path.read_bytes() if size_bytes == saved.size_bytes else b""
    if size_bytes != saved.size_bytes or zlib.crc32(data) != saved.crc:
        raise DataSetCorrupt(
            f"{path}: the state is damaged ({size_bytes:,} bytes; the journal says {saved.size_bytes:,} bytes with the "
            f"checksum {saved.crc:08x})",
            hint="the data set cannot be continued; convert its recordings again",
        )
    return _decode(memoryview(data))


def _encode(tree: Mapping[str, Any]) -> list[bytes | memoryview]:
    """The pieces of the file; arrays are not copied, since the tables of a long video are large."""
    payloads: list[bytes | memoryview] = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            little = value.astype(value.dtype.newbyteorder("<"), copy=False)
            payloads.append(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
            return {"$array": little.dtype.str, "shape": list(value.shape)}
        if isinstance(value, bytes):
            payloads.append(value)
            return {"$bytes": len(value)}
        if isinstance(value, Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry) for entry in value]
        return value

    head = json.dumps(plain(tree), separators=(",", ":"), allow_nan=False).encode()
    return [_MAGIC, len(head).to_bytes(8, "little"), head, *payloads]


def _decode(data: memoryview) -> dict[str, Any]:
    start = len(_MAGIC) + 8
    stop = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    rest = data[stop:]

    def take(size_bytes: int) -> memoryview:
        """The next payload: they follow each other in the order in which the head names them."""
        nonlocal rest
        part, rest = rest[:size_bytes], rest[size_bytes:]
        return part

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        if "$array" in value:
            dtype, shape = value["$array"], tuple(value["shape"])
            return np.frombuffer(take(math.prod(shape) * np.dtype(dtype).itemsize), dtype).reshape(shape)
        if "$bytes" in value:
            return bytes(take(value["$bytes"]))
        return {key: filled(entry) for key, entry in value.items()}

    tree: dict[str, Any] = filled(json.loads(bytes(data[start:stop])))
    return tree


def state_name(episodes: int) -> str:
    """The file with the state of a data set after so many episodes."""
    return f"state-{episodes:06d}.bin"


def episode_state_name(episode_index: int) -> str:
    """The file with what a worker output keeps about one episode."""
    return f"episode-{episode_index:06d}.bin"


def state_files(directory: Path) -> Iterator[Path]:
    """The state files in a directory; their names are ours alone."""
    for path in directory.glob("*.bin"):
        if path.name.startswith(("state-", "episode-")):
            yield path
