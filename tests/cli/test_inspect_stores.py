"""penstock inspect of stores: data sets, HDF5 files, directories of episodes, and directories that hold several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.cli import main
from penstock._src.demo.recording import Script, write_recording
from tests.conversion import version21
from tests.lerobot import making
from tests.stores import hdf5_files as files

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def json_output(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What it says as JSON."""
    assert main(["inspect", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def inspect(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    """What it says as JSON, and what it shows."""
    found = json_output(capsys, *words)
    assert main(["inspect", *words]) == 0
    return found, capsys.readouterr().out


def columns(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {column["name"]: column for column in found["load"]["columns"]}


def test_a_data_set_shows_how_each_column_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    making.make(tmp_path / "set", (12, 7, 9), tasks=("lift the cup", "pour"))
    found, shown = inspect(capsys, str(tmp_path / "set"))
    assert (found["version"], found["rows"], found["episodes"], found["fps"]) == ("v3.0", 28, 3, making.FPS)
    load = found["load"]
    assert (load["possible"], load["rows"], load["episodes"], load["fps"]) == (True, 28, 3, making.FPS)
    camera = columns(found)[making.CAMERA]
    assert (camera["kind"], camera["shape"], camera["dtype"]) == ("image", [making.HEIGHT, making.WIDTH, 3], "uint8")
    assert (camera["encoding"], camera["way"]) == ("mjpeg", "packets") and "byte offset" in camera["why"]
    assert camera["row_bytes"] == making.HEIGHT * making.WIDTH * 3 and 0 < camera["stored_bytes"] <= found["bytes"]
    assert load["decoded_bytes"] >= 28 * camera["row_bytes"]
    assert columns(found)["observation.state"]["role"] == "state"
    lines = shown.splitlines()
    assert "28 rows · 3 episodes · 30 fps" in shown and "task 1: pour" in shown
    line = next(line for line in lines if making.CAMERA in line)
    assert "32×48×3 uint8" in line and "mjpeg" in line and camera["why"] in line
    assert next(line for line in lines if "observation.state" in line).split()[1:3] == ["numbers", "(state)"]


def test_a_part_of_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    making.make(tmp_path / "set", (12, 7, 9))
    found, shown = inspect(capsys, str(tmp_path / "set"), "--episodes", "0,2")
    assert (found["rows"], found["load"]["rows"], found["load"]["episodes"]) == (28, 21, 2)
    assert "21 rows · 2 episodes" in shown
    for wrong in ("2-1", "x", "1,,2", "-3"):
        assert main(["inspect", str(tmp_path / "set"), f"--episodes={wrong}"]) == 2
    assert main(["inspect", str(tmp_path / "set"), "--episodes", "0-2"]) == 0


def test_a_data_set_that_cannot_be_loaded_says_why_and_still_shows_its_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    making.make(tmp_path / "set", (4, 5))
    for path in (tmp_path / "set" / "data").rglob("*.parquet"):
        path.unlink()
    found, shown = inspect(capsys, str(tmp_path / "set"))
    assert not found["load"]["possible"] and found["load"]["reason"]
    assert "load           not as it is: " in shown and making.CAMERA in shown and "lift the cup" in shown


def test_a_data_set_of_version_21(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version21.make(tmp_path / "old")
    found, shown = inspect(capsys, str(tmp_path / "old"))
    assert found["version"].startswith("v2") and found["load"]["kind"].startswith("LeRobot v2")
    assert found["load"]["possible"] and found["load"]["rows"] == found["rows"]
    assert "video: " in shown


@pytest.mark.parametrize(
    ("layout", "kind", "rows", "episodes", "camera", "encoding"),
    [
        ("aloha", "ALOHA episodes", 9, 1, "observations/images/cam_high", "jpeg"),
        ("robomimic", "robomimic HDF5", 18, 3, "obs/agentview_image", "raw"),
        ("replay", "replay HDF5", 15, 3, "observations/left_image", "raw"),
    ],
)
def test_an_hdf5_file(
    layout: str, kind: str, rows: int, episodes: int, camera: str, encoding: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "episode_0.hdf5"
    getattr(files, layout)(path)
    found = json_output(capsys, str(path))
    assert (found["layout"], found["rows"], found["episodes"], found["files"]) == (layout, rows, episodes, 1)
    load = found["load"]
    assert (load["kind"], load["rows"], load["episodes"]) == (kind, rows, episodes)
    assert columns(found)[camera]["shape"] == [files.HEIGHT, files.WIDTH, 3]
    assert columns(found)[camera]["encoding"] == encoding
    assert columns(found)[camera]["why"]


def test_an_hdf5_file_that_cannot_be_loaded_says_why_and_still_shows_its_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "demos.hdf5"
    files.robomimic(path)
    with h5py.File(path, "a") as file:
        del file["data/demo_2/obs/agentview_image"]
    found, shown = inspect(capsys, str(path), "fps=20")
    assert (found["layout"], found["episodes"], found["load"]["possible"]) == ("robomimic", 3, False)
    assert "load           not as it is: " in shown and "leave_out=observation.images.agentview" in shown


def test_names_from_files_are_shown_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "red.hdf5"
    with h5py.File(path, "w") as file:
        file["action"] = np.zeros((5, 2))
        file["observations/\x1b[31mred"] = np.zeros((5, 2))
    main(["inspect", str(path)])
    (tmp_path / "\x1b[2Jgone.hdf5").write_bytes(b"")
    main(["inspect", str(tmp_path / "\x1b[2Jgone.hdf5")])
    output = capsys.readouterr()
    assert (
        "\x1b" not in output.out + output.err
        and "observations/\\x1b[31mred" in output.out
        and "\\x1b[2Jgone" in output.err
    )


def test_vqa_data_are_not_converted_and_loaded_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "How many?", "answer": "two"}\n')
    found, shown = inspect(capsys, str(path))
    assert found["conversion"]["never"] and not found["conversion"]["possible"]
    assert f"convert        {path} is a VQA data set, which is not converted: " in shown
    assert "not as it is" not in shown and "fps" not in shown
    for words in (["convert", str(path), str(tmp_path / "out"), "fps=20"], ["plan", str(path), "--convert"]):
        assert main(words) == 2
        refusal = capsys.readouterr().err
        assert "which is not converted" in refusal and f"it is loaded as it is: penstock.open('{path}')" in refusal


def test_an_hdf5_file_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "replay.hdf5"
    files.replay(path)
    found, shown = inspect(capsys, str(path))
    camera = columns(found)["observations/left_image"]
    assert camera["name"] in shown and camera["why"] in shown and "15 rows · 3 episodes" in shown
    assert found["load"]["notes"] and all(note in shown for note in found["load"]["notes"])


def test_a_directory_of_episodes_is_one_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        files.aloha(tmp_path / f"episode_{number}.hdf5", 5 + number, number)
    found, shown = inspect(capsys, str(tmp_path), "fps=50")
    assert (found["path"], found["files"], found["episodes"], found["rows"]) == (str(tmp_path), 3, 3, 18)
    assert found["bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert found["conversion"]["of"] == str(tmp_path / "episode_0.hdf5") and found["conversion"]["possible"]
    assert shown.count("observations/qpos ") == 1 and "episode_0.hdf5 like this" in shown
    named = json_output(capsys, *(str(tmp_path / f"episode_{number}.hdf5") for number in (2, 1)))
    assert [each["rows"] for each in named] == [6, 7]  # files that are named are shown one by one


def test_a_directory_with_several_inputs_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    making.make(tmp_path / "sets" / "a", (4, 5))
    making.make(tmp_path / "sets" / "b", (6,))
    (tmp_path / "aloha").mkdir()
    for number in range(2):
        files.aloha(tmp_path / "aloha" / f"episode_{number}.hdf5", 5, number)
    files.replay(tmp_path / "replay.hdf5")
    write_recording(tmp_path / "run.bag", Script(seconds=0.5, width=64, height=48))
    found, shown = inspect(capsys, str(tmp_path))
    listed = {Path(each["path"]).relative_to(tmp_path).as_posix(): each for each in found}
    assert {name: (each["kind"], each.get("rows")) for name, each in listed.items()} == {
        "aloha": ("ALOHA episodes", 10),
        "replay.hdf5": ("replay HDF5", 15),
        "run.bag": ("ROS 1 bag", None),
        "sets/a": ("LeRobot v3.0", 9),
        "sets/b": ("LeRobot v3.0", 6),
    }
    assert all(each["bytes"] > 0 for each in found) and listed["run.bag"]["topics"] == 5
    assert len(shown.splitlines()) == 6 and "2 episodes · 9 rows · 30 fps" in shown
    assert main(["inspect", str(tmp_path), "fps=3"]) == 2  # there is no one conversion to configure


def test_a_broken_data_set_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    making.make(tmp_path / "a", (4,))
    making.make(tmp_path / "b", (6,))
    (tmp_path / "a" / "meta" / "info.json").write_text("{")
    assert main(["inspect", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert str(tmp_path / "b") in output.out and str(tmp_path / "a") in output.err
    assert main(["inspect", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    output = capsys.readouterr()
    assert "1 episode · 6 rows" in output.out and "info.json" in output.err


def test_a_directory_with_one_data_set_shows_it_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    making.make(tmp_path / "sets" / "a", (4, 5))
    found, shown = inspect(capsys, str(tmp_path))
    assert found["path"] == str(tmp_path / "sets" / "a") and making.CAMERA in shown


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_public_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_output(capsys, str(SHARED / "lerobot" / "g1_v21"))
    assert (found["version"], found["episodes"]) == ("v2.1", 100) and not found["load"]["possible"]
    assert "episodes=[1, 2, 4, 5]" in found["load"]["hint"]  # those whose files are there
    found = json_output(capsys, str(SHARED / "lerobot" / "g1_v21"), "--episodes", "1-2,4-5")
    assert found["load"]["episodes"] == 4 and columns(found)["observation.images.cam_high"]["encoding"] == "av1"
    expected = {
        "offline_rl_flat": ("replay HDF5", 20_000, 10),
        "offline_rl_empty": ("replay HDF5", 0, 0),
        "robosuite_lift_panda": ("robomimic HDF5", 412, 1),
    }
    for name, facts in expected.items():
        load = json_output(capsys, str(SHARED / "hdf5" / f"{name}.hdf5"))["load"]
        assert (load["kind"], load["rows"], load["episodes"]) == facts
