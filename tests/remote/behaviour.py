"""What every store does, whatever language it speaks: asked of real servers."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.system.files.remote import client_of
from penstock.errors import RemoteChanged, RemoteError, RemoteMissing, RemoteTaken
from tests.lerobot import making


@contextmanager
def started(command: Sequence[str], ready: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server on a free port of loopback, `PORT` in its command; its URL, once it answers below `ready`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [word.replace("PORT", str(port)) for word in command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}{ready}", timeout=1).close()
                break
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def upload(path: Path, url: str) -> None:
    for file in [path] if path.is_file() else (each for each in path.rglob("*") if each.is_file()):
        place = url if file == path else f"{url}/{file.relative_to(path).as_posix()}"
        client, key = client_of(place)
        client.put(key, file)


def check_reading_listing_and_conditions(bucket: str) -> None:
    client, _ = client_of(bucket)
    first = client.put("d/x.bin", b"0123456789", if_absent=True)
    with pytest.raises(RemoteTaken):
        client.put("d/x.bin", b"other", if_absent=True)
    assert client.read("d/x.bin", 2, 5, first) == b"234"
    assert [client.tail("d/x.bin", n)[0] for n in (3, 30)] == [b"789", b"0123456789"]
    client.put("d/x.bin", b"abcdefghij", if_match=first)
    with pytest.raises(RemoteChanged):
        client.read("d/x.bin", 2, 5, first)
    with pytest.raises(RemoteTaken):
        client.put("d/x.bin", b"late", if_match=first)
    with client.writer("big.bin", buffer_bytes=5 << 20) as writer:
        for _ in range(6):
            writer.write(bytes(1 << 20))
    listed = client.list_objects()
    assert [each.size_bytes for each in listed] == [6 << 20, 10]
    assert listed == [client.head(each.key) for each in listed]
    assert client.list_directory()[0] == ["d"]
    client.delete(["big.bin", "d/x.bin"])
    assert client.list_objects() == []
    with pytest.raises(RemoteMissing):
        client.head("d/x.bin")
    with pytest.raises(RemoteError, match="there is no bucket"):
        penstock.open(f"{bucket}-none/set")


def check_a_set_is_opened_checked_and_loaded(tmp_path: Path, bucket: str) -> None:
    making.make(tmp_path / "set", (17, 23))
    upload(tmp_path / "set", f"{bucket}/sets/one")
    url = f"{bucket}/sets/one"
    assert main(["inspect", url]) == main(["doctor", url]) == main(["doctor", url, "--full"]) == 0
    words = {"batch_size": 4, "image_size": (24, 32), "view": "off", "memory": "512MiB"}
    found = []
    for path in (url, str(tmp_path / "set")):
        with penstock.open(path) as store, penstock.Loader(store, **words) as loader:  # type: ignore[arg-type]
            found.append([{name: np.asarray(value).copy() for name, value in batch.items()} for batch in loader])
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(*found, strict=True) for name in a)
