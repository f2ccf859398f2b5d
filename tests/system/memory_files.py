"""A scheme whose files lie in a dict: what a remote one looks like to the readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock._src.system.files import ByteSource, Identity, ReadErrors, RemotePath


class MemorySource(ByteSource):
    """Bytes that no descriptor reads; at most `most_bytes` come in one answer."""

    def __init__(self, path: Path, data: bytes, errors: ReadErrors | None, most_bytes: int = 1 << 30) -> None:
        super().__init__(path, len(data), errors)
        self._data = data
        self._most_bytes = most_bytes

    def _read_some(self, target: memoryview, offset: int) -> int:
        piece = self._data[offset : offset + min(len(target), self._most_bytes)]
        target[: len(piece)] = piece
        return len(piece)

    def identity(self) -> Identity:
        return Identity(len(self._data), hash(self._data) & 0xFFFFFF)

    def duplicate(self, errors: ReadErrors | None) -> MemorySource:
        return MemorySource(self.path, self._data, errors, self._most_bytes)

    def close(self) -> None:
        pass


class MemoryFiles:
    """mem://name/name: files without directories of their own, as in an object store."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.opened: list[str] = []

    def add(self, path: Path, url: str) -> str:
        """Copy a file or a directory to a URL."""
        for file in [path] if path.is_file() else (each for each in path.rglob("*") if each.is_file()):
            name = url if file == path else f"{url}/{file.relative_to(path).as_posix()}"
            self.files[name] = file.read_bytes()
        return url

    def open(self, url: str, errors: ReadErrors | None) -> MemorySource:
        self.opened.append(url)
        return MemorySource(RemotePath(url), self._data(url), errors)

    def identity(self, url: str) -> Identity:
        return MemorySource(RemotePath(url), self._data(url), None).identity()

    def names(self, url: str) -> Sequence[str]:
        below = f"{url.rstrip('/')}/"
        return sorted({name[len(below) :].split("/")[0] for name in self.files if name.startswith(below)})

    def _data(self, url: str) -> bytes:
        if url not in self.files:
            raise FileNotFoundError(2, "No such file", url)
        return self.files[url]
