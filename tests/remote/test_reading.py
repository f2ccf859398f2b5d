"""Every reader reads from a bucket, a web server and the Hub what it reads from a disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock
import penstock.recordings
from penstock._src.cli import main
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.features import Feature
from penstock._src.stores.store import Scratch
from tests.lerobot import making
from tests.recordings import made
from tests.remote.server import RangeServer

ROOTS = ("s3", "http", "hf")


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest, server: RangeServer) -> str:
    """Where what was added as `b/…` lies."""
    if request.param == "s3":
        return "s3://b"
    server.access_key = None
    server.buckets["owner--name"] = server.buckets["b"]
    return f"{server.url}/b" if request.param == "http" else "hf://datasets/owner/name"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("run.bag", made.bag),
        ("run.mcap", made.mcap),
        ("run.db3", made.db3),
        ("whole.mcap.zstd", lambda path: path.write_bytes(made.zstd(made.mcap(path)))),
    ],
)
def test_recordings(tmp_path: Path, server: RangeServer, root: str, name: str, make: Callable[[Path], object]) -> None:
    make(tmp_path / name)
    server.add(tmp_path / name, "b", "day 1")
    url = f"{root}/day 1/{name}"
    with penstock.recordings.open(tmp_path / name) as local, penstock.recordings.open(url) as remote:
        assert str(remote.path) == url
        assert [(topic.name, topic.count) for topic in remote.topics] == [
            (topic.name, topic.count) for topic in local.topics
        ]
    assert [str(found) for found in penstock.recordings.find([f"{root}/day 1"])] == [url]
    for verb in ("inspect", "doctor"):
        assert main([verb, url]) == 0


@pytest.mark.parametrize("features", [making.FEATURES, making.IMAGE_FEATURES])
def test_data_sets(tmp_path: Path, server: RangeServer, root: str, features: tuple[Feature, ...]) -> None:
    making.make(tmp_path / "set", (7, 5), features=features)
    server.add(tmp_path / "set", "b", "sets/one")
    url, rows = f"{root}/sets/one", np.array([0, 11, 3, 3])
    with penstock.open(tmp_path / "set") as local, penstock.open(url) as remote:
        assert (str(remote.path), remote.rows) == (url, local.rows)
        assert np.array_equal(remote.numbers("action", rows), local.numbers("action", rows))
        key = features[0].key
        ours, theirs = (store.images(key).read(rows.tolist(), Scratch()) for store in (remote, local))
        assert [bytes(each) for each in ours] == [bytes(each) for each in theirs]
    assert check(url).is_clean and not check(url, full=True).problems
    assert main(["inspect", url]) == main(["doctor", url]) == 0


def test_hdf5_files(tmp_path: Path, server: RangeServer, root: str) -> None:
    with h5py.File(tmp_path / "replay.hdf5", "w") as file:
        file["observations/state"] = np.arange(40, dtype=np.float32).reshape(10, 4)
        file["actions"] = np.arange(20, dtype=np.float32).reshape(10, 2)
        file.create_dataset("observations/image", data=np.arange(10 * 8 * 6 * 3).reshape(10, 8, 6, 3) % 251, dtype="u1")
        file.create_dataset("rewards", data=np.arange(10.0), chunks=(3,), compression="gzip")
    server.add(tmp_path / "replay.hdf5", "b")
    rows = np.array([9, 0, 4, 4])
    with penstock.open(tmp_path / "replay.hdf5") as local, penstock.open(f"{root}/replay.hdf5") as remote:
        for column in local.columns.values():
            if column.is_image:
                ours, theirs = (store.images(column.name).read(rows.tolist(), Scratch()) for store in (remote, local))
                assert [each.tobytes() for each in ours] == [each.tobytes() for each in theirs]
            else:
                assert np.array_equal(remote.numbers(column.name, rows), local.numbers(column.name, rows))
    assert main(["inspect", f"{root}/replay.hdf5"]) == 0


def test_a_conversion_gives_the_same_bytes(tmp_path: Path, server: RangeServer, root: str) -> None:
    making.make(tmp_path / "set", (4, 3))
    made.bag(tmp_path / "run.bag")
    words: dict[str, tuple[str, ...]] = {"set": (), "run.bag": made.WORDS}
    for name, overrides in words.items():
        server.add(tmp_path / name, "b", "" if name == "run.bag" else name)
        for source, out in ((tmp_path / name, tmp_path / "local"), (f"{root}/{name}", tmp_path / "remote")):
            penstock.convert(source, out / name, jobs=1, overrides=overrides)
        assert making.digests(tmp_path / "remote" / name) == making.digests(tmp_path / "local" / name) != {}


def test_a_data_set_of_the_hub_that_has_another_name_now(tmp_path: Path, server: RangeServer) -> None:
    server.access_key = None
    making.make(tmp_path / "set", (3,))
    server.add(tmp_path / "set", "owner--name")
    assert main(["doctor", "hf://datasets/owner/name-before"]) == 0
    assert main(["doctor", "hf://datasets/owner/name-before", "--full"]) == 0


def test_a_pattern_names_many_recordings(tmp_path: Path, server: RangeServer, root: str) -> None:
    made.bag(tmp_path / "run.bag")
    for number in range(3):
        server.put("b", f"day1/run_{number}.bag", (tmp_path / "run.bag").read_bytes())
    server.put("b", "day1/notes.txt", b"none")
    words = ["convert", f"{root}/day1/*.bag", str(tmp_path / "out"), *made.WORDS]
    assert main(words) == 0
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 3


def test_the_plan_of_a_remote_set(
    tmp_path: Path, server: RangeServer, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    making.make(tmp_path / "set", (7, 5))
    server.add(tmp_path / "set", "b", "set")
    assert main(["plan", f"{root}/set"]) == 0
    assert f"{root}/set" in capsys.readouterr().out
