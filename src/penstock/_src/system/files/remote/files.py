"""`s3://`, `gs://`, `az://`, `http://` and `https://` as file systems: open, identify, list.

A directory of a bucket is listed with all below it, once: what lies there is then known without a request for each
file. What was learnt is used for half a minute, so that opening a data set takes a few requests; the version of every
file is checked by every read.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import unescape
from urllib.parse import unquote

from penstock._src.system.files.remote.client import ObjectInfo, client_of, split_url
from penstock._src.system.files.remote.held import TAIL_BYTES, held
from penstock._src.system.files.remote.requests import pool
from penstock._src.system.files.remote.source import RemoteSource, identity_from, version_of
from penstock._src.system.files.source import Identity, ReadErrors
from penstock.errors import RemoteDenied, RemoteError, RemoteMissing

_FRESH_S = 30.0
_MOST_KEYS = 20_000  # of a listing that goes down into directories
_LINK = re.compile(r"""<a\s[^>]*href\s*=\s*["']([^"'#]+)["']""", re.IGNORECASE)
_MOST_PAGE_BYTES = 16 << 20


class Tree:
    """What is known of the objects below a place, at one moment."""

    def __init__(self, objects: Sequence[ObjectInfo]) -> None:
        self.read_s = time.monotonic()
        self.objects = {each.key: each for each in objects}
        self.names: dict[str, dict[str, None]] = {}  # of a directory, in order
        for key in self.objects:
            while key:
                above, _, name = key.rpartition("/")
                names = self.names.setdefault(above, {})
                if name in names:
                    break
                if name:
                    names[name] = None
                key = above

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.read_s < _FRESH_S


class BucketFiles:
    """The file system of buckets."""

    def __init__(self) -> None:
        self._trees: dict[str, Tree | None] = {}  # by URL; None: too many objects for one
        self._infos: dict[str, tuple[float, ObjectInfo]] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)

    def open(self, url: str, errors: ReadErrors | None) -> RemoteSource:
        client, key = client_of(url)
        info = self._known(url)
        if info is None:
            data, info = client.tail(key, TAIL_BYTES) if key or "?" in url else (memoryview(b""), client.head(key))
            held.put((*version_of(url, info), "tail"), data)
            self._learn(url, info)
        return RemoteSource(url, client, key, info, errors)

    def identity(self, url: str) -> Identity:
        return identity_from(self.info(url))

    def identities(self, urls: Sequence[str]) -> list[Identity | None]:
        """Of many files, asked at once; None where there is none."""

        def ask(url: str) -> Identity | None:
            try:
                return self.identity(url)
            except FileNotFoundError:
                return None

        if all(self._known(url) is not None or self._tree_of(url) is not None for url in urls):
            return [ask(url) for url in urls]
        return pool().run_all([partial(ask, url) for url in urls])

    def info(self, url: str) -> ObjectInfo:
        """Size and version of a file; a directory is no file."""
        found = self._known(url)
        if found is not None:
            return found
        if self._tree_of(url) is not None:
            raise RemoteMissing(url)
        client, key = client_of(url)
        if not key and "?" not in url:
            raise RemoteMissing(url)
        # A directory looks like a missing file: what lies below it is asked for at the same time.
        below = None if threading.current_thread() is not threading.main_thread() else pool().submit(
            lambda: self._list(url)
        )  # fmt: skip
        try:
            info = client.head(key)
        except (RemoteMissing, RemoteDenied):
            if below is not None:
                below.result()  # its error says more: a missing bucket, a key that is refused
            raise
        self._learn(url, info)
        return info

    def names(self, url: str) -> Sequence[str]:
        tree = self._tree_of(url) or self._list(url)
        if tree is not None:
            return list(tree.names.get(self._key(url), ()))
        client, key = client_of(url)
        directories, objects = client.list_directory(key)
        for each in objects:
            self._learn(client.url(each.key), each)
        return sorted({*directories, *(each.key.rpartition("/")[2] for each in objects)} - {""})

    def warm(self, files: Mapping[str, int]) -> None:
        """Hold ends and beginnings of files, or all of those up to so many bytes; errors come when they are opened."""

        def ask(url: str, most_bytes: int, is_tail: bool) -> None:
            with suppress(RemoteError):
                source = self.open(url, None)
                source.warm_tail(most_bytes) if is_tail else source.warm_head(most_bytes)

        pool().run_all([partial(ask, *each, is_tail) for is_tail in (True, False) for each in files.items()])

    def forget(self, url: str) -> None:
        """Ask anew for all below a URL."""
        with self._lock:
            for known in (self._trees, self._infos):
                for each in [each for each in known if each.startswith(url) or url.startswith(f"{each}/")]:
                    known.pop(each)

    def _list(self, url: str) -> Tree | None:
        """Everything below a URL; None where that is too much."""
        with self._lock:
            if url in self._trees and self._trees[url] is None:
                return None
        client, key = client_of(url)
        objects = client.list_objects(key, _MOST_KEYS)
        tree = Tree(objects) if len(objects) < _MOST_KEYS else None
        with self._lock:
            self._trees[url] = tree
        return tree

    def _tree_of(self, url: str) -> Tree | None:
        """A fresh listing that has everything below this URL, and the URL itself."""
        with self._lock:
            above = url
            while above.count("/") >= 2:
                found = self._trees.get(above)
                if found is not None:
                    if found.is_fresh:
                        return found if above != url or found.objects else None
                    del self._trees[above]
                above = above.rpartition("/")[0]
        return None

    def _known(self, url: str) -> ObjectInfo | None:
        tree = self._tree_of(url)
        if tree is not None and (found := tree.objects.get(self._key(url))) is not None:
            return found
        with self._lock:
            when, info = self._infos.get(url, (0.0, None))
        return info if info is not None and time.monotonic() - when < _FRESH_S else None

    def _learn(self, url: str, info: ObjectInfo) -> None:
        with self._lock:
            if len(self._infos) > _MOST_KEYS:
                self._infos.clear()
            self._infos[url] = (time.monotonic(), info)

    def _key(self, url: str) -> str:
        """Of the objects of a tree."""
        return split_url(url)[1]

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


class WebFiles(BucketFiles):
    """The file system of web servers: directories are what a server shows as a page of links."""

    def info(self, url: str) -> ObjectInfo:
        found = self._known(url)
        if found is not None:
            return found
        client, key = client_of(url)
        if not key and "?" not in url:
            raise RemoteMissing(url)
        try:
            info, kind = client.head_with_type(key)
        except RemoteDenied as error:  # some servers hide so what is not there
            raise RemoteMissing(url) from error
        if kind.startswith("text/html") and not key.endswith((".html", ".htm")) and "?" not in url:
            raise RemoteMissing(url)  # the page of a directory
        self._learn(url, info)
        return info

    def names(self, url: str) -> Sequence[str]:
        """The links of the page that the server makes of a directory; none where it makes none."""
        if "?" in url:
            return []
        client, _ = client_of(f"{url.rstrip('/')}/?")  # the address itself, with its slash
        try:
            data, _info = client.read_all("")
        except (RemoteMissing, RemoteDenied):
            return []
        page = bytes(data[:_MOST_PAGE_BYTES]).decode("utf-8", "replace")
        if "<a" not in page.lower():
            return []
        links = (unquote(unescape(link)) for link in _LINK.findall(page))
        return sorted({link.rstrip("/") for link in links if _is_name(link)})

    def _tree_of(self, url: str) -> None:
        return None


def _is_name(link: str) -> bool:
    name = link.rstrip("/")
    return bool(name) and "/" not in name and "?" not in name and ":" not in name and name not in (".", "..")
