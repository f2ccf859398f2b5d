"""Fault 21: Ctrl-C once commits what is whole and exits 130; twice stops now; both can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from tests.conversion.bags import robot, write
from tests.faults.jobs import call, contents, leftovers


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A short recording, and one that takes a while to encode."""
    directory = tmp_path_factory.mktemp("recordings")
    short = write(directory / "run_0.bag", robot(0.4, hz=50, width=320, height=240))
    long = write(directory / "run_1.bag", robot(8.0, hz=50, width=320, height=240))
    return [short, long]


SETTINGS = {"video": "h264", "split_episodes": False}


@pytest.fixture(scope="module")
def wanted(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    penstock.convert(**call(sources, out, **SETTINGS))
    return contents(out)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("presses", [1, 2])
def test_21_ctrl_c_exits_130_and_the_conversion_can_be_resumed(
    presses: int, jobs: int, sources: list[Path], wanted: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [*map(str, sources), str(out), "video=h264", "task=fold", "--jobs", str(jobs), "--memory", "1GiB"]
    words += ["rosbag.chunk_size=9"]
    code = "import sys; from penstock._src.cli import entry; entry()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "convert", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        _until_committed(process, out)
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "--resume" in stderr
    assert not out.exists()
    penstock.convert(**call(sources, out, resume=True, **SETTINGS))
    assert contents(out) == wanted
    assert leftovers(out) == []


def _until_committed(process: subprocess.Popen[str], out: Path) -> None:
    """The first recording is in the journal, and the second one under way."""
    journal = Path(str(out) + ".penstock-partial") / "penstock" / "journal.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b'"type":"episode"') >= 1:
            return
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    raise AssertionError("the first recording was not committed in a minute")
