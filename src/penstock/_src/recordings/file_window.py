"""How the bytes of a recording are read, and what to say when the file does not go on."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

from penstock._src.system import files
from penstock.errors import RecordingCorrupt, RecordingError

NO_RECORD = "no record begins here"


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


def unknown_loss(cause: str) -> str:
    """The cause of a loss of unknown size."""
    return f"an unknown number of messages, counted as 1: {cause}"


def no_record_note(n_bytes: int, at: int, places: int = 1) -> str:
    """The note on bytes between records that hold no message: padding, or what something else wrote there."""
    where = f"at byte {at:,}" if places == 1 else f"in {places:,} places, the first at byte {at:,}"
    return f"{n_bytes:,} bytes that are no record, {where}; no message is missing"


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


def corrupt(path: Path, message: str, offset: int) -> RecordingCorrupt:
    """The error that a file is broken at a place."""
    return RecordingCorrupt(message, path=str(path), offset=offset, hint=recover_hint(path))
