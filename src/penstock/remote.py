"""How object storage is read and written: credentials, endpoints, requests in flight, time limits."""

from penstock._src.system.files.remote import configure

__all__ = ["configure"]
