"""One converter per output: a lock that names its holder and falls with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import DataSetError, OutputFailed


@contextlib.contextmanager
def locked(lock: Path, out: Path) -> Iterator[None]:
    """Hold the lock file; a killed run leaves nothing to clean up, since the system lets go of its lock."""
    handle = _take(lock, out)
    try:
        yield
    finally:
        # The file means nothing without the lock on it: a disk that refuses to let it go is no reason to fail.
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(handle)


def _take(lock: Path, out: Path) -> int:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        while (handle := _try(lock, out)) is None:
            continue
        return handle
    except OSError as error:
        raise OutputFailed(error.filename or lock, "cannot be written", error) from error


def _try(lock: Path, out: Path) -> int | None:
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us may have removed the file between our two calls: then we hold nothing.
        if _is_same_file(handle, lock):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} on {os.uname().nodename}".encode(), 0)
            return handle
        os.close(handle)
        return None
    except BlockingIOError as error:
        holder = os.pread(handle, 256, 0).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise DataSetError(
            f"another conversion is writing {out} (process {holder})", hint="wait for it, or choose another output"
        ) from error
    except OSError:
        os.close(handle)
        raise


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
