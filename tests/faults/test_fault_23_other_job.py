"""Fault 23: resume with another configuration, other inputs or another version is refused, listing what differs."""

from __future__ import annotations

import json
import os
import signal
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import DataSetError, Interrupted, OutputExists, UsageError
from tests.faults.jobs import call, contents, make_sources


class StopAfter:
    """Presses Ctrl-C when so many rows are written."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def plan(self, lines: object) -> None: ...
    def moved(self, done_bytes: int, total_bytes: int) -> None: ...
    def note(self, text: str) -> None: ...

    def stage(self, stage: Any) -> None:
        if stage.at.startswith("row ") and int(stage.at.split()[1].replace(",", "")) >= self._rows:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def unfinished(tmp_path: Path) -> tuple[list[Path], Path]:
    """A conversion that was stopped after its third episode."""
    assert threading.current_thread() is threading.main_thread()
    sources, out = make_sources(tmp_path), tmp_path / "out"
    with pytest.raises(Interrupted):
        penstock.convert(**call(sources, out), progress=StopAfter(20))
    assert not out.exists()
    return sources, out


def test_23_the_same_call_goes_on(unfinished: tuple[list[Path], Path], tmp_path: Path) -> None:
    sources, out = unfinished
    penstock.convert(**call(sources, out, resume=True))
    penstock.convert(**call(sources, tmp_path / "undisturbed"))
    assert contents(out) == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda words, sources: words.update(task="pour"), "task: 'pour' instead of 'fold'"),
        (lambda words, sources: words.update(video="mjpeg", resize=[12, 16]), "resize"),
        (lambda words, sources: words["sources"].pop(), "run_2.bag is not given any more"),
        (lambda words, sources: words.update(strict=True), "with --strict"),
        (lambda words, sources: _touch(sources[1]), "run_1.bag has changed"),
    ],
)
def test_23_another_job_is_refused_and_the_difference_is_named(
    change: Callable[[dict[str, Any], list[Path]], object],
    named: str,
    unfinished: tuple[list[Path], Path],
) -> None:
    sources, out = unfinished
    words = call(sources, out, resume=True)
    change(words, sources)
    with pytest.raises(DataSetError) as refused:
        penstock.convert(**words)
    assert named in str(refused.value)
    assert not out.exists()
    assert Path(str(out) + ".penstock-partial").exists()  # and what is committed stays


def test_23_another_version_is_refused(unfinished: tuple[list[Path], Path]) -> None:
    sources, out = unfinished
    journal = Path(str(out) + ".penstock-partial") / "penstock" / "journal.jsonl"
    first, rest = journal.read_bytes().split(b"\n", 1)
    record = json.loads(first)["record"]
    record["identity"]["penstock"] = "0.0.1"
    text = json.dumps(record, separators=(",", ":")).encode()
    journal.write_bytes(b'{"crc":"%08x","record":%b}\n' % (zlib.crc32(text), text) + rest)
    with pytest.raises(DataSetError, match=r"penstock .* instead of 0\.0\.1"):
        penstock.convert(**call(sources, out, resume=True))


def test_23_an_unfinished_conversion_is_not_thrown_away_by_a_new_one(unfinished: tuple[list[Path], Path]) -> None:
    sources, out = unfinished
    with pytest.raises(OutputExists, match="3 episodes committed"):
        penstock.convert(**call(sources, out))
    penstock.convert(**call(sources, out, overwrite=True))
    assert out.exists()


def test_23_an_append_that_is_refused_promises_nothing(tmp_path: Path) -> None:
    """Its inputs or settings do not fit, nothing was added: there is nothing to resume."""
    sources, out = make_sources(tmp_path), tmp_path / "out"
    penstock.convert(**call(sources[:1], out))
    with pytest.raises(UsageError, match="there is nothing to append") as nothing_new:
        penstock.convert(**call(sources[:1], out, append=True))
    with pytest.raises(DataSetError, match="fps: 7 instead of null") as other:
        penstock.convert(**call(sources[1:2], out, append=True, fps=7))
    assert nothing_new.value.hint == "with --append --resume this is no error"
    assert "--resume" not in (other.value.hint or "")


def _touch(bag: Path) -> None:
    data = bytearray(bag.read_bytes())
    data[-1] ^= 1
    bag.write_bytes(bytes(data))
