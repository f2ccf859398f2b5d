"""From the bytes of a spike file to frames, to the packed bytes of a crop, and to counts; crops before unpacking.

Counting does not unpack every frame. Full adders on the packed bytes, 64 pixels at a time, add the frames of a bin up:
18 frames become 5 bit planes. The planes alone are unpacked.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.spike.layout import PlaneRegion, SpikeLayout, bin_starts
from penstock.errors import SpikeError

Bytes = bytes | bytearray | memoryview | NDArray[np.uint8]
_STACK_BYTES = 1 << 20  # of frames that are added at a time: they stay in the cache of the core


class ThreadMemory(threading.local):
    """Bytes that a thread uses again for every file: new pages can take longer than the counting itself."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.uint8)

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        if len(self._held) < n_bytes:
            self._held = np.empty(n_bytes, np.uint8)
        return self._held[:n_bytes]


_memory = ThreadMemory()


def unpack(data: Bytes, layout: SpikeLayout, box: PlaneRegion | None = None) -> NDArray[np.uint8]:
    """Upright frames (frames, height, width); packed ones are 0 and 1, bytes are given as they are."""
    rows, first_px = _cut(data, layout, box)
    if layout.packing == "uint8":
        return _copied(rows)
    bits = np.unpackbits(_copied(rows).reshape(-1), bitorder="little").reshape(*rows.shape[:2], -1)
    width = layout.width if box is None else box.width
    return bits if bits.shape[2] == width else np.ascontiguousarray(bits[:, :, first_px : first_px + width])


def crop_packed(data: Bytes, layout: SpikeLayout, box: PlaneRegion | None = None) -> tuple[NDArray[np.uint8], int]:
    """The bytes in which the crop lies, (frames, height, bytes of a row), upright, and the bit at which it begins.

    That is what `packed_to_voxel` takes on a GPU.
    """
    rows, first_px = _cut(data, layout, box)
    if layout.packing == "packed":
        return _copied(rows), first_px
    if rows.max(initial=0) > 1:
        raise SpikeError(
            f"bytes up to {rows.max()} cannot be packed: one bit per pixel is 0 or 1",
            hint="count on the CPU, or declare the layout that the file has: layout=packed",
        )
    return np.packbits(rows, axis=-1, bitorder="little"), 0


def count_dtype(layout: SpikeLayout, num_bins: int) -> np.dtype[Any]:
    """What counts are kept in: uint8, or uint16 where a bin has more than 255 frames or a pixel is a whole byte."""
    starts = bin_starts(layout.frames, num_bins)
    most = max(end - begin for begin, end in pairwise(starts))
    largest = most * (255 if layout.packing == "uint8" else 1)
    return np.min_scalar_type(largest) if largest > 255 else np.dtype(np.uint8)


def voxel_counts(
    data: Bytes, layout: SpikeLayout, num_bins: int = 5, box: PlaneRegion | None = None, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Spikes per pixel in uniform bins, (num_bins, height, width), in `count_dtype`; `bin_starts` says which frames.

    `out` is written instead of a new array; it may have a wider dtype.
    """
    starts = bin_starts(layout.frames, num_bins)
    rows, first_px = _cut(data, layout, box)
    width = layout.width if box is None else box.width
    _, height, row_bytes = rows.shape
    counts = np.empty((num_bins, height, width), count_dtype(layout, num_bins)) if out is None else out
    if layout.packing == "uint8":
        for bin_, (begin, end) in enumerate(pairwise(starts)):
            np.sum(rows[begin:end], 0, out=counts[bin_], dtype=counts.dtype)
        return counts
    most = max(end - begin for begin, end in pairwise(starts))
    step = max(_STACK_BYTES // (most * num_bins * row_bytes), 1)
    for top in range(0, height, step):
        part = rows[:, top : top + step]
        counts[:, top : top + step] = _count(part, starts, most)[:, :, first_px : first_px + width]
    return counts


def _cut(data: Bytes, layout: SpikeLayout, box: PlaneRegion | None) -> tuple[NDArray[np.uint8], int]:
    """The bytes of the crop's rows and columns, (frames, height, bytes), upright; and where in the first byte of a row
    the crop begins. `data` is the file, or what `read_rows` read of it."""
    stored = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
    if box is not None:
        box.check_inside(layout)
    if stored.ndim == 1:
        if stored.size != layout.n_bytes:
            raise SpikeError(f"{stored.size:,} bytes of spikes, {layout} are {layout.n_bytes:,}")
        stored = _as_rows(stored, layout)
        rows = stored if box is None else stored[:, stored_rows(layout, box)]
    else:
        rows = stored
    if layout.flip:
        rows = rows[:, ::-1]
    if box is None:
        return rows, 0
    if layout.packing == "uint8":
        return rows[:, :, box.left : box.left + box.width], 0
    first, last = box.left // 8, -(-(box.left + box.width) // 8)
    return rows[:, :, first:last], box.left - 8 * first


def _as_rows(stored: NDArray[np.uint8], layout: SpikeLayout) -> NDArray[np.uint8]:
    """(frames, height, bytes of a row), each row in bytes of its own."""
    if layout.has_byte_rows:
        return stored.reshape(layout.frames, layout.height, layout.row_bytes)
    bits = np.unpackbits(stored, bitorder="little").reshape(layout.frames, layout.height, layout.width)
    return np.packbits(bits, axis=-1, bitorder="little")


def stored_rows(layout: SpikeLayout, box: PlaneRegion) -> slice:
    """Which rows of a stored plane a box takes."""
    top = layout.height - box.top - box.height if layout.flip else box.top
    return slice(top, top + box.height)


def _copied(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same in one piece of memory."""
    if rows.flags.c_contiguous:
        return rows
    made = np.empty(rows.shape, np.uint8)
    _as_items(made, rows.shape[2])[...] = _as_items(rows, rows.shape[2])
    return made


def _as_items(values: NDArray[np.uint8], item_bytes: int) -> NDArray[Any]:
    """Runs of bytes of the last axis as one item each, which NumPy copies twice as fast as byte by byte."""
    return values.view(np.dtype(f"V{item_bytes}"))


def _count(rows: NDArray[np.uint8], starts: list[int], most: int) -> NDArray[Any]:
    """Counts (bins, height, 8 × bytes of a row) of packed rows (frames, height, bytes)."""
    _, height, row_bytes = rows.shape
    num_bins, n_bytes = len(starts) - 1, height * row_bytes
    n_words = -(-n_bytes // 8)
    n_rows = most + most // 2 + most // 3
    memory = _memory.take(n_rows * num_bins * n_words * 8).view(np.uint64).reshape(n_rows, -1)
    ones, carries, spare = memory[:most], memory[most : most + most // 2], memory[most + most // 2 :]
    stack = ones.view(np.uint8).reshape(most, num_bins, n_words * 8)
    for bin_, (begin, end) in enumerate(pairwise(starts)):
        _as_items(stack[: end - begin, bin_, :n_bytes], row_bytes)[...] = _as_items(rows[begin:end], row_bytes)[..., 0]
        stack[end - begin :, bin_] = 0  # a short bin ends in an empty frame
    planes = _add_up(ones, carries, spare)
    counts: NDArray[Any] = _unpack_planes(planes[:8])
    if len(planes) > 8:
        counts = counts + (_unpack_planes(planes[8:]).astype(np.uint16) << np.uint16(8))
    return counts.reshape(num_bins, -1)[:, : n_bytes * 8].reshape(num_bins, height, row_bytes * 8)


def _add_up(
    ones: NDArray[np.uint64], carries: NDArray[np.uint64], spare: NDArray[np.uint64]
) -> list[NDArray[np.uint64]]:
    """Bit planes of the sums of all rows of `ones`, the lowest first; in place, and with half as many rows for carries.

    A full adder takes three rows to their sum and a carry. The carries are the rows of the next plane. A plane stays in
    the first row of the memory that it was added up in.
    """
    planes = []
    count = len(ones)
    while count:
        n_carries = 0
        while count > 2:
            third = count // 3
            first, second, last = ones[:third], ones[third : 2 * third], ones[2 * third : 3 * third]
            either, carry = spare[:third], carries[n_carries : n_carries + third]
            np.bitwise_xor(first, second, out=either)
            np.bitwise_and(first, second, out=carry)
            np.bitwise_xor(either, last, out=first)
            np.bitwise_and(either, last, out=either)
            np.bitwise_or(carry, either, out=carry)
            n_carries += third
            ones[third : count - 2 * third] = ones[3 * third : count]
            count -= 2 * third
        if count == 2:
            np.bitwise_and(ones[0], ones[1], out=carries[n_carries])
            np.bitwise_xor(ones[0], ones[1], out=ones[0])
            n_carries += 1
        planes.append(ones[0])
        ones, carries, count = carries, ones[1:], n_carries
    return planes


def _unpack_planes(planes: list[NDArray[np.uint64]]) -> NDArray[np.uint8]:
    """One byte per pixel from at most eight bit planes; sums are doubled in words of eight pixels."""
    total = np.unpackbits(planes[-1].view(np.uint8), bitorder="little").view(np.uint64)
    for plane in planes[-2::-1]:
        np.add(total, total, out=total)
        np.add(total, np.unpackbits(plane.view(np.uint8), bitorder="little").view(np.uint64), out=total)
    counts: NDArray[np.uint8] = total.view(np.uint8)
    return counts
