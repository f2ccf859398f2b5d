"""penstock convert, as a person types it: exit codes, streams, words with '='."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import yaml

import penstock
from penstock._src.cli import main
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, STATE, Jpeg, change, with_content

PROMISED = {"episodes", "frames", "lost", "seconds", "bytes_in", "bytes_out", "peak_rss_bytes", "alignment", "notes"}


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bags.write(tmp_path_factory.mktemp("cli") / "run.bag", bags.robot(0.6))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tape = change(bags.robot(0.6), CAM_H, 4, with_content(Jpeg(b"no image")))
    return bags.write(tmp_path_factory.mktemp("cli") / "broken.bag", tape)


def test_a_conversion_says_what_it_does_and_exits_0(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(bag), str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "run.bag" in out and "18 at 30 fps" in out and f"timeline {CAM_H}" in out
    assert "copied as JPEG: cam_h, cam_l" in out
    assert "observation.state 4 ← /joint_states (nearest" in out
    assert "0 lost" in out and "predicted" in out and "budget" in out


def test_json_is_one_object_on_stdout_and_the_report_in_the_output(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--json", str(bag), str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) >= PROMISED
    assert printed == json.loads((tmp_path / "out/penstock/report.json").read_text())


def test_the_verb_and_the_function_do_the_same(bag: Path, tmp_path: Path) -> None:
    words = ["task=stack", "rosbag.chunk_size=5", "--memory=400MiB"]
    assert main(["convert", str(bag), str(tmp_path / "verb"), *words]) == 0
    penstock.convert(bag, tmp_path / "function", task="stack", rosbag={"chunk_size": 5}, memory="400MiB")
    assert datasets.digests(tmp_path / "verb") == datasets.digests(tmp_path / "function")


def test_a_loss_is_reported_and_exits_3(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(broken), str(tmp_path / "out")]) == 3
    output = capsys.readouterr()
    assert f"1 · unusable message: {CAM_H}" in output.out and "1 lost" in output.out
    assert "note: broken.bag: 1 unusable message left out" in output.err


def test_strict_turns_a_loss_into_a_failure(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(broken), str(tmp_path / "out"), "--strict"]) == 1
    assert CAM_H in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["video=images", "SRC", "OUT", "--json"],
        ["SRC", "OUT", "--json", "video=images"],
        ["SRC", "--json", "OUT", "video=images"],
        ["--json", "SRC", "video=images", "--memory", "1GiB", "OUT"],
        ["SRC", "OUT", "--json", "--", "video=images"],
    ],
)
def test_words_may_stand_before_between_and_after_options(
    words: list[str], bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"SRC": str(bag), "OUT": str(tmp_path / "out")}
    assert main(["convert", *(places.get(word, word) for word in words)]) == 0
    assert json.loads(capsys.readouterr().out)["features"]["observation.images.cam_h"]["stored_as"] == "copied"
    assert not (tmp_path / "out/videos").exists()


@pytest.mark.parametrize("flags", [["--resume"], ["--append", "--resume"]])
def test_a_call_with_nothing_to_do_shows_what_is_there_and_not_what_was_moved(
    flags: list[str], bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(bag), str(tmp_path / "out")]
    assert main(words) == 0
    rows = datasets.info(tmp_path / "out")["total_frames"]
    assert f"wrote          {tmp_path / 'out'} · 1 episode · {rows} rows · 0 lost" in capsys.readouterr().out
    assert main([*words, *flags]) == 0
    assert capsys.readouterr().out == f"there          {tmp_path / 'out'} · 1 episode · {rows} rows · 0 lost\n"


def test_words_change_nested_keys_and_keys_with_dots(bag: Path, tmp_path: Path) -> None:
    config = tmp_path / "robot.yaml"
    tree = {"features": {"observation.images.h": {"topic": CAM_H}, "observation.state": {"topic": STATE}}}
    config.write_text(yaml.safe_dump(tree))
    words = ["features.observation.state.scale=2", "fps=15", "task=pick: the #3 cup", "resize=[24, 32]"]
    assert main(["convert", str(bag), str(tmp_path / "out"), "--config", str(config), *words]) == 0
    info = datasets.info(tmp_path / "out")
    assert info["fps"] == 15 and info["features"]["observation.images.h"]["shape"] == [24, 32, 3]
    assert datasets.episodes(tmp_path / "out")[0]["tasks"] == ["pick: the #3 cup"]
    plain = penstock.convert(bag, tmp_path / "plain", config=config, fps=15)
    assert plain.frames == info["total_frames"]
    doubled = datasets.values(tmp_path / "out", "observation.state")
    assert (doubled == datasets.values(tmp_path / "plain", "observation.state") * 2).all()


def test_a_new_feature_is_named_in_brackets(bag: Path, tmp_path: Path) -> None:
    words = [f"features[observation.images.h]={CAM_H}", f"features[observation.state].topic={STATE}"]
    assert main(["convert", str(bag), str(tmp_path / "out"), *words]) == 0
    features = datasets.info(tmp_path / "out")["features"]
    assert {"observation.images.h", "observation.state"} <= set(features) and "action" not in features


def test_a_path_with_an_equals_sign_is_a_path_when_it_exists(bag: Path, tmp_path: Path) -> None:
    (tmp_path / "speed=2.bag").write_bytes(bag.read_bytes())
    assert main(["convert", str(tmp_path / "speed=2.bag"), str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["SRC", "OUT", "fpss=30"], "did you mean 'fps'"),
        (["SRC", "OUT", "video=mpeg"], "did you mean 'mjpeg'"),
        (["SRC", "OUT", "rosbag.chunk=5"], "chunk_size"),
        (["SRC", "OUT", "--memory", "lots"], "lots"),
        (["SRC", "OUT", "--config", "missing.yaml"], "missing.yaml"),
        ([], "at least one source and an output"),
        (["SRC"], "at least one source and an output"),
        (["SRC", "fps=30"], "at least one source and an output"),
    ],
)
def test_a_wrong_call_exits_2_and_says_why(
    words: list[str], message: str, bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"SRC": str(bag), "OUT": str(tmp_path / "out")}
    assert main(["convert", *(places.get(word, word) for word in words)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["convert", "a", "b", "--fast"], ["invert"], [], ["env", "x=1"]])
def test_a_call_that_cannot_be_parsed_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: penstock" in capsys.readouterr().err


def test_a_missing_recording_exits_1_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path / "missing.bag"), str(tmp_path / "out")]) == 1
    assert "missing.bag" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"#ROSBAG V2.0\n", b"\x00" * 5000, b"PK\x03\x04 something else"])
@pytest.mark.parametrize("suffix", ["bag", "db3", "mcap"])
def test_a_file_that_is_no_recording_exits_1_and_names_it(
    content: bytes, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"odd.{suffix}"
    file.write_bytes(content)
    assert main(["convert", str(file), str(tmp_path / "out")]) == 1
    assert f"odd.{suffix}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


def test_an_existing_output_exits_1_until_it_may_be_replaced(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(bag), str(tmp_path / "out")]
    assert main(words) == 0
    assert main(words) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_a_budget_that_is_too_small_exits_1_with_both_numbers(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(bag), str(tmp_path / "out"), "--memory", "64MiB"]) == 1
    stderr = capsys.readouterr().err
    assert "64 MiB" in stderr and "needs" in stderr and "give --memory" in stderr


def test_an_error_of_the_system_exits_1_without_a_traceback(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "disk")

    monkeypatch.setattr("penstock._src.conversion.commit.writer.DataSetWriter.close", full)
    assert main(["convert", str(bag), str(tmp_path / "out")]) == 1
    assert "penstock: disk: No space left on device\n" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out.penstock-partial"]  # its one episode is committed


def test_a_full_disk_names_resume_before_the_first_episode_too(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    words = ["convert", str(bag), str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        assert main(words) == 1
    refusal = capsys.readouterr().err
    assert "No space left on device\n  → make room" in refusal
    assert "then run the same command with --resume: no episode was finished yet" in refusal
    assert main([*words, "--resume"]) == 0


def test_traceback_shows_the_error_itself(tmp_path: Path) -> None:
    with pytest.raises(penstock.PenstockError):
        main(["--traceback", "convert", str(tmp_path / "missing.bag"), str(tmp_path / "out")])
