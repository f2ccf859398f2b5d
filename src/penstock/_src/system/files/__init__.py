"""Stored bytes: the only place where penstock opens, reads by position, identifies and replaces files.

A reader names its data by a path or a URL and reads through a `ByteSource`. Local files are built in. Another scheme
(`s3://`, `https://`) is one `FileSystem` that is registered once; no reader changes.

    with open_source("run.bag", errors) as source:
        head = source.read(0, 16)
        source.read_many([(4096, first), (81920, second)])
"""

from penstock._src.system.files.locations import (
    FileSystem,
    RemotePath,
    as_path,
    call_all,
    file_sizes,
    for_library,
    local_file,
    matches,
    open_source,
    refresh,
    register_scheme,
    walk,
    warm,
)
from penstock._src.system.files.source import (
    ByteSource,
    ByteWindow,
    Identity,
    LocalSource,
    Prefetch,
    ReadErrors,
    identity_of,
)
from penstock._src.system.files.writing import (
    AppendFile,
    begin_write_back,
    fsync_path,
    memory_file,
    replacing,
    write_all,
    write_file,
)

__all__ = [
    "AppendFile",
    "ByteSource",
    "ByteWindow",
    "FileSystem",
    "Identity",
    "LocalSource",
    "Prefetch",
    "ReadErrors",
    "RemotePath",
    "as_path",
    "begin_write_back",
    "call_all",
    "file_sizes",
    "for_library",
    "fsync_path",
    "identity_of",
    "local_file",
    "matches",
    "memory_file",
    "open_source",
    "refresh",
    "register_scheme",
    "replacing",
    "walk",
    "warm",
    "write_all",
    "write_file",
]
