"""A small HTTP server that speaks enough of S3 (path style), Google's XML API, web servers and the Hub for obstore.

Latency, bandwidth and faults are injected; every request is written down. It listens on loopback only.

    with RangeServer(latency_s=0.05) as server:
        server.put("bucket", "run.bag", data)
        server.fault = lambda request: 503 if request.number % 100 == 0 else None

`python -m tests.remote.server ROOT --port 0 --latency-ms 50` serves the directories below ROOT as buckets.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import html
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.remote.hub import hub_answer

ACCESS_KEY, SECRET_KEY = "test-key", "test-secret"
CUT, LOST = "cut", "lost"
"""Faults: half of the body comes; the request is done, but its answer is lost."""
_STATUS = {200: "OK", 204: "No Content", 206: "Partial Content", 302: "Found", 304: "Not Modified",
           307: "Temporary Redirect", 400: "Bad Request",
           401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict", 412: "Precondition Failed",
           416: "Range Not Satisfiable", 429: "Too Many Requests", 500: "Internal Server Error",
           503: "Service Unavailable"}  # fmt: skip
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 429: "TooManyRequests", 503: "SlowDown"}


@dataclass
class StoredObject:
    """The bytes of a key and its version."""

    data: bytes | memoryview
    etag: str
    modified_s: float
    generation: int


@dataclass(frozen=True)
class Request:
    """One request as it came; `number` counts from 0."""

    number: int
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = field(repr=False, default=b"")

    @property
    def key(self) -> str:
        return self.path.split("/", 2)[-1]

    @property
    def target(self) -> tuple[str, str, str]:
        """What is asked for: the same at every attempt."""
        return self.method, self.path, self.headers.get("range", "")


@dataclass
class Answer:
    status: int
    body: bytes | memoryview = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None  # of a HEAD: what a GET would have


class RangeServer:
    """The server in a thread of its own; `buckets[name][key]` are its objects."""

    def __init__(self, *, latency_s: float = 0.0, bytes_per_s: float = 0.0, port: int = 0) -> None:
        self.latency_s, self.bytes_per_s, self._port = latency_s, bytes_per_s, port
        self.buckets: dict[str, dict[str, StoredObject]] = {}
        self.access_key: str | None = ACCESS_KEY  # None: everybody may read
        self.denied: tuple[str, ...] = ()  # beginnings of /bucket/key
        self.fault: Callable[[Request], int | str | None] = lambda _: None
        self.requests: list[Request] = []
        self.in_flight = self.peak_in_flight = 0
        self.gate = 0  # nothing is answered until so many requests are under way at once, for the first time
        self.bytes_sent = 0
        self._generation = 0
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._free_at = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to read `s3://…` and `hf://…` from here, and nothing from elsewhere."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "HF_ENDPOINT": self.url,
        }

    def __enter__(self) -> RangeServer:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="range-server", daemon=True)
        self._thread.start()
        assert self._ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def put(self, bucket: str, key: str, data: bytes | memoryview) -> StoredObject:
        tag = hashlib.md5(data if len(data) < 1 << 20 else bytes(data[: 1 << 20]) + b"%d" % len(data)).hexdigest()
        self._generation += 1
        found = StoredObject(data, f'"{tag}"', time.time(), self._generation)
        self.buckets.setdefault(bucket, {})[key] = found
        return found

    def add(self, path: Path, bucket: str, prefix: str = "") -> None:
        """A file, or all below a directory; mapped, not read."""
        for file in [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file()):
            name = file.name if file == path else file.relative_to(path).as_posix()
            key = f"{prefix}/{name}" if prefix else name
            data: bytes | memoryview = b""
            if file.stat().st_size:
                with file.open("rb") as opened:
                    data = memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
            self.put(bucket, key, data)

    def count(self, *methods: str) -> int:
        return sum(request.method in (methods or ("GET", "HEAD")) for request in self.requests)

    # The connection

    async def _run(self) -> None:
        """Connections that are open at the end are ended by `asyncio.run`, which cancels all tasks."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, backlog=1024)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._read(reader)) is not None:
                self.in_flight += 1
                self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
                try:
                    if not await self._respond(request, writer):
                        break
                finally:
                    self.in_flight -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()  # not after what the client has not read yet
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await reader.readline()).split(b";")[0], 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        request = Request(len(self.requests), method, unquote(parts.path), query, headers, body)
        self.requests.append(request)
        return request

    async def _respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        fault = self.fault(request)
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        while self.peak_in_flight < self.gate:
            await asyncio.sleep(0.002)
        answer = self._error(fault) if isinstance(fault, int) else self._answer(request)
        if fault == LOST:
            return False
        length = len(answer.body) if answer.length is None else answer.length
        head = [f"HTTP/1.1 {answer.status} {_STATUS[answer.status]}", f"content-length: {length}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        body = answer.body[: len(answer.body) // 2] if fault == CUT else answer.body
        if self.bytes_per_s and len(body):
            self._free_at = max(self._free_at, time.monotonic()) + len(body) / self.bytes_per_s
            await asyncio.sleep(self._free_at - time.monotonic())
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
        if request.method != "HEAD":
            writer.write(body)
            self.bytes_sent += len(body)
        await writer.drain()
        return fault != CUT

    def _error(self, status: int, code: str | None = None) -> Answer:
        code = code or _CODES.get(status, "InternalError")
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} by the test</Message></Error>"
        return Answer(status, text.encode(), {"content-type": "application/xml"})

    # What is asked for

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith(("/api/datasets/", "/datasets/")):
            return Answer(*hub_answer(self.url, self.buckets, request))
        if (refused := self._refused(request)) is not None:
            return refused
        bucket, _, key = request.path.lstrip("/").partition("/")
        if bucket not in self.buckets:
            return self._error(404, "NoSuchBucket")
        if not key and request.method == "GET" and "list-type" in request.query:
            return self._list(bucket, request.query)
        if request.method in ("GET", "HEAD"):
            return self._get(bucket, key, request)
        if request.method == "PUT" and "uploadId" not in request.query:
            return self._put(bucket, key, request)
        if request.method == "DELETE" and "uploadId" not in request.query:
            self.buckets[bucket].pop(key, None)
            return Answer(204)
        if request.method == "POST" and "delete" in request.query:
            return self._delete_many(bucket, request)
        return self._multipart(bucket, key, request)

    def _refused(self, request: Request) -> Answer | None:
        if request.path.startswith(self.denied or ("\0",)):
            return self._error(403)
        if "signature" in request.query:  # where the Hub leads to
            return None
        signature = request.headers.get("authorization", "")
        if self.access_key is None or (self.access_key and f"Credential={self.access_key}/" in signature):
            return None
        return self._error(403, "InvalidAccessKeyId" if signature else "AccessDenied")

    def _get(self, bucket: str, key: str, request: Request) -> Answer:
        found = self.buckets[bucket].get(key)
        if found is None:
            return self._index(bucket, key) or self._error(404)
        headers = {"etag": found.etag, "last-modified": formatdate(found.modified_s, usegmt=True),
                   "accept-ranges": "bytes", "x-goog-generation": str(found.generation)}  # fmt: skip
        wanted = request.headers.get("if-match", "*")
        if wanted != "*" and (wanted != found.etag or wanted.startswith("W/")):  # RFC 9110: a weak one never matches
            return self._error(412)
        size, span = len(found.data), request.headers.get("range", "")
        if not span:
            return Answer(200, found.data if request.method == "GET" else b"", headers, size)
        first, _, last = span.removeprefix("bytes=").partition("-")
        begin, end = (int(first), int(last) + 1 if last else size) if first else (max(0, size - int(last)), size)
        if begin >= size:
            return self._error(416, "InvalidRange")
        end = min(end, size)
        headers["content-range"] = f"bytes {begin}-{end - 1}/{size}"
        return Answer(206, found.data[begin:end] if request.method == "GET" else b"", headers, end - begin)

    def _index(self, bucket: str, key: str) -> Answer | None:
        """The page that web servers make of a directory."""
        names = sorted({n[len(key) :].split("/")[0] + "/" * ("/" in n[len(key) :]) for n in self.buckets[bucket]
                        if n.startswith(key)})  # fmt: skip
        if not names or (key and not key.endswith("/")):
            return None
        links = "".join(f'<a href="{quote(name)}">{html.escape(name)}</a>' for name in names)
        return Answer(200, f"<html>{links}</html>".encode(), {"content-type": "text/html"})

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = int(query.get("max-keys", 1000))
        entries: dict[str, StoredObject | None] = {}
        for key in sorted(self.buckets[bucket]):
            if key.startswith(prefix):
                rest = key[len(prefix) :]
                common = delimiter and delimiter in rest
                name = prefix + rest.split(delimiter)[0] + delimiter if common else key
                entries.setdefault(name, None if common else self.buckets[bucket][key])
        names = [name for name in entries if name > after]
        shown, text = names[:most], ""
        for name in shown:
            found = entries[name]
            if found is None:
                text += f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            else:
                when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified_s))
                text += (f"<Contents><Key>{escape(name)}</Key><LastModified>{when}</LastModified>"
                         f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>")  # fmt: skip
        more = len(names) > most
        text += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        if more:
            text += f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>"
        return Answer(200, f"<ListBucketResult><Name>{bucket}</Name>{text}</ListBucketResult>".encode())

    def _put(self, bucket: str, key: str, request: Request) -> Answer:
        held = self.buckets[bucket].get(key)
        if request.headers.get("if-none-match") == "*" and held is not None:
            return self._error(412)
        if "if-match" in request.headers and (held is None or held.etag != request.headers["if-match"]):
            return self._error(412)
        generation = request.headers.get("x-goog-if-generation-match")  # Google: 0 where there is none
        if generation is not None and int(generation) != (0 if held is None else held.generation):
            return self._error(412)
        return Answer(200, b"", {"etag": self.put(bucket, key, request.body).etag})

    def _delete_many(self, bucket: str, request: Request) -> Answer:
        keys = [piece.split("</Key>")[0] for piece in request.body.decode().split("<Key>")[1:]]
        for key in keys:
            self.buckets[bucket].pop(key, None)
        done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return Answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

    def _multipart(self, bucket: str, key: str, request: Request) -> Answer:
        if "uploads" in request.query:
            upload = f"upload-{len(self._uploads)}"
            self._uploads[upload] = {}
            names = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return Answer(200, f"<InitiateMultipartUploadResult>{names}</InitiateMultipartUploadResult>".encode())
        upload = request.query["uploadId"]
        if upload not in self._uploads:
            return self._error(404, "NoSuchUpload")
        if request.method == "DELETE":
            self._uploads.pop(upload, None)
            return Answer(204)
        if request.method == "PUT":
            self._uploads[upload][int(request.query["partNumber"])] = request.body
            return Answer(200, b"", {"etag": f'"{hashlib.md5(request.body).hexdigest()}"'})
        parts = self._uploads.pop(upload)
        tag = escape(self.put(bucket, key, b"".join(parts[number] for number in sorted(parts))).etag)
        text = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
        return Answer(200, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--megabytes-per-s", type=float, default=0.0)
    words = parser.parse_args()
    server = RangeServer(latency_s=words.latency_ms / 1e3, bytes_per_s=words.megabytes_per_s * 1e6, port=words.port)
    for bucket in sorted(words.root.iterdir()):
        for entry in sorted(bucket.iterdir()):
            server.add(entry.resolve(), bucket.name, entry.name if entry.is_dir() else "")
    with server:
        print(server.url, os.getpid(), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
