"""Raw rows in shared memory: each takes the next free place, whose memory is made present before it is written.

Rows come in any order; places are taken one behind the other. So the memory that a view holds grows with its rows, and
that of many rows is made present in one step.

Each process has a number, which a lock holds, and each place the number of the process that took it: the places of a
process that was killed are found and used.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.views import view_file
from penstock._src.load.views.view_file import COUNT_BYTES, HEADER_BYTES, MARK, ViewLayout, ViewSpec
from penstock._src.system.mapped_memory import HUGE_BYTES, make_present, map_shared

_BLOCK_BYTES = 16 << 20  # of places that a process takes at a time
_PLACES_LOCK = 0  # the byte whose lock guards the count of places that are taken
_OWNER_LOCK = 16  # with the number of a process added: the byte whose lock it holds
_MOST_OWNERS = 255  # processes with a number; places of others would be lost with them


class MemoryRows:
    """The rows of a view in RAM, for any number of threads and processes."""

    def __init__(self, fd: int, spec: ViewSpec, layout: ViewLayout) -> None:
        self._fd = -1
        self._row_bytes, self._layout = spec.row_bytes, layout
        self._map, self._bytes = map_shared(fd, layout.n_bytes)
        self._places = layout.capacity + layout.spare
        self._marks = self._bytes[HEADER_BYTES : HEADER_BYTES + MARK.itemsize * layout.capacity].view(MARK)
        self._taken = self._bytes[layout.table_at : layout.table_at + COUNT_BYTES].view(np.uint64)
        owners_at = layout.table_at + COUNT_BYTES
        self._owners = self._bytes[owners_at : owners_at + self._places]
        rows_end = layout.rows_at + self._places * spec.row_bytes
        self._rows = self._bytes[layout.rows_at : rows_end].reshape(self._places, *spec.shape)
        self._can_be_present = True  # until the system says that it knows no such call
        self._following = threading.Lock()
        self._begin(fd)

    def _begin(self, fd: int) -> None:
        """What belongs to one process; its locks belong to a descriptor of its own."""
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._owner = 0  # its number, from its first place on
        self._free: deque[int] = deque()  # places that this process has taken
        self._under_way: set[int] = set()  # slots that its threads are writing
        self._take_lock = threading.Lock()
        self._pid = os.getpid()  # last: other threads of a child go on then

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._fd >= 0:
            close(self._fd)  # as an argument: when the interpreter ends, the module's names are gone before this

    # Asking

    @property
    def n_filled(self) -> int:
        return int(np.count_nonzero(self._marks))

    def filled(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray((self._marks[slots] != 0) & (slots >= 0))

    def get(self, slot: int, out: NDArray[np.uint8]) -> bool:
        place = int(self._marks[slot]) - 1
        if place < 0:
            return False
        np.copyto(out, self._rows[place])
        return True

    def take(self, slots: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64] | None = None) -> None:
        """Rows that are there, many in one call. `at`: where each of them goes in `out`, ascending."""
        places = self._marks[slots].astype(np.int64) - 1
        # They are in range; mode="raise" copies twice.
        if at is None:
            np.take(self._rows, places, axis=0, out=out, mode="clip")
            return
        begin = 0
        for end in (*(np.flatnonzero(np.diff(at) != 1) + 1).tolist(), len(at)):  # neighbours are one copy
            run = out[at[begin] : at[begin] + end - begin]
            np.take(self._rows, places[begin:end], axis=0, out=run, mode="clip")
            begin = end

    # Filling

    def reserve(self, slots: Iterable[int]) -> dict[int, int | None]:
        """A place for each slot that is neither there nor just being written, in memory that is present; None where all
        are taken. All of them go to `finish` again."""
        self._follow_fork()
        places: dict[int, int | None] = {}
        try:
            with self._take_lock:
                for slot in slots:
                    if slot >= 0 and not self._marks[slot] and slot not in self._under_way:
                        places[slot] = self._next_place()
                        self._under_way.add(slot)
            self._make_present([place for place in places.values() if place is not None])
        except BaseException:
            self.finish(places, ())
            raise
        return places

    def finish(self, places: Mapping[int, int | None], whole: Container[int]) -> None:
        """The slots in `whole` are there now; the places of the others are free again. Where another process was
        faster, its row stays."""
        with self._take_lock:  # behind the bytes on every processor: since they were written, a lock was given back
            for slot, place in places.items():
                self._under_way.discard(slot)
                if place is not None and slot in whole and not self._marks[slot]:
                    self._marks[slot] = place + 1
                elif place is not None:
                    self._free.append(place)

    def pixels(self, place: int) -> NDArray[np.uint8]:
        """The memory of a place."""
        pixels: NDArray[np.uint8] = self._rows[place]
        return pixels

    def copy(self, batch: NDArray[np.uint8], at: Sequence[int], places: Sequence[int]) -> None:
        """Images of a batch, each to its place; `at`: where they are in the batch."""
        begin = 0
        for run in _runs(places):
            end = begin + len(run)
            np.take(batch, at[begin:end], axis=0, out=self._rows[run.start : run.stop], mode="clip")
            begin = end

    def _make_present(self, places: Sequence[int]) -> None:
        """Give their memory whole huge pages, which is cheaper than page faults. What has them keeps them."""
        for run in _runs(places):
            begin, end = (self._layout.rows_at + place * self._row_bytes for place in (run.start, run.stop))
            part = self._bytes[begin // HUGE_BYTES * HUGE_BYTES : -(-end // HUGE_BYTES) * HUGE_BYTES]
            self._can_be_present = self._can_be_present and make_present(part)

    def _next_place(self) -> int | None:
        """A free place; None where all are taken."""
        if not self._free:
            self._free.extend(self._take_block())
        return self._free.popleft() if self._free else None

    def _follow_fork(self) -> None:
        if self._pid == os.getpid():
            return
        with self._following:
            if self._pid != os.getpid():
                inherited = self._fd
                self._begin(inherited)  # a child of a fork: places, locks and threads are its parent's
                os.close(inherited)

    def _take_block(self) -> Sequence[int]:
        """Places that no other process takes. Fewer near the end: none shall lie idle while another needs it."""
        with view_file.locked(self._fd, _PLACES_LOCK):
            if not self._owner:
                numbers = range(1, _MOST_OWNERS + 1)
                self._owner = next((n for n in numbers if view_file.try_lock(self._fd, _OWNER_LOCK + n)), 0)
                if self._owner and (inherited := self._unused(self._owner)):
                    return inherited
            begin = int(self._taken[0])
            left = self._places - begin
            count = min(left, max(1, min(_BLOCK_BYTES // self._row_bytes, left // 64)))
            if not count:
                return self._left_behind()
            self._owners[begin : begin + count] = self._owner  # before they count as taken: it may be killed between
            self._taken[0] = begin + count
        return range(begin, begin + count)

    def _left_behind(self) -> list[int]:
        """Places of processes that were killed."""
        found: list[int] = []
        for number in range(1, int(self._owners.max()) + 1):
            if number == self._owner:
                continue
            with contextlib.suppress(OSError), view_file.locked(self._fd, _OWNER_LOCK + number, waits=False):
                places = self._unused(number)
                self._owners[places] = self._owner
                found += places
        return found

    def _unused(self, owner: int) -> list[int]:
        """Its places without a row. One that was killed may have written its number before its places counted."""
        has_row = np.zeros(self._places, np.bool_)
        has_row[self._marks[self._marks != 0] - 1] = True
        has_row[int(self._taken[0]) :] = True  # nobody's yet
        unused: list[int] = np.flatnonzero((self._owners == owner) & ~has_row).tolist()
        return unused


def _runs(places: Sequence[int]) -> Iterator[range]:
    """Places that lie one behind the other."""
    begin = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            yield range(places[begin], places[end - 1] + 1)
            begin = end
