"""`View`: a column decoded once at the training size, in RAM or on disk, one copy for all threads and processes.

    view = View.in_ram(spec, store.rows, limit_bytes=parse_bytes("2GiB"))
    slots = view.slots(rows)               # -1: the row has no place here
    if not view.get(slot, out):            # not there yet: decode it from the store into `out`, and keep it
        view.put(slot, out)

A view only fills: nothing is evicted, and it never grows beyond its limit. The mark of a row is written last. Rows on
disk are written by the system (`pwrite`), and mapped for reading only: a full disk is an error code instead of a
signal, and no stray write of this process reaches the file. Raw rows in RAM are those of `memory_rows.py`.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.views import cache, jpeg_rows, view_file, view_opening
from penstock._src.load.views.memory_rows import MemoryRows
from penstock._src.load.views.new_rows import NewRows
from penstock._src.load.views.view_file import HEADER_BYTES, PLACE, SUM, ViewLayout, ViewSpec, write_all
from penstock._src.plan.view_choice import ENOUGH
from penstock._src.system import shared_memory
from penstock._src.system.shared_memory import Holder
from penstock._src.system.units import format_bytes
from penstock.errors import OutputFailed, UsageError

__all__ = ["View", "ViewSpec"]

_FILLED = b"\x01"
_NOT_FILLED = b"\x00"
_GOOD = 1  # what this process knows of a row on disk: its checksum was right once
_BAD = 2  # … it was wrong once; 3: it was put again


class View:
    """Pixels of one column at one size; made by `View.in_ram` or `View.on_disk`. A context manager."""

    def __init__(
        self, spec: ViewSpec, layout: ViewLayout, fd: int, *, token: str, path: Path | None = None,
        limit_bytes: int | None = None, is_writable: bool = True, notes: tuple[str, ...] = (),
        is_shared: bool = False,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.layout = layout
        self.path = path
        self.limit_bytes = limit_bytes
        self.notes = notes
        self.n_refused = 0
        """Rows that found no room, or that the system refused to write."""
        self._shape = spec.shape
        self.is_shared = is_shared
        """Whether another process made it: its memory counts there."""
        self._leave: weakref.finalize[..., View] | None = None
        self._fd = fd
        self._token = token
        self._is_writable = is_writable
        self._known = np.zeros(layout.capacity if path is not None else 0, np.uint8)
        self._memory: MemoryRows | None = None
        self._map: mmap.mmap | None = None
        with view_opening.mapping(fd, spec, layout, path):
            if path is None and spec.encoding == "raw":
                self._memory = MemoryRows(fd, spec, layout)
            else:
                self._map = mmap.mmap(fd, layout.n_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        everything = np.zeros(0, np.uint8) if self._map is None else np.frombuffer(self._map, np.uint8)
        self._flags = everything[HEADER_BYTES : HEADER_BYTES + layout.capacity]
        self._table = everything[layout.table_at : layout.rows_at]

    # Making

    @classmethod
    def in_ram(cls, spec: ViewSpec, rows: int, limit_bytes: int | None = None) -> View:
        """A view in shared memory without a name: it goes when the last process that holds it ends."""
        made = view_opening.fresh_memory(spec, rows, limit_bytes)
        return cls(spec, made.layout, made.fd, token=made.token, limit_bytes=made.limit_bytes)

    @classmethod
    def shared_in_ram(cls, spec: ViewSpec, rows: int, limit_bytes: int | None, *, makes: bool = True) -> View | None:
        """The view of this spec that another process of this user has in RAM, or a new one, which others find; None
        where there is none and none is made. One with far fewer places than `limit_bytes` allows is left to others;
        with a limit of 0 any is taken."""
        own = view_file.layout_within(spec, rows, limit_bytes, checked=False).capacity if limit_bytes != 0 else 1
        with shared_memory.holders_of(view_file.shared_name(spec, rows)) as held:
            memory = view_opening.find_memory(spec, rows, held, own * ENOUGH)
            if memory is not None:
                view = cls(spec, memory.layout, memory.fd, token=memory.token, is_shared=True)
            elif makes:
                view = cls.in_ram(spec, rows, limit_bytes)
            else:
                return None
            holder = held.add(view._fd, view._token)
        view._leave = weakref.finalize(view, shared_memory.leave, held.path, holder)
        return view

    @classmethod
    def on_disk(
        cls, spec: ViewSpec, rows: int, directory: str | os.PathLike[str] | None = None,
        limit_bytes: int | None = None, *, cache_limit_bytes: int | None = None,
    ) -> View:  # fmt: skip
        """The view of this spec in the cache directory: the one that is there, with all rows it has, or a new one.

        A file whose header is damaged is removed and built again, which `notes` says. Without `limit_bytes` all rows
        get a place, or it is refused with the numbers.
        """
        layout = view_file.layout_within(spec, rows, limit_bytes, checked=True)
        return cls._on_disk(spec, layout, cache.views_directory(directory), limit_bytes, cache_limit_bytes)

    @classmethod
    def _on_disk(
        cls, spec: ViewSpec, layout: ViewLayout, directory: Path, limit_bytes: int | None,
        cache_limit_bytes: int | None = None,
    ) -> View:  # fmt: skip
        with cache.CacheDirectory(directory, cache_limit_bytes) as held:
            return cls.within(held, spec, layout, limit_bytes)

    @classmethod
    def within(cls, held: cache.CacheDirectory, spec: ViewSpec, layout: ViewLayout, limit_bytes: int | None) -> View:
        """Open or make, the directory locked: of two processes that come at once, the second finds the first's file."""
        path = view_opening.path_in(held.path, spec, layout)
        notes: tuple[str, ...] = ()
        for _ in range(2):
            view, wrong = cls.opened(path, spec, layout, limit_bytes)
            if view is not None:
                view.notes = notes
                return view
            if wrong:
                notes = (*notes, f"{path} was built again: {wrong}")
                cache.remove_view(path)
            needed_bytes = view_opening.file_bytes(spec, layout, limit_bytes)
            removed = held.make_room(needed_bytes, f"a view of {spec.column!r} ({layout.capacity:,} rows)")
            notes = (*notes, *(f"{each} was removed to make room" for each in removed))
            held.create(path.name, view_file.pack_header(spec, layout, secrets.token_hex(16)), layout.n_bytes)
        raise OutputFailed(path, "a view that was just made cannot be opened", OSError(errno.EIO, "it is not valid"))

    @classmethod
    def opened(
        cls, path: Path, spec: ViewSpec, layout: ViewLayout, limit_bytes: int | None
    ) -> tuple[View | None, str]:  # fmt: skip
        """(the view that lies there, ""), or (None, what is wrong with the file); the directory is locked."""
        opened, wrong = view_opening.open_file(path, spec, layout)
        if opened is None:
            return None, wrong
        return cls(spec, layout, opened.fd, token=opened.token, path=path, limit_bytes=limit_bytes,
                   is_writable=opened.is_writable), ""  # fmt: skip

    @classmethod
    def find_on_disk(cls, spec: ViewSpec, rows: int, directory: str | os.PathLike[str] | None = None) -> View | None:
        """The sound view of this spec that has the most places, whatever limit it was made with; None where there is
        none. Nothing is made or removed."""
        place = cache.views_directory(directory)
        for capacity in view_opening.capacities_on_disk(place, spec, rows):
            layout = view_file.layout_of(spec, rows, capacity, checked=True)
            limit_bytes = None if capacity == rows else layout.n_bytes
            with cache.CacheDirectory(place):
                view, _ = cls.opened(view_opening.path_in(place, spec, layout), spec, layout, limit_bytes)
            if view is not None:
                return view
        return None

    @classmethod
    def _attached(cls, spec: ViewSpec, layout: ViewLayout, limit_bytes: int | None, owner: Holder) -> View:
        """What pickle makes of a view in RAM, in a process that was not forked."""
        fd = view_opening.open_memory(spec, layout, owner)
        return cls(spec, layout, fd, token=owner.token, limit_bytes=limit_bytes, is_shared=True)

    # Asking

    @property
    def is_closed(self) -> bool:
        """Whether its maker has let it go."""
        return self._fd < 0

    @property
    def capacity(self) -> int:
        """How many rows have a place."""
        return self.layout.capacity

    @property
    def rows(self) -> int:
        """How many rows the store has."""
        return self.layout.rows

    @property
    def n_filled(self) -> int:
        """Rows that are there, by the table."""
        self._check_open()
        return int(np.count_nonzero(self._flags == 1)) if self._memory is None else self._memory.n_filled

    @property
    def n_possible(self) -> int:
        """Rows that may come to be there: all that have a place; of a view that may only be read, those it has."""
        return self.capacity if self._is_writable else self.n_filled

    @property
    def n_damaged(self) -> int:
        """Rows on disk that this process found damaged; they count as not filled until they are put again."""
        return int(np.count_nonzero(self._known & _BAD))

    @property
    def n_bytes(self) -> int:
        """The whole file: header, tables and rows."""
        self._check_open()
        return os.fstat(self._fd).st_size

    def slots(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of each row, -1 where it has none."""
        return view_file.slots_of(rows, self.layout.rows, self.layout.capacity)

    def rows_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row whose place each slot is."""
        return view_file.rows_of(slots, self.layout.rows, self.layout.capacity)

    def filled(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each slot holds its row, by the table; False for -1. Of a view on disk, `get` may still find that a
        row is damaged."""
        self._check_open()
        slots = np.asarray(slots, np.int64)
        if self._memory is not None:
            return self._memory.filled(slots)
        there: NDArray[np.bool_] = np.asarray((self._flags[slots] == 1) & (slots >= 0))
        if self.path is not None and not self._is_writable:
            there &= self._known[slots] != _BAD  # the mark of a damaged row cannot be taken back
        return there

    def get(self, slot: int, out: NDArray[np.uint8]) -> bool:
        """Copy a row into `out` (channels, height, width); False where it is not there or not sound, and then `out` may
        hold anything."""
        self._check_open()
        if out.shape != self._shape or out.dtype != np.uint8:
            raise UsageError(f"a row of uint8 {self._shape} does not go into {out.dtype} {out.shape}")
        if not 0 <= slot < self.layout.capacity:
            return False
        if self._memory is not None:
            return self._memory.get(slot, out)
        if self._flags[slot] != 1:
            return False
        if self.spec.encoding == "jpeg":
            data = self._jpeg(slot)
            good = self._is_sound(slot, data) and data is not None and jpeg_rows.decode(self.spec, data, out)
        else:
            good = self._read(slot, out)
        if not good:
            self._unmark(slot)
        return good

    def take(self, slots: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64] | None = None) -> None:
        """Copies of rows of a raw view in memory that are `filled`, many in one call; `at`: each to its place in `out`,
        ascending."""
        self._check_open()
        assert self._memory is not None
        self._memory.take(slots, out, at)

    # Filling

    def new_rows(self, slots: Iterable[int]) -> NewRows:
        """Rows that are about to be made; see `NewRows`."""
        self._check_open()
        return NewRows(self, self._memory, slots)

    def put(self, slot: int, pixels: NDArray[np.uint8]) -> bool:
        """Keep a row; whether it is there now. From any thread or process; a row that is there already stays.

        False where the slot is none, the view is full, or the system refuses to write: counted in `n_refused`.
        """
        try:
            return self.keep(slot, pixels)
        except OSError as error:
            return self.refuse_write(error)

    def keep(self, slot: int, pixels: NDArray[np.uint8]) -> bool:
        """As `put`, but what the system refuses is an OSError."""
        self._check_open()
        if pixels.shape != self._shape or pixels.dtype != np.uint8:
            raise UsageError(f"a view of uint8 {self._shape} was given {pixels.dtype} {pixels.shape}")
        if not 0 <= slot < self.layout.capacity:
            return False
        if self._memory is not None:
            with self.new_rows([slot]) as new:
                return new.keep(slot, pixels)
        if self._flags[slot] == 1 and (self.path is None or self._known[slot] != _BAD):
            return True
        if not self._is_writable:
            return self._refuse(f"{self.path} may only be read: rows that it lacks are not kept")
        return self._write(slot, pixels) or self.refuse_full()

    def sync(self) -> None:
        """Bring what was put to the disk."""
        self._check_open()
        if self.path is not None and self._is_writable:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Let go; more than once is fine."""
        if self._fd < 0:
            return
        if self._leave is not None:
            self._leave()
        fd, self._fd = self._fd, -1
        os.close(fd)
        self._memory = None
        self._flags = self._table = np.zeros(0, np.uint8)
        mapping, self._map = self._map, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                pass  # an array over it still exists: the mapping ends with the last one

    # Inside

    def _check_open(self) -> None:
        if self._fd < 0:
            raise UsageError(f"the view of {self.spec.column!r} is closed")

    def _write(self, slot: int, pixels: NDArray[np.uint8]) -> bool:
        """Bytes, then their checksum, then the mark. Whoever sees the mark before the bytes (after a power cut, or on
        a processor that reorders) finds a checksum that does not hold."""
        table_at, rows_at = self.layout.table_at, self.layout.rows_at
        if self.spec.encoding == "jpeg":
            data = jpeg_rows.encode(self.spec, pixels)
            offset = jpeg_rows.append(self._fd, data, self._limit_of_jpegs())
            if offset is None:
                return False
            entry = np.array([(offset, len(data), view_file.checksum(data, slot))], PLACE)
            write_all(self._fd, entry.tobytes(), table_at + PLACE.itemsize * slot)
        else:
            row = np.ascontiguousarray(pixels).reshape(-1)
            write_all(self._fd, row.data, rows_at + slot * len(row))
            if self.path is not None:
                total = np.array([view_file.checksum(row, slot)], SUM)
                write_all(self._fd, total.tobytes(), table_at + SUM.itemsize * slot)
        if self.path is not None:
            self._known[slot] |= _GOOD
        write_all(self._fd, _FILLED, HEADER_BYTES + slot)
        return True

    def _limit_of_jpegs(self) -> int:
        most_bytes = jpeg_rows.most_bytes(self.spec, self.layout)
        return most_bytes if self.limit_bytes is None else min(most_bytes, self.limit_bytes)

    def refuse_full(self) -> bool:
        """A row found no place: counted."""
        return self._refuse(f"the view of {self.spec.column!r} is full: {format_bytes(self.n_bytes)}")

    def refuse_write(self, error: OSError) -> bool:
        """The system does not write a row: counted."""
        return self._refuse(f"{self.path or 'memory'}: a row cannot be kept: {error.strerror}")

    def _refuse(self, why: str) -> bool:
        self.n_refused += 1
        if why not in self.notes:
            self.notes = (*self.notes, why)
        return False

    def _read(self, slot: int, out: NDArray[np.uint8]) -> bool:
        """A raw row of a file, read instead of mapped: pages of the file do not become memory of this process, and a
        disk that fails is an error code instead of a signal."""
        target = out if out.flags.c_contiguous else np.empty(self._shape, np.uint8)
        row = target.reshape(-1)
        if not view_file.read_all(self._fd, row, self.layout.rows_at + slot * len(row)):
            return False
        if target is not out:
            np.copyto(out, target)
        return self._is_sound(slot, row)

    def _is_sound(self, slot: int, row: NDArray[np.uint8] | None) -> bool:
        """Whether the checksum of a row on disk is right; asked once per process."""
        if row is None or self.path is None or self._known[slot] & _GOOD:
            return row is not None
        expected = int(self._entry(slot, PLACE)["sum"] if self.spec.encoding == "jpeg" else self._entry(slot, SUM))
        if view_file.checksum(row, slot) != expected:
            return False
        self._known[slot] |= _GOOD
        return True

    def _unmark(self, slot: int) -> None:
        """A row that is not valid counts as not filled, for all processes."""
        if self.path is not None:
            self._known[slot] = _BAD
        if self._is_writable:
            try:
                write_all(self._fd, _NOT_FILLED, HEADER_BYTES + slot)
            except OSError:
                pass  # the row stays marked, and every process finds out for itself that it is damaged

    def _entry(self, slot: int, kind: np.dtype[Any]) -> Any:
        begin = kind.itemsize * slot
        return self._table[begin : begin + kind.itemsize].view(kind)[0]

    def _jpeg(self, slot: int) -> NDArray[np.uint8] | None:
        """The bytes of a JPEG row; None where its place lies outside the file or the bytes are not all there."""
        place = self._entry(slot, PLACE)
        offset, size = int(place["offset"]), int(place["size"])
        if not self.layout.rows_at <= offset <= self.n_bytes - size or not size:
            return None
        data = np.empty(size, np.uint8)
        return data if view_file.read_all(self._fd, data, offset) else None

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        if self.path is not None:
            return View._on_disk, (self.spec, self.layout, self.path.parent, self.limit_bytes)
        return View._attached, (self.spec, self.layout, self.limit_bytes, Holder.of(self._fd, self._token))

    def __repr__(self) -> str:
        size = "×".join(str(side) for side in (*self.spec.size, self.spec.channels))
        head = f"<View of {self.spec.column!r} {size} {self.spec.encoding} {self.path or 'in RAM'}"
        if self._fd < 0:
            return f"{head}: closed>"
        return f"{head}: {self.n_filled:,} of {self.capacity:,} rows, {format_bytes(self.n_bytes)}>"

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)  # as an argument: when the interpreter ends, the module's names are gone before this
