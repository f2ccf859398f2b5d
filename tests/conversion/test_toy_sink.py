"""A new output is one file and one registration: a toy one is written, killed, resumed, joined and appended to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.conversion import sink
from penstock._src.conversion.commit.join import committed
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import ConfigError, DataSetError
from tests.conversion.bags import robot, write
from tests.conversion.toy_sink import ToySink
from tests.faults.jobs import call, contents, leftovers, make_sources
from tests.lerobot import reading
from tests.stores import hdf5_files

_CONVERT = "import json, sys, penstock; penstock.convert(**json.loads(sys.argv[1]))"
_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_registered", {})
    factory: sink.SinkFactory = ToySink
    sink.register("toy", factory)


def index_of(out: Path) -> Any:
    return json.loads((out / "index.json").read_text())


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]


def frames_of(path: Path) -> list[bytes]:
    data, found = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


@pytest.mark.usefixtures("toy")
def test_a_bag_becomes_the_same_rows_and_frames(tmp_path: Path) -> None:
    sources = make_sources(tmp_path)
    report = penstock.convert(**call(sources, tmp_path / "toy", output="toy"))
    penstock.convert(**call(sources, tmp_path / "lerobot"))
    rows, index = rows_of(tmp_path / "toy"), index_of(tmp_path / "toy")
    stored = reading.rows(open_data_set(tmp_path / "lerobot"), ["observation.state"], 0, len(rows))["observation.state"]
    assert [row["observation.state"] for row in rows] == stored.tolist()
    assert [row["index"] for row in rows] == list(range(report.frames)) and index["rows"] == report.frames
    assert index["tasks"] == ["fold"] and len(index["episodes"]) == report.episodes == 5
    assert index["stats"] == json.loads((tmp_path / "lerobot/meta/stats.json").read_text())
    frames = frames_of(next((tmp_path / "toy").glob("episode-000000.*.frames")))
    assert len(frames) == index["episodes"][0]["rows"] and all(frame.startswith(b"\xff\xd8") for frame in frames)
    assert not (tmp_path / "toy/meta").exists()


@pytest.mark.usefixtures("toy")
def test_an_hdf5_file_is_converted(tmp_path: Path) -> None:
    written = hdf5_files.aloha(tmp_path / "episode.hdf5")
    penstock.convert(tmp_path / "episode.hdf5", tmp_path / "toy", output="toy", fps=50, task="lift")
    assert len(rows_of(tmp_path / "toy")) == 9
    frames = frames_of(tmp_path / "toy/episode-000000.cam_high.frames")
    assert frames == [bytes(image) for image in written["cam_high"]]


@pytest.mark.usefixtures("toy")
def test_worker_outputs_are_joined_and_inputs_appended_to_the_same_bytes(tmp_path: Path) -> None:
    sources = make_sources(tmp_path)
    penstock.convert(**call(sources, tmp_path / "whole", output="toy"))
    penstock.convert(**{**call(sources, tmp_path / "joined", output="toy"), "jobs": 2})
    assert contents(tmp_path / "joined") == contents(tmp_path / "whole")
    penstock.convert(**call(sources[:1], tmp_path / "grown", output="toy"))
    penstock.convert(**call(sources[1:], tmp_path / "grown", append=True))  # the output is that of the data set
    assert contents(tmp_path / "grown") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("toy")
def test_another_output_cannot_go_on(tmp_path: Path) -> None:
    sources = make_sources(tmp_path)
    penstock.convert(**call(sources[:1], tmp_path / "out"))
    with pytest.raises(DataSetError, match=r"output: 'toy' instead of 'v3\.0'"):
        penstock.convert(**call(sources[1:], tmp_path / "out", append=True, output="toy"))
    with pytest.raises(
        DataSetError, match=r"is complete, and was made with other inputs or settings: output: 'toy' instead of 'v3\.0'"
    ):
        penstock.convert(**call(sources[:1], tmp_path / "out", resume=True, output="toy"))


# Episodes of two rows: at row 28 fourteen are finished, of which a group of commits leaves at most seven waiting.
@pytest.mark.parametrize(("row", "least"), [(0, 0), (13, 0), (28, 7)])
def test_installed_as_a_plug_in_killed_and_resumed(tmp_path: Path, row: int, least: int) -> None:
    """The entry point of an installed package is all that penstock knows of it."""
    installed = tmp_path / "site/toy-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[penstock.sinks]\ntoy = tests.conversion.toy_sink:ToySink\n")
    source = write(tmp_path / "run.bag", robot(1.0, hz=50, width=32, height=24))

    def convert(out: Path, kill_at: int = -1, **more: Any) -> int:
        paths = os.pathsep.join([str(tmp_path / "site"), str(_REPOSITORY), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": paths, "TOY_KILLED_AT_ROW": str(kill_at)}
        words = json.dumps(call([source], out, output="toy", rosbag={"chunk_size": 2}, **more))
        return subprocess.run([sys.executable, "-c", _CONVERT, words], env=environment, check=False).returncode

    assert convert(tmp_path / "whole") == 0
    assert convert(tmp_path / "out", kill_at=row) == -signal.SIGKILL
    assert not (tmp_path / "out").exists() and committed(tmp_path / "out.penstock-partial") >= least
    assert convert(tmp_path / "out", resume=True) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole") and leftovers(tmp_path / "out") == []


def test_an_unknown_output_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output: 'v3\.1' is not known") as refused:
        penstock.convert("run.bag", tmp_path / "out", output="v3.1")
    assert "v3.0" in str(refused.value.hint)
