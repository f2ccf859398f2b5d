"""How the bytes of a recording are read, and what to say when the file does not go on."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

from penstock.errors import RecordingCorrupt, RecordingError
from penstock.system import files


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


class _RecordingErrors(files.ReadErrors):
    def cannot_read(self, path: Path, offset: int, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            return RecordingError(f"{path}: the recording was closed")
        return RecordingCorrupt(f"cannot be read: {error}", path=str(path), offset=offset, hint=recover_hint(path))

    def ends(self, path: Path, offset: int, n_bytes: int, got_bytes: int) -> Exception:
        return RecordingCorrupt(
            f"the file ends where {n_bytes - got_bytes:,} more bytes of messages should be",
            path=str(path),
            offset=offset + got_bytes,
            hint=f"was it cut while it was open? {recover_hint(path)}",
        )


ERRORS = _RecordingErrors(RecordingError, RecordingCorrupt)


class Window(files.Window):
    """Records at rising positions of a recording."""

    def broken(self, message: str, offset: int) -> RecordingCorrupt:
        return RecordingCorrupt(message, path=str(self.path), offset=offset, hint=recover_hint(self.path))

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> bytes:
        """Exactly `n_bytes` from `offset`."""
        if offset + n_bytes > self.size_bytes:
            what = f"the file ends after {self.size_bytes:,} bytes, inside a record that needs {n_bytes:,} from here"
            raise self.broken(what, offset)
        data = super().at(offset, n_bytes, ahead)
        if len(data) < n_bytes:
            raise self.broken(f"the file shrank while it was read: {n_bytes:,} bytes are missing", offset)
        return data
