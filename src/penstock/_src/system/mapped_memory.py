"""Shared memory that is cheap to touch: mapped on a border of huge pages, and made present in large steps.

The first write to a page of shared memory costs a page fault: of 4 KiB pages, several times what writing the bytes
takes. One call for many megabytes is cheap where the system gives huge pages.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE_BYTES = 2 << 20
_PAGE_BYTES = mmap.PAGESIZE
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_MADV_COLLAPSE = 25  # Linux 6.1; whatever /sys/kernel/mm/transparent_hugepage/shmem_enabled says
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000


def map_shared(fd: int, n_bytes: int) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    """(the mapping that keeps it, its bytes), to read and to write; OSError where there is no room for it.

    An address that is a multiple of 2 MiB lets the system use huge pages. Python's mmap cannot ask for one: room is
    reserved by it, and the file is mapped into that room, which goes as a whole.
    """
    if n_bytes >= HUGE_BYTES and sys.platform == "linux":
        room = mmap.mmap(-1, n_bytes + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        whole = np.frombuffer(room, np.uint8)
        begin = -whole.ctypes.data % HUGE_BYTES
        wanted = whole.ctypes.data + begin
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if _libc().mmap(wanted, n_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0) == wanted:
            memory = whole[begin : begin + n_bytes]
            _advise(memory, _MADV_HUGEPAGE)
            return room, memory
        del whole
        room.close()
    plain = mmap.mmap(fd, n_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    return plain, np.frombuffer(plain, np.uint8)


def make_present(memory: NDArray[np.uint8]) -> bool:
    """Give memory to a part of a mapping from `map_shared` that begins with a huge page, without a change of its bytes;
    whether the system could. Python's lock is free meanwhile."""
    heads = range(0, len(memory), HUGE_BYTES)
    # What has no page at all is not collapsed: each huge page begins with a small one.
    if all(_advise(memory[head : head + _PAGE_BYTES], _MADV_POPULATE_WRITE) for head in heads):
        return _advise(memory, _MADV_COLLAPSE) or _advise(memory, _MADV_POPULATE_WRITE)  # in small pages
    return False


def _advise(memory: NDArray[np.uint8], advice: int) -> bool:
    return bool(_libc().madvise(memory.ctypes.data, len(memory), advice) == 0)


@functools.cache
def _libc() -> Any:
    """Called through ctypes, madvise does not hold Python's lock; that of Python's mmap does."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    return libc
