"""Fault 2: a bag, an mcap or a db3 that is cut at any byte.

Expected: all complete messages up to the cut are readable with `recover`; the offset is told; never a raw error.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock._src.cli import main
from tests.recordings.containers.makers import cdr_payload, ros1_payload
from tests.recordings.recovery.cases import (
    distinct_messages,
    end_of,
    lettered_messages,
    read_back,
    rows_of,
    tiny_bag,
    tiny_db3,
    tiny_mcap,
)


@pytest.mark.parametrize("kind", ["run.bag", "run.mcap", "run.db3"])
def test_fault_02_complete_messages_before_the_cut_come_back_and_the_offset_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    messages = lettered_messages(20, 2, 30, 300) if kind == "run.db3" else distinct_messages(20, 6)
    payload = ros1_payload if kind == "run.bag" else cdr_payload
    source, target = tmp_path / kind, tmp_path / f"new-{kind}"
    make = {"run.bag": tiny_bag, "run.mcap": tiny_mcap, "run.db3": tiny_db3}[kind]
    whole = make(source, messages)  # type: ignore[operator]
    for cut in range(len(whole) // 9, len(whole), len(whole) // 9):
        source.write_bytes(whole[:cut])
        expected = rows_of([m for m in messages if end_of(whole, m, payload) <= cut], payload)
        is_short = sum(expected.values()) < len(messages)
        for verb in ("inspect", "doctor"):
            # A file whose index alone is cut is scanned, and nothing is lost.
            assert main([verb, str(source)]) in ((1, 3) if is_short or kind == "run.db3" else (0, 3))
            shown = "".join(capsys.readouterr())
            assert "Traceback" not in shown
            assert any(words in shown for words in ("penstock recover", "cut", "no footer", "was scanned"))
        assert main(["recover", str(source), str(target), "--json", "--overwrite"]) in ((3,) if is_short else (0, 3))
        report = json.loads(capsys.readouterr().out)
        assert read_back(target) == expected
        assert any(cut in (damage["begin"], damage["end"]) for damage in report["damages"]), report
