"""A job of very many inputs: what is kept of each in memory and in the report is small, and all of them are counted."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.conversion import report as reports
from penstock._src.conversion.commit import writing as input_progress
from penstock._src.conversion.commit.writing import InputProgress, JobInputs
from penstock._src.conversion.inputs.input import InputRef
from penstock._src.conversion.report import MovedBytes, NoProgress
from tests.conversion.bags import robot, write

STREAM = {"messages": 30, "skew_ms": {"p50": 0.25, "max": 7.5}, "gaps": []}
STREAMS = {f"/topic/{number}": STREAM for number in range(6)}


def episode_note(number: int, state: dict[str, Any], lost: int = 0) -> dict[str, Any]:
    alignment: dict[str, Any] = json.loads(json.dumps({"source": f"run-{number}.bag", "streams": STREAMS}))
    outcome = {"lost": {"gap": lost} if lost else {}, "notes": [f"note {number}"], "alignment": alignment}
    return {"input": number, "state": state, "outcome": outcome}


def inputs_of(count: int, **options: Any) -> JobInputs:
    found = (InputRef("recording", f"/data/fleet/day-0/run-{number:06d}.bag") for number in range(count))
    return JobInputs([InputProgress(each, 10) for each in found], **options)


def test_an_input_that_is_through_takes_less_than_half_a_kilobyte() -> None:
    """Tens of kilobytes each, before: what became of it was held until the report."""
    count = 4_000
    tracemalloc.start()
    inputs = inputs_of(count)
    for number in range(count):
        inputs.add_episode(episode_note(number, {"next_row": 30, "notes": []}))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    shown = sum(len(text) for text in inputs._alignments.values()) + sum(len(note) + 150 for note in inputs.notes)
    print(f"{(held - shown) / count:,.0f} bytes per input")
    assert (held - shown) / count < 500
    assert all(entry.is_finished and entry.state is None for entry in inputs.entries)


def test_the_report_shows_some_inputs_and_counts_all() -> None:
    inputs = inputs_of(3_000, first_new=1_000)
    for number in range(3_000):
        lost = 2 if number % 500 == 499 else 0
        inputs.add_episode(episode_note(number, {}, lost))
    assert inputs.lost == {"gap": 12} and inputs.lost_before == 4
    shown = [each["source"] for each in inputs.alignment()]
    assert len(shown) == input_progress.SHOWN_ALIGNMENTS
    assert shown[-6:] == [f"run-{number}.bag" for number in range(499, 3_000, 500)]  # who lost something is there
    assert shown[:90] == [f"run-{number}.bag" for number in range(90)]
    assert len(inputs.notes) == input_progress.SHOWN_NOTES and inputs.more_notes == 3_000 - input_progress.SHOWN_NOTES


def test_a_worker_knows_its_own_input_alone() -> None:
    inputs = JobInputs([InputProgress(InputRef("recording", Path("run.bag")), 0)], first=90_000)
    inputs.add_episode(episode_note(90_000, {}))
    assert inputs.entry(90_000).is_finished and len(inputs.entries) == 1


def test_moved_bytes_neither_go_back_nor_beyond_the_whole() -> None:
    calls: list[tuple[int, int]] = []

    class Heard(NoProgress):
        def moved(self, done_bytes: int, total_bytes: int) -> None:
            calls.append((done_bytes, total_bytes))

    moved = MovedBytes(Heard(), [10, 5])
    for number, done in ((0, 4), (0, 2), (1, 99), (0, 4)):
        moved(number, done)
    moved.done(0)
    assert calls == [(4, 15), (9, 15), (15, 15)]


def test_a_report_of_more_inputs_than_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock._src.conversion import job

    for module in (job, reports):
        monkeypatch.setattr(module, "SHOWN_SOURCES", 2)
    monkeypatch.setattr(input_progress, "SHOWN_ALIGNMENTS", 2)
    sources = [write(tmp_path / f"run_{n}.bag", robot(0.2, seed=n, width=32, height=24)) for n in range(4)]
    report = penstock.convert(sources, tmp_path / "out", jobs=1, memory="1GiB")
    assert report.inputs == 4 and report.episodes == 4
    assert report.bytes_in == sum(path.stat().st_size for path in sources)
    assert report.sources == tuple(map(str, sources[:2]))
    assert [Path(each["source"]).name for each in report.alignment] == ["run_0.bag", "run_1.bag"]
    assert reports.read_report(tmp_path / "out").to_json() == report.to_json()
