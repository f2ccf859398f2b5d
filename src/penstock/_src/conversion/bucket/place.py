"""The objects of a data set in a bucket: the version that is current, the runs that took chunks, the files of each."""

from __future__ import annotations

import json
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock._src.lerobot import layout
from penstock._src.system.files import RemotePath, refresh
from penstock._src.system.files.remote.client import ObjectInfo, client_of
from penstock.errors import ConfigError, DataSetCorrupt, RemoteMissing, RemoteTaken, UsageError

RUNS_DIR = f"{layout.OWN_DIR}/runs"
SHARDS_DIR = f"{layout.OWN_DIR}/shards"
FILES_NAME = "files.json"
_SCHEMES = ("s3", "gs", "az")
_CHUNKED = re.compile(r"(?:data|videos/.+)/chunk-(\d{3,9})/file-\d{3,9}\.(?:parquet|mp4)\Z")
_RUN = re.compile(rf"{RUNS_DIR}/(\d{{3,9}})\.json\Z")
_VERSION = re.compile(rf"{layout.VERSIONS_DIR}/(\d{{3,9}})/")


class FileList(NamedTuple):
    """Size and ETag of the data and video files of a version, by name; the number of the version it appended to."""

    files: Mapping[str, tuple[int, str | None]]
    before: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"before": self.before, "files": dict(sorted(self.files.items()))}


def chunk_of(name: str) -> int | None:
    """The chunk of a data or video file; None for other files."""
    found = _CHUNKED.match(name)
    return None if found is None else int(found[1])


def version_dir(number: int) -> str:
    return f"{layout.VERSIONS_DIR}/{number:03d}"


@dataclass(frozen=True)
class Version:
    """What meta/info.json says at one moment; `number` is None for metadata under its usual names."""

    etag: str | None
    number: int | None
    info: Mapping[str, Any] = field(repr=False)

    @property
    def metadata_dir(self) -> str:
        """Where its metadata lies, with a slash at the end; nothing for the root."""
        return "" if self.number is None else f"{version_dir(self.number)}/"


class BucketSet:
    """The objects below a URL; every call asks the store anew."""

    def __init__(self, url: RemotePath) -> None:
        self.url = url
        scheme = str(url).partition("://")[0]
        if scheme not in _SCHEMES:
            raise UsageError(
                f"{url}: penstock does not write to {scheme}:// addresses",
                hint="give a local directory, or s3://BUCKET/…, gs://BUCKET/…, az://CONTAINER/…",
            )
        self.client, self._prefix = client_of(str(url))
        if not self._prefix:
            raise ConfigError(f"{url} is a whole bucket", hint=f"name a place in it: {url}/NAME")

    def key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def url_of(self, name: str) -> str:
        return self.client.url(self.key(name))

    def list_files(self, below: str = "") -> dict[str, ObjectInfo]:
        """All objects, or those below a directory, by their names in the data set."""
        begin = len(self._prefix) + 1
        found = self.client.list_objects(self.key(below) if below else self._prefix)
        return {each.key[begin:]: each for each in found}

    def read(self, name: str) -> bytes | None:
        """A small object; None where there is none."""
        try:
            return bytes(self.client.read_all(self.key(name))[0])
        except RemoteMissing:
            return None

    def read_json(self, name: str) -> dict[str, Any] | None:
        data = self.read(name)
        return None if data is None else _parse(data, self.url_of(name))

    def put(self, name: str, data: bytes) -> None:
        self.client.put(self.key(name), data)

    def delete(self, names: Iterable[str]) -> None:
        keys = [self.key(name) for name in names]
        for start in range(0, len(keys), 1000):
            self.client.delete(keys[start : start + 1000])
        self.forget()

    def forget(self) -> None:
        """Readers of this process ask anew for names and sizes."""
        refresh(self.url)

    # Versions

    def current(self) -> Version | None:
        """The version that readers see now."""
        try:
            data, info = self.client.read_all(self.key(layout.INFO_PATH))
        except RemoteMissing:
            return None
        tree = _parse(bytes(data), self.url_of(layout.INFO_PATH))
        return Version(info.etag, version_of(f"{tree.get(layout.METADATA_KEY)}/"), tree)

    def files_of(self, version: Version, listing: Mapping[str, ObjectInfo]) -> FileList:
        """The data and video files of a version.

        One that was copied to the bucket has no list of them: those are its files that no run took.
        """
        if version.number is None:
            runs = Runs(self, listing)
            names = [name for name in listing if (chunk := chunk_of(name)) is not None and runs.of(chunk) is None]
            return FileList({name: (listing[name].size_bytes, listing[name].etag) for name in names})
        name = f"{version.metadata_dir}{FILES_NAME}"
        tree = self.read_json(name)
        if tree is None:
            raise DataSetCorrupt(
                f"{self.url_of(name)}: the list of files is missing",
                hint="the data set can be read, but not be appended to: convert its recordings again",
            )
        return FileList({name: (size, etag) for name, (size, etag) in tree["files"].items()}, tree.get("before"))

    # Runs

    def take_chunks(self, run: Mapping[str, Any], asked: int | None = None, count: int = 1) -> int:
        """Take chunks that follow each other for a run; the first of them, also where it took them before.

        `asked`: the one that it asked for then.
        """
        number = self._first_to_ask(run) if asked is None else asked
        while True:
            try:
                taken = {**run, "last": number + count - 1}
                self.client.put(self.key(run_name(number)), dump_json(taken), if_absent=True)
                return number
            except RemoteTaken:
                there = self.run_of(number) or {}
                if there.get("run") == run["run"]:
                    return number
                number = last_of(number, there) + 1

    def _first_to_ask(self, run: Mapping[str, Any]) -> int:
        """What a run took before it was killed, or other machines for it; else the first chunk behind all others."""
        listing = self.list_files()
        for number in sorted(runs_in(listing), reverse=True):
            there = self.run_of(number) or {}
            if there.get("run") == run["run"]:
                return number
            if there.get("base") != run["base"]:  # it and those before it began on an older version
                break
        return self.next_chunk(listing)

    def next_chunk(self, listing: Iterable[str]) -> int:
        """The first one behind all that were ever used or taken, as far as something of them is there."""
        names = list(listing)
        found = {chunk for name in names if (chunk := chunk_of(name)) is not None}
        found |= {number for name in names if (number := version_of(name)) is not None}
        if runs := runs_in(names):
            found.add(last_of(max(runs), self.run_of(max(runs)) or {}))
        return max(found, default=-1) + 1

    def run_of(self, number: int) -> dict[str, Any] | None:
        """The run that took chunks from this one on."""
        return self.read_json(run_name(number))

    def writer_of(self, version: Version | None) -> str:
        """Who made a version, for people."""
        run = None if version is None or version.number is None else self.run_of(version.number)
        if run is None:
            return "somebody"
        return f"process {run.get('process')} on {run.get('host')}, which began {run.get('began')},"


class Runs:
    """Which run took a chunk, as far as runs are in a listing; each is read once."""

    def __init__(self, place: BucketSet, listing: Iterable[str]) -> None:
        self._place, self._numbers = place, sorted(runs_in(listing))
        self._read: dict[int, dict[str, Any] | None] = {}

    def of(self, chunk: int) -> dict[str, Any] | None:
        before = bisect_right(self._numbers, chunk)
        if not before:
            return None
        number = self._numbers[before - 1]
        if number not in self._read:
            self._read[number] = self._place.run_of(number)
        run = self._read[number]
        return run if run is not None and chunk <= last_of(number, run) else None


def last_of(number: int, run: Mapping[str, Any]) -> int:
    """The last chunk that a run took with this one."""
    return int(run.get("last", number))


def run_name(chunk: int) -> str:
    return f"{RUNS_DIR}/{chunk:03d}.json"


def runs_in(listing: Iterable[str]) -> list[int]:
    """The chunks that runs have taken."""
    return [int(found[1]) for name in listing if (found := _RUN.match(name)) is not None]


def version_of(name: str) -> int | None:
    """The version that a file of metadata belongs to; None where that is none."""
    found = _VERSION.match(name)
    return None if found is None else int(found[1])


def describe_run(run_id: str, base: str | None) -> dict[str, Any]:
    """What a run writes down of itself."""
    from penstock import __version__

    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return {
        "run": run_id,
        "host": os.uname().nodename,
        "process": os.getpid(),
        "began": began,
        "base": base,
        "penstock": __version__,
    }


def dump_json(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, indent=4, ensure_ascii=False, allow_nan=False).encode()


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        tree = json.loads(data)
    except ValueError as error:
        raise DataSetCorrupt(f"{where}: not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise DataSetCorrupt(f"{where}: holds a {type(tree).__name__} instead of an object")
    return tree
