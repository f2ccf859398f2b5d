"""Files that are written whole or not at all, what is brought to the disk, and files without a name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(
    path: Path, fresh: Path | None = None, *, fsync: bool = False, fsync_name: bool = False
) -> Iterator[Path]:
    """A path to write to; after the body it takes the place of `path` in one step. Nothing is left of it if that fails.

    `fresh`: that path, beside `path`. `fsync`: its bytes are on the disk before the step, so that a machine that stops
    leaves the old file or the new one; `fsync_name`: and it is the new one after this call.
    """
    if fresh is None:
        fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield fresh
        if fsync:
            fsync_path(fresh)
        os.replace(fresh, path)
        if fsync_name:
            fsync_path(path.parent)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


def write_file(path: Path, pieces: Iterable[bytes | memoryview], *, fsync: bool) -> None:
    """Write a file piece by piece, over what is there; `fsync`: and bring its bytes to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        for piece in pieces:
            write_all(descriptor, piece)
        if fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Bring the bytes of a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """All of the bytes, however many pieces the system takes them in."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(descriptor, left) :]


def memory_file(name: str) -> int:
    """The descriptor of a file in memory, for several processes to map; of an unnamed file where there is none such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    import tempfile

    with tempfile.TemporaryFile(prefix=f"{name}-") as file:
        return os.dup(file.fileno())
