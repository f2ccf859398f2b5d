"""The place of an output: beside a directory, or below a prefix of a bucket."""

from __future__ import annotations

from pathlib import Path

from penstock._src.conversion.shards.directory import DirectoryPlace
from penstock._src.conversion.shards.place import Place
from penstock._src.system.files import RemotePath


def place_of(out: Path) -> Place:
    if not isinstance(out, RemotePath):
        return DirectoryPlace(out)
    from penstock._src.conversion.shards.bucket import BucketPlace

    return BucketPlace(out)
