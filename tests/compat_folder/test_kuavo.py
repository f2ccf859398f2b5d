"""The command lines of Kuavo's converter, run through a shell as they are written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._src.demo.kuavo import KuavoScript, write_kuavo_recording
from penstock._src.lerobot.read.reader import open_data_set
from tests.compat_folder.folder import copy_of_the_folder, typed
from tests.conversion import kuavo_oracle as oracle
from tests.lerobot import reading


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_folder(tmp_path_factory.mktemp("kuavo_folder"))


@pytest.fixture(scope="module")
def rosbag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two recordings of a Kuavo with claws, with images of the size in its configuration file."""
    directory = tmp_path_factory.mktemp("kuavo") / "path to" / "rosbag"
    directory.mkdir(parents=True)
    for i, seconds in enumerate((2.0, 1.6)):
        script = KuavoScript(seconds=seconds, distinct_images=2, quality=40, seed=i)
        write_kuavo_recording(directory / f"run_{i}.bag", script)
    return directory


def info(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((out / "meta" / "info.json").read_text())
    return loaded


def check_rows(out: Path, recordings: list[Path]) -> None:
    """Every recording is one episode, with the arms' state in radians at the images that the configuration asks."""
    data = open_data_set(out)
    state = np.asarray(reading.rows(data, ["observation.state"], 0, data.info.total_frames)["observation.state"])
    expected = []
    for recording in recordings:
        recorded = oracle.read(recording)
        rows = oracle.row_times(recorded, drop=10, stride=3)  # sample_drop: 10, train_hz: 10 of 30
        joints = oracle.body(recorded, rows, action=False)
        claws = oracle.hands(recorded, rows, "leju_claw", action=False)
        left = [joints[:, 12:19], claws["left"] / 100]
        expected.append(np.concatenate([*left, joints[:, 19:26], claws["right"] / 100], axis=1))
    np.testing.assert_allclose(state, np.concatenate(expected), rtol=0, atol=2e-6)
    assert (data.info.total_episodes, data.info.fps) == (len(recordings), 10)


def test_the_converter_as_the_seed_writes_it(folder: Path, rosbag: Path, tmp_path: Path) -> None:
    out = tmp_path / "lerobot_data"
    ran = typed(
        folder,
        f"""python kuavo_data/CvtRosbag2Lerobot.py \\
  --config-path=../configs/data/ \\
  --config-name=KuavoRosbag2Lerobot.yaml \\
  "rosbag.rosbag_dir={rosbag}" \\
  rosbag.lerobot_dir={out} \\
  rosbag.chunk_size=1000
""",
    )
    assert ran.returncode == 0, ran.stderr
    check_rows(out, [rosbag / "run_0.bag", rosbag / "run_1.bag"])
    assert info(out)["features"]["observation.images.head_cam_h"]["shape"] == [480, 640, 3]
    assert "leju_claw" in ran.stderr + ran.stdout  # eef_type: auto says what it found


def test_penstock_convert_makes_the_same_data_set(folder: Path, rosbag: Path, tmp_path: Path) -> None:
    common = f"'rosbag.rosbag_dir={rosbag}' rosbag.num_used=1 rosbag.chunk_size=5"
    theirs = typed(folder, f"python kuavo_data/CvtRosbag2Lerobot.py rosbag.lerobot_dir={tmp_path}/a {common}")
    ours = typed(
        folder,
        "python -m penstock convert --config-path configs/data --config-name KuavoRosbag2Lerobot --json "
        f"rosbag.lerobot_dir={tmp_path}/b {common}",
    )
    assert (theirs.returncode, ours.returncode) == (0, 0), theirs.stderr + ours.stderr
    report = json.loads(ours.stdout)
    assert (report["episodes"], len(report["sources"])) == (1, 1)  # chunk_size 5 flushes; it does not cut the episode
    used = Path(report["sources"][0])
    check_rows(tmp_path / "b", [used])
    for path in sorted((tmp_path / "a").rglob("*")):
        if path.is_file() and "penstock" not in path.parts[len(tmp_path.parts) :]:
            twin = tmp_path / "b" / path.relative_to(tmp_path / "a")
            assert path.read_bytes() == twin.read_bytes(), path


def test_paths_in_the_call_stand_in_for_the_keys(folder: Path, rosbag: Path, tmp_path: Path) -> None:
    bag, out = rosbag / "run_1.bag", tmp_path / "out"
    start = "python -m penstock convert --config-name KuavoRosbag2Lerobot"
    ran = typed(folder, f"{start} '{bag}' {out} dataset.which_arm=left split_episodes=true rosbag.chunk_size=4")
    assert ran.returncode == 0, ran.stderr
    found = info(out)
    assert found["features"]["action"]["shape"] == [8]
    assert found["total_episodes"] == -(-found["total_frames"] // 4)
    one = typed(folder, f"{start} '{bag}'")
    assert (one.returncode, "without an output" in one.stderr) == (2, True)
    none = typed(folder, f"{start} --config robot.yaml")
    assert (none.returncode, "two configurations" in none.stderr) == (2, True)
    unset = typed(folder, f"{start} rosbag.rosbag_dir=/nowhere/at/all rosbag.lerobot_dir={tmp_path}/other")
    assert (unset.returncode, "/nowhere/at/all" in unset.stderr) == (1, True)


def test_the_memory_test_as_the_seed_writes_it(folder: Path, rosbag: Path, tmp_path: Path) -> None:
    ran = typed(
        folder,
        f"""python kuavo_data/test_memory_optimization.py \\
  --rosbag_path "{rosbag}/run_1.bag" \\
  --chunk_sizes 0 500 \\
  --output_dir {tmp_path}/test_output
""",
    )
    assert ran.returncode == 0, ran.stderr
    rows = [line.split("|")[1:-1] for line in ran.stdout.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in rows[0]] == ["chunk_size", "peak memory", "time", "episodes", "rows", "lost"]
    assert [row[0].strip() for row in rows[2:]] == ["0", "500"]
    for row in rows[2:]:
        assert re.fullmatch(r"[\d.]+ [MG]iB", row[1].strip())
        assert (row[3].strip(), row[5].strip()) == ("1", "0")
    check_rows(tmp_path / "test_output" / "chunk_size_500", [rosbag / "run_1.bag"])
