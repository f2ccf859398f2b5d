"""Fault 20: SIGKILL at any moment, with one process and with two; resumed, the bytes are as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.jobs import call_of_many as call
from tests.faults.jobs import contents, leftovers, make_sources

MOMENTS = 15  # for each number of jobs
MOST = 60  # where too many of them came when all was done
STUBBORN = 2  # of them are killed again and again, until they get through
_CONVERT = "import json, sys, penstock; penstock.convert(**json.loads(sys.argv[1]))"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_sources(tmp_path_factory.mktemp("recordings"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_20_killed_at_random_moments_and_resumed_gives_the_same_bytes(
    jobs: int, sources: list[Path], tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    process = _start(sources, undisturbed, jobs)
    lasts_s = _wait(process, undisturbed, 120)
    assert process.wait(120) == 0
    wanted = contents(undisturbed)
    chance = random.Random(jobs)
    kills = 0
    for moment in range(MOST):
        if moment >= MOMENTS and kills >= MOMENTS // 2:
            break
        out = tmp_path / f"out_{moment}"
        attempts = 12 if moment < STUBBORN else 1
        for _ in range(attempts):
            process = _start(sources, out, jobs)
            waited_s = _wait(process, out, chance.uniform(0, lasts_s))
            if process.poll() is not None:
                lasts_s = min(lasts_s, waited_s)  # the machine was busier before: from now on, earlier
            kills += process.poll() is None
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
            if process.wait(60) == 0:
                break
            assert process.returncode == -signal.SIGKILL
        assert _start(sources, out, jobs).wait(120) == 0
        assert contents(out) == wanted, moment
        assert leftovers(out) == [], moment
    assert kills >= MOMENTS // 2  # else nothing was tried


def _start(sources: list[Path], out: Path, jobs: int) -> subprocess.Popen[bytes]:
    words = json.dumps(call(sources, out, jobs=jobs, resume=True))
    return subprocess.Popen([sys.executable, "-c", _CONVERT, words], start_new_session=True)


def _wait(process: subprocess.Popen[bytes], out: Path, seconds: float) -> float:
    """Until the conversion has begun to write, and then for a moment: the start of Python is not what is tried.

    Returns for how long it wrote.
    """
    partial = Path(str(out) + ".penstock-partial")
    deadline = time.monotonic() + 60
    while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() < began + seconds:
        time.sleep(0.001)
    return time.monotonic() - began
