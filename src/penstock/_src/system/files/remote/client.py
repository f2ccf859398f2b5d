"""One client per process and bucket: read, list, put (also conditionally), write in parts, delete.

    client, key = client_of("s3://robots/day1/run.bag")
    info = client.head(key)
    data = client.read(key, 0, 4096, etag=info.etag)
    client.put(key, data, if_absent=True)

Every call raises a `RemoteError` with the URL. Every call makes its requests in another thread where it is made in the
main one, so that Ctrl-C is heard.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock._src.system.files.remote import credentials
from penstock._src.system.files.remote.failures import changed, cut_body, is_cut, remote_error
from penstock._src.system.files.remote.requests import count_request, count_retry, pool
from penstock._src.system.files.remote.settings import RemoteSettings, settings
from penstock.errors import ConfigError, MissingExtra, RemoteError, RemoteMissing, RemoteTaken

T = TypeVar("T")
_BODY_ATTEMPTS = 5
_PAUSE_S = 0.1
WRITE_BUFFER_BYTES = 8 << 20
_WRITES_IN_FLIGHT = 4


@dataclass(frozen=True)
class ObjectInfo:
    """An object without its bytes."""

    key: str
    size_bytes: int
    etag: str | None
    modified_ns: int


def split_url(url: str) -> tuple[str, str]:
    """(bucket or server with its scheme, key): `s3://robots/day1/run.bag` → (`s3://robots`, `day1/run.bag`).

    An address with a query (a signed URL) is a place of its own.
    """
    scheme, _, rest = url.partition("://")
    if "?" in rest and scheme in ("http", "https"):
        return url, ""
    host, _, key = rest.partition("/")
    return f"{scheme}://{host}", key.strip("/")


def client_of(url: str, headers: Mapping[str, str] | None = None) -> tuple[Client, str]:
    """The client of this process for a URL, and the key that the URL names. `headers` go with every request."""
    global _made_with
    (place, key), words = split_url(url), settings()
    name = (place, words.beginning_of(url), *sorted((headers or {}).items()))
    with _lock:
        _refuse_after_fork(place)
        if words != _made_with:  # `configure` was called since
            _clients.clear()
            _made_with = words
        found = _clients.get(name)
        if found is None:
            if len(_clients) >= _MOST_CLIENTS:  # signed URLs, one of each file
                _clients.pop(next(iter(_clients)))
            found = _clients[name] = Client(place, words.options_of(url), headers)
    return found, key


_clients: dict[tuple[object, ...], Client] = {}
_lock = threading.Lock()
_made_with: RemoteSettings | None = None
_used_by: int | None = None
_MOST_CLIENTS = 1024


def forget_clients() -> None:
    """Make the next request with the credentials and settings of that moment."""
    with _lock:
        _clients.clear()


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def _refuse_after_fork(place: str) -> None:
    global _used_by
    if _used_by not in (None, os.getpid()):
        raise RemoteError(
            f"{place}: a forked process cannot read remote bytes after its parent did: it would wait for ever",
            url=place,
            hint='start workers by spawn: DataLoader(…, multiprocessing_context="spawn"), '
            'multiprocessing.get_context("spawn"); or open the URL only in the workers',
        )
    _used_by = os.getpid()


def obstore() -> Any:
    """The package that speaks with stores; one sentence where it is missing."""
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise MissingExtra("obstore", "remote", "reading from object storage and web servers") from None


class Client:
    """A bucket, or a web server; any number of threads may use it at once."""

    def __init__(self, place: str, options: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """`options`: credentials, region and endpoint that a program gave."""
        self.place = place
        self._obstore = obstore()
        self._store, self.is_signed = _make_store(place, options, headers)
        self._is_azure, self._is_google = place.startswith("az://"), place.startswith("gs://")

    def __repr__(self) -> str:
        return f"Client({self.place!r})"

    def url(self, key: str) -> str:
        return f"{self.place}/{key}" if key else self.place

    # Reading

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object."""
        return _info(self._run(key, lambda: self._counted(lambda: self._obstore.head(self._store, key))))

    def head_with_type(self, key: str) -> tuple[ObjectInfo, str]:
        """Size and version, and the content type that a web server gives."""
        call = partial(self._obstore.get, self._store, key, options={"head": True})
        answer = self._run(key, lambda: self._counted(call))
        return _info(answer.meta), str(answer.attributes.get("Content-Type", ""))

    def read(self, key: str, begin: int, end: int, etag: str | None = None) -> memoryview:
        """The bytes [begin, end), all of them. `etag`: of the version that they must be of."""
        return self._run(key, lambda: self._read(key, (begin, end), end - begin, etag)[0])

    def read_all(self, key: str) -> tuple[memoryview, ObjectInfo]:
        """A small object, whole."""
        return self._run(key, lambda: self._read_whole(key, None))

    def tail(self, key: str, n_bytes: int) -> tuple[memoryview, ObjectInfo]:
        """The last bytes (all, where there are fewer), with size and version: opens a file by one request.

        Azure knows no ranges that count from the end: there it takes two.
        """
        if self._is_azure:
            info = self.head(key)
            return self.read(key, max(0, info.size_bytes - n_bytes), info.size_bytes, info.etag), info
        return self._run(key, lambda: self._read_whole(key, {"suffix": n_bytes}))

    def read_here(self, key: str, begin: int, end: int, etag: str | None = None) -> memoryview:
        """As `read`, in this thread whatever it is."""
        with _Errors(self, key):
            return self._read(key, (begin, end), end - begin, etag)[0]

    def _read_whole(self, key: str, span: Any) -> tuple[memoryview, ObjectInfo]:
        data, meta = self._read(key, span, None, None)
        return data, _info(meta)

    def _read(self, key: str, span: Any, n_bytes: int | None, etag: str | None) -> tuple[memoryview, Any]:
        """The bytes of a range and what the answer says of the object; a cut or short answer is asked for again."""
        options: dict[str, Any] = {} if span is None else {"range": span}
        if etag is not None and not etag.startswith("W/"):  # a weak one never matches: the answer's is compared below
            options["if_match"] = etag
        reason = ""
        for attempt in range(_BODY_ATTEMPTS):
            if attempt:
                count_retry()
                time.sleep(_PAUSE_S * 2**attempt)
            began_ns = time.perf_counter_ns()
            answer = self._obstore.get(self._store, key, options=options)
            answered_ns = time.perf_counter_ns()
            meta = answer.meta
            if etag is not None and meta["e_tag"] not in (None, etag):  # a server that does not know If-Match
                raise changed(self.url(key))
            try:
                data = memoryview(answer.bytes()).cast("B")
            except self._obstore.exceptions.GenericError as error:  # cut more often than the client retries
                reason = str(error).split("\n")[0]
                continue
            count_request(len(data), began_ns, answered_ns)
            begin, end = answer.range
            if len(data) == end - begin and (n_bytes is None or len(data) == n_bytes):
                return data, meta
            reason = f"{len(data):,} of {n_bytes if n_bytes is not None else end - begin:,} bytes"
            if n_bytes is not None and end - begin < n_bytes and int(meta["size"]) < span[1]:
                raise changed(self.url(key))  # it ends earlier than when it was opened
        raise cut_body(self.url(key), reason)

    # Listing

    def list_objects(self, prefix: str = "", most: int | None = None) -> list[ObjectInfo]:
        """All objects whose keys begin with `prefix/`, at most so many."""

        def call() -> list[ObjectInfo]:
            found: list[ObjectInfo] = []
            for page in self._obstore.list(self._store, prefix or None, chunk_size=1000):
                count_request(0, time.perf_counter_ns(), time.perf_counter_ns())
                found += map(_info, page)
                if most is not None and len(found) >= most:
                    break
            return found

        return self._run(prefix, lambda: self._whole(call))

    def list_directory(self, prefix: str = "") -> tuple[list[str], list[ObjectInfo]]:
        """(names of the directories, objects) directly below a prefix."""
        call = partial(self._obstore.list_with_delimiter, self._store, prefix or None)
        found = self._run(prefix, lambda: self._whole(lambda: self._counted(call)))
        names = [each.rstrip("/").rsplit("/", 1)[-1] for each in found["common_prefixes"]]
        return names, [_info(each) for each in found["objects"]]

    def _whole(self, call: Callable[[], T]) -> T:
        """Make a call whose answer is a list; a cut one is asked for again."""
        for attempt in range(1, _BODY_ATTEMPTS):
            try:
                return call()
            except self._obstore.exceptions.GenericError as error:
                if not is_cut(str(error)):
                    raise
            count_retry()
            time.sleep(_PAUSE_S * 2**attempt)
        return call()

    # Writing

    def put(
        self, key: str, data: bytes | memoryview | Path, *, if_absent: bool = False, if_match: str | None = None
    ) -> str | None:
        """Write an object in one step; its ETag. A file (`Path`) goes out in parts.

        `if_absent`: only where there is none; `if_match`: only over the version with this ETag. Too late is
        `RemoteTaken`. An answer that was lost makes the client ask again and find its own write: so what is there
        is compared with what was to be written. Conditional data therefore names its writer.
        """
        mode: Any = "create" if if_absent else "overwrite"
        if if_match is not None:
            mode = {"e_tag": if_match}
        try:
            done = self._run(key, lambda: self._counted(lambda: self._put(key, data, mode)))
        except RemoteTaken:
            own = data.read_bytes() if isinstance(data, Path) else bytes(data)
            there, info = self.read_all(key)
            if there != own:
                raise
            return info.etag
        return None if done is None else str(done)

    def _put(self, key: str, data: bytes | memoryview | Path, mode: Any) -> str | None:
        try:
            if self._is_google and isinstance(mode, dict):
                # Google's condition is a generation: that of the object, if it still has this ETag.
                there = self._obstore.head(self._store, key)
                if there["e_tag"] != mode["e_tag"]:
                    raise self._obstore.exceptions.PreconditionError(there["e_tag"])
                mode = {**mode, "version": there["version"]}
            found: str | None = self._obstore.put(self._store, key, data, mode=mode)["e_tag"]
            return found
        except (self._obstore.exceptions.AlreadyExistsError, self._obstore.exceptions.PreconditionError) as error:
            url = self.url(key)
            raise RemoteTaken(
                f"{url}: somebody else wrote it first", url=url, hint="read it again, then decide"
            ) from error

    def writer(
        self, key: str, *, buffer_bytes: int = WRITE_BUFFER_BYTES, in_flight: int = _WRITES_IN_FLIGHT
    ) -> ObjectWriter:
        """An object that is written piece by piece, and is there once it is closed. Holds buffer_bytes × in_flight."""
        return ObjectWriter(self, key, self._obstore.open_writer(
            self._store, key, buffer_size=buffer_bytes, max_concurrency=in_flight
        ))  # fmt: skip

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""
        if not keys:
            return
        try:
            self._run(keys[0], lambda: self._counted(lambda: self._obstore.delete(self._store, list(keys))))
        except FileNotFoundError:
            if len(keys) > 1:
                for key in keys:
                    self.delete([key])

    def run(self, key: str, call: Callable[[], T]) -> T:
        """A call of the package itself, with our errors and heard signals."""
        return self._run(key, call)

    def _run(self, key: str, call: Callable[[], T]) -> T:
        with _Errors(self, key):
            return pool().run(call)

    @staticmethod
    def _counted(call: Callable[[], T]) -> T:
        began_ns = time.perf_counter_ns()
        done = call()
        count_request(0, began_ns, time.perf_counter_ns())
        return done


class ObjectWriter:
    """Bytes appended to an object that appears when it is closed; `abort` leaves nothing that a reader sees.

    A process that is killed leaves a pending upload: a lifecycle rule of the bucket removes those.
    """

    def __init__(self, client: Client, key: str, file: Any) -> None:
        self.key, self._client, self._file = key, client, file
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._client.run(self.key, lambda: self._file.write(data))
        self.size_bytes += len(data)

    def close(self) -> None:
        """Make the object appear, whole."""
        if self._file is None:
            return
        try:
            self._client.run(self.key, self._file.close)
        except RemoteMissing:
            # The answer was lost: asked again, the store knows no such upload any more, for it has ended.
            if self._client.head(self.key).size_bytes != self.size_bytes:
                raise
        self._file = None

    def abort(self) -> None:
        self._file = None

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class _Errors:
    """What the client raises inside becomes an error of ours."""

    def __init__(self, client: Client, key: str) -> None:
        self._client, self._key = client, key

    def __enter__(self) -> None:
        _refuse_after_fork(self._client.place)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, (RemoteError, ConfigError)) or not isinstance(error, Exception):
            return
        base = self._client._obstore.exceptions.BaseError
        if isinstance(error, (base, OSError, ValueError)):
            raise remote_error(error, self._client.url(self._key), is_signed=self._client.is_signed) from None


def _info(meta: Any) -> ObjectInfo:
    when: datetime = meta["last_modified"]
    etag: str | None = meta["e_tag"]
    if etag is not None and etag.startswith("0x"):  # Azure's listings leave out the quotes that its answers have
        etag = f'"{etag}"'
    return ObjectInfo(meta["path"], int(meta["size"]), etag, int(when.timestamp() * 1e9))


def _make_store(place: str, given: Mapping[str, Any], headers: Mapping[str, str] | None) -> tuple[Any, bool]:
    """A store of the package, and whether its requests are signed."""
    stores = importlib.import_module("obstore.store")
    words, scheme, given = settings(), place.partition("://")[0], dict(given)
    headers = {**(headers or {}), **given.pop("headers", {})}
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=words.timeout_s),
        "connect_timeout": timedelta(seconds=words.connect_timeout_s),
        "pool_max_idle_per_host": str(2 * words.in_flight),
        **({"default_headers": headers} if headers else {}),
    }
    backoff = {"init_backoff": timedelta(seconds=_PAUSE_S), "max_backoff": timedelta(seconds=10), "base": 2}
    retry = {
        "max_retries": words.retries,
        "retry_timeout": timedelta(seconds=words.retry_timeout_s),
        "backoff": backoff,
    }
    if scheme in ("http", "https"):
        client["allow_http"] = scheme == "http"
        return stores.HTTPStore.from_url(place, client_options=client, retry_config=retry), bool(headers)
    bucket = place.partition("://")[2]
    if not bucket:
        raise ConfigError(f"{place} names no bucket", hint=f"{scheme}://BUCKET/…")
    make = {"s3": credentials.s3_options, "gs": credentials.gs_options, "az": credentials.az_options}[scheme]
    options = make(given, metadata=words.cloud_metadata)
    endpoint = str(options.get("endpoint") or options.get("base_url") or "")
    client["allow_http"] = endpoint.startswith("http://") or words.cloud_metadata
    kind = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[scheme]
    options_of_client = credentials.client_words(options)
    try:
        store = kind(bucket, **options_of_client, client_options=client, retry_config=retry)
    except Exception as error:
        raise ConfigError(f"{place}: {str(error).split(chr(10))[0]}", hint="check its options") from error
    return store, not options.get("skip_signature")
