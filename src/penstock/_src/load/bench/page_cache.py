"""The system's page cache of some files: dropping it, and how much of it is left."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

_WINDOW_BYTES = 1 << 30  # mapped at a time, while asking which pages are in memory


def files_of(path: Path) -> list[Path]:
    """The files that a store at this path is made of."""
    if path.is_file():
        return [path]
    return sorted(each for each in path.rglob("*") if each.is_file())


def drop(paths: Sequence[Path]) -> None:
    """Ask the system to forget the pages of these files; mapped pages stay."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.access(path, os.W_OK):
                os.fdatasync(fd)  # pages that are not on the disk yet cannot be forgotten
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def resident_share(paths: Sequence[Path]) -> float | None:
    """The part of these files that is in the page cache, 0…1; None where the system does not show it to this user."""
    pages = resident = 0
    for path in paths:
        counted = _resident_pages(path)
        if counted is None:
            return None
        pages += counted[0]
        resident += counted[1]
    return resident / max(pages, 1)


def _resident_pages(path: Path) -> tuple[int, int] | None:
    stat = path.stat()
    if stat.st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None  # the kernel would call every page of another user's file resident
    ask = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if ask is None:
        return None
    pages = resident = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for offset in range(0, stat.st_size, _WINDOW_BYTES):
            size = min(_WINDOW_BYTES, stat.st_size - offset)
            # A private mapping that may be written: ctypes takes no address of what is read-only. Nothing is touched.
            with mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset) as held:
                answer = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
                first = ctypes.c_char.from_buffer(held)
                failed = ask(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), answer)
                del first
                if failed:
                    return None
                pages += len(answer)
                resident += sum(byte & 1 for byte in answer)
    finally:
        os.close(fd)
    return pages, resident
