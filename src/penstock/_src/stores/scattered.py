"""Rows of equal size from any places of a file, outside any lock; what lies close together is read together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.files import ByteSource

_READ_COST_BYTES = 8192  # one more read takes as long as this many more bytes


def gather_bytes(source: ByteSource, offsets: NDArray[np.int64], row_bytes: int, out: NDArray[Any]) -> None:
    """Rows of equal size from any places; what lies close together is read together."""
    if not len(offsets) or not row_bytes:
        return
    steps = offsets[1:] - offsets[:-1]
    if steps.min(initial=0) < 0:  # chunks lie where the file had room for them
        order = np.argsort(offsets, kind="stable")
        gathered = np.empty_like(out)
        gather_bytes(source, offsets[order], row_bytes, gathered)
        out[order] = gathered
        return
    flat = out.reshape(len(out), -1).view(np.uint8) if out.ndim > 1 else out.view(np.uint8).reshape(len(out), -1)
    gaps = steps != row_bytes
    reads = int(np.count_nonzero(gaps)) + 1
    span = int(offsets[-1] - offsets[0]) + row_bytes
    if reads > 1 and span <= reads * _READ_COST_BYTES and not ((offsets - offsets[0]) % row_bytes).any():
        block = np.empty(span, np.uint8)
        source.read_into(block.data, int(offsets[0]))
        flat[:] = block.reshape(-1, row_bytes)[(offsets - offsets[0]) // row_bytes]
        return
    target = flat.reshape(-1).data
    source.read_many(
        [(int(offsets[begin]), target[begin * row_bytes : end * row_bytes]) for begin, end in runs_between(gaps)]
    )


def runs_between(changes: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """[begin, end) of the runs between changes from one element to the next."""
    begin = 0
    for end in (np.flatnonzero(changes) + 1).tolist():
        yield begin, end
        begin = end
    yield begin, len(changes) + 1
