"""Fault 8: timestamps backwards, duplicated, zero, with a jump; header times that are not the receive times.

Expected: told by `doctor`; the policy is explicit (`time: header|log`); no silent reorder.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import recordings
from penstock._src.cli import main
from penstock._src.recordings.ros1.writer import BagWriter
from tests.conversion import bags
from tests.conversion.bags import SECOND, START_NS, STATE


def _write(path: Path, tape: list[bags.Message]) -> Path:
    """In the order given, whatever the times say."""
    with BagWriter(path) as bag:
        ids: dict[str, int] = {}
        for message in tape:
            if message.topic not in ids:
                text, md5 = bags._store(1).generate_msgdef(message.content.type, ros_version=1)
                ids[message.topic] = bag.add_topic(message.topic, message.content.type, text, md5)
            bag.write(ids[message.topic], message.time_ns, bags.payload(message, 1))
    return path


def _joints(seconds: float = 2.0) -> list[bags.Message]:
    return bags.joints(STATE, bags.times(50, seconds))


def _at(tape: list[bags.Message], number: int, **changes: Any) -> list[bags.Message]:
    return [replace(message, **changes) if n == number else message for n, message in enumerate(tape)]


def _jumped(tape: list[bags.Message]) -> list[bags.Message]:
    return [replace(m, time_ns=m.time_ns + 3600 * SECOND) if n >= 60 else m for n, m in enumerate(tape)]


CLOCKS = {
    "backwards": (_at(_joints(), 40, time_ns=START_NS), "time runs backwards 1×, by up to 780 ms (message 40)"),
    "twice": (
        _at(_joints(), 40, time_ns=START_NS + 39 * SECOND // 50),
        "at the time of the message before: 1 of 100 messages",
    ),
    "zero": (_at(_joints(), 0, time_ns=0), "no receive time (0): 1 of 100 messages"),
    "jump": (_jumped(_joints()), "the clock jumps 1×, by up to 1 h"),
    "header": (
        [replace(m, stamp_ns=m.time_ns - 5 * SECOND) for m in _joints()],
        "100 of 100 header stamps lie more than 1.0 s from the receive time, at most 5.0 s before it",
    ),
    "header zero": ([replace(m, stamp_ns=0) for m in _joints()], "100 of 100 messages have a header stamp of 0"),
}


@pytest.mark.parametrize("case", CLOCKS)
def test_fault_08_doctor_reports_what_the_clocks_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    tape, expected = CLOCKS[case]
    path = _write(tmp_path / "run.bag", tape)
    assert main(["doctor", str(path), "--json"]) == 0  # strange, and nothing is lost
    problems = json.loads(capsys.readouterr().out)["problems"]
    reported = [problem["message"] for problem in problems if problem["where"] == STATE]
    assert any(message.startswith(expected) for message in reported), reported
    assert all(problem["severity"] == "info" for problem in problems)


def test_fault_08_a_recording_whose_clocks_agree_is_reported_to_be_fine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "run.bag", _joints())
    assert main(["doctor", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert main(["doctor", str(path), "--max-skew", "soon"]) == 2


def test_fault_08_messages_keep_the_order_of_the_file(tmp_path: Path) -> None:
    tape, _ = CLOCKS["backwards"]
    path = _write(tmp_path / "run.bag", tape)
    assert recordings.recover(path, tmp_path / "new.bag").exit_code == 0
    for file in (path, tmp_path / "new.bag"):
        with recordings.open(file) as recording:
            assert recording.times_ns(recording.topic(STATE)).tolist() == [message.time_ns for message in tape]


@pytest.mark.parametrize("clock", ["log", "header"])
def test_fault_08_the_clock_is_a_policy_and_a_reorder_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: str
) -> None:
    tape = bags.in_file_order(bags.robot(1, hz=50))
    states = [n for n, message in enumerate(tape) if message.topic == STATE]
    one, two = states[20], states[22]
    # Received in the wrong order; the stamps inside are right.
    tape[one], tape[two] = (
        replace(tape[one], time_ns=tape[two].time_ns),
        replace(tape[two], time_ns=tape[one].time_ns),
    )
    path = _write(tmp_path / "run.bag", tape)
    assert main(["convert", str(path), str(tmp_path / clock), "--json", f"time={clock}"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("time goes backwards" in note and "paired by time" in note for note in notes) == (clock == "log"), notes
