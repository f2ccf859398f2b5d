"""A buffer: the page that one thread writes, and the tree of spans that it is in.

An event (one finished span) is written into the ring by a single call; that is all the hot path does. Every 1,024
events the thread folds them into the sums: it writes the second copy, then makes that one the valid one by a single
store. So at any moment, also when the process is killed, the valid copy and the events behind it are exactly what was
recorded: no total is ever torn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from penstock._src.profile.record import layout as at
from penstock._src.profile.record.board import open_board
from penstock._src.profile.record.histogram import N_BUCKETS, PER_OCTAVE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

pack_event = Struct("QQQQ").pack_into  # unsigned: a sixth faster
_WORD_MASK = (1 << 64) - 1
_RING_END = at.RING_AT + at.N_EVENTS * at.EVENT_BYTES
_FOLD_BYTES = at.FOLD_EVERY * at.EVENT_BYTES
_DEEPEST = 64
_LONGEST_NS = 1 << 62


class SpanNode:
    """A span under its parents in one thread. While the span is open: when it began, and the time in its children."""

    __slots__ = ("child_ns", "depth", "kids", "name", "number", "parent", "start_ns")

    def __init__(self, name: str, parent: SpanNode | None, number: int) -> None:
        self.name = name
        self.parent: SpanNode = self if parent is None else parent
        self.number = number
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.kids: dict[str, SpanNode] = {}
        self.start_ns = 0
        self.child_ns = 0


class ThreadBuffer:
    """What one thread records into; claimed at its first span, given on when the thread ends."""

    __slots__ = (
        "_ended_at", "_levels", "_numbers", "_pid", "board_words", "doubles", "folded", "limit", "node", "offset",
        "page", "tag", "words",
    )  # fmt: skip

    def __init__(self) -> None:
        self._pid, self._ended_at = os.getpid(), 0
        board = open_board()
        self.page, ended_at = board.claim()
        page = memoryview(self.page)
        self.words, self.doubles, self.board_words = page.cast("q"), page.cast("d"), board.words
        self._ended_at = ended_at
        self.node = SpanNode("", None, at.ROOT)
        self._numbers: dict[tuple[int, str], int] = {}
        self._levels: dict[tuple[str, int], int] = {}
        self.folded = 0
        sequence = self._take_over()
        self.tag = sequence << at.TAG_BITS
        self.offset = at.RING_AT + sequence % at.N_EVENTS * at.EVENT_BYTES
        self.limit = at.RING_AT + (sequence % at.N_EVENTS // at.FOLD_EVERY + 1) * _FOLD_BYTES

    def __del__(
        self, getpid: Callable[[], int] = os.getpid, nodes_at: int = at.P_NODES, most_nodes: int = at.N_NODES
    ) -> None:
        # As arguments: when the interpreter ends, the names of the module are gone before this. In a child of fork this
        # is the buffer of the parent's thread, which lives on.
        if self._ended_at and self._pid == getpid() and self.words[nodes_at] < most_nodes:
            self.board_words[self._ended_at] = 1  # its page may go to another thread

    # Spans

    def child(self, name: str) -> SpanNode:
        """The node of a span under the one that is open."""
        return self.node.kids.get(name) or self._grow(name)

    def _grow(self, name: str) -> SpanNode:
        parent = self.node
        number = self._numbers.get((parent.number, name)) or self._add_node(parent, name)
        node = SpanNode(name, parent, number)
        # Names without end (an item's number in them) and endless recursion must not fill the memory.
        if number not in (at.OTHER_ID, at.OTHER_INNER_ID) and parent.depth < _DEEPEST:
            parent.kids[name] = node
        return node

    def _add_node(self, parent: SpanNode, name: str) -> int:
        number = self.words[at.P_NODES]
        if parent.number in (at.OTHER_ID, at.OTHER_INNER_ID):
            return at.OTHER_INNER_ID
        if parent.depth >= _DEEPEST:  # a call that deep counts where its like does
            same = parent
            while same.depth and same.name != name:
                same = same.parent
            return same.number or at.OTHER_ID
        if number >= at.N_NODES:
            return at.OTHER_ID
        self._write_node(number, parent.number, name)
        return number

    def _write_node(self, number: int, parent: int, name: str) -> None:
        data = at.fit_text(name)
        at.NODE.pack_into(self.page, at.NODES_AT + number * at.NODE.size, parent, len(data), data)
        self.words[at.P_NODES] = number + 1  # last: who sees the number finds the name
        self._numbers[parent, name] = number

    def write(self, number: int, start_ns: int, duration_ns: int, child_ns: int) -> None:
        """Record one event; the hot path of spans.py does the same in place.

        Place and tag move on first: a signal's handler that records, too, takes the next ones.
        """
        offset = self.offset
        if offset == self.limit:
            self.turn()
            offset = self.offset
        self.offset = offset + at.EVENT_BYTES
        tag = self.tag = self.tag + at.TAG_STEP
        # What took longer than the machine is up began before its clock did: a negative number, written unsigned.
        pack_event(self.page, offset, start_ns & _WORD_MASK, duration_ns, child_ns, tag + number)

    def end_through(self, name: str, end_ns: int) -> None:
        """End the innermost open span of that name, and with it those inside it that are still open.

        One that is not open any more has ended with a span around it, or began where nothing was recorded.
        """
        found = self.node
        while found.depth and found.name != name:
            found = found.parent
        while found.depth and self.node is not found.parent:
            node = self.node
            duration_ns = end_ns - node.start_ns
            self.node = node.parent
            node.parent.child_ns += duration_ns
            self.write(node.number, node.start_ns, duration_ns, min(node.child_ns, duration_ns))

    # Folding

    def turn(self) -> None:
        """A quarter of the ring is full: go on with the next, and fold it."""
        if self.offset != self.limit:  # a signal's handler has recorded meanwhile, and turned
            return
        self.offset = at.RING_AT if self.offset == _RING_END else self.offset
        self.limit = self.offset + _FOLD_BYTES
        self._fold(self.tag >> at.TAG_BITS)

    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The two copies of the sums, and the ring."""
        import numpy as np

        words = np.frombuffer(self.page, np.int64)
        sums = words[at.SUMS_AT // at.WORD :][: 2 * at.SUMS_WORDS].reshape(2, at.SUMS_WORDS)
        return sums, words[at.RING_AT // at.WORD :][: at.N_EVENTS * at.EVENT_WORDS].reshape(-1, at.EVENT_WORDS)

    def _fold(self, sequence: int) -> None:
        """Add the events behind the sums to them, up to that one."""
        sums, ring = self._arrays()
        tags = ring[:, 3] >> at.TAG_BITS  # a place whose event was never written holds an older one
        events = ring[(tags > self.folded) & (tags <= sequence)]
        folds, nodes, reset_ns = self.words[at.P_FOLDS], self.words[at.P_NODES], self.board_words[at.B_RESET_NS]
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
        for number, (parent, name) in enumerate(at.named_rows(self.page, at.NODES_AT, words[at.P_NODES])):
            self._numbers[parent, name] = number
        levels = at.named_rows(self.page, at.LEVELS_AT, words[at.P_LEVELS], at.LEVEL)
        for number, (*_, kind, name) in enumerate(levels):
            self._levels[name, kind] = (at.LEVELS_AT + number * at.LEVEL.size) // at.WORD
        sums, ring = self._arrays()
        self.folded = int(sums[words[at.P_FOLDS] & 1, at.S_SEQUENCE])
        newest = max(self.folded, int((ring[:, 3] >> at.TAG_BITS).max()))
        self._fold(newest)
        return newest

    # Counters and gauges

    def level(self, name: str, kind: int) -> int:
        """Where the doubles of a counter or gauge begin; 0 where the page has no room for another."""
        words = self.words
        if words[at.P_LEVELS_RESET_NS] != self.board_words[at.B_RESET_NS]:
            self._levels.clear()
            words[at.P_LEVELS] = words[at.P_LOST_LEVELS] = 0
            words[at.P_LEVELS_RESET_NS] = self.board_words[at.B_RESET_NS]
        return self._levels.get((name, kind)) or self._add_level(name, kind)

    def _add_level(self, name: str, kind: int) -> int:
        number = self.words[at.P_LEVELS]
        if number >= at.N_LEVELS:
            self.words[at.P_LOST_LEVELS] += 1
            return 0
        start, data = at.LEVELS_AT + number * at.LEVEL.size, at.fit_text(name)
        extremes = float("inf"), float("-inf")
        at.LEVEL.pack_into(self.page, start, 0.0, 0.0, 0.0, 0.0, *extremes, kind, len(data), data)
        self.words[at.P_LEVELS] = number + 1
        self._levels[name, kind] = start // at.WORD
        return start // at.WORD


def add_events(rows: NDArray[np.int64], events: NDArray[np.int64]) -> None:
    """Add events (start, duration, time in children, tag) to the rows of their nodes; a sum of calls counts as many."""
    import numpy as np

    is_packed = events[:, 2] < 0  # sums of many calls, or only shown
    calls = np.where(is_packed, events[:, 2] & at.CALLS_MASK, 1)
    children = np.where(is_packed, (events[:, 2] & (at.PACKED - 1)) >> at.CALLS_BITS, events[:, 2])
    some = calls > 0
    durations, nodes = events[some, 1], events[some, 3] & at.NODE_MASK
    calls, children = calls[some], children[some]
    each = durations // calls
    used = np.unique(nodes)
    rows[used[rows[used, at.R_COUNT] == 0], at.R_MIN] = _LONGEST_NS
    for column, values in ((at.R_COUNT, calls), (at.R_TOTAL, durations), (at.R_SELF, durations - children)):
        np.add.at(rows[:, column], nodes, values)
    np.minimum.at(rows[:, at.R_MIN], nodes, each)
    np.maximum.at(rows[:, at.R_MAX], nodes, each)
    # Single precision: its error at a border is a hundred thousandth of a bucket.
    buckets = (np.log2(np.maximum(each, 1).astype(np.float32)) * np.float32(PER_OCTAVE)).astype(np.int64)
    np.minimum(buckets, N_BUCKETS - 1, out=buckets)
    np.add.at(rows.reshape(-1), nodes * at.ROW_WORDS + (at.R_HISTOGRAM + buckets), calls)
