"""Bytes of a file at a known place, all of them or an error that says where the file ends."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import StoreCorrupt


def read_exactly(descriptor: int, out: memoryview, offset: int, path: Path) -> None:
    """Fill `out` with the bytes at `offset`."""
    done = 0
    while done < len(out):
        try:
            got = os.preadv(descriptor, [out[done:]], offset + done)
        except (OSError, OverflowError, ValueError) as error:
            raise StoreCorrupt(f"{path}: byte {offset + done:,} cannot be read: {error}") from error
        if not got:
            raise StoreCorrupt(
                f"{path}: byte {offset + done:,} lies beyond the end of the file", hint="the file is cut or damaged"
            )
        done += got
