"""Fault 19, politely: workers that are told to stop, that have no work when the job ends, or that lost their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import penstock
from penstock.errors import OutputExists
from tests.conversion.bags import Tape, robot, write
from tests.faults.jobs import leftovers

# A worker that does not end when it is told to would hold the job for an hour, not for the usual moment.
CONVERT = """
import sys
from penstock._src.conversion.parallel import pool
pool._STOP_TIMEOUT_S = 3600.0
pool._LATE_SIGNAL_S = float(sys.argv.pop(1))
from penstock._src.cli import entry
entry()
"""


def _robot(seconds: float) -> Tape:
    return robot(seconds, hz=50, width=320, height=240, distinct=30)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A short recording, and one that takes a while to encode."""
    directory = tmp_path_factory.mktemp("recordings")
    seconds = {"run_0.bag": 0.2, "run_1.bag": 20.0}
    return [write(directory / name, _robot(long)) for name, long in seconds.items()]


class Converting:
    """A conversion by two processes; entered when the first recording is joined and its worker has nothing to do."""

    def __init__(self, sources: list[Path], out: Path, told_last_s: float = 0.1) -> None:
        words = [*map(str, sources), str(out), "--jobs", "2", "--memory", "1GiB"]
        words += ["video=h264", "split_episodes=true", "rosbag.chunk_size=60"]  # it can be stopped between episodes
        self._partial = Path(str(out) + ".penstock-partial")
        self._worker_outputs = self._partial / ".worker_outputs"
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONVERT, str(told_last_s), "convert", *words],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Converting:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            first, second = (self._worker_outputs / name for name in ("000000", "000001"))
            # Not only gone: the second worker may be the first to begin.
            if (second / "videos").exists() and not first.exists() and _has_episode(self._partial):
                return self
            time.sleep(0.005)
        self.__exit__()
        raise AssertionError("the first recording was not joined while the second one was converted")

    def until_committed(self, worker_output: str) -> None:
        """A worker has committed an episode."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            if _has_episode(self._worker_outputs / worker_output):
                return
            time.sleep(0.005)
        raise AssertionError(f"nothing was committed to worker_output {worker_output}")

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def busy_worker(self) -> psutil.Process:
        below = str(self._worker_outputs / "000001")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:  # between two files it has none open
            for worker in self.workers():
                if any(file.path.startswith(below) for file in worker.open_files()):
                    return worker
            time.sleep(0.002)
        raise AssertionError("nobody writes the second recording")

    def end(self) -> str:
        """What it said, once it has ended."""
        _, stderr = self.process.communicate(timeout=150)
        return stderr

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # and the workers with it
        self.process.communicate()


def _has_episode(directory: Path) -> bool:
    journal = directory / "penstock" / "journal.jsonl"
    return journal.exists() and b'"type":"episode"' in journal.read_bytes()


def _wait_until_ended(worker: psutil.Process) -> None:
    """Whether or not its parent has asked what it ended with."""
    end = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        while worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.005)


def test_19_a_worker_that_is_asked_to_stop_fails_its_recording_by_name(sources: list[Path], tmp_path: Path) -> None:
    with Converting(sources, tmp_path / "out") as converting:
        converting.busy_worker().send_signal(signal.SIGTERM)
        stderr = converting.end()
    assert converting.process.returncode == 1
    assert "run_1.bag: the process that converted it ended: stopped by SIGTERM" in stderr
    assert "--resume continues" in stderr


@pytest.mark.parametrize("message", ["the job", "everybody", "everybody, the job last"])
def test_19_a_worker_without_work_does_not_hold_a_job_that_is_asked_to_stop(
    message: str, sources: list[Path], tmp_path: Path
) -> None:
    with Converting(sources, tmp_path / "out", told_last_s=60) as converting:
        workers, busy = converting.workers(), converting.busy_worker()
        for worker in workers if message != "the job" else []:
            worker.send_signal(signal.SIGTERM)  # as a batch system does, which knows all processes of a job
        if message == "everybody, the job last":
            _wait_until_ended(busy)
            time.sleep(0.5)  # and the job sees it
        converting.process.send_signal(signal.SIGTERM)
        stderr = converting.end()
    assert converting.process.returncode == 130
    assert "Traceback" not in stderr and "--resume continues" in stderr
    assert psutil.wait_procs(workers, timeout=60)[1] == []


@pytest.mark.parametrize(("parent", "code"), [("this process", 0), ("another one", 1)])
def test_19_a_worker_works_for_its_parent_alone(parent: str, code: int) -> None:
    """Whatever number that has: in a container it may be 1, which elsewhere means that the parent is gone."""
    number = os.getpid() if parent == "this process" else os.getpid() + 1
    command = [sys.executable, "-c", "from penstock._src.conversion.parallel.worker import entry; entry()", str(number)]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60).returncode == code


def test_19_workers_do_not_import_what_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [write(tmp_path / f"{n}.bag", robot(0.2, hz=50, width=64, height=48)) for n in range(2)]
    (tmp_path / "av.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    report = penstock.convert(sources, tmp_path / "out", video="h264", jobs=2, memory="1GiB")
    assert report.processes == 2 and report.episodes == 2
    assert leftovers(tmp_path / "out") == []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_19_what_workers_committed_outlives_a_job_that_has_joined_nothing(end: signal.Signals, tmp_path: Path) -> None:
    """The first recording is the longest: all others may be through when the job ends."""
    seconds = {"run_0.bag": 20.0, "run_1.bag": 0.2}
    sources = [write(tmp_path / name, _robot(long)) for name, long in seconds.items()]
    out = tmp_path / "out"
    converting = Converting(sources, out)
    try:
        for name in ("000000", "000001"):
            converting.until_committed(name)
        converting.process.send_signal(end)
        stderr = converting.end()
    finally:
        converting.__exit__()
    if end == signal.SIGTERM:
        assert converting.process.returncode == 130 and "kept" in stderr and "--resume continues" in stderr
    with pytest.raises(OutputExists, match="committed"):
        penstock.convert(sources, out, jobs=1)
    partial = Path(str(out) + ".penstock-partial")
    joined = (partial / "penstock/journal.jsonl").read_bytes().count(b'"type":"episode"')
    assert (joined > 0) == (end == signal.SIGTERM)  # told, it joins what comes next
    assert (partial / ".worker_outputs/000001/penstock/journal.jsonl").exists()
