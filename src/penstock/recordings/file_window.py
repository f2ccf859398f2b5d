"""Small reads at rising positions of a file, and what to say when the file does not go on."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from penstock.errors import RecordingCorrupt


def plain_name(name: str) -> str:
    """The name of a file without the suffix that says that it is packed as a whole."""
    return name.removesuffix(".zstd").removesuffix(".zst")


def recover_hint(path: Path | str) -> str:
    """What to do with a recording that is cut or broken."""
    name = plain_name(Path(path).name).removesuffix(".active")
    stem, dot, suffix = name.rpartition(".")
    new = f"{stem}-recovered.{suffix}" if dot else f"{name}-recovered"
    return (
        f"`penstock recover {shlex.quote(str(path))} {shlex.quote(new)}` saves what can be read; "
        "or copy it again if the original is whole"
    )


class Window:
    """Small reads at rising positions of a file, many of them answered by one system call."""

    def __init__(self, fd: int, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._fd = fd
        self._begin = 0
        self._held = b""

    def broken(self, message: str, offset: int) -> RecordingCorrupt:
        return RecordingCorrupt(message, path=str(self.path), offset=offset, hint=recover_hint(self.path))

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> bytes:
        """Exactly `n_bytes` from `offset`; `ahead`: so many more will be asked for next."""
        start = offset - self._begin
        if start < 0 or start + n_bytes > len(self._held):
            if offset + n_bytes > self.size_bytes:
                raise self.broken(
                    f"the file ends after {self.size_bytes:,} bytes, inside a record that needs {n_bytes:,} from here",
                    offset,
                )
            try:
                self._held = os.pread(self._fd, max(n_bytes, ahead), offset)
            except OSError as error:
                raise self.broken(f"cannot be read: {error}", offset) from error
            self._begin, start = offset, 0
            if len(self._held) < n_bytes:
                raise self.broken(f"the file shrank while it was read: {n_bytes:,} bytes are missing", offset)
        return self._held[start : start + n_bytes]
