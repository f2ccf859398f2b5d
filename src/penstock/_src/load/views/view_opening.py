"""Opening the file of a view: fresh memory, the memory of another process, a file in the cache directory."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock._src.load.views import cache, jpeg_rows, view_file
from penstock._src.load.views.view_file import HEADER_BYTES, ViewLayout, ViewSpec
from penstock._src.system.files import memory_file
from penstock._src.system.limits import describe_memory, read_memory_limit
from penstock._src.system.shared_memory import Holder, Holders
from penstock._src.system.units import format_bytes
from penstock.errors import LimitExceeded, OutputFailed, StoreError

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OpenView(NamedTuple):
    """A file that is open, sound and held against removal."""

    fd: int
    token: str
    is_writable: bool


class Memory(NamedTuple):
    """Fresh memory for a view, and what it may come to hold; None: what its rows take."""

    layout: ViewLayout
    fd: int
    token: str
    limit_bytes: int | None


def fresh_memory(spec: ViewSpec, rows: int, limit_bytes: int | None) -> Memory:
    """Shared memory without a name for as many rows as the limit lets in, refused where the machine has less."""
    layout = view_file.layout_within(spec, rows, limit_bytes, checked=False)
    needed_bytes = layout.n_bytes
    if spec.encoding == "jpeg":
        if limit_bytes is None:
            limit_bytes = jpeg_rows.expected_bytes(spec, layout)
        needed_bytes = min(limit_bytes, jpeg_rows.most_bytes(spec, layout))
    _check_memory(spec, layout, needed_bytes)
    token = secrets.token_hex(16)
    fd = _memory_file(view_file.pack_header(spec, layout, token), layout.n_bytes)
    return Memory(layout, fd, token, limit_bytes)


@contextmanager
def mapping(fd: int, spec: ViewSpec, layout: ViewLayout, path: Path | None) -> Iterator[None]:
    """Where the file cannot be mapped, it is closed."""
    try:
        yield
    except OSError as error:
        os.close(fd)
        raise StoreError(
            f"the view of {spec.column!r} ({path or 'in RAM'}): {format_bytes(layout.n_bytes)} cannot be mapped: "
            f"{error.strerror}",
            hint="raise the address space of the process (ulimit -v), or give the view a smaller limit",
        ) from error


def _memory_file(header: bytes, n_bytes: int) -> int:
    """A file in memory that has no name: nothing is left when the last process ends, and /dev/shm plays no part."""
    fd = -1
    try:
        fd = memory_file("penstock-view")
        os.ftruncate(fd, n_bytes)
        view_file.write_all(fd, header, 0)
        return fd
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise OutputFailed("memory", f"a view of {format_bytes(n_bytes)} cannot be made", error) from error


def _check_memory(spec: ViewSpec, layout: ViewLayout, needed_bytes: int) -> None:
    """Refuse what the machine, the container or the process may not hold, with the numbers."""
    memory = read_memory_limit()
    if needed_bytes > memory.available_bytes:
        raise LimitExceeded(
            f"a view of {spec.column!r} in RAM needs {format_bytes(needed_bytes)} for {layout.capacity:,} rows, "
            f"{format_bytes(memory.available_bytes)} available: {describe_memory(memory)}",
            size=needed_bytes,
            limit=memory.available_bytes,
            hint="give it a smaller limit (then a part of the rows is kept), a smaller image_size, "
            "or put the view on disk",
        )


def open_memory(spec: ViewSpec, layout: ViewLayout, owner: Holder) -> int:
    """The memory of a living process, opened again."""
    fd = owner.open()
    if fd is not None and _token_of(fd, spec, layout) == owner.token:
        return fd
    if fd is not None:
        os.close(fd)
    why = "it has ended, or has closed the view" if fd is None else "the memory holds another view"
    raise StoreError(
        f"the view of {spec.column!r} in the memory of process {owner.pid} cannot be opened: {why}",
        hint="a view in RAM lives as long as the process that made it: keep it open there while others start",
    )


def find_memory(spec: ViewSpec, rows: int, held: Holders, least: float) -> Memory | None:
    """The view that other processes hold and that has the most places, if it has at least so many."""
    best: Memory | None = None
    for fd, holder in held.opened():
        capacity = view_file.read_capacity(os.pread(fd, HEADER_BYTES, 0), spec, rows, checked=False)
        is_known = holder.pid == os.getpid()  # views of one process are distinct: each loader has its own
        if capacity is None or is_known or capacity < max(least, 1 if best is None else best.layout.capacity + 1):
            os.close(fd)
            continue
        layout = view_file.layout_of(spec, rows, capacity, checked=False)
        if _token_of(fd, spec, layout) != holder.token:
            os.close(fd)
            continue
        if best is not None:
            os.close(best.fd)
        best = Memory(layout, fd, holder.token, None)
    return best


def _token_of(fd: int, spec: ViewSpec, layout: ViewLayout) -> str:
    """What the header says; nothing where the memory is smaller than it says."""
    if os.fstat(fd).st_size < layout.n_bytes:
        return ""
    return view_file.read_token(os.pread(fd, HEADER_BYTES, 0), spec, layout)[0]


def path_in(directory: Path, spec: ViewSpec, layout: ViewLayout) -> Path:
    """Where the view lies in a directory of views."""
    return directory / (view_file.key_of(spec, layout) + cache.SUFFIX)


def file_bytes(spec: ViewSpec, layout: ViewLayout, limit_bytes: int | None) -> int:
    """What the file of a view takes once it is filled; of JPEGs, what is to be expected."""
    if spec.encoding == "raw":
        return layout.n_bytes
    expected_bytes = jpeg_rows.expected_bytes(spec, layout)
    return expected_bytes if limit_bytes is None else min(limit_bytes, expected_bytes)


def open_file(path: Path, spec: ViewSpec, layout: ViewLayout) -> tuple[OpenView | None, str]:
    """(a sound file, ""), (None, "") where there is none, or (None, what is wrong with it)."""
    fd, is_writable, wrong = _open(path)
    if fd < 0:
        return None, wrong
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            wrong = "it is not a file"
        elif info.st_size < layout.n_bytes or (spec.encoding == "raw" and info.st_size != layout.n_bytes):
            wrong = f"it has {info.st_size:,} bytes instead of {layout.n_bytes:,}"
        else:
            token, wrong = view_file.read_token(os.pread(fd, HEADER_BYTES, 0), spec, layout)
            if not wrong:
                cache.hold(fd, is_writable)
                return OpenView(fd, token, is_writable), ""
    except OSError as error:
        wrong = f"it cannot be read: {error.strerror}"
    os.close(fd)
    return None, wrong


def _open(path: Path) -> tuple[int, bool, str]:
    """(descriptor or -1, whether it may be written, why not): another user's view, or one on a read-only disk, is
    still worth reading."""
    wrong = ""
    for mode, is_writable in ((os.O_RDWR, True), (os.O_RDONLY, False)):
        try:
            return os.open(path, mode | _FLAGS), is_writable, ""
        except FileNotFoundError:
            return -1, False, ""
        except OSError as error:
            wrong = f"it cannot be opened: {error.strerror}"
    return -1, False, wrong


def capacities_on_disk(directory: Path, spec: ViewSpec, rows: int) -> list[int]:
    """How many places the files of this spec in `directory` have, whatever limits they were made with, most first."""
    capacities = []
    try:
        paths = cache.view_paths(directory)
    except OSError:  # no directory, no views
        return []
    for path in paths:
        fd, _, _ = _open(path)
        if fd < 0:
            continue
        try:
            capacity = view_file.read_capacity(os.pread(fd, HEADER_BYTES, 0), spec, rows)
        except OSError:
            capacity = None
        finally:
            os.close(fd)
        if capacity is not None:
            capacities.append(capacity)
    return sorted(capacities, reverse=True)
