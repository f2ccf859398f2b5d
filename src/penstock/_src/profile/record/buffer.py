"""A buffer: the page that one thread writes, and the tree of spans that it is in.

An event (one finished span) is written into the ring by a single call; that is all the hot path does. Every 1,024
events the thread folds them into the sums: it writes the second copy, then makes that one the valid one by a single
store. So at any moment, also when the process is killed, the valid copy and the events behind it are exactly what was
recorded: no total is ever torn.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from penstock._src.profile.record import layout as at
from penstock._src.profile.record.board import open_board
from penstock._src.profile.record.histogram import N_BUCKETS, PER_OCTAVE
from penstock.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

pack_event = Struct("QQQQ").pack_into  # unsigned: a sixth faster
pack_gauge = Struct("=dddddd").pack_into
_TAG_STEP = 1 << at.TAG_BITS
_NODE_MASK = _TAG_STEP - 1
_WORD_MASK = (1 << 64) - 1
_RING_END = at.RING_AT + at.N_EVENTS * at.EVENT_BYTES
_FOLD_BYTES = at.FOLD_EVERY * at.EVENT_BYTES
_DEEPEST_KEPT = 64
_MAX_ORPHANS = 64
_LONGEST_NS = 1 << 62
_LARGEST = sys.float_info.max


class Node:
    """A span under its parents in one thread. While the span is open: when it began, and the time in its children.

    One that is not recorded has its parent's number and no name: what is inside it stands under its parent.
    """

    __slots__ = ("child_ns", "depth", "ended_by", "kids", "name", "number", "parent", "start_ns")

    def __init__(self, name: str, parent: Node | None, number: int, *, is_recorded: bool = True) -> None:
        self.name = name if is_recorded else ""
        self.ended_by = name
        self.parent: Node = self if parent is None else parent
        self.number = number
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.kids: dict[str, Node] = {}
        self.start_ns = 0
        self.child_ns = 0

    @property
    def is_recorded(self) -> bool:
        return bool(self.name)

    def recorded_ns(self, end_ns: int) -> int:
        """What it is, open, of the time in its parent's children; one that is not recorded only by its own children."""
        return end_ns - self.start_ns if self.is_recorded else self.child_ns

    def copy(self) -> Node:
        """This call of it: the node itself may be entered again before it ends."""
        kept = Node(self.ended_by, self.parent, self.number, is_recorded=self.is_recorded)
        kept.start_ns, kept.child_ns = self.start_ns, self.child_ns
        return kept


class ThreadBuffer:
    """What one thread records into; claimed at its first span, given on when the thread ends."""

    __slots__ = (
        "_board", "_is_folding", "_numbers", "_parents", "_pid", "board_words", "counters", "folded", "gauges",
        "limit", "node", "number", "offset", "orphans", "page", "root", "tag", "words",
    )  # fmt: skip

    def __init__(self) -> None:
        self._pid, self.number = os.getpid(), -1
        self._board = open_board()
        self.number, self.page = self._board.claim()
        self.words, self.board_words = memoryview(self.page).cast("q"), self._board.words
        self.root = self.node = Node("", None, at.ROOT)
        self.orphans: list[Node] = []
        self.counters: dict[str, int] = {}
        self.gauges: dict[str, Gauge] = {}
        self._is_folding = False
        self._numbers: dict[tuple[int, str], int] = {}
        self._parents: dict[int, tuple[int, str]] = {}
        self.folded = 0
        sequence = self._take_over()
        self.tag = sequence << at.TAG_BITS
        place = sequence % at.N_EVENTS
        self.offset = at.RING_AT + place * at.EVENT_BYTES
        self.limit = _end_of_quarter(self.offset)

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # In a child of fork this is the buffer of the parent's thread, which lives on.
        if self.number >= 0 and self._pid == getpid():
            self._board.release(self.number, is_full=self.words[at.P_NODES] >= at.N_NODES)

    @property
    def reset_ns(self) -> int:
        """What ended before this does not count any more."""
        return self.board_words[at.B_RESET_NS]

    # Spans

    def grow(self, name: str) -> Node:
        """The node of a span that is entered under these parents for the first time."""
        if not name:
            raise UsageError("the name of a span is empty", hint="name what is timed")
        parent = self.node
        node = Node(name, parent, self._number(parent, name))
        # Names without end (an item's number in them) and endless recursion must not fill the memory.
        if node.number not in (at.OTHER_ID, at.OTHER_INNER_ID) and node.depth <= _DEEPEST_KEPT:
            parent.kids[name] = node
        return node

    def _number(self, parent: Node, name: str) -> int:
        if parent.number in (at.OTHER_ID, at.OTHER_INNER_ID):
            return at.OTHER_INNER_ID
        same = parent
        while same.depth and same.name != name:
            same = same.parent
        under = parent.number
        if same.depth:
            # A call inside a call of the same name has a row that says so, for its time is in the outer one's already;
            # what is deeper still is counted there as well, so that recursion takes few rows.
            if name in self._names_to(self._parents[same.number][0]):
                return same.number
            if name not in self._names_to(under):
                under = same.number
        known = self._numbers.get((under, name))
        return self._add_node(under, name) if known is None else known

    def _names_to(self, number: int) -> list[str]:
        """The names on the way from a node to the root, in the tree of the page."""
        names = []
        while number:
            number, name = self._parents[number]
            names.append(name)
        return names

    def _add_node(self, parent: int, name: str) -> int:
        number = self.words[at.P_NODES]
        if number >= at.N_NODES:
            return at.OTHER_ID
        self._write_node(number, parent, name)
        self._know(number, parent, name)
        return number

    def _know(self, number: int, parent: int, name: str) -> None:
        self._numbers[parent, name] = number
        self._parents[number] = parent, name

    def _write_node(self, number: int, parent: int, name: str) -> None:
        self._write_named(at.NODES_AT + number * at.NODE_BYTES, parent, name)
        self.words[at.P_NODES] = number + 1  # last: who sees the number finds the name

    def _write_named(self, start: int, value: int, name: str) -> None:
        data = at.fit_text(name)
        at.NAMED.pack_into(self.page, start, value, len(data), data)

    def write(self, number: int, start_ns: int, duration_ns: int, child_ns: int) -> None:
        """Record one event; the hot path of spans.py does the same in place.

        A signal is served when a call returns: place and tag move on before that, together, so that whatever its
        handler records or raises, they belong together.
        """
        offset = self.offset
        if offset == self.limit:
            self.turn()
            offset = self.offset
        self.offset = offset + at.EVENT_BYTES
        tag = self.tag = self.tag + _TAG_STEP
        # What took longer than the machine is up began before its clock did: a negative number, written unsigned.
        pack_event(self.page, offset, start_ns & _WORD_MASK, duration_ns, child_ns, tag + number)

    def end_out_of_order(self, name: str, end_ns: int) -> None:
        """A span ends that is not the innermost (a generator held one open, or its end was never reached), or one that
        is not recorded."""
        above: Node | None = None
        node = self.node
        passed = []
        while node.depth and node.ended_by != name:
            passed.append(node.copy())
            above, node = node, node.parent
        if node.depth:
            if above is not None:
                node.child_ns += above.recorded_ns(end_ns)
            self.orphans = (passed[::-1] + self.orphans)[:_MAX_ORPHANS]
            self.node = node.parent
            node.parent.child_ns += node.recorded_ns(end_ns)
        else:
            found = next((each for each in self.orphans if each.ended_by == name), None)
            if found is None:  # entered before a fork or while profiling was off: nobody knows when
                return
            self.orphans.remove(found)
            node = found
        if node.is_recorded:
            duration_ns = end_ns - node.start_ns
            self.write(node.number, node.start_ns, duration_ns, min(node.child_ns, duration_ns))

    # Folding

    def turn(self) -> None:
        """A quarter of the ring is full: go on with the next, and fold it."""
        if self.offset != self.limit:  # the handler of a signal has recorded, and turned
            return
        begin = at.RING_AT if self.offset == _RING_END else self.offset
        self.offset = self.limit = begin  # so that, if something interrupts it, the next event tries again
        self._fold(self.tag >> at.TAG_BITS)
        if self.offset == self.limit == begin:
            self.limit = _end_of_quarter(begin)

    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The two copies of the sums, and the ring."""
        import numpy as np

        words = np.frombuffer(self.page, np.int64)
        sums = words[at.SUMS_AT // at.WORD :][: 2 * at.SUMS_WORDS].reshape(2, at.SUMS_WORDS)
        return sums, words[at.RING_AT // at.WORD :][: at.N_EVENTS * at.EVENT_WORDS].reshape(-1, at.EVENT_WORDS)

    def _fold(self, sequence: int) -> None:
        """Add the events behind the sums to them, up to that one."""
        if self._is_folding:  # the handler of a signal fills a quarter meanwhile: that one is folded with the next
            return
        self._is_folding = True
        try:
            self._add_to_sums(sequence)
        finally:
            self._is_folding = False

    def _add_to_sums(self, sequence: int) -> None:
        sums, ring = self._arrays()
        events = _behind(ring, self.folded, sequence)
        folds, nodes, reset_ns = self.words[at.P_FOLDS], self.words[at.P_NODES], self.reset_ns
        old, new = sums[folds & 1], sums[1 - (folds & 1)]
        used = at.SUMS_HEADER + nodes * at.ROW_WORDS  # what lies behind was never written
        if old[at.S_RESET_NS] == reset_ns:
            new[:used] = old[:used]
        else:
            new[:used] = 0
            events = events[events[:, 0] + events[:, 1] >= reset_ns]
        new[at.S_SEQUENCE], new[at.S_RESET_NS] = sequence, reset_ns
        add_events(new[at.SUMS_HEADER :].reshape(at.N_NODES, at.ROW_WORDS), events)
        self.words[at.P_FOLDS] = folds + 1
        self.folded = sequence

    def _take_over(self) -> int:
        """Read the page as the thread before left it; returns how many events it holds, all of them folded."""
        words = self.words
        if words[at.P_NODES] == 0:
            for number, parent in ((at.ROOT, at.ROOT), (at.OTHER_ID, at.ROOT), (at.OTHER_INNER_ID, at.OTHER_ID)):
                self._write_node(number, parent, at.OTHER if number else "")
            return 0
        for number, (_, name) in enumerate(at.named_rows(self.page, at.COUNTERS_AT, words[at.P_COUNTERS])):
            self.counters[name] = (at.COUNTERS_AT + number * at.COUNTER_BYTES) // at.WORD
        gauges = at.named_rows(self.page, at.GAUGES_AT, words[at.P_GAUGES], at.GAUGE)
        for number, (_, _, *known, name) in enumerate(gauges):
            self.gauges[name] = Gauge(at.GAUGES_AT + number * at.GAUGE_BYTES, *known)
        sums, ring = self._arrays()
        valid = sums[words[at.P_FOLDS] & 1]
        sequences = ring[:, 3] >> at.TAG_BITS
        self.folded = int(valid[at.S_SEQUENCE])
        newest = max(self.folded, int(sequences.max()))
        if newest > self.folded or valid[at.S_RESET_NS] != self.reset_ns:
            self._fold(newest)
        for number, (parent, name) in enumerate(at.named_rows(self.page, at.NODES_AT, words[at.P_NODES])):
            if number > at.OTHER_INNER_ID:
                self._know(number, parent, name)
        return newest

    # Counters and gauges

    def clear_levels(self) -> None:
        """Begin counters and gauges anew after a reset."""
        self.counters.clear()
        self.gauges.clear()
        self.words[at.P_COUNTERS] = self.words[at.P_GAUGES] = 0
        self.words[at.P_LOST_COUNTERS] = self.words[at.P_LOST_GAUGES] = 0
        self.words[at.P_LEVELS_RESET_NS] = self.reset_ns

    def add_counter(self, name: str) -> int:
        """The word of a new counter, or 0 where the page has no room for another."""
        number = self.words[at.P_COUNTERS]
        if number >= at.N_COUNTERS:
            return 0
        start = at.COUNTERS_AT + number * at.COUNTER_BYTES
        self._write_named(start, 0, name)
        self.words[at.P_COUNTERS] = number + 1
        self.counters[name] = start // at.WORD
        return start // at.WORD

    def add_gauge(self, name: str) -> Gauge | None:
        """A new gauge, or None where the page has no room for another."""
        number = self.words[at.P_GAUGES]
        if number >= at.N_GAUGES:
            return None
        gauge = self.gauges[name] = Gauge(at.GAUGES_AT + number * at.GAUGE_BYTES)
        data = at.fit_text(name)
        at.GAUGE.pack_into(self.page, gauge.start, *(0.0,) * 6, len(data), data)
        self.words[at.P_GAUGES] = number + 1
        return gauge


class Gauge:
    """A level of one thread: its last value and the sums of all."""

    __slots__ = ("count", "max", "min", "start", "sum")

    def __init__(
        self, start: int, sum: float = 0.0, count: float = 0.0, min: float = float("inf"), max: float = float("-inf")
    ) -> None:
        self.start, self.sum, self.count, self.min, self.max = start, sum, count, min, max

    def set(self, page: mmap.mmap, value: float, time_ns: int) -> None:
        """Record a value."""
        self.sum = min(max(self.sum + value, -_LARGEST), _LARGEST)  # infinity would be no sum any more
        self.count += 1
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        pack_gauge(page, self.start, value, float(time_ns), self.sum, self.count, self.min, self.max)


def _end_of_quarter(offset: int) -> int:
    """Where the quarter of the ring ends in which a place lies."""
    return at.RING_AT + ((offset - at.RING_AT) // _FOLD_BYTES + 1) * _FOLD_BYTES


def _behind(ring: NDArray[np.int64], folded: int, sequence: int) -> NDArray[np.int64]:
    """The events after number `folded` up to `sequence`, by their tags: a place whose event was never written, because
    something interrupted it, holds an older one."""
    stop = (sequence - 1) % at.N_EVENTS + 1
    start = stop - (sequence - folded)
    events = ring[start:stop] if start >= 0 else ring
    is_behind = (events[:, 3] >= (folded + 1) << at.TAG_BITS) & (events[:, 3] < (sequence + 1) << at.TAG_BITS)
    return events if is_behind.all() else events[is_behind]


def add_events(rows: NDArray[np.int64], events: NDArray[np.int64]) -> None:
    """Add events (start, duration, time in children, tag) to the rows of their nodes; a sum of calls counts as many."""
    import numpy as np

    if not len(events):
        return
    durations, children, calls = events[:, 1], events[:, 2], None
    each = durations
    if children.min() < 0:  # some are sums of many calls, or are only shown
        is_packed = children < 0
        calls = np.where(is_packed, children & at.CALLS_MASK, 1)
        children = np.where(is_packed, (children & (at.PACKED - 1)) >> at.CALLS_BITS, children)
        some = calls > 0
        events, durations, children, calls = events[some], durations[some], children[some], calls[some]
        each = durations // calls
    nodes = events[:, 3] & _NODE_MASK
    own = durations - children
    used = np.bincount(nodes).nonzero()[0]
    rows[used[rows[used, at.R_COUNT] == 0], at.R_MIN] = _LONGEST_NS
    for column, values in ((at.R_COUNT, 1 if calls is None else calls), (at.R_TOTAL, durations), (at.R_SELF, own)):
        np.add.at(rows[:, column], nodes, values)
    np.minimum.at(rows[:, at.R_MIN], nodes, each)
    np.maximum.at(rows[:, at.R_MAX], nodes, each)
    # Single precision: its error at a border is a hundred thousandth of a bucket.
    buckets = (np.log2(np.maximum(each, 1).astype(np.float32)) * np.float32(PER_OCTAVE)).astype(np.int64)
    np.minimum(buckets, N_BUCKETS - 1, out=buckets)
    np.add.at(rows.reshape(-1), nodes * at.ROW_WORDS + (at.R_HISTOGRAM + buckets), 1 if calls is None else calls)
