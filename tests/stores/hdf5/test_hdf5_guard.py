"""The guard: healthy files cost a fork; what crashes or hangs there is asked again of a fresh process."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.load.replay import buffer
from penstock._src.stores.hdf5 import guard
from penstock.errors import ExternalRefused, LimitExceeded, StoreCorrupt
from tests.load.view_rows import open_files
from tests.stores import hdf5_files as files

PATHS = {0: Path("zero.h5"), 1: Path("one.h5")}
in_this_process = False  # a fork of the test sees what the test sets, a fresh process does not


def work(kind: str) -> str:
    return f"{__name__}:{kind}"


def count(arguments: Any) -> Iterator[guard.Line]:
    yield {"at": 0}
    for number in range(arguments):
        yield {"number": number, "forked": in_this_process}


def crash(arguments: Any) -> Iterator[guard.Line]:
    yield {"at": 1}
    if in_this_process or arguments == "always":
        os.kill(os.getpid(), signal.SIGSEGV)
    yield {"forked": in_this_process}


def hang(arguments: Any) -> Iterator[guard.Line]:
    yield {"at": 0}
    if in_this_process or arguments == "always":
        time.sleep(600)
    yield {"forked": in_this_process}


def refuse(arguments: Any) -> Iterator[guard.Line]:
    yield {"at": 0}
    if arguments == "limit":
        raise LimitExceeded("too many", size=7, limit=5)
    raise ExternalRefused("it leads elsewhere", target="secret.h5", hint="ask")


def collecting(arguments: Any) -> Iterator[guard.Line]:
    yield {"collects": gc.isenabled()}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.in_this_process", True)


@pytest.fixture
def only_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> Iterator[guard.Line]:
        raise AssertionError("a fresh process was started")

    monkeypatch.setattr(guard, "_in_fresh_process", never)


def test_healthy_files_start_no_process(tmp_path: Path, only_forks: None) -> None:
    for number in range(3):
        files.aloha(tmp_path / f"episode_{number}.hdf5", 3, task="stack")
    with penstock.open(tmp_path) as store:
        assert store.rows == 9 and store.task(0) == "stack"


def test_a_fork_gives_many_lines(here: None, only_forks: None) -> None:
    found = guard.run_guarded(work("count"), 20_000, PATHS)
    assert [line["number"] for line in found] == list(range(20_000)) and all(line["forked"] for line in found)


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_what_fails_in_a_fork_alone_is_no_error(here: None, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(guard, "FORK_TIMEOUT_S", 0.5)
    assert guard.run_guarded(work(kind), "once", PATHS) == [{"forked": False}]


def test_what_fails_everywhere_is_an_error_in_the_name_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreCorrupt, match=r"one\.h5 cannot be read: it crashes HDF5 \(SIGSEGV\)"):
        guard.run_guarded(work("crash"), "always", PATHS)
    monkeypatch.setattr(guard, "FORK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(guard, "TIMEOUT_S", 3.0)
    with pytest.raises(StoreCorrupt, match=r"zero\.h5 cannot be read: HDF5 does not return") as error:
        guard.run_guarded(work("hang"), "always", PATHS, "copy it again")
    assert "copy it again" in str(error.value)


def test_an_error_of_the_work_is_raised_as_it_was() -> None:
    with pytest.raises(ExternalRefused, match="it leads elsewhere") as refused:
        guard.run_guarded(work("refuse"), "", PATHS)
    assert refused.value.target == "secret.h5" and refused.value.hint == "ask"
    with pytest.raises(LimitExceeded, match="too many") as limit:
        guard.run_guarded(work("refuse"), "limit", PATHS)
    assert (limit.value.size, limit.value.limit) == (7, 5)


def test_threads_may_ask_at_once(here: None, only_forks: None) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(len(guard.run_guarded(work("count"), 50, PATHS))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * 6


def held() -> set[str]:
    """Open descriptors, and children of this thread that were not waited for."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return open_files() | set(children.read_text().split() if children.exists() else [])


@pytest.fixture
def keeps_signals() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGCHLD, signal.SIGUSR1)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def wait_for_all(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


@pytest.mark.parametrize("handler", [signal.SIG_IGN, wait_for_all])
def test_a_parent_that_waits_for_its_children_itself(
    here: None, monkeypatch: pytest.MonkeyPatch, keeps_signals: None, handler: Any
) -> None:
    monkeypatch.setattr(guard, "FORK_TIMEOUT_S", 0.5)
    before = held()
    signal.signal(signal.SIGCHLD, handler)
    assert len(guard.run_guarded(work("count"), 50, PATHS)) == 50
    assert guard._in_fork(work("crash"), "once") is None
    assert guard._in_fork(work("hang"), "once") is None
    assert not held() - before


def test_a_signal_during_the_fork_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, keeps_signals: None) -> None:
    def fork() -> int:
        pid = os_fork()
        if pid:
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # another thread may not block it
        return pid

    class Stop(BaseException):
        pass

    def raise_stop(*_: object) -> None:
        raise Stop

    os_fork = os.fork
    before = held()
    signal.signal(signal.SIGUSR1, raise_stop)
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(Stop):
        guard.run_guarded(work("count"), 50, PATHS)
    assert not held() - before


def test_the_garbage_of_a_parent_is_not_collected_in_a_fork(here: None, only_forks: None) -> None:
    found = guard.run_guarded(work("collecting"), None, PATHS)
    assert found == [{"collects": False}] and gc.isenabled()


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    files.aloha(tmp_path / "one.hdf5", 3)
    penstock.open(tmp_path / "one.hdf5").close()
    before = held()
    penstock.open(tmp_path / "one.hdf5").close()
    with pytest.raises(StoreCorrupt):
        guard.run_guarded(work("crash"), "always", PATHS)
    assert not held() - before


def test_the_forks_of_a_replay_buffer_are_counted_without_those_of_the_guard(tmp_path: Path) -> None:
    """Which child samples what must not depend on how many files were opened before, and by how many children."""
    files.aloha(tmp_path / "one.hdf5", 3)
    before = buffer._FORKS._count
    penstock.open(tmp_path / "one.hdf5").close()
    assert buffer._FORKS._count == before
