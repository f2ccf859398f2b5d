"""Bytes behind `s3://`, `gs://`, `az://`, `https://` and `hf://` addresses, read and written through obstore.

`configure` gives credentials and limits, `client_of` the client of a bucket for whoever writes.
"""

from penstock._src.system.files.locations import register_scheme
from penstock._src.system.files.remote.client import Client, ObjectInfo, ObjectWriter, client_of, obstore
from penstock._src.system.files.remote.settings import RemoteSettings, configure, settings

__all__ = [
    "Client",
    "ObjectInfo",
    "ObjectWriter",
    "RemoteSettings",
    "client_of",
    "configure",
    "register",
    "settings",
]


def register() -> None:
    """Let paths of remote schemes be opened; raises `MissingExtra` where the package for it is not installed."""
    from penstock._src.system.files.remote.files import BucketFiles, WebFiles
    from penstock._src.system.files.remote.hub import HubFiles

    obstore()
    buckets, web = BucketFiles(), WebFiles()
    for scheme, system in (("s3", buckets), ("gs", buckets), ("az", buckets), ("http", web), ("https", web)):
        register_scheme(scheme, system)
    register_scheme("hf", HubFiles())
