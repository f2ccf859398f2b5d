"""`hf://datasets/OWNER/NAME[@REVISION]/…`: listed by the API of the Hub, resolved once per file, read where that leads.

The Hub answers a request for a file with the signed address of its storage. Ranges go there. An address that has
expired is asked for again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from email.message import Message
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from penstock._src.system.files.remote.client import Client, ObjectInfo, client_of
from penstock._src.system.files.remote.credentials import hub_token
from penstock._src.system.files.remote.files import BucketFiles, Tree
from penstock._src.system.files.remote.held import TAIL_BYTES, held
from penstock._src.system.files.remote.requests import count_request, pool
from penstock._src.system.files.remote.settings import settings
from penstock._src.system.files.remote.source import RemoteSource, identity_from, version_of
from penstock._src.system.files.source import Identity, ReadErrors
from penstock.errors import RemoteDenied, RemoteError, RemoteMissing, RemoteThrottled, RemoteUnavailable, UsageError

_MOST_REDIRECTS = 5
_PAUSE_S = 0.5


def split_hub_url(url: str) -> tuple[str, str, str]:
    """(repository, revision, path): `hf://datasets/lerobot/pusht@v3.0/meta` → (`lerobot/pusht`, `v3.0`, `meta`)."""
    kind, _, rest = url.partition("://")[2].partition("/")
    owner, _, rest = rest.partition("/")
    name, _, path = rest.partition("/")
    name, _, revision = name.partition("@")
    if kind != "datasets" or not owner or not name:
        raise UsageError(f"{url} names no data set of the Hub", hint="hf://datasets/OWNER/NAME or …/NAME@REVISION/file")
    return f"{owner}/{name}", revision or "main", path


class HubFiles(BucketFiles):
    """The data sets of the Hugging Face Hub (or of the server that HF_ENDPOINT names)."""

    def open(self, url: str, errors: ReadErrors | None) -> HubSource:
        client, key = resolve(url)
        data, info = client.tail(key, TAIL_BYTES)
        held.put((*version_of(url, info), "tail"), data)
        source = HubSource(url, client, key, info, errors)
        source.listed = self._known(url) or info
        return source

    def info(self, url: str) -> ObjectInfo:
        tree = self._tree_of(url) or self._list(url)
        found = tree.objects.get(self._key(url))
        if found is None:
            raise RemoteMissing(url)
        return found

    def names(self, url: str) -> Sequence[str]:
        tree = self._tree_of(url) or self._list(url)
        return list(tree.names.get(self._key(url), ()))

    def _key(self, url: str) -> str:
        return url.partition("://")[2].strip("/")

    def _list(self, url: str) -> Tree:
        """All files of the repository at the revision."""
        repository, revision, _ = split_hub_url(url)
        root = "/".join(url.split("/")[:5])  # hf://datasets/OWNER/NAME@REVISION
        page: str | None = f"{endpoint()}/api/datasets/{repository}/tree/{quote(revision, safe='')}?recursive=true"
        objects: list[ObjectInfo] = []
        while page is not None:
            body, headers, _ = pool().run(partial(_ask, url, page, "GET"))
            for row in json.loads(body):
                if row.get("type") == "file":
                    large = row.get("lfs") or {}
                    objects.append(
                        ObjectInfo(
                            f"{self._key(root)}/{row['path']}", int(row["size"]), large.get("oid") or row.get("oid"), 0
                        )
                    )
            following = headers.get("link", "")
            page = following.partition("<")[2].partition(">")[0] if 'rel="next"' in following else None
        tree = Tree(objects)
        with self._lock:
            self._trees[root] = tree
        return tree


class HubSource(RemoteSource):
    """A file of the Hub, read from the address that it was resolved to."""

    listed: ObjectInfo
    """As the Hub lists it: its storage has another ETag and another time."""

    def identity(self) -> Identity:
        return identity_from(self.listed)

    def duplicate(self, errors: ReadErrors | None) -> HubSource:
        made = HubSource(str(self.path), self._client, self._key, self._info, errors)
        made.listed = self.listed
        return made

    def _read(self, begin: int, end: int) -> memoryview:
        return self._again(lambda: super(HubSource, self)._read(begin, end))

    def _request(self, begin: int, end: int) -> memoryview:
        return self._again(lambda: super(HubSource, self)._request(begin, end))

    def _again(self, read: Callable[[], memoryview]) -> memoryview:
        try:
            return read()
        except RemoteDenied:  # the signature has expired
            self._client, self._key = resolve(str(self.path))
            return read()


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def resolve(url: str) -> tuple[Client, str]:
    """The client and key by which the bytes of a file are read."""
    repository, revision, path = split_hub_url(url)
    address = f"{endpoint()}/datasets/{repository}/resolve/{quote(revision, safe='')}/{quote(path)}"
    _, headers, last = pool().run(lambda: _ask(url, address, "HEAD"))
    place = headers.get("location")
    if place is not None:
        return client_of(place + ("" if "?" in place else "?"))
    return client_of(last, _headers())


def _headers() -> dict[str, str]:
    token = hub_token()
    return {"authorization": f"Bearer {token}"} if token else {}


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_opener = build_opener(_NoRedirect)


def _ask(url: str, address: str, method: str) -> tuple[bytes, Message, str]:
    """What the Hub itself answers, and where: it leads on to itself where a data set has another name now."""
    for _ in range(_MOST_REDIRECTS):
        body, headers = _ask_once(url, address, method)
        place = headers.get("location")
        if place is None or urlsplit(place).netloc:
            return body, headers, address
        address = urljoin(address, place)
    raise RemoteUnavailable(f"{url}: the Hub leads from one address to the next", url=url, hint="check the address")


def _ask_once(url: str, address: str, method: str) -> tuple[bytes, Message]:
    """One request to the Hub itself, tried again where it fails for the moment."""
    words = settings()
    for attempt in range(words.retries + 1):
        if attempt:
            time.sleep(min(_PAUSE_S * 2**attempt, 10.0))
        began_ns = time.perf_counter_ns()
        try:
            with _opener.open(Request(address, headers=_headers(), method=method), timeout=words.timeout_s) as answer:
                body = answer.read()
                count_request(len(body), began_ns, time.perf_counter_ns())
                return body, answer.headers
        except HTTPError as error:
            error.close()
            if error.code in (301, 302, 303, 307, 308):
                return b"", error.headers
            if error.code not in (429, 500, 502, 503, 504):
                raise _refused(url, error.code) from None
            failure = f"the Hub answers {error.code}"
            throttled = error.code in (429, 503)
        except (URLError, HTTPException, OSError) as error:
            failure, throttled = f"the Hub cannot be reached: {getattr(error, 'reason', None) or error}", False
    kind = RemoteThrottled if throttled else RemoteUnavailable
    raise kind(f"{url}: {failure} after {words.retries} retries", url=url, hint="try again later")


def _refused(url: str, status: int) -> RemoteError:
    if status in (401, 403):
        hint = "check HF_TOKEN, or run `hf auth login`; a gated data set also asks for consent on its page"
        return RemoteDenied(f"{url}: the Hub refuses it ({status})", url=url, hint=hint)
    if status == 404:
        return RemoteMissing(url)
    return RemoteUnavailable(f"{url}: the Hub answers {status}", url=url, hint="check the address")
