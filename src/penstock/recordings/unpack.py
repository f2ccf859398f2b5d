"""Files that are compressed as a whole (.db3.zstd, .mcap.zstd): unpacked through bounded memory, gone when closed."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.errors import LimitExceeded, RecordingCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

_STEP_BYTES = 1 << 20
# Left free on the disk that holds temporary files, so that a bomb cannot fill it.
_SPARE_BYTES = 256 << 20


def unpacked(path: Path) -> int:
    """A descriptor of an unnamed temporary file with the decompressed content."""
    with tempfile.TemporaryFile(prefix="penstock-") as target:
        _unpack(path, target)
        return os.dup(target.fileno())


@contextmanager
def unpacked_file(path: Path) -> Iterator[Path]:
    """A temporary file with the decompressed content, for who needs a name to open it; the name is gone afterwards."""
    with tempfile.NamedTemporaryFile(prefix="penstock-") as target:
        _unpack(path, target)
        yield Path(target.name)


def _unpack(path: Path, target: IO[bytes]) -> None:
    import pyarrow as pa

    limit = shutil.disk_usage(tempfile.gettempdir()).free - _SPARE_BYTES
    done = 0
    try:
        with pa.OSFile(str(path)) as packed, pa.CompressedInputStream(packed, "zstd") as stream:
            while piece := stream.read(_STEP_BYTES):
                done += len(piece)
                if done > limit:
                    raise LimitExceeded(
                        f"{path}: more than {limit:,} bytes when decompressed, and {tempfile.gettempdir()} has no more",
                        size=done,
                        limit=limit,
                        hint="set TMPDIR to a larger disk, or decompress it yourself: zstd -d FILE",
                    )
                target.write(piece)
            target.flush()
    except (OSError, ValueError) as error:
        raise RecordingCorrupt(f"zstd content breaks off after {done:,} bytes: {error}", path=str(path)) from error
