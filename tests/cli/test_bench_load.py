"""penstock bench load: points for batch sizes and views, what is left out and why, as a table and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.load.bench.measure import bench_load
from penstock._src.load.bench.points import COLD, Plan, window_for
from penstock.errors import UsageError
from tests.lerobot import making
from tests.stores import hdf5_files as files

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TIMEOUT_S = 120
QUICK = ("--seconds", "0.01", "--image-size", "24x32", "--threads", "1")


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bench-load") / "set"
    making.make(root, (12, 7, 9))
    return root


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench-load") / "replay.hdf5"
    files.replay(path)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bench(capsys: pytest.CaptureFixture[str], path: Path, *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["bench", "load", str(path), *QUICK, "--json", *words]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_batch_size_is_measured_with_every_view(
    data_set: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(capsys, data_set, "--batch-sizes", "4", "8", "--allow-external")
    assert [(point["view"], point["batch_size"]) for point in found["points"]] == [
        (view, size) for view in ("off", "ram", "disk") for size in (4, 8)
    ]
    for point in found["points"]:
        # The state and the action, the camera at 24×32, and the four numbers that LeRobot counts rows with.
        assert point["batch_bytes"] >= point["batch_size"] * (3 * 24 * 32 + 4 * 6)
        assert point["batches"] >= 3 and point["seconds"] > 0 and point["first_batch_s"] > 0
        rate = point["batches"] * point["batch_size"] / point["seconds"]
        assert point["samples_per_s"] == pytest.approx(rate)
        assert point["ms_per_batch"] == pytest.approx(1e3 * point["batch_size"] / rate)
        assert point["mb_per_s"] == pytest.approx(point["batches"] * point["batch_bytes"] / point["seconds"] / 1e6)
        assert point["peak_bytes"] > 10 << 20
        assert point["view_hits"] == (None if point["view"] == "off" else 1.0)
    assert [(each["view"], each["rows"]) for each in found["fillings"]] == [("ram", 28), ("disk", 28)]
    assert found["left_out"] == [] and found["samples"] == 28 and found["sample"] == "Window()"
    columns = {column["name"]: column["way"] for column in found["store"]["columns"]}
    assert columns[making.CAMERA] == "packets"
    assert list(cache.iterdir()) == []  # the view on disk was removed


def test_the_table_for_people(replay: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--batch-sizes", "4,8", "64", "--view", "off,ram")
    assert main(["bench", "load", str(replay), *QUICK, *words]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({len(line) for line in table}) == 1 and len(table) == 2 + 4
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert cells[0][:4] == ["view", "batch", "samples/s", "ms/batch"]
    assert [row[:2] for row in cells[2:]] == [["off", "4"], ["off", "8"], ["ram", "4"], ["ram", "8"]]
    assert [row[-1] for row in cells[2:]] == ["–", "–", "100%", "100%"]
    assert "sample         Transition() · 13 samples · images 24×32" in output.out  # 15, less two ends
    assert any(line.split()[:1] == ["observations/left_image"] and line.endswith(" file") for line in lines)
    assert "left out       off, batch 64: 13 samples do not make a batch of 64" in output.out
    assert "off, batch 4: " in output.err


def test_too_few_samples_are_not_called_too_little_memory(replay: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "load", str(replay), *QUICK, "--batch-sizes", "64", "--view", "ram"])
    output = capsys.readouterr()
    assert "ram: 13 samples do not make a batch of 64" in output.out + output.err and "hold no batch" not in output.out


def test_cold_says_that_the_page_cache_was_dropped(data_set: Path) -> None:
    found = bench_load(Plan(str(data_set), (4, 16), ("off",), cold=True, image_size=(24, 32), threads=1, seconds=0.01))
    cold = [point for point in found.points if point.view == COLD]
    reasons = [each.reason for each in found.left_out if each.view == COLD]
    if cold:
        assert [point.batch_size for point in cold] == [4] and 1 <= cold[0].batches <= 7  # one pass at most
        assert any(note.startswith("cold: before each point the page cache of") for note in found.notes)
        assert reasons == ["28 samples do not make two batches of 16"]
    else:  # a file system in memory: nothing can be dropped, and that is told
        assert "lies in memory" in reasons[0]
    assert [point.batch_size for point in found.points if point.view == "off"] == [4, 16]


def test_what_does_not_fit_the_budget_is_left_out_with_a_reason(
    data_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--batch-sizes", "2", "20", "--memory", "60MiB", "--view", "off,ram")
    found = bench(capsys, data_set, *words, "--image-size", "512x512")
    assert [(point["view"], point["batch_size"]) for point in found["points"]] == [("off", 2), ("ram", 2)]
    reasons = {(each["view"], each["batch_size"]): each["reason"] for each in found["left_out"]}
    assert "60 MiB do not hold this loader" in reasons["off", 20]
    found = bench(capsys, data_set, "--batch-sizes", "20", "--memory", "50MiB", "--image-size", "512x512", code=1)
    assert found["points"] == [] and found["exit_code"] == 1
    assert {each["view"] for each in found["left_out"]} == {"off", "ram", "disk"}


def test_a_view_that_takes_too_long_to_fill_is_left_out(data_set: Path) -> None:
    plan = Plan(str(data_set), (4,), ("ram", "disk", "off"), image_size=(24, 32), threads=1, seconds=0.01)
    found = bench_load(Plan(**{**plan.__dict__, "fill_seconds": 1e-9}))
    assert [point.view for point in found.points] == ["off"]
    assert all("of 28 rows of the view were filled" in each.reason for each in found.left_out)
    assert [each.view for each in found.left_out] == ["ram", "disk"]


def test_numbers_alone_need_no_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "steps.hdf5", "w") as file:
        file["observations"] = np.zeros((12, 3), np.float32)
        file["actions"] = np.zeros((12, 2), np.float32)
    found = bench(capsys, tmp_path / "steps.hdf5", "--batch-sizes", "4", "--view", "off,ram")
    assert [point["view"] for point in found["points"]] == ["off"]
    assert "no images" in found["left_out"][0]["reason"]


def test_windows(data_set: Path, replay: Path) -> None:
    with penstock.open(data_set) as rows, penstock.open(replay) as steps:
        assert repr(window_for("auto", rows)) == "Window()"
        assert repr(window_for("auto", steps)) == "Transition()"
        assert repr(window_for("chunk:5", steps)) == repr(penstock.Window(actions=range(5)))
        for wrong in ("chunk", "chunk:0", "row:2", "frames"):
            with pytest.raises(UsageError, match="window"):
                window_for(wrong, rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-sizes", "many"], "'many' is not a number"),
        (["--batch-sizes", "4", "4"], "twice"),
        (["--view", "off,gpu"], "'gpu'"),
        (["--image-size", "0x3"], "'0x3' is not a size"),
        (["--memory", "lots"], "lots"),
        (["--seconds", "0"], "above 0"),
        (["--window", "frames"], "'frames'"),
        (["--threads", "none"], "none"),
        (["--episodes", "x"], "--episodes"),
    ],
)
def test_a_wrong_call_exits_2(
    words: list[str], message: str, data_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "load", str(data_set), *QUICK, "--view", "off", *words]) == 2
    output = capsys.readouterr()
    assert message in output.err and output.out == ""


def test_what_cannot_be_opened_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.bag").write_bytes(b"#ROSBAG V2.0\n")
    for path in (tmp_path / "missing.hdf5", tmp_path / "empty", tmp_path / "run.bag"):
        assert main(["bench", "load", str(path)]) == 1
        output = capsys.readouterr()
        assert str(path) in output.err and output.out == ""


def test_it_works_without_torch(data_set: Path, tmp_path: Path) -> None:
    script = "import sys; sys.modules['torch'] = None\nfrom penstock._src.cli import main\nsys.exit(main(sys.argv[1:]))"
    words = ["bench", "load", str(data_set), *QUICK, "--batch-sizes", "8", "--view", "off", "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PENSTOCK_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert [point["batch_size"] for point in json.loads(ran.stdout)["points"]] == [8]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_public_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, SHARED / "lerobot" / "g1_v21", "--episodes", "1", "--batch-sizes", "2", "--view", "off")
    assert len(found["points"]) == 1 and found["store"]["episodes"] == 1
    found = bench(capsys, SHARED / "hdf5" / "offline_rl_flat.hdf5", "--batch-sizes", "512", "--view", "off")
    assert found["sample"] == "Transition()" and found["points"][0]["samples_per_s"] > 0
