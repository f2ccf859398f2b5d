"""Fault 19: a worker is killed. Its recording fails by name, the others do not, and nothing hangs or stays behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

import penstock
from penstock.errors import RecordingError
from tests.conversion.bags import robot, write
from tests.faults.jobs import leftovers


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("recordings")
    long = write(directory / "a_long.bag", robot(30.0, hz=50, width=320, height=240, distinct=30))
    return [long, *(write(directory / f"b_{n}.bag", robot(0.4, hz=50, width=320, height=240)) for n in range(2))]


class KillsTheLongOne(threading.Thread):
    """Kills the worker that converts a_long.bag as soon as it writes there."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self._worker_output = Path(str(out) + ".penstock-partial") / ".worker_outputs" / "000000" / "videos"
        self._over = threading.Event()
        self.killed = 0

    def run(self) -> None:
        while not self._over.wait(0.005):
            if self._worker_output.exists() and not self.killed:
                for child in psutil.Process().children():
                    if self._writes_there(child):
                        os.kill(child.pid, signal.SIGKILL)
                        self.killed += 1

    def _writes_there(self, child: psutil.Process) -> bool:
        try:
            return any(str(file.path).startswith(str(self._worker_output.parent)) for file in child.open_files())
        except psutil.Error:  # one that has just ended
            return False

    def __enter__(self) -> KillsTheLongOne:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def test_19_a_killed_worker_fails_its_recording_by_name(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with KillsTheLongOne(out) as killer, pytest.raises(RecordingError, match=r"a_long\.bag.*SIGKILL"):
        penstock.convert(sources, out, video="h264", jobs=2, memory="1GiB")
    assert killer.killed == 1
    assert not out.exists()
    _no_children()


def test_19_keep_going_finishes_the_rest_and_exits_3(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with KillsTheLongOne(out) as killer:
        report = penstock.convert(sources, out, video="h264", jobs=2, memory="1GiB", keep_going=True)
    assert killer.killed == 1
    assert report.exit_code == 3
    assert list(report.failed) == [str(sources[0])]
    assert report.episodes == 2
    assert leftovers(out) == []
    _no_children()


def _no_children() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _workers():
        time.sleep(0.05)
    assert not _workers()


def _workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        try:
            if "penstock._src.conversion.parallel.worker" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:  # one that has just ended
            continue
    return found
