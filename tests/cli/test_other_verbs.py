"""inspect, doctor, demo, env and --help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock._src.cli import VERBS, main
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, COMMAND, STATE, change, cut_by


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tape = bags.robot(0.6) + bags.messages("/chatter", bags.times(5, 0.6), lambda n: bags.Text("hello"))
    return bags.write(tmp_path_factory.mktemp("verbs") / "run.bag", tape)


@pytest.fixture(scope="module")
def data_set(bag: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verbs-out") / "out"
    penstock.convert(bag, out, task="stack the cups", robot_type="kuavo")
    return out


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_every_verb_explains_itself(
    verb: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # lines are broken by the width of the terminal
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"] if verb else ["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: penstock") and len(printed) > 200
    if verb is None:
        assert all(f"\n    {each} " in printed for each in VERBS) and "exit codes: 0 fine" in printed


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and penstock.__version__ in capsys.readouterr().out


# ── inspect ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_shows_topics_counts_rates_and_the_predicted_conversion(
    bag: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bag)]) == 0
    printed = capsys.readouterr().out
    for topic in (CAM_H, CAM_L, STATE, COMMAND, "/chatter"):
        assert topic in printed
    assert "sensor_msgs/msg/CompressedImage" in printed and "18 rows at 30 fps" in printed
    assert "predicted peak" in printed and "/chatter left out: " in printed


def test_inspect_as_json_is_one_object(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bag), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "ros1" and found["bytes"] == bag.stat().st_size
    messages = {topic["name"]: topic["messages"] for topic in found["topics"]}
    assert messages == {CAM_H: 18, CAM_L: 18, STATE: 60, COMMAND: 60, "/chatter": 3}
    assert found["conversion"]["possible"] and found["conversion"]["rows"] == 18
    assert found["conversion"]["predicted_peak_bytes"] > 2**20
    assert found["topics"][0]["start_ns"] >= bags.START_NS


def test_inspect_predicts_for_the_configuration_that_is_given(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = {}
    for words in ([], ["video=av1"], ["timeline=fixed", "fps=5"]):
        assert main(["inspect", "--json", str(bag), *words]) == 0
        predicted[" ".join(words)] = json.loads(capsys.readouterr().out)["conversion"]
    assert predicted["video=av1"]["predicted_peak_bytes"] > predicted[""]["predicted_peak_bytes"] + 2**25
    assert predicted["timeline=fixed fps=5"]["rows"] < predicted[""]["rows"]


def test_inspect_says_why_a_conversion_is_not_possible(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = bags.write(tmp_path / "numbers.bag", bags.joints(STATE, bags.times(50, 0.5)))
    assert main(["inspect", str(numbers)]) == 0
    assert "not as it is" in capsys.readouterr().out
    assert main(["inspect", "--json", str(bag), "--memory", "64MiB"]) == 0
    refused = json.loads(capsys.readouterr().out)["conversion"]
    assert not refused["possible"] and "64 MiB" in refused["reason"]


def test_inspect_of_several_recordings_shows_each(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.bag").write_bytes(bag.read_bytes())
    assert main(["inspect", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "a.bag:" in printed and "b.bag:" in printed


def test_inspect_takes_the_paths_that_a_shell_makes_of_a_glob(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.bag").write_bytes(bag.read_bytes())
    assert main(["inspect", str(bag), str(tmp_path / "b.bag"), "fps=10"]) == 0
    assert capsys.readouterr().out.count("6 rows at 10 fps") == 2


def test_a_broken_recording_does_not_hide_the_others_from_inspect(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.bag").write_bytes(b"")
    (tmp_path / "b.bag").write_bytes(bag.read_bytes())
    assert main(["inspect", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "b.bag:" in output.out and "a.bag is empty: 0 bytes" in output.err
    assert main(["inspect", str(tmp_path), "--json"]) == 1
    empty, whole = json.loads(capsys.readouterr().out)
    assert "empty" in empty["error"] and whole["conversion"]["possible"]


@pytest.mark.parametrize(
    "words", [["BAG", "--memory", "lots"], ["BAG", "--json", "--suggest-config"], ["SET", "--suggest-config"],
              ["SET", "fps=3"], ["SET", "BAG"], ["fps=3"]],
)  # fmt: skip
def test_a_wrong_call_of_inspect_exits_2_and_shows_nothing(
    words: list[str], bag: Path, data_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"BAG": str(bag), "SET": str(data_set)}
    assert main(["inspect", *(places.get(word, word) for word in words)]) == 2
    printed = capsys.readouterr().out
    assert json.loads(printed)["exit_code"] == 2 if "--json" in words else printed == ""


def test_inspect_of_a_data_set_shows_its_features(data_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(data_set)]) == 0
    printed = capsys.readouterr().out
    assert "1 episode · 18 rows" in printed and "30 fps" in printed and "kuavo" in printed
    assert "stack the cups" in printed
    assert "observation.images.cam_h" in printed and "mjpeg" in printed
    assert main(["inspect", str(data_set), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 18 and found["episodes"] == 1 and found["tasks"] == ["stack the cups"]


@pytest.mark.parametrize("name", ["missing.bag", "."])
def test_inspect_of_nothing_exits_1(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / name)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_inspect_of_a_wrong_word_exits_2(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bag), "fpss=3"]) == 2
    assert "did you mean 'fps'" in capsys.readouterr().err


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_doctor_finds_a_whole_data_set_fine(
    full: list[str], data_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(data_set), *full]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("fine: ") and "1 episode ·" in printed
    assert main(["doctor", str(data_set), "--json", *full]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def damage_video(out: Path) -> None:
    (video,) = datasets.video_files(out, "observation.images.cam_h")
    data = bytearray(video.read_bytes())
    at = data.index(b"\xff\xd8", 100)
    data[at : at + 600] = bytes(600)
    video.write_bytes(data)


def damage_rows(out: Path) -> None:
    (file,) = sorted((out / "data").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-100])


def damage_info(out: Path) -> None:
    info = datasets.info(out)
    info["total_frames"] += 1
    (out / "meta/info.json").write_text(json.dumps(info))


@pytest.mark.parametrize("damage", [damage_video, damage_rows, damage_info])
def test_doctor_names_what_is_broken_and_does_not_exit_0(
    damage: object, bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock.convert(bag, tmp_path / "out")
    damage(tmp_path / "out")  # type: ignore[operator]
    assert main(["doctor", str(tmp_path / "out"), "--full"]) in (1, 3)
    printed = capsys.readouterr().out
    assert "NOT fine" in printed
    expected = {damage_video: "cam_h", damage_rows: "file-000.parquet", damage_info: "19"}[damage]
    assert expected in printed


def test_doctor_refuses_a_budget_that_its_libraries_exceed(data_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(data_set), "--memory", "50MiB"]) == 1
    assert "50 MiB" in capsys.readouterr().err


def test_doctor_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "missing")]) == 1
    assert "no such file or directory" in capsys.readouterr().err


def test_doctor_of_something_else_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert str(tmp_path) in printed.out + printed.err


# ── demo and env ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_demo_walks_the_whole_way_and_keeps_its_files_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--seconds", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for step in ("make", "inspect", "convert", "check", "read", "peak memory"):
        assert f"\n{step}" in "\n" + printed
    assert "byte for byte" in printed and "0 problems" in printed and "0 lost" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "demo.bag"]
    assert main(["doctor", "--full", str(tmp_path / "demo")]) == 0


@pytest.mark.parametrize("words", [["--seconds", "-3"], ["--seconds=nan"], ["--seconds=0.1"], ["--memory", "lots"]])
def test_a_wrong_call_of_demo_exits_2_before_it_makes_anything(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "here"), *words]) == 2
    assert not (tmp_path / "here").exists() and capsys.readouterr().out == ""


def test_demo_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "demo.bag").write_bytes(b"precious")
    assert main(["demo", "--seconds", "0.5", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "demo.bag").read_bytes() == b"precious"
    output = capsys.readouterr()
    assert "choose another --out" in output.err and output.out == ""


def test_demo_without_a_place_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["demo", "--seconds", "0.5"]) == 0
    assert "byte for byte" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_env_reports_limits_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    assert "memory" in capsys.readouterr().out
    assert main(["env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["auto_budget_bytes"] >= 2**28


# ── start-up ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_starting_the_command_loads_nothing_heavy() -> None:
    heavy = ("pyarrow", "cv2", "av", "rosbags", "rich", "psutil", "yaml", "torch", "pandas")
    start = "import sys; from penstock._src.cli import build_parser; build_parser()"
    code = f"{start}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_truncated_message_does_not_hide_the_rest_from_inspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = bags.write(tmp_path / "run.bag", change(bags.robot(0.3), STATE, 0, cut_by(30)))
    assert main(["inspect", str(bag), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["conversion"]["possible"]


def test_doctor_sends_an_hdf5_file_to_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    assert main(["doctor", str(tmp_path / "a.hdf5")]) == 2
    assert "is an HDF5 file" in (stderr := capsys.readouterr().err) and "penstock inspect" in stderr
