"""penstock recover: what is printed, what is in the JSON, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock._src.cli import main
from tests.recordings.containers.makers import write_bag, write_mcap, write_rosbag2
from tests.recordings.recovery.cases import distinct_messages, mcap_record_at

MESSAGES = distinct_messages(30, 10)


def test_a_whole_recording_exits_0_and_says_that_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_mcap(tmp_path / "a.mcap", MESSAGES)
    assert main(["recover", str(source), str(tmp_path / "new.mcap")]) == 0
    shown = capsys.readouterr().out
    assert "/alpha" in shown and "damage" not in shown
    assert f"wrote {tmp_path / 'new.mcap'} · 30 messages · nothing lost" in shown


def test_an_index_that_is_cut_off_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_bag(tmp_path / "a.bag", MESSAGES, chunk_bytes=500)
    source.write_bytes(source.read_bytes()[:-400])
    assert main(["recover", str(source), str(tmp_path / "new.bag")]) == 0
    shown = capsys.readouterr().out
    assert "30 messages · nothing lost" in shown and "no message is missing" in shown


def test_a_loss_is_printed_with_its_bytes_and_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_mcap(tmp_path / "a.mcap", MESSAGES, chunk_size=500)
    data = bytearray(source.read_bytes())
    data[mcap_record_at(bytes(data), 6, 2) + 70] ^= 0xFF
    source.write_bytes(data)
    assert main(["recover", str(source), str(tmp_path / "new.mcap")]) == 3
    shown = capsys.readouterr().out
    assert "damage         a.mcap: bytes " in shown and " lost · " in shown
    assert main(["recover", str(source), str(tmp_path / "new.mcap"), "--json", "--overwrite"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["messages"] + report["lost_messages"] == 30
    assert f"{report['damages'][0]['begin']:,} … {report['damages'][0]['end']:,}" in shown
    assert main(["recover", str(source), str(tmp_path / "kept.mcap"), "--keep-suspect", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["messages"] >= report["messages"]


def test_refusals_go_to_stderr_with_their_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_bag(tmp_path / "a.bag", MESSAGES)
    (tmp_path / "new.bag").write_bytes(b"mine")
    for words, code, part in (
        ([str(source), str(tmp_path / "new.bag")], 1, "--overwrite"),
        ([str(source), str(source)], 2, "is the source"),
        ([str(source), str(tmp_path / "new.mcap")], 2, "end in .bag"),
        ([str(tmp_path / "gone.bag"), str(tmp_path / "x.bag")], 1, "no such file"),
    ):
        assert main(["recover", *words]) == code
        shown = capsys.readouterr()
        assert part in shown.err and shown.out == ""
    assert (tmp_path / "new.bag").read_bytes() == b"mine"


def test_a_bag_directory_becomes_a_bag_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bag = write_rosbag2(tmp_path / "bag", MESSAGES)
    (bag / "metadata.yaml").unlink()
    assert main(["recover", str(bag), str(tmp_path / "new")]) == 0
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["bag.db3", "metadata.yaml"]
    assert main(["doctor", str(tmp_path / "new")]) == 0
    assert "fine" in capsys.readouterr().out
    assert main(["recover", str(bag), str(tmp_path / "one.db3")]) == 2
    assert "name a directory" in capsys.readouterr().err


def test_doctor_of_a_recording_that_is_cut_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (write_bag(tmp_path / "a.bag", MESSAGES), write_rosbag2(tmp_path / "bag", MESSAGES) / "bag.db3"):
        assert main(["doctor", str(source)]) == 0
        capsys.readouterr()
        source.write_bytes(source.read_bytes()[:-500])
        assert main(["doctor", str(source)]) == 3
        shown = capsys.readouterr().out
        assert f"penstock recover {source} " in shown and "NOT fine" in shown
