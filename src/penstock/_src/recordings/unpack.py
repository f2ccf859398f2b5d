"""Files that are compressed as a whole (.db3.zstd, .mcap.zstd): unpacked through bounded memory, gone when closed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from penstock._src.formats.content import ZSTD_MAGIC
from penstock._src.recordings.codecs import read_prefix
from penstock._src.recordings.file_window import ERRORS, recover_hint
from penstock._src.system.files import ByteSource, LocalSource, for_library, open_source
from penstock.errors import LimitExceeded, RecordingCorrupt

# Left free on the disk that holds temporary files, so that a bomb cannot fill it.
_SPARE_BYTES = 256 << 20
# Recordings shrink to a tenth, seldom to a hundredth; what grows further than this, and large, is a bomb.
_SMALL_BYTES = 1 << 30
_MOST_EXPANSION = 500


def is_packed(path: Path) -> bool:
    """Whether a file is compressed as a whole."""
    with open_source(path, ERRORS) as source:
        return source.read(0, len(ZSTD_MAGIC)) == ZSTD_MAGIC


def open_content(path: Path) -> ByteSource:
    """The bytes of a recording's file; where it is packed as a whole, of an unnamed temporary file."""
    if not is_packed(path):
        return open_source(path, ERRORS)
    import tempfile

    with tempfile.TemporaryFile(prefix="penstock-") as target:
        _unpack(path, target)
        return LocalSource(path, os.dup(target.fileno()), ERRORS)


def unpacked_head(path: Path, n_bytes: int = 16) -> bytes:
    """The first bytes of the content, nothing where the stream is broken before them."""
    import pyarrow as pa

    try:
        with _packed(path) as packed, pa.CompressedInputStream(packed, "zstd") as stream:
            return bytes(stream.read(n_bytes))
    except (OSError, ValueError):
        return b""


@contextmanager
def unpacked_file(path: Path) -> Iterator[Path]:
    """A temporary file with the decompressed content, for who needs a name to open it; the name is gone afterwards."""
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="penstock-") as target:
        _unpack(path, target)
        yield Path(target.name)


def _packed(path: Path) -> Any:
    """What pyarrow reads the packed bytes from."""
    import pyarrow as pa

    file = for_library(path)
    return pa.OSFile(file) if isinstance(file, str) else pa.PythonFile(file, "r")


def unpack_prefix(path: Path, target: IO[bytes], directory: Path) -> tuple[int, bool]:
    """Decompress as far as it goes; bytes that came, and whether that was all. `directory`: where the target lies."""
    import pyarrow as pa

    # What the disk has, and what no bomb has.
    free = shutil.disk_usage(directory).free - _SPARE_BYTES
    limit = max(0, min(free, max(_SMALL_BYTES, _MOST_EXPANSION * path.stat().st_size)))

    def take(piece: bytes) -> None:
        done = target.tell() + len(piece)
        if done > limit:
            raise LimitExceeded(
                f"{path}: more than {limit:,} bytes when decompressed: too much for {directory}, or hostile",
                size=done,
                limit=limit,
                hint="set TMPDIR to a larger disk, or decompress it yourself: zstd -d FILE",
            )
        target.write(piece)

    is_all = read_prefix(lambda: pa.CompressedInputStream(_packed(path), "zstd"), take, 1 << 62)
    target.flush()
    return target.tell(), is_all


def _unpack(path: Path, target: IO[bytes]) -> None:
    import tempfile

    done, is_all = unpack_prefix(path, target, Path(tempfile.gettempdir()))
    if not is_all:
        what = f"zstd content breaks off after {done:,} bytes"
        raise RecordingCorrupt(what, path=str(path), hint=recover_hint(path))
