"""What a child reads of a data set, so that whatever damage crashes the library does so there."""

from __future__ import annotations

import math
from typing import Any

_LARGEST_READ_BYTES = 16 << 20


def probe_data_set(data: Any, *, with_rows: bool) -> None:
    """The fill value, where chunks lie, the first and last rows. An error in words is the parent's to find and name."""
    try:
        if data.dtype.hasobject or not data.size:
            return
        data.fillvalue  # noqa: B018 - a damaged one crashes the library
        rows = data.shape[0]
        row_bytes = data.nbytes // rows
        if data.chunks is not None:
            for row in {0, rows - 1}:
                corner = (row // data.chunks[0] * data.chunks[0],) + (0,) * (len(data.shape) - 1)
                data.id.get_chunk_info_by_coord(corner)
            row_bytes = max(row_bytes, 2 * data.dtype.itemsize * math.prod(data.chunks))
        if with_rows and row_bytes <= _LARGEST_READ_BYTES:
            data[0], data[rows - 1]
    except Exception:
        return
