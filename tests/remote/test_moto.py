"""Against a real `moto_server`, where PENSTOCK_MOTO_SERVER names its command: what S3 itself answers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.system.files.remote import client_of
from penstock.errors import RemoteChanged, RemoteError, RemoteMissing, RemoteTaken
from tests.lerobot import making
from tests.recordings import made

COMMAND = os.environ.get("PENSTOCK_MOTO_SERVER", "")
pytestmark = pytest.mark.skipif(not shutil.which(COMMAND), reason="PENSTOCK_MOTO_SERVER names no command")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [COMMAND, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def bucket(moto: str, no_cloud: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty bucket of this test."""
    for name, value in (("AWS_ENDPOINT_URL", moto), ("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")):
        monkeypatch.setenv(name, value)
    name = f"b{abs(hash(request.node.name)) % 10**9}"
    urllib.request.urlopen(urllib.request.Request(f"{moto}/{name}", method="PUT"), timeout=10).close()
    return f"s3://{name}"


def _upload(path: Path, url: str) -> None:
    for file in [path] if path.is_file() else (each for each in path.rglob("*") if each.is_file()):
        place = url if file == path else f"{url}/{file.relative_to(path).as_posix()}"
        client, key = client_of(place)
        client.put(key, file)


def test_reading_listing_and_conditions(bucket: str) -> None:
    client, _ = client_of(bucket)
    first = client.put("d/x.bin", b"0123456789", if_absent=True)
    with pytest.raises(RemoteTaken):
        client.put("d/x.bin", b"other", if_absent=True)
    assert client.read("d/x.bin", 2, 5, first) == b"234"
    client.put("d/x.bin", b"abcdefghij", if_match=first)
    with pytest.raises(RemoteChanged):
        client.read("d/x.bin", 2, 5, first)
    with pytest.raises(RemoteTaken):
        client.put("d/x.bin", b"late", if_match=first)
    with client.writer("big.bin", buffer_bytes=5 << 20) as writer:
        for _ in range(6):
            writer.write(bytes(1 << 20))
    assert [each.size_bytes for each in client.list_objects()] == [6 << 20, 10]
    client.delete(["big.bin", "d/x.bin"])
    assert client.list_objects() == []
    with pytest.raises(RemoteMissing):
        client.head("d/x.bin")
    with pytest.raises(RemoteError, match="there is no bucket"):
        penstock.open(f"{bucket}-none/set")


def test_a_set_is_opened_checked_and_loaded(tmp_path: Path, bucket: str) -> None:
    making.make(tmp_path / "set", (17, 23))
    _upload(tmp_path / "set", f"{bucket}/sets/one")
    url = f"{bucket}/sets/one"
    assert main(["inspect", url]) == main(["doctor", url]) == main(["doctor", url, "--full"]) == 0
    words = {"batch_size": 4, "image_size": (24, 32), "view": "off", "memory": "512MiB"}
    found = []
    for path in (url, str(tmp_path / "set")):
        with penstock.open(path) as store, penstock.Loader(store, **words) as loader:  # type: ignore[arg-type]
            found.append([{name: np.array(value) for name, value in batch.items()} for batch in loader])
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(*found, strict=True) for name in a)


def test_recordings_are_converted(tmp_path: Path, bucket: str) -> None:
    made.bag(tmp_path / "run.bag")
    for number in range(2):
        _upload(tmp_path / "run.bag", f"{bucket}/day1/run_{number}.bag")
    penstock.convert(f"{bucket}/day1/*.bag", tmp_path / "out", jobs=1, overrides=made.WORDS)
    with penstock.open(tmp_path / "out") as store:
        assert len(store.episode_starts) == 3
