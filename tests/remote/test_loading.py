"""A loader reads a data set in a bucket as it reads one on a disk: same batches, many requests, a bounded memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.demo.recording import Script, write_recording
from penstock._src.load.bench import measure
from penstock._src.system.files.remote import configure, files, hub, prefetch, source
from penstock._src.system.files.remote.client import forget_clients
from penstock._src.system.files.remote.prefetch import prefetcher
from penstock.errors import RemoteChanged, RemoteDenied, RemoteError, RemoteMissing, RemoteThrottled, RemoteUnavailable
from tests.lerobot import making
from tests.remote.server import CUT, RangeServer

URL = "s3://b/set"
WORDS: dict[str, Any] = {"batch_size": 4, "image_size": (24, 32), "view": "off", "memory": "512MiB", "threads": 2}


@pytest.fixture(params=["video", "image"])
def local(request: pytest.FixtureRequest, tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    features = making.FEATURES if request.param == "video" else making.IMAGE_FEATURES
    making.make(tmp_path / "set", (17, 23), features=features)
    server.add(tmp_path / "set", "b", "set")
    # The files are small: without this, their ends would be all of them, and no range would be left to ask for.
    for module in (source, files, hub):
        monkeypatch.setattr(module, "TAIL_BYTES", 512)
    monkeypatch.setattr(source, "BLOCK_BYTES", 512)
    monkeypatch.setattr(source, "SMALL_BYTES", 64)
    monkeypatch.setattr(source, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(prefetch, "GAP_BYTES", 0)
    return tmp_path / "set"


def _batches(path: str | Path, **words: Any) -> list[dict[str, Any]]:
    with penstock.open(path) as store, penstock.Loader(store, **{**WORDS, **words}) as loader:
        return [{name: np.asarray(value).copy() for name, value in batch.items()} for batch in loader]


def _same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    return len(ours) == len(theirs) > 0 and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(ours, theirs, strict=True)
    )


def _load_through_gate(url: str, server: RangeServer, requests: int, **words: Any) -> None:
    """An epoch that gets no answer before so many requests are under way at once."""
    with penstock.open(url) as store, penstock.Loader(store, **{**WORDS, **words}) as loader:
        next(iter(loader))  # reads tables and indexes
        loader.set_epoch(1)
        while server.in_flight:  # what was asked for ahead
            time.sleep(0.005)
        server.peak_in_flight, server.gate = 0, requests
        for _ in loader:
            pass
    assert server.peak_in_flight >= requests


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_the_same_batches_as_from_a_disk(local: Path, engine: str) -> None:
    assert _same(_batches(URL, engine=engine), _batches(local))


def test_many_requests_are_under_way_within_the_bytes_allowed(local: Path, server: RangeServer) -> None:
    ahead = prefetcher()
    ahead.peak_bytes = ahead.held_bytes  # of other tests
    _load_through_gate(URL, server, 8, batch_size=16)
    assert ahead.held_bytes == 0
    assert ahead.peak_bytes <= ahead.limit_bytes


def test_a_second_epoch_from_the_view_asks_for_nothing(local: Path, server: RangeServer) -> None:
    with penstock.open(URL) as store, penstock.Loader(store, **{**WORDS, "view": "ram"}) as loader:
        first = sum(1 for _ in loader)
        asked = len(server.requests)
        assert sum(1 for _ in loader) == first
        assert len(server.requests) == asked


def test_hdf5_images_are_asked_for_together(tmp_path: Path, server: RangeServer) -> None:
    with h5py.File(tmp_path / "replay.hdf5", "w") as file:
        file["actions"] = np.arange(80, dtype=np.float32).reshape(40, 2)
        images = np.random.default_rng(0).integers(0, 255, (40, 48, 64, 3), np.uint8)
        file.create_dataset("observations/image", data=images)
    server.add(tmp_path / "replay.hdf5", "b")
    assert _same(_batches("s3://b/replay.hdf5"), _batches(tmp_path / "replay.hdf5"))
    _load_through_gate("s3://b/replay.hdf5", server, 2)


def test_frames_of_coded_videos_are_asked_for_ahead(
    tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recording(tmp_path / "run.bag", Script(seconds=2.0, width=64, height=48, quality=80))
    penstock.convert(tmp_path / "run.bag", tmp_path / "set", jobs=1, overrides=["video=h264"])
    server.add(tmp_path / "set", "b", "set")
    monkeypatch.setattr(source, "TAIL_BYTES", 4096)
    monkeypatch.setattr(files, "TAIL_BYTES", 4096)
    asked = []
    real = prefetch.Prefetcher.add
    monkeypatch.setattr(prefetch.Prefetcher, "add", lambda self, *words: asked.append(words[1]) or real(self, *words))
    assert _same(_batches(URL), _batches(tmp_path / "set"))
    assert sum(map(len, asked)) > 0


def test_one_request_in_a_hundred_fails_and_nobody_notices(local: Path, server: RangeServer) -> None:
    theirs = _batches(local)
    failed = {503: 0, 429: 0, CUT: 0, 500: 0}
    kinds = [*failed]
    generator = np.random.default_rng(1)
    seen: set[Any] = set()

    def fault(request: Any) -> int | str | None:
        if generator.random() < 0.05 and request.target not in seen:  # an attempt after the first one succeeds
            kind = kinds[generator.integers(len(kinds))]
            failed[kind] += 1
            seen.add(request.target)
            return kind
        return None

    server.fault = fault
    for _ in range(3):
        assert _same(_batches(URL), theirs)
    assert sum(failed.values()) > 0


@pytest.mark.parametrize(
    ("status", "kind", "word"),
    [(503, RemoteThrottled, "slow down"), (403, RemoteDenied, "may not read"), (500, RemoteUnavailable, "500"),
     (CUT, RemoteUnavailable, "cut at every attempt")],
)  # fmt: skip
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_store_that_fails_is_no_damaged_row(
    local: Path, server: RangeServer, status: int | str, kind: type[RemoteError], word: str, on_error: str
) -> None:
    configure(retries=1, retry_timeout_s=2)
    forget_clients()
    with penstock.open(URL) as store, penstock.Loader(store, **WORDS, on_error=on_error) as loader:
        batches = iter(loader)
        next(batches)
        server.fault = lambda _: status
        with pytest.raises(kind, match=word) as caught:
            for _ in range(2 * len(loader)):
                next(batches)
    assert caught.value.url.startswith(URL) and caught.value.hint and "Debug source" not in str(caught.value)


def test_a_file_that_is_replaced_is_noticed(local: Path, server: RangeServer) -> None:
    with penstock.open(URL) as store, penstock.Loader(store, **WORDS) as loader:
        batches = iter(loader)
        next(batches)
        for key, found in list(server.buckets["b"].items()):
            if key.endswith((".mp4", ".parquet")):
                server.put("b", key, bytes(found.data) + b"\0")
        with pytest.raises(RemoteChanged, match=r"^s3://b/set/.*: it was replaced since it was opened"):
            for _ in range(2 * len(loader)):
                next(batches)


def test_what_is_wrong_with_an_address_is_said(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("b", "run.bag", b"x")
    with pytest.raises(RemoteError, match="there is no bucket s3://nobody"):
        penstock.open("s3://nobody/set")
    with pytest.raises(penstock.errors.PenstockError, match=r"s3://b/nothing"):
        penstock.open("s3://b/nothing")
    server.denied = ("/b/secret", "/b?")
    server.put("b", "secret/run.bag", b"x")
    with pytest.raises(RemoteDenied, match="may not read or list it"):
        penstock.open("s3://b/secret/run.bag")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    forget_clients()
    with pytest.raises(RemoteDenied, match=r"credentials are refused \(InvalidAccessKeyId\)"):
        penstock.open("s3://b/run.bag")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    forget_clients()
    with pytest.raises(RemoteDenied, match="no credentials were found") as caught:
        penstock.open("s3://b/run.bag")
    assert "PENSTOCK_CLOUD_METADATA" in (caught.value.hint or "")
    assert issubclass(RemoteMissing, FileNotFoundError)


def test_workers_that_are_spawned_read_for_themselves(local: Path, server: RangeServer) -> None:
    torch = pytest.importorskip("torch")
    from penstock.torch import Dataset

    with penstock.open(URL) as store:
        data = Dataset(store, image_size=(24, 32), view="off")
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="spawn")
        assert sum(len(batch["action"]) for batch in loader) == 40
    assert "torch" in sys.modules


def test_the_bench_shows_requests_and_bytes(
    local: Path, server: RangeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_LEAST_BATCHES", 12)  # more than can lie ready before the time begins
    words = ["bench", "load", URL, "--batch-sizes", "8", "--seconds", "0.2", "--view", "off", "--image-size", "24x32"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "requests/s" in text and "per sample" in text and "until the answer begins" in text


def test_the_profile_counts_requests(local: Path) -> None:
    from penstock import profile

    profile.reset()
    _batches(URL)
    found = profile.snapshot()
    assert found.counters["remote_requests"] > 0 and found.counters["remote_bytes"] > 0
    profile.reset()
