"""Which storage the machines of a conversion share: beside a directory, or below a prefix of a bucket."""

from __future__ import annotations

from pathlib import Path

from penstock._src.conversion.shards.directory import DirectoryShardStorage
from penstock._src.conversion.shards.shard_storage import ShardStorage
from penstock._src.system.files import RemotePath


def shard_storage_of(out: Path) -> ShardStorage:
    if not isinstance(out, RemotePath):
        return DirectoryShardStorage(out)
    from penstock._src.conversion.shards.bucket import BucketShardStorage

    return BucketShardStorage(out)
