"""Writing to a real `moto_server`: convert, check, load, append; killed at 30 moments, resumed to the same objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.bucket import publish
from penstock._src.system.files.remote import client_of
from penstock._src.system.files.remote.client import forget_clients
from penstock.errors import RemoteTaken
from tests.faults.injection import Injector
from tests.faults.jobs import contents, make_sources
from tests.remote.killing import Killing, Proxy
from tests.remote.test_moto import bucket, moto, pytestmark
from tests.remote.test_writing_killed import KILLED, spread
from tests.remote.writing import call, etags, local_names, objects, same_in_every_run, staged

__all__ = ["bucket", "moto", "pytestmark"]
MOMENTS, MOMENTS_OF_APPEND = 30, 10


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_sources(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def _copy(source: str, target: str) -> None:
    client, prefix = client_of(target)
    for name, data in objects(source).items():
        client.put(f"{prefix}/{name}", data)


def test_convert_check_load_append(bucket: str, sources: list[Path], tmp_path: Path) -> None:
    url, local = f"{bucket}/sets/one", tmp_path / "local"
    penstock.convert(**call(sources[:1], url))
    penstock.convert(**{**call(sources[:1]), "out": str(local)})
    assert local_names(objects(url)) == contents(local)
    penstock.convert(**call(sources[1:], url, append=True))
    penstock.convert(**{**call(sources[1:], append=True), "out": str(local)})
    assert main(["doctor", url]) == main(["doctor", url, "--full"]) == 0
    words: dict[str, Any] = {"batch_size": 4, "image_size": (24, 32), "view": "off", "memory": "512MiB"}
    found = []
    for path in (url, str(local)):
        with penstock.open(path) as store, penstock.Loader(store, **words) as loader:
            found.append([{name: np.asarray(value).copy() for name, value in batch.items()} for batch in loader])
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(*found, strict=True) for name in a)
    penstock.convert(**call(sources, url, overwrite=True))
    assert main(["doctor", url, "--full"]) == 0
    assert staged() == []


def test_a_large_file_is_sent_in_parts(bucket: str, sources: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 takes parts of 5 MiB and more, but for the last."""
    from penstock._src.conversion.bucket.place import BucketSet
    from penstock._src.conversion.bucket.upload import Uploads
    from penstock._src.system.files import as_path

    root = Path(os.environ["PENSTOCK_CACHE"])
    (root / "data").mkdir(parents=True)
    data = np.random.default_rng(0).bytes(20 << 20)
    (root / "data/x.mp4").write_bytes(data)
    place = BucketSet(as_path(f"{bucket}/one"))  # type: ignore[arg-type]
    with Uploads(place, root, root / "done") as uploads:
        uploads.finish(["data/x.mp4"], lambda: None)
    assert objects(f"{bucket}/one") == {"data/x.mp4": data}
    assert (root / "data/x.mp4").stat().st_size == len(data)
    assert Uploads(place, root, root / "done").done == {"data/x.mp4": len(data)}


def test_of_two_writers_one_is_told(
    bucket: str, sources: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, before = f"{bucket}/one", publish.publish

    def meanwhile(*words: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(publish, "publish", before)
            patched.setenv("PENSTOCK_CACHE", str(tmp_path / "another machine"))
            penstock.convert(**call(sources[:1], url))
        before(*words)

    with monkeypatch.context() as patched, pytest.raises(RemoteTaken, match=rf"process {os.getpid()} on .* was first"):
        patched.setattr(publish, "publish", meanwhile)
        penstock.convert(**call(sources[1:], url))
    assert main(["doctor", url, "--full"]) == 0


@pytest.fixture
def injector(
    bucket: str, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Injector, Killing]]:
    """The child reaches the server through a proxy that can kill it."""
    (tmp_path / "built").mkdir()
    proxy: Proxy | None = None
    with monkeypatch.context() as patched:
        killing = Killing(0)
        proxy = Proxy(moto, killing)
        patched.setenv("AWS_ENDPOINT_URL", proxy.url)
        started = Injector(tmp_path / "built")
    forget_clients()
    killing.server_id = started._server.pid
    with started:
        yield started, killing
    proxy.close()


@pytest.mark.timeout(280)
@pytest.mark.parametrize("appends", [False, True])
def test_killed_at_a_request(
    appends: bool, bucket: str, injector: tuple[Injector, Killing], sources: list[Path], tmp_path: Path
) -> None:
    """Before the store gets it, and every other time once the store has done it."""
    server, killing = injector
    more = {"append": True} if appends else {}
    used = sources[1:] if appends else sources
    if appends:
        penstock.convert(**call(sources[:1], f"{bucket}/begun"))
        _copy(f"{bucket}/begun", f"{bucket}/whole")
    killing.arm(0, after=False)
    assert server.run(call(used, f"{bucket}/whole", **more), under=tmp_path).code == 0
    requests, wanted = killing.seen, same_in_every_run(etags(f"{bucket}/whole"))
    moments = spread(requests, MOMENTS_OF_APPEND if appends else MOMENTS)
    assert len(moments) == (MOMENTS_OF_APPEND if appends else MOMENTS)
    kills = 0
    for case, number in enumerate(moments):
        url = f"{bucket}/case_{number}"
        if appends:
            _copy(f"{bucket}/begun", url)
        killing.arm(number, after=case % 2 == 1)
        killed = server.run(call(used, url, **more), under=tmp_path)
        assert killed.code in (KILLED, 0), (number, killed.error)
        kills += killed.code == KILLED
        killing.arm(0, after=False)
        again = server.run(call(used, url, resume=True, **more), under=tmp_path)
        assert again.code == 0, (number, again.error)
        assert same_in_every_run(etags(url)) == wanted, number
        assert staged() == [], number
    assert kills >= len(moments) - 2  # one or two may come after the last request of another run
    assert main(["doctor", f"{bucket}/case_{moments[-1]}", "--full"]) == 0
