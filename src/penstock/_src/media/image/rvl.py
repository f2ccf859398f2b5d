"""RVL, the lossless run-length code of depth images that newer ROS drivers send: decoded without trust.

An image is runs of zeros and of values in turn; lengths and differences are numbers of 3-bit groups, one group in each
half byte, whose high bit says that more follow (A. D. Wilson, "Fast lossless depth image compression", 2017).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ImageError

_MOST_GROUPS = 10  # 30 bits: the longest run of the largest image needs 27, a difference 17


def decode(data: memoryview | bytes, height: int, width: int) -> NDArray[np.uint16]:
    """The image of height × width pixels; bytes behind its last pixel are ignored."""
    numbers = _numbers(data)
    zeros, values, is_difference = _runs(numbers, height * width, len(data))
    folded = numbers[is_difference]
    differences = (folded >> 1) ^ -(folded & 1)
    del folded
    lengths = np.stack((zeros, values), axis=1).reshape(-1)
    is_value = np.repeat(np.tile((False, True), len(zeros)), lengths)
    image = np.zeros(height * width, dtype=np.uint16)
    # A driver works with 16 bits that wrap, so a sum of differences is taken modulo 65,536.
    image[is_value] = np.cumsum(differences, dtype=np.int32) & 0xFFFF
    return image.reshape(height, width)


def _numbers(data: memoryview | bytes) -> NDArray[np.int32]:
    """Every number of the stream; what the last half bytes leave open is dropped."""
    words = np.frombuffer(data, "<u4", count=len(data) // 4)
    halves = np.empty((len(words) * 4, 2), dtype=np.uint8)
    octets = words.astype(">u4").view(np.uint8)  # the first half byte of a word is its highest
    halves[:, 0], halves[:, 1] = octets >> 4, octets & 0xF
    groups = halves.reshape(-1)
    ends = np.flatnonzero(groups < 8)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    sizes = ends - starts + 1
    if sizes.max(initial=0) > _MOST_GROUPS:
        raise ImageError(f"RVL: a number of more than {3 * _MOST_GROUPS} bits")
    numbers = (groups[starts] & 7).astype(np.int32)
    longer = np.flatnonzero(sizes > 1)
    for group in range(1, _MOST_GROUPS):
        if not len(longer):
            break
        numbers[longer] |= (groups[starts[longer] + group] & 7).astype(np.int32) << (3 * group)
        longer = longer[sizes[longer] > group + 1]
    return numbers


def _runs(
    numbers: NDArray[np.int32], pixels: int, size_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Lengths of the runs of zeros and of values, and which numbers are differences; one step per run."""
    zeros: list[int] = []
    values: list[int] = []
    heads: list[int] = []
    at, done = 0, 0
    read = numbers.data  # gives plain integers, at a third of the time
    while done < pixels:
        if at + 2 > len(read) or at + 2 + read[at + 1] > len(read):
            raise ImageError(f"RVL of {size_bytes:,} bytes is cut: it holds {done:,} of {pixels:,} pixels")
        empty, filled = read[at], read[at + 1]
        if empty + filled == 0 or done + empty + filled > pixels:
            raise ImageError(
                f"RVL: a run of {empty:,} zeros and {filled:,} values behind {done:,} of {pixels:,} pixels"
            )
        heads.append(at)
        zeros.append(empty)
        values.append(filled)
        at += 2 + filled
        done += empty + filled
    is_difference = np.zeros(len(numbers), dtype=bool)
    is_difference[:at] = True
    first = np.array(heads, dtype=np.int64)
    is_difference[first] = is_difference[first + 1] = False
    return np.array(zeros, dtype=np.int64), np.array(values, dtype=np.int64), is_difference
