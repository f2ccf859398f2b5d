"""Between numpy and Arrow by buffers alone.

`pyarrow.array` and `Array.to_numpy` import pandas wherever it is installed, and that costs a short command 0.3 s and
50 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DataSetCorrupt

if TYPE_CHECKING:
    import pyarrow as pa


def numbers(values: NDArray[Any]) -> pa.Array:
    """A column of numbers or booleans; numbers are not copied."""
    import pyarrow as pa

    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == np.bool_:
        bits = np.packbits(flat, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(flat), [None, pa.py_buffer(bits)])
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])


def texts(values: Sequence[str | None]) -> pa.Array:
    """A column of strings, some of which may be missing."""
    import pyarrow as pa

    _, *buffers = _variable([b"" if value is None else value.encode() for value in values])
    return pa.Array.from_buffers(pa.string(), len(values), [_validity(values), *buffers])


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    import pyarrow as pa

    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def binaries(values: Sequence[bytes | memoryview]) -> pa.Array:
    """A column of byte strings; together they must stay below 2 GiB."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.binary(), len(values), _variable(values))


def _variable(pieces: Sequence[bytes | memoryview]) -> list[pa.Buffer | None]:
    import pyarrow as pa

    return [None, pa.py_buffer(_offsets([len(piece) for piece in pieces])), pa.py_buffer(b"".join(pieces))]


def lists(kind: pa.DataType, sizes: Sequence[int | None], children: pa.Array) -> pa.Array:
    """A column of lists of the given sizes over `children`; None makes the list null."""
    import pyarrow as pa

    offsets = pa.py_buffer(_offsets([size or 0 for size in sizes]))
    return pa.Array.from_buffers(kind, len(sizes), [_validity(sizes), offsets], children=[children])


def arrays(kind: pa.DataType, rows: Sequence[NDArray[Any] | None]) -> pa.Array:
    """A column of arrays of one shape as nested lists; None makes a row null."""
    present = [row for row in rows if row is not None]
    shape = present[0].shape if present else (0,) * _depth(kind)
    stacked = np.stack(present) if present else np.empty((0, *shape), dtype=numpy_type(kind))
    kinds = [kind]
    while len(kinds) < len(shape):
        kinds.append(kinds[-1].value_type)
    inner = numbers(stacked.astype(numpy_type(kind), copy=False))
    for axis in range(len(shape) - 1, 0, -1):
        count = int(np.prod((len(present), *shape[:axis]), dtype=np.int64))
        inner = lists(kinds[axis], [shape[axis]] * count, inner)
    return lists(kind, [None if row is None else shape[0] for row in rows], inner)


def fixed_lists(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """A column of vectors of one size, from an array (n, size)."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None], children=[numbers(values)])


def _depth(kind: pa.DataType) -> int:
    import pyarrow as pa

    return 1 + _depth(kind.value_type) if pa.types.is_list(kind) else 0


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy type of the numbers in a column (pyarrow's own answer needs pandas in some versions)."""
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    name = str(kind)
    return np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name))


def _offsets(sizes: Sequence[int]) -> NDArray[np.int32]:
    return np.fromiter(accumulate(sizes, initial=0), dtype=np.int32, count=len(sizes) + 1)


def to_numpy(column: pa.ChunkedArray, row_shape: tuple[int, ...] = (), where: str = "") -> NDArray[Any]:
    """Rows of a numeric column as one array (n, *row_shape); nulls and lists of another size are refused."""
    parts = [_chunk_to_numpy(chunk, row_shape, where) for chunk in column.chunks]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty((0, *row_shape), dtype=numpy_type(column.type))


def _chunk_to_numpy(chunk: pa.Array, row_shape: tuple[int, ...], where: str) -> NDArray[Any]:
    import pyarrow as pa

    rows, values = len(chunk), chunk
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    while True:
        if values.null_count:
            raise DataSetCorrupt(f"{where}: {values.null_count} empty values among {rows} rows")
        if not hasattr(values, "flatten") or not hasattr(values.type, "value_type"):
            break
        _check_sizes(values, rows, row_shape, where)
        values = values.flatten()
    expected = rows * int(np.prod(row_shape, dtype=np.int64))
    if len(values) != expected:
        raise DataSetCorrupt(f"{where}: {len(values)} numbers in {rows} rows, expected {expected} for {row_shape}")
    buffer = values.buffers()[1]
    if pa.types.is_boolean(values.type):
        packed = np.frombuffer(buffer, dtype=np.uint8) if buffer is not None else np.empty(0, dtype=np.uint8)
        bits = np.unpackbits(packed, bitorder="little")[values.offset : values.offset + len(values)]
        return bits.astype(np.bool_).reshape(rows, *row_shape)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DataSetCorrupt(f"{where}: a column of {values.type} instead of numbers")
    dtype = numpy_type(values.type)
    if buffer is None:
        return np.empty((rows, *row_shape), dtype=dtype)
    flat = np.frombuffer(buffer, dtype=dtype, count=len(values), offset=values.offset * dtype.itemsize)
    return flat.reshape(rows, *row_shape)


def _check_sizes(lists: pa.Array, rows: int, row_shape: tuple[int, ...], where: str) -> None:
    """Refuse lists of which some are longer than others: their numbers would move into the rows beside them."""
    import pyarrow as pa

    if not len(lists) or not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        return
    offsets = lists.offsets
    dtype = np.dtype(np.int64 if pa.types.is_large_list(lists.type) else np.int32)
    places = np.frombuffer(offsets.buffers()[1], dtype, len(offsets), offsets.offset * dtype.itemsize)
    sizes = np.diff(places)
    other = sizes != sizes[0]
    if other.any():
        at = int(np.argmax(other))
        raise DataSetCorrupt(
            f"{where}: lists of {int(sizes[0])} and of {int(sizes[at])} values, the first in row "
            f"{at * rows // len(lists)} of {rows}; expected {row_shape} for all"
        )
