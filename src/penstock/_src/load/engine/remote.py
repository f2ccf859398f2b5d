"""What reading from remote stores takes of a loader's memory, and how many bytes it may ask for ahead."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock._src.load.engine.source import SampleSource
from penstock._src.system.files import RemotePath

_MIB = 1 << 20
_LEAST_BYTES = 8 * _MIB
_CONNECTION_BYTES = 64 << 10  # buffers of one connection and its thread


def is_remote(sources: Sequence[SampleSource]) -> bool:
    """Whether any store is read over a network."""
    return any(isinstance(source.store.path, RemotePath) for source in sources)


def ahead_bytes(sources: Sequence[SampleSource], batch_size: int, limit_bytes: int) -> int:
    """What ranges that are under way or not yet read may take: two batches as they are stored, and at least as much as
    keeps all requests busy; an eighth of the memory at most. 0 without a remote store."""
    if not is_remote(sources):
        return 0
    from penstock._src.system.files.remote.settings import settings

    batch_bytes, image_bytes = 0, 1
    for source in sources:
        for column in source.images:
            mean = column.column.stored_bytes // max(source.store.rows, 1)
            image_bytes = max(image_bytes, mean)
            batch_bytes += batch_size * mean * sum(output.steps or 1 for output in column.outputs)
    wanted = max(2 * batch_bytes, 3 * settings().in_flight * image_bytes // 2, _LEAST_BYTES)
    return min(wanted, max(limit_bytes // 8, _LEAST_BYTES))


def remote_bytes(ahead: int) -> int:
    """All that remote reading takes, with so many bytes ahead."""
    if not ahead:
        return 0
    from penstock._src.system.files.remote.held import HELD_BYTES
    from penstock._src.system.files.remote.settings import settings

    return ahead + HELD_BYTES + settings().in_flight * _CONNECTION_BYTES


def request_counts() -> tuple[int, int, int, int]:
    """(requests, bytes, ns of all requests, ns until their answers began) of this process so far."""
    module = sys.modules.get("penstock._src.system.files.remote.requests")
    if module is None:
        return 0, 0, 0, 0
    now = module.counters
    return now.requests, now.bytes_read, now.wait_ns, now.first_byte_ns


def allow_ahead(n_bytes: int) -> None:
    """Let this process ask for so many bytes ahead; several loaders of a process add up."""
    if n_bytes:
        from penstock._src.system.files.remote.prefetch import prefetcher

        prefetcher().limit_bytes = n_bytes
