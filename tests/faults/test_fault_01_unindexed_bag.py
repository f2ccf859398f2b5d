"""Fault 1: a ROS 1 bag without an index, or a `.bag.active`.

Expected: it is read by a scan, `doctor` names the command; `recover` scans to a new file, exit code 3, with counts.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock._src.cli import main
from tests.recordings.containers.makers import digest, ros1_payload, write_bag
from tests.recordings.recovery.cases import distinct_messages, read_back, rows_of

MESSAGES = distinct_messages(60, 20)


def _unindexed(path: Path, *, cut: int = 0) -> Path:
    """A bag as a killed recorder leaves it: no index, and the last chunk perhaps in the middle."""
    data = write_bag(path.parent / "whole.bag", MESSAGES, chunk_bytes=2000).read_bytes()
    (path.parent / "whole.bag").unlink()
    at = data.index(b"index_pos=") + 10
    index_at = int.from_bytes(data[at : at + 8], "little")
    path.write_bytes((data[:at] + bytes(8) + data[at + 8 : index_at])[: index_at - cut])
    return path


@pytest.mark.parametrize("name", ["run.bag.active", "run.bag"])
def test_fault_01_a_bag_without_index_is_scanned_and_doctor_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = _unindexed(tmp_path / name)
    for verb in ("inspect", "doctor"):
        assert main([verb, str(path)]) != 0
        shown = "".join(capsys.readouterr())
        assert "no index" in shown and "the bag was scanned" in shown
        assert verb == "inspect" or f"penstock recover {path} run-recovered.bag" in shown


@pytest.mark.parametrize(("cut", "least"), [(0, len(MESSAGES)), (900, len(MESSAGES) - 12)])
def test_fault_01_recover_scans_to_a_new_file_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int, least: int
) -> None:
    path = _unindexed(tmp_path / "run.bag.active", cut=cut)
    before = digest(path)
    assert main(["recover", str(path), str(tmp_path / "run.bag"), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert digest(path) == before
    rows = read_back(tmp_path / "run.bag")
    assert least <= report["messages"] == sum(rows.values())
    assert rows == rows_of(MESSAGES[: report["messages"]], ros1_payload)
    assert report["lost"] and report["damages"][-1]["end"] == path.stat().st_size
    assert main(["doctor", str(tmp_path / "run.bag")]) == 0
