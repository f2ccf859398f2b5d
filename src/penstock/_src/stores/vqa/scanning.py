"""Where records lie in a file of JSON: lines, or the elements of an array; found block by block, nothing is parsed.

    for spans in line_spans(source): …        # (n, 2) int64: first byte, and the byte behind the last

Memory is a few blocks, whatever the file holds. What a record is worth, its parser says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.files import ByteSource
from penstock.errors import StoreCorrupt

Spans = NDArray[np.int64]

BLOCK_BYTES = 1 << 20
_SHORTEST_BYTES = 16  # a shorter piece may be nothing but white space: it is looked at
_NEWLINE, _QUOTE, _BACKSLASH = 10, 34, 92
_OPEN, _CLOSE, _COMMA = 1, -1, 2
_CODES = np.zeros(256, np.int8)
_CODES[[ord("["), ord("{")]] = _OPEN
_CODES[[ord("]"), ord("}")]] = _CLOSE
_CODES[ord(",")] = _COMMA
_KEY_BYTES = 512
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:\s*\Z')


def line_spans(source: ByteSource) -> Iterator[Spans]:
    """The lines of a file that hold more than white space."""
    start = 0
    for base, block in _blocks(source):
        ends = np.flatnonzero(block == _NEWLINE) + base
        if len(ends):
            yield _without_blanks(source, _pieces(start, ends))
            start = int(ends[-1]) + 1
    if start < source.size_bytes:
        yield _without_blanks(source, np.array([[start, source.size_bytes]], np.int64))


def element_spans(source: ByteSource, keys: Sequence[str] = ()) -> Iterator[Spans]:
    """The elements of the array that the file is; where it is an object, of the first array at one of `keys`.

    Elements are separated by commas: one that is no object is found, too. The end of a file that was cut is the last
    one.
    """
    structure, level = _Structure(), 0
    start, is_inside = 0, False
    for base, block in _blocks(source):
        places, codes, depths = structure.feed(block)
        if not level and len(places):
            level = 1 if block[places[0]] == ord("[") else 2
        separates = (codes == _COMMA) & (depths == level)
        borders = ((codes == _OPEN) & (depths == level)) | ((codes == _CLOSE) & (depths == level - 1))
        chosen = np.flatnonzero(separates | borders)
        at, first = places[chosen] + base, 0
        for border in [*np.flatnonzero(borders[chosen]).tolist(), len(chosen)]:
            if is_inside and border > first:
                yield _without_blanks(source, _pieces(start, at[first:border]))
                start = int(at[border - 1]) + 1
            if border == len(chosen):
                break
            place = int(at[border])
            if is_inside:
                yield _without_blanks(source, np.array([[start, place]], np.int64))
                return
            is_array = block[place - base] == ord("[")
            is_inside = is_array and (level == 1 or key_before(source, place) in keys)
            start, first = place + 1, border + 1
    if not is_inside:
        wanted = f"an array at {' or '.join(map(repr, keys))}" if level == 2 and keys else "an array of records"
        raise StoreCorrupt(f"{source.path}: {wanted} was not found in {source.size_bytes:,} bytes")
    yield _without_blanks(source, np.array([[start, source.size_bytes]], np.int64))


def key_before(source: ByteSource, place: int) -> str | None:
    """The key whose value begins at a byte; None where none is right before it."""
    start = max(0, place - _KEY_BYTES)
    match = _KEY.search(source.read(start, place - start))
    return None if match is None else match[1].decode("utf-8", "replace")


def line_number(source: ByteSource, offset: int) -> int:
    """The number of the line that holds a byte, from 1."""
    lines = 1
    for base, block in _blocks(source):
        if base >= offset:
            break
        lines += int(np.count_nonzero(block[: offset - base] == _NEWLINE))
    return lines


class _Structure:
    """Follows the brackets and commas of JSON that lie outside strings, from block to block."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._backslashes = 0  # at the end of the block before

    def feed(self, block: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.int64]]:
        """(places in the block, codes, depths behind them) of brackets and commas."""
        quotes = self._quotes(block)
        codes = _CODES[block]
        places = np.flatnonzero(codes)
        inside = (np.searchsorted(quotes, places) + self._in_string) & 1
        places = places[inside == 0]
        codes = codes[places]
        depths = self._depth + np.cumsum(np.where(codes == _COMMA, 0, codes), dtype=np.int64)
        if len(depths):
            self._depth = int(depths[-1])
        self._in_string ^= bool(len(quotes) & 1)
        return places, codes, depths

    def _quotes(self, block: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The quotes that no backslash escapes: those behind an even number of them."""
        is_quote = block == _QUOTE
        slashes = np.flatnonzero(block == _BACKSLASH)
        carried, self._backslashes = self._backslashes, 0
        if carried & 1 and (not len(slashes) or slashes[0]):
            is_quote[0] = False
        if len(slashes):
            breaks = np.flatnonzero(np.diff(slashes) != 1)
            firsts, lasts = slashes[np.append(0, breaks + 1)], slashes[np.append(breaks, len(slashes) - 1)]
            lengths = lasts - firsts + 1
            if not firsts[0]:
                lengths[0] += carried
            if lasts[-1] == len(block) - 1:
                self._backslashes = int(lengths[-1])
                lasts, lengths = lasts[:-1], lengths[:-1]
            is_quote[lasts[lengths & 1 == 1] + 1] = False
        return np.flatnonzero(is_quote)


def _blocks(source: ByteSource) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(offset, bytes) of the whole file; a block is valid until the next."""
    memory = np.empty(BLOCK_BYTES, np.uint8)
    for base in range(0, source.size_bytes, BLOCK_BYTES):
        block = memory[: source.size_bytes - base]
        source.read_into(block.data, base)
        yield base, block


def _pieces(start: int, ends: NDArray[np.int64]) -> Spans:
    """From `start` on, what lies before each end; the byte at an end belongs to no piece."""
    spans = np.empty((len(ends), 2), np.int64)
    spans[:, 1] = ends
    spans[0, 0] = start
    spans[1:, 0] = ends[:-1] + 1
    return spans


def _without_blanks(source: ByteSource, spans: Spans) -> Spans:
    """Without pieces of white space: empty lines, an array without elements, a comma behind the last one."""
    short = np.flatnonzero(spans[:, 1] - spans[:, 0] < _SHORTEST_BYTES)
    blank = [n for n in short.tolist() if not source.read(int(spans[n, 0]), int(spans[n, 1] - spans[n, 0])).strip()]
    return np.delete(spans, blank, axis=0) if blank else spans
