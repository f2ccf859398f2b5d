"""penstock bench convert: one process per chunk size, measured from outside, as a table and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock._src.conversion.bench import Bench, BenchRun, bench_conversion
from penstock._src.demo.recording import Script, write_recording
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import UsageError

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
MIB = 1 << 20


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "run.bag"
    write_recording(path, Script(seconds=1, width=64, height=48))
    return path


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "bench", "convert", *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_each_chunk_size_is_measured_in_a_process_of_its_own(bag: Path, tmp_path: Path) -> None:
    sizes = ["0", "7", "auto"]
    ran = bench(str(bag), "--chunk-sizes", *sizes, "--output-dir", str(tmp_path), "--json", "--memory", "300MiB")
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["sources"] == [str(bag)]
    assert [trial["chunk_size"] for trial in found["trials"]] == sizes
    for trial in found["trials"]:
        assert (trial["episodes"], trial["frames"], trial["lost"], trial["exit_code"]) == (1, 30, 0, 0)
        assert 20 * MIB < trial["peak_bytes"] < 400 * MIB
        assert trial["budget_bytes"] == 300 * MIB
        assert trial["bytes_in"] == bag.stat().st_size
        assert trial["error"] is None
        assert 0 < trial["seconds"] < TIMEOUT_S
        assert open_data_set(Path(trial["out"])).info.total_frames == 30
    assert [line.split(":")[0] for line in ran.stderr.splitlines()] == [f"chunk_size {size}" for size in sizes]


def test_words_reach_the_conversion_and_a_failure_is_reported(bag: Path, tmp_path: Path) -> None:
    common = (str(bag), "--output-dir", str(tmp_path), "split_episodes=true", "--chunk-sizes")
    ran = bench(*common, "10")
    assert ran.returncode == 0, ran.stderr
    assert [cell.strip() for cell in ran.stdout.splitlines()[2].split("|")[4:6]] == ["3", "30"]
    again = bench(*common, "10", "15")  # 10 is there already; 15 is not
    assert again.returncode == 1
    assert "failed (1)" in again.stdout
    assert "chunk_size 10: penstock: " in again.stdout
    cells = [[cell.strip() for cell in line.split("|")] for line in again.stdout.splitlines()]
    assert [row[4] for row in cells if row[1:2] == ["15"]] == ["2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chunk-sizes", "many"], "'many' is not a number of rows"),
        (["--chunk-sizes", "5", "5"], "twice"),
        (["fps=10"], None),
    ],
)
def test_a_wrong_call_is_reported_before_anything_runs(
    bag: Path, tmp_path: Path, words: list[str], message: str | None
) -> None:
    source = [str(bag)] if message else []
    ran = bench(*source, *words, "--output-dir", str(tmp_path / "out"))
    assert ran.returncode == 2
    assert (message or "needs a recording") in ran.stderr
    assert not (tmp_path / "out" / "chunk_size_5").exists()


def test_a_killed_conversion_is_a_failed_trial() -> None:
    whole = BenchRun("0", "a", 0, 1.0, 100 * MIB, episodes=1, frames=10, lost=0)
    lossy = BenchRun("5", "b", 3, 1.0, 100 * MIB, episodes=1, frames=9, lost=1)
    killed = BenchRun("9", "c", -9, 1.0, 900 * MIB, error="ended by SIGKILL (out of memory?)")
    assert [Bench((), trials).exit_code for trials in ((whole,), (whole, lossy), (whole, lossy, killed))] == [0, 3, 1]
    lines = Bench((), (whole, lossy, killed)).lines()
    assert len({len(line) for line in lines[:5]}) == 1  # a table
    assert lines[-1] == "chunk_size 9: ended by SIGKILL (out of memory?)"


def test_a_trial_above_its_budget_is_named_below_the_table() -> None:
    kept = BenchRun("0", "a", 0, 1.0, 100 * MIB, budget_bytes=128 * MIB, episodes=1, frames=10, lost=0)
    over = BenchRun("5", "b", 0, 1.0, 157 * MIB, budget_bytes=132 * MIB, episodes=1, frames=10, lost=0)
    assert Bench((), (kept,)).lines()[-1].startswith("|")
    assert Bench((), (kept, over)).lines()[-1] == "chunk_size 5: above the budget of 132 MiB"


def test_the_same_chunk_size_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        bench_conversion(["x.bag"], tmp_path, ["1", "1"])
