"""Readers open through one place: a scheme that is registered there is read by all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock.recordings
from penstock._src.cli import main
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.media.mp4.index import read_index
from penstock._src.media.video import decode
from penstock._src.recordings.recording import Recording
from penstock._src.stores.lerobot.store import LeRobotStore
from penstock._src.stores.store import Scratch
from penstock._src.system.files import locations
from penstock.errors import RecordingCorrupt
from tests.lerobot import making, reading
from tests.recordings import made
from tests.system.memory_files import MemoryFiles


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryFiles:
    system = MemoryFiles()
    monkeypatch.setitem(locations._schemes, "mem", system)
    return system


def _messages(recording: Recording) -> list[tuple[str, int, bytes]]:
    found = []
    for topic in recording.topics:
        numbers = np.arange(topic.count)
        times_ns = recording.times_ns(topic).tolist()
        for block in recording.fetch(np.full(topic.count, topic.id, np.int32), numbers):
            for place, payload in enumerate(block.payloads):
                assert payload is not None
                found.append((topic.name, times_ns[block.first + place], bytes(payload)))
            block.release()
    return found


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("run.bag", made.bag),
        ("packed.bag", lambda path: made.bag(path, compression="lz4")),
        ("run.mcap", made.mcap),
        ("run.db3", made.db3),
        ("whole.mcap.zstd", lambda path: path.write_bytes(made.zstd(made.mcap(path)))),
        ("whole.db3.zstd", lambda path: path.write_bytes(made.zstd(made.db3(path)))),
    ],
)
def test_recordings(tmp_path: Path, memory: MemoryFiles, name: str, make: Callable[[Path], object]) -> None:
    make(tmp_path / name)
    url = memory.add(tmp_path / name, f"mem://robot/{name}")
    with penstock.recordings.open(tmp_path / name) as local, penstock.recordings.open(url) as remote:
        assert str(remote.path) == url
        assert remote.size_bytes == local.size_bytes
        assert [(topic.name, topic.count) for topic in remote.topics] == [
            (topic.name, topic.count) for topic in local.topics
        ]
        assert _messages(remote) == _messages(local) != []
    assert [str(found) for found in penstock.recordings.find([url])] == [url]


def test_a_series_in_a_directory_is_one_recording(tmp_path: Path, memory: MemoryFiles) -> None:
    for number in range(2):
        made.mcap(tmp_path / f"run_{number}.mcap")
    url = memory.add(tmp_path, "mem://robot/run")
    with penstock.recordings.open(f"{url}/run_0.mcap") as recording:
        assert sum(topic.count for topic in recording.topics) == 4 * made.ROWS
    assert [str(found) for found in penstock.recordings.find([url])] == [f"{url}/run_0.mcap"]


def test_a_cut_recording_is_counted(tmp_path: Path, memory: MemoryFiles) -> None:
    data = made.bag(tmp_path / "run.bag")
    memory.files["mem://cut.bag"] = data[: len(data) // 2]
    with pytest.raises(RecordingCorrupt, match=r"^mem://cut\.bag: byte .* it was cut"):
        penstock.recordings.open("mem://cut.bag")
    with penstock.recordings.open("mem://cut.bag", on_corrupt="count") as recording:
        assert 0 < sum(topic.count for topic in recording.topics) < 2 * made.ROWS and recording.losses


@pytest.mark.parametrize("features", [making.FEATURES, making.IMAGE_FEATURES])
def test_data_sets(tmp_path: Path, memory: MemoryFiles, features: tuple[Feature, ...]) -> None:
    making.make(tmp_path / "set", (7, 5), features=features)
    url = memory.add(tmp_path / "set", "mem://hub/set")
    local, remote = open_data_set(tmp_path / "set"), open_data_set(url)
    assert remote.info == local.info
    keys = ["action", "observation.state", *(key for key in (making.IMAGE,) if key in remote.info.features)]
    for key in keys:
        assert np.array_equal(reading.rows(remote, [key], 0, 12)[key], reading.rows(local, [key], 0, 12)[key])
    assert check(url).is_clean and not check(url, full=True).problems


def test_videos(tmp_path: Path, memory: MemoryFiles) -> None:
    making.make(tmp_path / "set", (6,))
    (path,) = (tmp_path / "set").rglob("*.mp4")
    url = memory.add(path, "mem://cam.mp4")
    local, remote = read_index(path), read_index(url)
    assert (remote.path, remote.offsets.tolist()) == (url, local.offsets.tolist())
    pairs = list(zip(decode.frames(url, range(6)), decode.frames(path, range(6)), strict=True))
    assert len(pairs) == 6
    for ours, theirs in pairs:
        assert np.array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("features", [making.FEATURES, making.IMAGE_FEATURES])
def test_stores_of_data_sets(tmp_path: Path, memory: MemoryFiles, features: tuple[Feature, ...]) -> None:
    making.make(tmp_path / "set", (7, 5), features=features)
    url = memory.add(tmp_path / "set", "mem://hub/set")
    rows = np.array([0, 11, 3, 3])
    with LeRobotStore(tmp_path / "set") as local, LeRobotStore(url) as remote:
        assert (str(remote.path), remote.rows) == (url, local.rows)
        assert np.array_equal(remote.numbers("action", rows), local.numbers("action", rows))
        key = features[0].key
        ours, theirs = (store.images(key).read(rows.tolist(), Scratch()) for store in (remote, local))
        assert [bytes(each) for each in ours] == [bytes(each) for each in theirs]
        assert len(remote.fingerprint(key)) == len(local.fingerprint(key))
    assert any(name.endswith(".parquet") for name in memory.opened)


def test_hdf5_files(tmp_path: Path, memory: MemoryFiles) -> None:
    with h5py.File(tmp_path / "replay.hdf5", "w") as file:
        file["observations/state"] = np.arange(40, dtype=np.float32).reshape(10, 4)
        file["actions"] = np.arange(20, dtype=np.float32).reshape(10, 2)
        file.create_dataset("observations/image", data=np.arange(10 * 8 * 6 * 3).reshape(10, 8, 6, 3) % 251, dtype="u1")
        file.create_dataset("rewards", data=np.arange(10.0), chunks=(3,), compression="gzip")
    url = memory.add(tmp_path / "replay.hdf5", "mem://replay.hdf5")
    rows = np.array([9, 0, 4, 4])
    with penstock.open(tmp_path / "replay.hdf5") as local, penstock.open(url) as remote:
        assert (str(remote.path), list(remote.columns)) == (url, list(local.columns))
        for column in local.columns.values():
            if column.is_image:
                ours, theirs = (store.images(column.name).read(rows.tolist(), Scratch()) for store in (remote, local))
                assert [each.tobytes() for each in ours] == [each.tobytes() for each in theirs]
            else:
                assert np.array_equal(remote.numbers(column.name, rows), local.numbers(column.name, rows))


def test_commands(tmp_path: Path, memory: MemoryFiles, capsys: pytest.CaptureFixture[str]) -> None:
    made.bag(tmp_path / "run.bag")
    making.make(tmp_path / "set", (4,))
    for path, url in ((tmp_path / "run.bag", "mem://robot/run.bag"), (tmp_path / "set", "mem://hub/set")):
        memory.add(path, url)
        for command in ("inspect", "doctor"):
            assert main([command, url]) == main([command, str(path)]) == 0
    assert main(["inspect", "ftp://robot/run.bag"]) == 2
    assert "nothing here reads ftp:// addresses" in capsys.readouterr().err


def test_a_conversion_gives_the_same_bytes(tmp_path: Path, memory: MemoryFiles) -> None:
    making.make(tmp_path / "set", (4, 3))
    made.bag(tmp_path / "run.bag")
    words: dict[str, tuple[str, ...]] = {"set": (), "run.bag": made.WORDS}
    for name, overrides in words.items():
        url = memory.add(tmp_path / name, f"mem://in/{name}")
        for source, out in ((tmp_path / name, tmp_path / "local"), (url, tmp_path / "remote")):
            penstock.convert(source, out / name, jobs=1, overrides=overrides)
        assert making.digests(tmp_path / "remote" / name) == making.digests(tmp_path / "local" / name) != {}
