"""`penstock convert … s3://bucket/set`: the bytes of a local conversion, one version at a time, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.bucket import publish
from penstock._src.conversion.report import NoProgress
from penstock._src.lerobot.layout import ALL_CHUNKS, FilePosition
from penstock._src.lerobot.write.resume import free_local_bytes
from penstock._src.system.files import refresh
from penstock._src.system.files.remote.client import forget_clients
from penstock.errors import (
    Interrupted,
    OutputExists,
    PenstockError,
    RemoteChanged,
    RemoteDenied,
    RemoteError,
    RemoteTaken,
    UsageError,
)
from tests.faults.jobs import contents, make_sources
from tests.remote.server import LOST, RangeServer, Request
from tests.remote.writing import URL, call, download, local_names, objects, same_in_every_run, staged

Convert = Callable[..., penstock.Report]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_sources(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, sources: list[Path]) -> Path:
    """All sources in a local data set."""
    out = tmp_path_factory.mktemp("local") / "out"
    penstock.convert(**{**call(sources), "out": str(out)})
    return out


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def batches(path: str | Path) -> list[dict[str, Any]]:
    words: dict[str, Any] = {"batch_size": 4, "image_size": (24, 32), "view": "off", "memory": "512MiB"}
    with penstock.open(str(path)) as store, penstock.Loader(store, **words) as loader:
        return [{name: np.asarray(value).copy() for name, value in batch.items()} for batch in loader]


def same_batches(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(np.array_equal(a[name], b[name]) for a, b in pairs for name in a)


# What lies there


def test_a_bucket_gets_the_bytes_of_a_local_conversion(server: RangeServer, sources: list[Path], local: Path) -> None:
    report = penstock.convert(**call(sources))
    assert report.out == URL
    found = objects()
    assert local_names(found) == contents(local)
    assert json.loads(found["penstock/report.json"])["episodes"] == report.episodes
    assert staged() == []
    assert main(["doctor", URL]) == main(["doctor", URL, "--full"]) == main(["inspect", URL]) == 0
    assert same_batches(batches(URL), batches(local))


def test_several_processes_give_the_same_bytes(server: RangeServer, sources: list[Path], local: Path) -> None:
    penstock.convert(**call(sources, jobs=2))
    assert local_names(objects()) == contents(local)


def test_a_copy_on_a_disk_is_a_data_set_that_can_be_continued(
    server: RangeServer, sources: list[Path], local: Path, tmp_path: Path
) -> None:
    penstock.convert(**call(sources[:1]))
    penstock.convert(**call(sources[1:2], append=True))
    copy = download(URL, tmp_path / "copy")
    assert main(["doctor", str(copy), "--full"]) == 0
    penstock.convert(**{**call(sources[2:], append=True), "out": str(copy)})
    assert main(["doctor", str(copy), "--full"]) == 0
    assert same_batches(batches(copy), batches(local))


def test_a_copied_set_is_appended_to(server: RangeServer, sources: list[Path], local: Path, tmp_path: Path) -> None:
    penstock.convert(**{**call(sources[:1]), "out": str(tmp_path / "begun")})
    server.add(tmp_path / "begun", "b", "sets/one")
    penstock.convert(**call(sources[1:], append=True))
    assert main(["doctor", URL, "--full"]) == 0
    assert same_batches(batches(URL), batches(local))


# Large sets


def test_finished_files_go_out_while_the_conversion_goes_on(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every episode gets a video file of its own; local bytes of those in the bucket are given back."""
    monkeypatch.setattr("penstock._src.lerobot.write.videos.VideoFiles._is_full", lambda self, file: True)
    seen: list[tuple[int, int]] = []
    before = publish.publish

    def look(place: Any, run: Any, uploads: Any, check_stop: Any) -> None:
        videos = sorted(run.root.rglob("*.mp4"))
        done = [path for path in videos if path.relative_to(run.root).as_posix() in uploads.done]
        assert all(path.read_bytes() == bytes(path.stat().st_size) for path in done)
        seen.append((len(done), len(videos)))
        before(place, run, uploads, check_stop)

    monkeypatch.setattr(publish, "publish", look)
    penstock.convert(**call(sources))
    ((done, videos),) = seen
    assert videos == 20
    assert done >= videos - 2 - 4  # but the last of each camera, and those that wait
    penstock.convert(**{**call(sources), "out": str(tmp_path / "local")})
    assert local_names(objects()) == contents(tmp_path / "local")


def test_a_run_with_more_files_than_a_chunk_takes_another_chunk(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch, local: Path
) -> None:
    following = FilePosition.next
    with monkeypatch.context() as patched:
        patched.setattr("penstock._src.lerobot.write.videos.VideoFiles._is_full", lambda self, file: True)
        patched.setattr(FilePosition, "next", lambda self, size, chunks=ALL_CHUNKS: following(self, 3, chunks))
        penstock.convert(**call(sources))
    chunks = {name.split("/")[2] for name in objects() if name.startswith("videos/")}
    assert chunks == {"chunk-000", "chunk-001", "chunk-002", "chunk-003"}
    assert sum("/runs/" in name for name in objects()) == 4
    assert same_batches(batches(URL), batches(local))


def test_large_files_are_sent_in_pieces(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch, local: Path
) -> None:
    monkeypatch.setattr("penstock._src.conversion.bucket.upload._PIECE_BYTES", 4096)
    penstock.convert(**call(sources))
    assert any("uploads" in request.query for request in server.requests)
    assert local_names(objects()) == contents(local)


def test_freed_files_keep_their_size_and_footer(tmp_path: Path, local: Path) -> None:
    import pyarrow.parquet as pq

    video, table = (next((local / each).rglob("file-000.*")) for each in ("videos", "data"))
    for path in (video, table):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        free_local_bytes(copy)
        assert copy.stat().st_size == path.stat().st_size
    assert pq.read_metadata(tmp_path / table.name).equals(pq.read_metadata(table))
    assert not any((tmp_path / video.name).read_bytes())


# Versions


def test_an_append_adds_files_and_leaves_the_old_ones(server: RangeServer, sources: list[Path], local: Path) -> None:
    penstock.convert(**call(sources[:1]))
    old = objects()
    with penstock.open(URL) as store:
        every = np.arange(store.rows)
        before = store.numbers("action", every)
        report = penstock.convert(**call(sources[1:], append=True))
        assert np.array_equal(store.numbers("action", every), before)  # a reader of the old version goes on
    found = objects()
    assert {name: found[name] for name in old if name.startswith(("data/", "videos/"))} == {
        name: data for name, data in old.items() if name.startswith(("data/", "videos/"))
    }
    assert report.episodes == 10
    assert main(["doctor", URL, "--full"]) == 0
    assert same_batches(batches(URL), batches(local))
    with pytest.raises(UsageError, match="all of these inputs already"):
        penstock.convert(**call(sources, append=True))


def test_an_overwritten_set_is_the_old_one_or_the_new_one(server: RangeServer, sources: list[Path]) -> None:
    penstock.convert(**call(sources[:1]))
    with penstock.open(URL) as store:
        rows_before = store.rows
        before = store.numbers("action", np.arange(rows_before))
        with pytest.raises(OutputExists, match="exists already"):
            penstock.convert(**call(sources))
        penstock.convert(**call(sources[1:], overwrite=True))
        try:
            assert np.array_equal(store.numbers("action", np.arange(rows_before)), before)
        except RemoteError:
            pass  # the old files are gone: never rows of the new version
    assert {name.split("/")[1] for name in objects() if name.startswith("data/")} == {"chunk-001"}
    assert main(["doctor", URL, "--full"]) == 0
    with penstock.open(URL) as store:
        assert store.rows != rows_before


def test_a_reader_that_learnt_of_the_old_version_opens_the_new_one(server: RangeServer, sources: list[Path]) -> None:
    penstock.convert(**call(sources[:1]))
    with penstock.open(URL) as store:
        before = store.rows
    held = dict(server.buckets["b"])
    penstock.convert(**call(sources[1:], append=True))
    after, server.buckets["b"] = server.buckets["b"], held
    refresh(URL)
    with penstock.open(URL) as store:  # learns names and sizes of the old version
        assert store.rows == before
    server.buckets["b"] = after
    with penstock.open(URL) as store:
        assert store.rows > before


def test_what_was_published_is_finished_by_the_next_call(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch, local: Path
) -> None:
    def ends(place: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(publish, "complete", ends)
        penstock.convert(**call(sources))
    assert "meta/stats.json" not in objects()
    assert same_batches(batches(URL), batches(local))  # readers see it, whole
    report = penstock.convert(**call(sources, resume=True))
    assert report.episodes == 10
    assert local_names(objects()) == contents(local)
    assert staged() == []


def test_what_others_appended_to_is_not_taken_for_lost(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local: Path
) -> None:
    """Killed right after it was published, and another machine appends before it is resumed."""

    def ends(place: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(publish, "complete", ends)
        penstock.convert(**call(sources[:1]))
    with monkeypatch.context() as patched:
        patched.setenv("PENSTOCK_CACHE", str(tmp_path / "another machine"))
        penstock.convert(**call(sources[1:], append=True))
    with pytest.raises(PenstockError, match="is complete, and was made with other inputs") as caught:
        penstock.convert(**call(sources[1:], resume=True))
    assert not isinstance(caught.value, RemoteTaken)
    assert staged() == []
    assert main(["doctor", URL, "--full"]) == 0
    assert same_batches(batches(URL), batches(local))


def test_a_switch_whose_answer_was_lost_and_that_others_built_on_counts(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local: Path
) -> None:
    from penstock._src.system.files.remote.client import Client

    before = Client.put

    def put(self: Client, key: str, data: Any, **words: Any) -> str | None:
        done = before(self, key, data, **words)
        if key.endswith("/meta/info.json") and words.get("if_absent"):
            with monkeypatch.context() as patched:
                patched.setenv("PENSTOCK_CACHE", str(tmp_path / "another machine"))
                penstock.convert(**call(sources[1:], append=True))
            raise RemoteTaken("too late", url=key)
        return done

    monkeypatch.setattr(Client, "put", put)
    penstock.convert(**call(sources[:1]))
    assert main(["doctor", URL, "--full"]) == 0
    assert same_batches(batches(URL), batches(local))


def test_files_of_a_conversion_that_nobody_continues_go_with_the_next_version(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local: Path
) -> None:
    def fails(place: Any, *_: Any) -> None:
        raise RemoteError("no", url=URL)

    with monkeypatch.context() as patched, pytest.raises(RemoteError, match="no"):
        patched.setattr(publish, "check_base", fails)
        penstock.convert(**call(sources[:2]))
    assert "data/chunk-000/file-000.parquet" in objects()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "another machine"))
    notes: list[str] = []

    class Noting(NoProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    penstock.convert(**call(sources, resume=True), progress=Noting())
    assert any("lies on this machine" in note and "begins anew" in note for note in notes)
    assert {name.split("/")[1] for name in objects() if name.startswith("data/")} == {"chunk-001"}
    assert same_batches(batches(URL), batches(local))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RemoteTaken, match=rf"process {os.getpid()} on .* was first"):
        penstock.convert(**call(sources[:2], resume=True))
    assert main(["doctor", URL, "--full"]) == 0


# Two writers


@pytest.mark.parametrize("has_sent", [False, True])
@pytest.mark.parametrize("begun", [None, "append", "overwrite"])
def test_of_two_writers_one_wins_and_the_other_is_told_who(
    begun: str | None,
    has_sent: bool,
    server: RangeServer,
    sources: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The second one does all of its work just before the first one publishes, or brings its first files there."""
    if begun is not None:
        penstock.convert(**call(sources[:1]))
    more: dict[str, Any] = {} if begun is None else {begun: True}
    before, second = publish.publish, threading.Event()

    def meanwhile(*words: Any) -> None:
        if not second.is_set():
            second.set()
            if has_sent:
                words[2].finish(publish.names_in(words[1].root)[0], words[3])
            with monkeypatch.context() as patched:
                patched.setenv("PENSTOCK_CACHE", str(tmp_path / "another machine"))
                penstock.convert(**call(sources[1:2], **more))
                assert staged() == []
        before(*words)

    monkeypatch.setattr(publish, "publish", meanwhile)
    with pytest.raises(RemoteTaken, match=rf"process {os.getpid()} on {os.uname().nodename}.* was first"):
        penstock.convert(**call(sources[2:], **more))
    assert staged() == []
    assert main(["doctor", URL, "--full"]) == 0
    penstock.convert(**{**call(sources[:2] if begun == "append" else sources[1:2]), "out": str(tmp_path / "local")})
    assert same_batches(batches(URL), batches(tmp_path / "local"))
    with penstock.open(URL) as store:
        assert not [name for name in objects() if name.startswith("data/") and name not in store.data.table_names]  # type: ignore[attr-defined]


def test_two_conversions_of_one_machine_do_not_write_at_once(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = publish.publish

    def meanwhile(*words: Any) -> None:
        with pytest.raises(PenstockError, match=f"another conversion is writing {URL}"):
            penstock.convert(**call(sources[1:]))
        before(*words)

    monkeypatch.setattr(publish, "publish", meanwhile)
    penstock.convert(**call(sources[:1]))


# Faults


def test_lost_answers_change_nothing(server: RangeServer, sources: list[Path], local: Path) -> None:
    """Of each kind of write the first answer is lost: the claim, a file, metadata, the switch."""
    lost: set[str] = set()

    def fault(request: Request) -> str | None:
        kind = request.key.removeprefix("b/").split("/")[2] if request.key.count("/") > 2 else request.key
        kind = f"{kind} {sorted(name for name in request.headers if name.startswith('if-'))}"
        if request.method not in ("PUT", "POST") or kind in lost:
            return None
        lost.add(kind)
        return LOST

    server.fault = fault
    penstock.convert(**call(sources[:1]))
    lost.clear()
    penstock.convert(**call(sources[1:], append=True))
    assert any("if-match" in kind for kind in lost)
    server.fault = lambda _: None
    assert main(["doctor", URL, "--full"]) == 0
    assert same_batches(batches(URL), batches(local))


def test_errors_that_pass_change_nothing(server: RangeServer, sources: list[Path], local: Path) -> None:
    server.fault = lambda request: (429, 503, 500)[request.number % 3] if request.number % 7 == 3 else None
    penstock.convert(**call(sources))
    server.fault = lambda _: None
    assert local_names(objects()) == contents(local)


def test_an_object_that_was_changed_is_not_appended_to(server: RangeServer, sources: list[Path]) -> None:
    penstock.convert(**call(sources[:1]))
    key = "sets/one/data/chunk-000/file-000.parquet"
    kept = server.buckets["b"][key]
    server.put("b", key, bytes(kept.data) + b"x")
    before = objects()
    with pytest.raises(RemoteChanged, match=r"data/chunk-000/file-000.parquet: was replaced .* nothing is appended"):
        penstock.convert(**call(sources[1:], append=True))
    assert objects() == before
    del server.buckets["b"][key]
    with pytest.raises(RemoteChanged, match="is gone"):
        penstock.convert(**call(sources[1:], append=True))
    server.buckets["b"][key] = kept
    penstock.convert(**call(sources[1:], append=True))


def test_an_own_object_that_vanished_is_not_published(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock._src.conversion.bucket.upload import Uploads

    before = Uploads.finish

    def finish(self: Uploads, *words: Any) -> None:
        before(self, *words)
        server.buckets["b"].pop("sets/one/data/chunk-000/file-000.parquet")

    with monkeypatch.context() as patched, pytest.raises(RemoteChanged, match="is gone since this conversion wrote it"):
        patched.setattr(Uploads, "finish", finish)
        penstock.convert(**call(sources))
    assert "meta/info.json" not in objects()


@pytest.mark.parametrize("number", [1, 2, 4, 9, 15])
def test_expired_credentials_are_named_and_the_rest_is_resumed(
    number: int, server: RangeServer, sources: list[Path], local: Path
) -> None:
    writes = 0

    def fault(request: Request) -> None:
        nonlocal writes
        writes += request.method == "PUT"
        if writes >= number:
            server.access_key = "another"

    server.fault = fault
    with pytest.raises(RemoteDenied, match="credentials are refused") as caught:
        penstock.convert(**call(sources, keep_going=True))
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    server.fault, server.access_key = lambda _: None, "test-key"
    forget_clients()
    penstock.convert(**call(sources, keep_going=True, resume=True))
    assert local_names(objects()) == contents(local)
    assert staged() == []


def test_a_client_that_may_not_write_is_told(server: RangeServer, sources: list[Path]) -> None:
    server.fault = lambda request: 403 if request.method == "PUT" else None
    with pytest.raises(RemoteDenied, match="may not"):
        penstock.convert(**call(sources))
    assert objects() == {}


def test_ctrl_c_keeps_what_is_committed(server: RangeServer, sources: list[Path], local: Path) -> None:
    class Stopping(NoProgress):
        stages = 0

        def stage(self, stage: Any) -> None:
            self.stages += 1
            if self.stages == 8:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        penstock.convert(**call(sources), progress=Stopping())
    assert caught.value.exit_code == 130
    assert "--resume continues" in str(caught.value)
    with pytest.raises(OutputExists, match="that did not end lies in"):
        penstock.convert(**call(sources))
    penstock.convert(**call(sources, resume=True))
    assert local_names(objects()) == contents(local)
    assert penstock.convert(**call(sources, resume=True)).episodes == 10  # it is complete: nothing to do


def test_an_append_that_is_resumed_gives_the_same_objects(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock.convert(**call(sources[:1]))
    begun = dict(server.buckets["b"])
    penstock.convert(**call(sources[1:], append=True))
    wanted, server.buckets["b"] = same_in_every_run(objects()), begun
    refresh(URL)

    def fails(place: Any, *_: Any) -> None:
        raise RemoteError("no", url=URL)

    with monkeypatch.context() as patched, pytest.raises(RemoteError, match="no"):
        patched.setattr(publish, "check_base", fails)
        penstock.convert(**call(sources[1:], append=True))
    with pytest.raises(OutputExists, match="an append that did not end"):
        penstock.convert(**call(sources[1:], append=True))
    penstock.convert(**call(sources[1:], append=True, resume=True))
    assert same_in_every_run(objects()) == wanted
