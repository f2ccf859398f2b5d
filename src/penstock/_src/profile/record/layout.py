"""Where everything lies on the board: its header, the directory of buffers, and the page of each buffer.

The header and the directory come first; then one page per buffer. A page is written by the one thread that owns it and
read by anybody. It holds the names of the spans as a tree (a node knows its parent), counters and gauges, two copies
of the sums, and a ring of the last events. All numbers are 64-bit words in the machine's order.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from struct import Struct
from typing import Any
from zlib import crc32

from penstock._src.profile.record.histogram import N_BUCKETS

WORD = 8

# The header of the board, in words.
B_TOKEN, B_BUFFERS, B_RESET_NS, B_LOST_THREADS = range(4)
HEADER_BYTES = 4096

# The directory: one entry per buffer. Who owns it is written under the lock of the board.
MAX_BUFFERS = 512
ENTRY = Struct("=4q96s96s")  # whether it ended, pid, lengths of the texts; names of thread and process
ENTRY_BYTES, ENTRY_TEXT_BYTES = ENTRY.size, 96
DIRECTORY_BYTES = HEADER_BYTES + MAX_BUFFERS * ENTRY_BYTES

# A page: its header words, then the sections in bytes.
P_FOLDS, P_NODES, P_LEVELS, P_LEVELS_RESET_NS, P_LOST_LEVELS = range(5)
PAGE_HEADER_BYTES = 256

TEXT_BYTES = 112
NODE = Struct("=qq112s")  # parent; length, text
N_NODES = 256
ROOT, OTHER_ID, OTHER_INNER_ID = 0, 1, 2
OTHER = "…other"  # where the calls of spans go for which a page has no room
NODES_AT = PAGE_HEADER_BYTES

LEVEL = Struct("=6dqq112s")  # last, time, sum, count, least, most; kind; length, text
L_LAST, L_TIME, L_SUM, L_COUNT, L_LEAST, L_MOST = range(6)
COUNTER, GAUGE = 0, 1
N_LEVELS = 96
LEVELS_AT = NODES_AT + N_NODES * NODE.size

# The sums: two copies; the one whose number is the last bit of P_FOLDS holds. Each: a small header, one row per node.
S_SEQUENCE, S_RESET_NS = 0, 1
SUMS_HEADER = 8
R_COUNT, R_TOTAL, R_SELF, R_MIN, R_MAX, R_HISTOGRAM = 0, 1, 2, 3, 4, 8
ROW_WORDS = R_HISTOGRAM + N_BUCKETS
SUMS_WORDS = SUMS_HEADER + N_NODES * ROW_WORDS
SUMS_AT = LEVELS_AT + N_LEVELS * LEVEL.size

# The ring: event number s (from 1) lies at (s - 1) % N_EVENTS; its tag, written last, is s << 12 | node.
EVENT_WORDS, EVENT_BYTES = 4, 32  # start, duration, time in children, tag
N_EVENTS = 4096
FOLD_EVERY = 1024  # a quarter: what a reader copies is not overwritten while it looks
TAG_BITS = 12
TAG_STEP = 1 << TAG_BITS
NODE_MASK = TAG_STEP - 1
# With its highest bit, the "time in children" is time << 20 | calls: a sum of that many calls, which no timeline shows;
# or, with 0 calls, a stretch of time that is in no sum and only shown.
PACKED, CALLS_BITS = 1 << 63, 20
CALLS_MASK = (1 << CALLS_BITS) - 1
RING_AT = SUMS_AT + 2 * SUMS_WORDS * WORD
PAGE_BYTES = -(-(RING_AT + N_EVENTS * EVENT_BYTES) // 65536) * 65536  # whole pages of memory on every machine
BUFFERS_AT = -(-DIRECTORY_BYTES // 65536) * 65536


def fit_text(text: str, room_bytes: int = TEXT_BYTES) -> bytes:
    """A name as UTF-8 that fits; a longer one is cut and told apart from its like by a checksum."""
    data = text.encode("utf-8", "replace")
    if len(data) <= room_bytes:
        return data
    mark = f"…{crc32(data):08x}".encode()
    return data[: room_bytes - len(mark)].decode("utf-8", "ignore").encode() + mark


def named_rows(page: mmap.mmap | bytes, begin: int, count: int, row: Struct = NODE) -> Iterator[tuple[Any, ...]]:
    """The first rows of a section: their numbers, then their text."""
    for *numbers, size, text in row.iter_unpack(page[begin : begin + count * row.size]):
        yield *numbers, text[:size].decode("utf-8", "replace")
