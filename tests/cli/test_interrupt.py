"""Stopping a conversion from outside: Ctrl-C leaves nothing, and a killed run is cleaned up by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock._src.demo.recording import Script, write_recording
from tests.conversion import datasets


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """900 images that take an encoder far longer than this test waits."""
    path = tmp_path_factory.mktemp("interrupt") / "run.bag"
    write_recording(path, Script(seconds=10, distinct_images=8))
    return path


def start(bag: Path, out: Path) -> subprocess.Popen[str]:
    """Begin a slow conversion and come back when it is writing video."""
    # A shell would do the same: the child must not inherit an ignored SIGINT.
    run = subprocess.Popen(
        [sys.executable, "-m", "penstock", "convert", str(bag), str(out), "video=h264"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    partial = out.with_name(out.name + ".penstock-partial")
    deadline = time.monotonic() + 60
    while not any(name.endswith(".mp4") for _, _, names in os.walk(partial) for name in names):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return run


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_batch_systems_end_exit_130_and_leave_nothing(bag: Path, tmp_path: Path, how: int) -> None:
    run = start(bag, tmp_path / "out")
    os.kill(run.pid, how)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert "wrote" not in out
    assert list(tmp_path.iterdir()) == []


def test_a_killed_conversion_is_cleaned_up_by_the_next(bag: Path, tmp_path: Path) -> None:
    run = start(bag, tmp_path / "out")
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=120)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.penstock-partial").is_dir()
    report = penstock.convert(bag, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert report.frames == 300
    assert datasets.problems(tmp_path / "out") == []
