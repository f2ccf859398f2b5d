"""Fault 6: a hostile or broken message definition.

Expected: parse limits; SchemaError; no code is made from the text; the other topics are not hurt.
"""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest

from penstock import recordings
from penstock._src.cli import main
from penstock._src.recordings.ros1.writer import BagWriter
from penstock.errors import SchemaError
from tests.recordings.containers.makers import ros1_payload

# Whole and without a circle: only its depth is too much.
DEEP = "".join(f"{'=' * 80}\nMSG: a/T{n}\n{f'T{n + 1}' if n < 99 else 'int8'} x\n" for n in range(100))
HOSTILE = {
    "code in a name": "float64 __import__('os').system('touch /tmp/owned')\n",
    "code in a length": "float64[(lambda: 1)()] x\n",
    "code in a constant": "int32 X=exec('raise SystemExit')\nint32[X] y\n",
    "a type that holds itself": f"Evil x\n{'=' * 80}\nMSG: a/Evil\nEvil x\n",
    "a tower of types": f"T0 x\n{DEEP}",
    "a million fields": "int8 a\n" * 1_000_000,
    "a text of 4 MB": "# " + "x" * (4 << 20) + "\nint8 a\n",
    "an array of 2^63": "int8[9223372036854775808] x\n",
    "an unknown type": "nobody/Knows x\n",
    "control characters": "int8 a\0b\n",
    "no text at all": "",
}


def _bag(path: Path, text: str) -> Path:
    with BagWriter(path) as bag:
        evil = bag.add_topic("/evil", "a/Evil", text, "0" * 32)
        good = bag.add_topic("/good", "std_msgs/String", "string data\n", "0" * 32)
        for number in range(5):
            bag.write(evil, number + 1, b"\0" * 64)
            bag.write(good, number + 1, ros1_payload(f"<{number}>"))
    return path


@pytest.mark.parametrize("case", HOSTILE)
def test_fault_06_a_hostile_definition_is_a_schema_error_and_hurts_no_other_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    path = _bag(tmp_path / "a.bag", HOSTILE[case])
    with recordings.open(path):  # whatever is imported on the way, is now
        pass

    def no_code(*_: object, **__: object) -> None:
        raise AssertionError("a definition was compiled")

    for name in ("exec", "eval", "compile"):
        monkeypatch.setattr(builtins, name, no_code)
    with recordings.open(path) as recording:
        topic = recording.topic("/evil")
        assert topic.problem
        with pytest.raises(SchemaError):
            recording.decoder(topic)
        assert recording.decoder(recording.topic("/good")).decode(ros1_payload("hi")) == {"data": "hi"}
    monkeypatch.undo()
    assert main(["doctor", str(path), "--json"]) == (0 if case == "no text at all" else 3)
    report = json.loads(capsys.readouterr().out)
    assert [p["where"] for p in report["problems"] if "cannot be decoded" in p["message"]] == ["/evil"]
    assert main(["inspect", str(path)]) == 0
    assert "/good" in capsys.readouterr().out
