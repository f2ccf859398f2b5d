"""Conversion on two Ray nodes into a bucket of a real S3 server: the data set of one machine, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.bucket import publish
from penstock._src.conversion.shards.commit import commit
from penstock.errors import OutputExists, PenstockError, RemoteTaken
from tests.conversion.sharing import local, make_recordings, run_shard
from tests.faults.jobs import contents
from tests.remote import behaviour
from tests.remote.writing import etags, local_names, objects
from tests.scale import faults

pytest.importorskip("ray")
pytest.importorskip("obstore")

FRAMES = (14, 6, 6, 15, 5, 12, 4, 13)
pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_recordings(tmp_path_factory.mktemp("ray") / "in", FRAMES)


@pytest.fixture(scope="module")
def whole(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The conversion on one machine, with the same rule for files."""
    out = tmp_path_factory.mktemp("ray-whole") / "out"
    penstock.convert(**local(sources, out))
    return contents(out)


@pytest.fixture
def url(bucket: str | None, request: pytest.FixtureRequest) -> str:
    if bucket is None:
        pytest.skip("PENSTOCK_MOTO_SERVER names no command")
    return f"{bucket}/sets/{abs(hash(request.node.name)) % 10**9}"


def distributed(sources: list[Any], url: str, **more: Any) -> Any:
    words = {**local(sources, Path("x")), "out": url, "memory": "auto", "jobs": "auto", **more}
    return penstock.convert(**words, on="ray")


def left(url: str) -> list[str]:
    return [name for name in etags(url) if name.startswith("penstock/shards/")]


def test_two_nodes_give_the_bytes_of_one_machine(
    two_nodes: Any, sources: list[Path], whole: dict[str, bytes], url: str
) -> None:
    for path in sources:
        behaviour.upload(path, f"s3://fleet/day1/{path.name}")
    words = ["convert", "s3://fleet/day1/*.bag", url, "--on", "ray", "task=fold", "split_episodes=true", "fps=30"]
    assert main([*words, "rosbag.chunk_size=5", "files.group_mb=1", "files.data_mb=1"]) == 0
    assert local_names(objects(url)) == whole and left(url) == []
    assert main(["doctor", url, "--full"]) == 0
    with penstock.open(url) as store:
        assert store.rows == sum(FRAMES)


@pytest.mark.parametrize(
    "task", [faults.killed_before_publishing, faults.killed_after_publishing, faults.killed_in_the_middle]
)
def test_a_task_that_ends_too_early_is_done_again(
    task: Callable[..., Any],
    two_nodes: Any,
    sources: list[Path],
    whole: dict[str, bytes],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock._src.conversion.shards.ray_run.run_group", faults.beside_directory(task, tmp_path))
    report = distributed(sources, url)
    assert local_names(objects(url)) == whole and left(url) == []
    assert (tmp_path / "fault").exists()
    if task is not faults.killed_after_publishing:
        assert sum(each["lost"] for each in report.nodes) == 1


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_was_ended_is_resumed_here_and_elsewhere(
    end: signal.Signals,
    two_nodes: Any,
    sources: list[Path],
    whole: dict[str, bytes],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        "import json, sys, pathlib, penstock._src.cli\n"
        "from penstock._src.conversion.shards import ray_run\n"
        "from tests.scale import faults\n"
        "ray_run.run_group = faults.beside_directory(faults.all_but_one_wait, pathlib.Path(sys.argv.pop()))\n"
        "sys.argv = ['penstock', *json.loads(sys.argv[1])]\n"
        "penstock._src.cli.entry()"
    )
    words = ["convert", *map(str, sources), url, "--on", "ray", "task=fold", "split_episodes=true", "fps=30"]
    words += ["rosbag.chunk_size=5", "files.group_mb=1", "files.data_mb=1"]
    process = subprocess.Popen([sys.executable, "-c", code, json.dumps(words), str(tmp_path)], start_new_session=True)
    end_s = time.monotonic() + 120
    try:
        while not any(name.endswith("result.json") for name in etags(url)):
            assert time.monotonic() < end_s and process.poll() is None
            time.sleep(0.1)
    finally:
        os.kill(process.pid, end)
        (tmp_path / "go").touch()
    assert process.wait(120) == (-9 if end == signal.SIGKILL else 130)
    assert "meta/info.json" not in etags(url)  # tasks may still be ending, and remove what they had
    with pytest.raises(OutputExists, match="--resume goes on with it"):
        distributed(sources, url)
    if end == signal.SIGKILL:
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "another machine"))
    report = distributed(sources, url, resume=True)
    assert local_names(objects(url)) == whole and left(url) == []
    assert report.frames == sum(FRAMES)
    assert distributed(sources, url, resume=True).frames == sum(FRAMES)  # twice is once


def test_failures_append_and_overwrite(two_nodes: Any, sources: list[Path], url: str, tmp_path: Path) -> None:
    mine = [tmp_path / path.name for path in sources[:5]]
    for path, copy in zip(sources, mine, strict=False):
        copy.write_bytes(b"#ROSBAG V2.0\nno bag at all" if path is sources[3] else path.read_bytes())
    with pytest.raises(PenstockError, match=r"run_3.bag"):
        distributed(mine, url)
    shared = distributed(mine, url, resume=True, keep_going=True)
    alone = penstock.convert(**local(mine, tmp_path / "local", keep_going=True))
    assert dict(shared.failed) == dict(alone.failed) and shared.exit_code == 3
    assert local_names(objects(url)) == contents(tmp_path / "local")
    report = distributed(sources[5:8], url, append=True)
    assert report.frames == alone.frames + sum(FRAMES[5:]) and main(["doctor", url, "--full"]) == 0
    distributed(sources[:2], url, overwrite=True)
    with penstock.open(url) as store:
        assert store.rows == sum(FRAMES[:2])
    assert main(["doctor", url, "--full"]) == 0 and left(url) == []


def test_shards_and_two_commits(
    sources: list[Path], whole: dict[str, bytes], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 0):
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / f"machine {number}"))
        run_shard(sources, url, f"{number}/3")
    real = publish.publish

    def meanwhile(*words: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(publish, "publish", real)
            patch.setenv("PENSTOCK_CACHE", str(tmp_path / "another machine"))
            commit(url)
        real(*words)

    with monkeypatch.context() as patch, pytest.raises(RemoteTaken, match=rf"process {os.getpid()} on .* was first"):
        patch.setattr(publish, "publish", meanwhile)
        commit(url)
    assert local_names(objects(url)) == whole and left(url) == []
    assert main(["doctor", url, "--full"]) == 0
