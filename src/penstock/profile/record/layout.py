"""Where everything lies on the board: its header, the directory of buffers, and the page of each buffer.

The header and the directory come first; then one page per buffer. A page is written by the one thread that owns it and
read by anybody. It holds the names of the spans as a tree (a node knows its parent), counters, gauges, two copies of
the sums, and a ring of the last events. All numbers are signed 64-bit words in the machine's order.
"""

from __future__ import annotations

from penstock.profile.record.histogram import N_BUCKETS

WORD = 8
MAGIC = 0x70656E73746F636B  # "penstock"
LAYOUT_VERSION = 2

# The header of the board, in words.
B_MAGIC, B_VERSION, B_TOKEN, B_BUFFERS, B_START_NS, B_RESET_NS, B_LOST_THREADS = range(7)
HEADER_BYTES = 4096

# The directory: one entry per buffer. Who owns it is written under the lock of the board.
MAX_BUFFERS = 512
ENTRY_BYTES = 256
D_STATE, D_PID, D_PID_TICKS, D_OWNERS, D_THREAD_LEN, D_PROCESS_LEN = range(6)
D_THREAD, D_PROCESS, D_TEXT_BYTES = 64, 160, 96
FREE, ALIVE, ENDED, FULL = range(4)  # full: its thread has ended, and there is no room for other names
DIRECTORY_BYTES = HEADER_BYTES + MAX_BUFFERS * ENTRY_BYTES

# A page: its header words, then the sections in bytes.
P_FOLDS, P_NODES, P_COUNTERS, P_GAUGES, P_LEVELS_RESET_NS, P_LOST_COUNTERS, P_LOST_GAUGES = range(7)
PAGE_HEADER_BYTES = 256

TEXT_BYTES = 112
N_NODES, NODE_BYTES = 256, 128  # parent, length, text
ROOT, OTHER_ID, OTHER_INNER_ID = 0, 1, 2
NODES_AT = PAGE_HEADER_BYTES

N_COUNTERS, COUNTER_BYTES = 64, 128  # value, length, text
COUNTERS_AT = NODES_AT + N_NODES * NODE_BYTES

N_GAUGES, GAUGE_BYTES = 32, 192  # last, time, sum, count, least, most (doubles); length, text
GAUGES_AT = COUNTERS_AT + N_COUNTERS * COUNTER_BYTES
GAUGE_TEXT_AT = 6 * WORD

# The sums: two copies; the one whose number is the last bit of P_FOLDS holds. Each: a small header, one row per node.
S_SEQUENCE, S_RESET_NS = 0, 1
SUMS_HEADER = 8
R_COUNT, R_TOTAL, R_SELF, R_MIN, R_MAX, R_HISTOGRAM = 0, 1, 2, 3, 4, 8
ROW_WORDS = R_HISTOGRAM + N_BUCKETS
SUMS_WORDS = SUMS_HEADER + N_NODES * ROW_WORDS
SUMS_AT = GAUGES_AT + N_GAUGES * GAUGE_BYTES

# The ring: event number s (from 1) lies at (s - 1) % N_EVENTS; its tag, written last, is s << 12 | node.
EVENT_WORDS, EVENT_BYTES = 4, 32  # start, duration, time in children, tag
N_EVENTS = 4096
FOLD_EVERY = 1024  # a quarter: what a reader copies is not overwritten while it looks
TAG_BITS = 12
# With its highest bit, the "time in children" is time << 20 | calls: a sum of that many calls, which no timeline shows;
# or, with 0 calls, a stretch of time that is in no sum and only shown.
PACKED, CALLS_BITS = 1 << 63, 20
CALLS_MASK = (1 << CALLS_BITS) - 1
RING_AT = SUMS_AT + 2 * SUMS_WORDS * WORD
_USED = RING_AT + N_EVENTS * EVENT_BYTES
PAGE_BYTES = -(-_USED // 65536) * 65536  # whole pages of memory on every machine
BUFFERS_AT = -(-DIRECTORY_BYTES // 65536) * 65536


def fit_text(text: str, room_bytes: int = TEXT_BYTES) -> bytes:
    """A name as UTF-8 that fits; a longer one is cut and told apart from its like by a checksum."""
    from zlib import crc32

    data = text.encode("utf-8", "replace")
    if len(data) <= room_bytes:
        return data
    mark = f"…{crc32(data):08x}".encode()
    kept = data[: room_bytes - len(mark)].decode("utf-8", "ignore").encode()
    return kept + mark
