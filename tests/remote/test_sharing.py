"""Conversions into a bucket by several machines: shards and their commit, whatever is killed or done twice."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.bucket import publish, upload
from penstock._src.conversion.commit import identity
from penstock._src.conversion.find import find_inputs
from penstock._src.conversion.settings import read_settings
from penstock._src.conversion.shards import take, write
from penstock._src.conversion.shards.bucket import BucketShardStorage
from penstock._src.conversion.shards.commit import commit
from penstock._src.conversion.shards.plan import read_plan
from penstock._src.conversion.shards.shard_storage import new_attempt
from penstock._src.conversion.shards.write import GroupRequest, write_group
from penstock._src.conversion.stop import StopSignals
from penstock._src.system.files import as_path
from penstock.errors import DataSetError, Interrupted, OutputExists, RecordingError, RemoteTaken
from tests.conversion.sharing import FRAMES, local, make_recordings, run_shard, share_out
from tests.faults.jobs import contents
from tests.remote.server import RangeServer
from tests.remote.writing import URL, local_names, objects, staged


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_recordings(tmp_path_factory.mktemp("shards") / "in")


@pytest.fixture(scope="module")
def whole(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The conversion on one machine, with the same rule for files."""
    out = tmp_path_factory.mktemp("whole") / "out"
    penstock.convert(**local(sources, out))
    return contents(out)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine("first", tmp_path, monkeypatch)


def on_machine(name: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PENSTOCK_CACHE", str(tmp_path / f"cache of {name}"))


def storage() -> BucketShardStorage:
    return BucketShardStorage(as_path(URL))  # type: ignore[arg-type]


def shared_objects() -> list[str]:
    return [name for name in objects() if name.startswith("penstock/shards/")]


class Killed(BaseException):
    """The process ends here."""


def kill(*_: Any) -> None:
    raise Killed


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_on_several_machines_give_the_bytes_of_one(
    shards: int,
    server: RangeServer,
    sources: list[Path],
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in reversed(range(shards)):
        on_machine(str(number), tmp_path, monkeypatch)
        report = run_shard(sources, URL, f"{number}/{shards}")
        assert report.exit_code == 0 and "meta/info.json" not in objects()
    on_machine("committer", tmp_path, monkeypatch)
    committed = commit(URL, memory="1GiB")
    assert local_names(objects()) == whole
    assert committed.frames == sum(FRAMES) and committed.exit_code == 0
    assert shared_objects() == [] and staged() == []
    assert commit(URL).frames == sum(FRAMES)  # twice is once
    assert main(["doctor", URL, "--full"]) == 0


def test_the_commit_reads_no_byte_of_a_video(server: RangeServer, sources: list[Path]) -> None:
    run_shard(sources, URL, "0/1")
    server.requests.clear()
    commit(URL)
    moved = [each for each in server.requests if each.method in ("GET", "PUT", "POST") and "/videos/" in each.path]
    assert moved == []


def test_encoded_videos_and_images_in_rows_too(server: RangeServer, sources: list[Path], tmp_path: Path) -> None:
    for video in ("h264", "images"):
        share_out(sources[:3], URL, 2, video=video, overwrite=video == "images")
        penstock.convert(**local(sources[:3], tmp_path / video, video=video))
        found = local_names(objects())
        names = {name.rsplit("/", 2)[-1] for name in found}
        assert names == {name.rsplit("/", 2)[-1] for name in contents(tmp_path / video)}
        with penstock.open(URL) as ours, penstock.open(tmp_path / video) as alone:
            assert ours.rows == alone.rows


def test_append_and_overwrite(server: RangeServer, sources: list[Path], tmp_path: Path) -> None:
    share_out(sources[:3], URL, 2)
    report = share_out(sources[2:], URL, 2, append=True)
    assert report.frames == sum(FRAMES) and main(["doctor", URL, "--full"]) == 0
    penstock.convert(**local(sources[:3], tmp_path / "local"))
    penstock.convert(**local(sources[3:], tmp_path / "local", append=True))
    found = (objects(), contents(tmp_path / "local"))  # chunks of an append come behind all that were taken
    videos, alone = ([each[name] for name in sorted(each) if name.endswith(".mp4")] for each in found)
    assert videos == alone
    with pytest.raises(OutputExists):
        run_shard(sources, URL, "0/1")
    share_out(sources[:2], URL, 1, overwrite=True)
    assert len([name for name in objects() if name.endswith(".mp4")]) == 4
    assert main(["doctor", URL, "--full"]) == 0
    penstock.convert(**{**local(sources[4:5], Path("x"), append=True, files={}), "out": URL})  # by one machine
    share_out(sources[5:], URL, 1, append=True)
    assert main(["doctor", URL, "--full"]) == 0


def test_what_is_missing_and_what_fails_is_named(server: RangeServer, sources: list[Path], tmp_path: Path) -> None:
    mine = [Path(shutil.copy(path, tmp_path)) for path in sources]
    mine[3].write_bytes(b"#ROSBAG V2.0\nno bag at all")
    with pytest.raises(RecordingError, match="--keep-going leaves out"):
        run_shard(mine, URL, "0/1")
    with pytest.raises(DataSetError, match="are missing"):
        commit(URL)
    shared = share_out(mine, URL, 2, keep_going=True)
    alone = penstock.convert(**local(mine, tmp_path / "local", keep_going=True))
    assert local_names(objects()) == contents(tmp_path / "local")
    assert dict(shared.failed) == dict(alone.failed) and shared.exit_code == 3


@pytest.mark.parametrize("moment", ["claim", "send", "publish"])
def test_a_task_that_was_killed_is_done_again(
    moment: str, server: RangeServer, sources: list[Path], whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if moment == "publish":
            patch.setattr(write._GroupWriter, "finish", kill)
        else:
            patch.setattr(upload, "free_local_bytes" if moment == "send" else "send", kill)
        with pytest.raises(Killed):
            run_shard(sources, URL, "0/1")
    run_shard(sources, URL, "0/1")
    commit(URL)
    assert local_names(objects()) == whole
    assert staged() == []


def test_ctrl_c_does_not_wait_for_files_that_are_sent(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_slow(place: Any, name: str, path: Path, is_ended: Callable[[], bool]) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        while not is_ended():
            time.sleep(0.01)
        raise InterruptedError

    monkeypatch.setattr(upload, "send", is_slow)
    monkeypatch.setattr(upload, "_MOST_WAITING", 0)
    monkeypatch.setattr("penstock._src.lerobot.write.videos.VideoFiles._is_full", lambda self, file: True)
    with pytest.raises(Interrupted):
        run_shard(sources[:1], URL, "0/1")


def test_what_a_dead_task_left_on_the_disk_goes_with_the_next_one(server: RangeServer) -> None:
    left = storage().tasks_directory / "dead"
    left.mkdir(parents=True)
    (left / "lock").touch()
    with storage().attempt("w/000001.a") as first, storage().attempt("w/000001.b") as second:
        assert not left.exists() and first.root.parent.is_dir() and second.root.parent.is_dir()
    assert staged() == []


def request_of(plan: Any, number: int, **more: Any) -> GroupRequest:
    group = plan.groups[number]
    shift = storage().shared(plan).group_shift
    words: dict[str, Any] = {"group": group, "refs": plan.found(group), "spec": plan.spec, "out": URL, **more}
    words["attempt"] = new_attempt(plan.work, group.number)
    return GroupRequest(
        **words, budget_bytes=2**30, threads=1, strict=False, keep_going=True, inputs=7, group_shift=shift
    )


def test_an_attempt_with_other_bytes_gets_other_names(
    server: RangeServer, sources: list[Path], whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one left out an input, brought its files, and died before it published."""
    with pytest.raises(Killed), monkeypatch.context() as patch:
        patch.setattr(publish, "names_in", kill)
        patch.setattr("penstock._src.conversion.shards.shard._convert", kill)
        run_shard(sources, URL, "0/1")
    plan = read_plan(storage())
    assert plan is not None
    with pytest.raises(Killed), monkeypatch.context() as patch:
        patch.setattr("penstock._src.conversion.shards.bucket.zipfile.ZipFile", kill)
        write_group(request_of(plan, 1, skip={1: "left out"}), StopSignals(), lambda *_: None)
    run_shard(sources, URL, "0/1")
    commit(URL)
    found = local_names(objects())
    renamed = {name.replace("chunk-001/file-1000", "chunk-001/file-000"): data for name, data in found.items()}
    videos = [name for name in whole if name.endswith(".mp4")]
    assert [renamed[name] for name in videos] == [whole[name] for name in videos]
    assert sum("file-1000" in name for name in found) == 2
    assert main(["doctor", URL, "--full"]) == 0


def test_a_late_attempt_changes_nothing(server: RangeServer, sources: list[Path], whole: dict[str, bytes]) -> None:
    run_shard(sources, URL, "0/1")
    plan = read_plan(storage())
    assert plan is not None
    late, later = request_of(plan, 1, node="late"), request_of(plan, 1, skip={1: "left out"})
    assert write_group(late, StopSignals(), lambda *_: None).node != "late"
    commit(URL)
    before = objects()
    with pytest.raises(Interrupted, match="committed by another machine"):
        write_group(later, StopSignals(), lambda *_: None)
    assert objects() == before and local_names(before) == whole


@pytest.mark.parametrize("moment", [0, 2, "publish", "complete", "remove"])
def test_a_commit_that_was_killed_goes_on_here_and_elsewhere(
    moment: Any,
    server: RangeServer,
    sources: list[Path],
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_shard(sources, URL, "0/1")
    real, calls = take.join, []

    def killed(*words: Any) -> Any:
        for each in real(*words):
            calls.append(each)
            if len(calls) > moment:
                raise Killed
            yield each

    for machine in ("first", "second"):
        calls.clear()
        on_machine(machine, tmp_path, monkeypatch)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            if moment in ("publish", "complete"):
                patch.setattr(publish, moment, kill)
            elif moment == "remove":
                patch.setattr(BucketShardStorage, "remove_all", kill)
            else:
                patch.setattr(take, "join", killed)
            commit(URL)
    on_machine("first", tmp_path, monkeypatch)
    commit(URL)
    assert local_names(objects()) == whole and shared_objects() == []
    assert main(["doctor", URL, "--full"]) == 0


def test_of_two_commits_one_is_told(
    server: RangeServer,
    sources: list[Path],
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_shard(sources, URL, "0/1")
    real = publish.publish

    def meanwhile(*words: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(publish, "publish", real)
            on_machine("second", tmp_path, patch)
            commit(URL)
        real(*words)

    with monkeypatch.context() as patch, pytest.raises(RemoteTaken, match=rf"process {os.getpid()} on .* was first"):
        patch.setattr(publish, "publish", meanwhile)
        commit(URL)
    assert local_names(objects()) == whole and shared_objects() == []
    assert main(["doctor", URL, "--full"]) == 0


def test_another_version_ends_the_shards(
    server: RangeServer, sources: list[Path], whole: dict[str, bytes], tmp_path: Path
) -> None:
    run_shard(sources, URL, "0/1")
    penstock.convert(**{**local(sources[:1], Path("x"), files={}), "out": URL})
    with pytest.raises(RemoteTaken, match="was first"):
        commit(URL)
    assert shared_objects() == []
    share_out(sources, URL, 2, overwrite=True)
    assert len(local_names(objects())) == len(whole) and main(["doctor", URL, "--full"]) == 0


def test_inputs_may_lie_in_a_bucket_too(server: RangeServer, sources: list[Path], whole: dict[str, bytes]) -> None:
    for path in sources:
        server.put("b", f"day1/{path.name}", path.read_bytes())
    there: Any = [f"s3://b/day1/{path.name}" for path in sources]
    share_out(there, URL, 2)
    assert local_names(objects()) == whole


def test_a_single_machine_does_not_go_on_with_shards(
    server: RangeServer, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_shard(sources, URL, "0/1")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(publish, "publish", kill)
        commit(URL)
    with pytest.raises(OutputExists, match="by several machines did not end"):
        penstock.convert(**{**local(sources, Path("x"), files={}, resume=True), "out": URL})
    commit(URL)
    assert main(["doctor", URL, "--full"]) == 0


@pytest.mark.parametrize("shards", [0, 2])
def test_an_input_whose_address_begins_like_the_output_may_fail(
    shards: int, server: RangeServer, sources: list[Path], tmp_path: Path
) -> None:
    for path in sources[:3]:
        server.add(path, "b", "sets/one-recorded")
    inputs: Any = ["s3://b/sets/one-recorded"]
    denied = f"/b/sets/one-recorded/{sources[1].name}"
    server.fault = lambda request: 403 if request.path == denied and request.method == "GET" else None
    if shards:
        report: Any = share_out(inputs, URL, shards, keep_going=True)
    else:
        report = penstock.convert(**{**local(inputs, tmp_path / "x", keep_going=True, files={}), "out": URL})
    assert list(report.failed) == [f"s3:/{denied}"] and report.exit_code == 3


def test_many_inputs_are_looked_at_at_once(server: RangeServer, sources: list[Path]) -> None:
    data, settings = sources[1].read_bytes(), read_settings(None, [], {})
    for number in range(20):
        server.put("b", f"day/run_{number}.bag", data)
    server.latency_s = 0.05
    refs = find_inputs(["s3://b/day/*.bag"])
    assert server.peak_in_flight > 4
    server.peak_in_flight = 0
    known, failed = identity.sources(refs, settings)
    assert [each["path"] for each in known] == [str(each.path) for each in refs] and not failed
    assert len(refs) == 20 and server.peak_in_flight > 4
