"""The engine in a process of its own gives what threads give, and whatever happens to it, no sample is lost."""

from __future__ import annotations

import gc
import os
import random
import resource
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Clip, Loader, Mix, Window, profile
from penstock._src.load.process import engine as engine_module
from penstock._src.load.process.channel import Channel
from penstock._src.load.process.child import EngineLoop
from penstock._src.load.process.engine import EngineFailed, ProcessEngine
from penstock._src.load.process.spec import EngineStart
from penstock._src.system.memory import descendants
from penstock.errors import BudgetExceeded, PenstockError, StoreCorrupt, StoreError, UsageError
from tests.load.image_store import ArrayStore
from tests.load.process.stores import KILL, SEGFAULT, DeadlyStore, LockedStore, RefusingStore
from tests.load.view_rows import open_files

REPOSITORY = Path(__file__).resolve().parents[3]


def _loader(store: Any, window: Any = None, **words: Any) -> Loader:
    given = {"batch_size": 8, "image_size": (24, 32), "memory": "512MiB", "engine": "process", "output": "numpy"}
    return Loader(store, window, **{**given, **words})


def _copied(batches: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value if isinstance(value, list) else value.copy() for name, value in batch.items()}
            for batch in batches]  # fmt: skip


def _same(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> bool:
    return len(one) == len(two) and all(
        list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, two, strict=True)
    )


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until_gone(pid: int) -> None:
    for _ in range(3000):
        if not _is_running(pid):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


# The same batches


@pytest.mark.parametrize("view", ["off", "ram", "disk"])
@pytest.mark.parametrize("window", [Window(), Window(action=range(-2, 5), cam=[-1, 0]), Clip(3, stride=2)])
def test_batches_are_those_of_threads(window: Any, view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    store = ArrayStore([25, 14])
    found = {}
    for engine in ("thread", "process"):
        with _loader(store, window, view=view, engine=engine) as loader:
            found[engine] = [_copied(loader) for _ in range(2)]
            stats = loader.stats()
    assert all(_same(one, two) for one, two in zip(found["thread"], found["process"], strict=True))
    assert stats["engine"]["kind"] == "process" and stats["engine"]["restarts"] == 0
    assert stats["engine"]["private_bytes"] > 0
    if view != "off":
        assert all(each["rows"] > 0 for each in stats["views"].values()) and stats["view_hits"] > 0


def test_a_mix_of_stores(tmp_path: Path) -> None:
    mix = Mix([(ArrayStore([30], name="a"), 0.7), (ArrayStore([20], name="b"), 0.3)])
    found = {}
    for engine in ("thread", "process"):
        with _loader(mix, Window(columns=["raw", "state", "task"]), engine=engine) as loader:
            found[engine] = _copied(loader)
    assert _same(found["thread"], found["process"]) and "source" in found["process"][0]


def test_ranks_and_resume_are_exact() -> None:
    store = ArrayStore([50])
    with _loader(store, seed=3) as loader:
        whole = _copied(loader)
        second = _copied(loader)
    with _loader(store, seed=3) as loader:
        batches = iter(loader)
        first = _copied([next(batches) for _ in range(3)])
        state = loader.state_dict()
    with _loader(store, seed=3) as loader:
        loader.load_state_dict(state)
        rest = _copied(loader)
        assert _same(first + rest, whole) and _same(_copied(loader), second)
    parts = []
    for rank in range(2):
        with _loader(store, seed=3, shard=(rank, 2)) as loader:
            parts.append(_copied(loader))
    for number, (left, right) in enumerate(zip(*parts, strict=True)):
        assert np.array_equal(np.concatenate([left["index"], right["index"]]), whole[number]["index"])


def test_a_pass_that_is_left_in_the_middle_leaves_the_engine_ready() -> None:
    with _loader(ArrayStore([80])) as loader:
        for _ in range(5):
            for number, _ in enumerate(loader):
                if number == 2:
                    break
        loader.set_epoch(0)
        again = _copied(loader)
        assert loader.stats()["engine"]["restarts"] == 0
    with _loader(ArrayStore([80]), engine="thread") as loader:
        assert _same(again, _copied(loader))


def test_a_batch_that_is_kept_stays_as_it_is() -> None:
    with _loader(ArrayStore([64])) as loader:
        kept = list(loader)  # more than there are slots
        expected = _copied(kept)
        for _ in loader:
            pass
        assert _same(kept, expected)
        assert loader.stats()["batches"] == 16


def test_what_memory_cannot_keep_is_refused_with_the_numbers() -> None:
    store = ArrayStore([40], size=(1024, 1024))
    # Two threads on any machine: each takes a part of the memory.
    words: dict[str, Any] = {"image_size": None, "memory": "240MiB", "view": "off", "threads": 2}
    with _loader(store, Window(columns=["raw"]), **words) as loader:
        kept: list[Any] = []
        with pytest.raises(BudgetExceeded, match="are still held by your code"):
            kept.extend(loader)
        assert 3 <= len(kept) <= 5
        del kept
        assert len(_copied(loader)) == 5


def test_what_the_system_cannot_keep_is_refused_too() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with _loader(ArrayStore([400]), Window(columns=["state"]), batch_size=1) as loader:
        kept, batches = list[Any](), iter(loader)
        kept.append(next(batches))
        used = loader._budget.used_bytes
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, limit[1]))
            with pytest.raises(BudgetExceeded, match="are still held by your code, and the system refuses"):
                kept.extend(batches)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert loader._engine is not None
        added = len(loader._engine.slots) - loader.memory_split.slots
        assert added > 0 and loader._budget.used_bytes == used + added * loader.memory_split.slot_bytes
        del kept
        assert len(_copied(loader)) == 400


def test_samples_that_cannot_be_had_are_left_out_and_counted() -> None:
    store = ArrayStore([40], broken=[5, 17])
    with _loader(store, on_error="skip", max_skip_rate=0.2) as loader:
        found = np.concatenate([batch["index"] for batch in _copied(loader)])
        assert loader.stats()["skipped"] == 2
    assert sorted(found) == [row for row in range(40) if row not in (5, 17)]
    with _loader(store, shuffle=False) as loader, pytest.raises(StoreCorrupt, match="cam, row 5 "):
        next(iter(loader))


def test_an_error_of_the_work_itself_is_raised_where_it_belongs() -> None:
    with _loader(RefusingStore([40], first_bad=16), Window(columns=["task", "state"]), shuffle=False) as loader:
        batches = iter(loader)
        assert len(next(batches)["task"]) == 8 and len(next(batches)["task"]) == 8
        with pytest.raises(ZeroDivisionError, match="of task"):
            next(batches)
        loader.set_epoch(0)
        assert len(next(iter(loader))["task"]) == 8


# Faults


def test_an_engine_that_is_killed_at_any_moment_loses_no_sample() -> None:
    store, rng = ArrayStore([60, 61]), random.Random(5)
    with _loader(store, Window(action=range(3)), batch_size=4, view="ram", engine="thread") as loader:
        expected = [_copied(loader) for _ in range(2)]
    with _loader(store, Window(action=range(3)), batch_size=4, view="ram") as loader:
        found: list[list[dict[str, Any]]] = []
        killed = 0
        for _ in range(2):
            found.append([])
            for batch in loader:
                found[-1] += _copied([batch])
                if rng.random() < 0.2:
                    os.kill(loader.stats()["engine"]["pid"], signal.SIGKILL)
                    killed += 1
        assert 3 <= loader.stats()["engine"]["restarts"] <= killed  # one that is dead already is killed in vain
        assert any("started again" in note and "SIGKILL" in note for note in loader.notes)
    assert all(_same(one, two) for one, two in zip(expected, found, strict=True))


def test_an_image_that_crashes_the_decoder_twice_is_an_error_with_its_row() -> None:
    store = DeadlyStore([30], {13: SEGFAULT})
    with _loader(store, Window(columns=["raw"]), shuffle=False, view="off") as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(StoreCorrupt, match=r"raw, row 13 .*ended the engine process twice"):
            next(batches)
        assert loader.stats()["engine"]["restarts"] == 2


def test_images_that_crash_the_decoder_can_be_left_out() -> None:
    store = DeadlyStore([40], {13: SEGFAULT, 14: SEGFAULT, 30: SEGFAULT})
    with _loader(store, Window(columns=["raw"]), on_error="skip", max_skip_rate=0.2, view="off") as loader:
        found = np.concatenate([batch["index"] for batch in _copied(loader)])
        assert loader.stats()["skipped"] == 3
    assert sorted(found) == [row for row in range(40) if row not in (13, 14, 30)]


def test_batches_that_are_made_again_after_a_crash_have_one_thread() -> None:
    own, other = Channel.pair()
    spec: Any = None
    engine = EngineLoop(3, EngineStart(spec, one_by_one=2), Channel(other))
    threads = []
    engine._start_pool()
    for _ in range(3):
        threads.append(engine._pool.count)
        engine._count_batch()
    assert threads == [1, 1, 3], "two batches may hold the image to blame"
    engine._pool.close()
    own.close()
    engine._channel.close()


def test_an_image_that_takes_all_memory_is_found_too() -> None:
    store = DeadlyStore([24], {9: KILL})
    with _loader(store, Window(columns=["raw"]), shuffle=False, on_error="skip", view="off",
                 max_skip_rate=0.2) as loader:  # fmt: skip
        found = np.concatenate([batch["index"] for batch in _copied(loader)])
    assert sorted(found) == [row for row in range(24) if row != 9]


def test_an_engine_that_cannot_live_is_given_up_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._src.load.process.engine._COMMAND", "import os; os._exit(7)")
    with _loader(ArrayStore([20])) as loader, pytest.raises((EngineFailed, UsageError), match="exit code 7"):
        next(iter(loader))


def test_what_keeps_the_engine_from_starting_is_told_however_late_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    before, receive = set(descendants(os.getpid())), Channel.receive

    def late(channel: Channel, timeout_s: float | None = None) -> Any:
        for pid in set(descendants(os.getpid())) - before:
            _wait_until_gone(pid)
        return receive(channel, timeout_s)

    monkeypatch.setattr(Channel, "receive", late)
    with _loader(LockedStore([20])) as loader:
        for _ in range(2):
            with pytest.raises(StoreError, match="locked"):
                next(iter(loader))


def test_the_engine_is_in_a_session_of_its_own() -> None:
    with _loader(ArrayStore([20])) as loader:
        next(iter(loader))
        assert os.getsid(loader.stats()["engine"]["pid"]) != os.getsid(0)  # Ctrl-C at the terminal does not reach it


_HOLDING = """
    import os, sys, time
    from penstock import Loader
    from tests.load.image_store import ArrayStore

    if __name__ == "__main__":
        loader = Loader(ArrayStore([400]), batch_size=8, memory="512MiB", engine="process", output="numpy")
        batches = iter(loader)
        next(batches)
        if "fork" in sys.argv and os.fork() == 0:
            time.sleep(600)  # a child that holds all that its parent had open
        print(loader.stats()["engine"]["pid"], flush=True)
        while True:
            if next(batches, None) is None:
                batches = iter(loader)
"""


@pytest.mark.parametrize("words", [[], ["fork"]])
def test_the_engine_ends_with_a_training_that_is_killed(words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(textwrap.dedent(_HOLDING))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    with subprocess.Popen([sys.executable, str(script), *words], stdout=subprocess.PIPE, text=True, env=environment,
                          start_new_session=True) as training:  # fmt: skip
        try:
            assert training.stdout is not None
            engine = int(training.stdout.readline())
            assert _is_running(engine)
            training.kill()
            _wait_until_gone(engine)
        finally:
            os.killpg(training.pid, signal.SIGKILL)


_OWN_STORE = """
    import sys
    from penstock import Loader, Window
    from penstock.errors import UsageError
    from tests.load.image_store import ArrayStore

    class OwnStore(ArrayStore):
        def __reduce__(self):
            return OwnStore, self.arguments

    store = OwnStore([20])
    with Loader(store, batch_size=4, memory="512MiB", engine="process", output="numpy") as loader:
        try:
            next(iter(loader))
        except UsageError as error:
            print(error.message)
    import penstock._src.load.loader as module
    module.engine_for = lambda asked, target: ("process", "forced")
    with Loader(store, batch_size=4, memory="512MiB", output="numpy") as loader:
        print(len(list(loader)), loader.stats()["engine"]["kind"], loader.notes[-1])
"""


def test_a_store_of_the_users_own_script_is_loaded_by_threads(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(textwrap.dedent(_OWN_STORE))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=True)
    refused, by_threads = done.stdout.splitlines()
    assert 'engine="process": the store or the window cannot be sent to another process' in refused
    assert by_threads.startswith("5 thread engine: thread, because the store or the window cannot be sent")


# Where it is used from, and what is left behind


def test_it_works_from_a_thread_and_in_a_forked_child() -> None:
    store = ArrayStore([40])
    with _loader(store) as loader:
        expected: list[Any] = []
        thread = threading.Thread(target=lambda: expected.extend(_copied(loader)))
        thread.start()
        thread.join()
        assert len(expected) == 5
        loader.set_epoch(0)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if _same(_copied(loader), expected) else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _same(_copied(loader), expected)


def test_a_forked_child_takes_no_answer_from_its_parent() -> None:
    with _loader(ArrayStore([80]), shuffle=False, prefetch=3) as loader:
        batches = iter(loader)
        found = [next(batches)["index"].copy()]
        assert isinstance(loader._engine, ProcessEngine) and loader._engine.channel is not None
        while loader.n_ready < len(loader._engine.slots) - 1:
            time.sleep(0.01)
        found.append(next(batches)["index"].copy())  # one that was there: the answer to what it asks for is not read
        assert select.select([loader._engine.channel], [], [], 600)[0]
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except PenstockError as error:
                os._exit(0 if "forked child" in error.message and loader.n_ready == 0 else 1)
            except BaseException:
                os._exit(2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert select.select([loader._engine.channel], [], [], 0)[0]
        found += [batch["index"].copy() for batch in batches]
        assert np.array_equal(np.concatenate(found), np.arange(80))


def test_a_forked_child_that_lives_on_does_not_keep_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._src.load.process.engine._END_S", 60.0)
    with _loader(ArrayStore([40])) as loader:
        next(iter(loader))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # as long as its parent wants
            os._exit(0)
        try:
            assert isinstance(loader._engine, ProcessEngine) and loader._engine._process is not None
            process = loader._engine._process
            loader.close()
            assert process.returncode == 0  # it was not killed
        finally:
            os.close(read)
            os.close(write)
            os.waitpid(child, 0)


def test_an_engine_whose_threads_are_all_at_work_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_END_S", 30)
    loader = _loader(DeadlyStore([40], {9: 0}), Window(columns=["raw"]), threads=1, shuffle=False)
    batches = iter(loader)
    next(batches)
    engine = loader._engine
    assert isinstance(engine, ProcessEngine) and engine._process is not None
    while not any(mark.row == 9 for mark in engine._marks.read()):
        time.sleep(0.01)  # reading this row takes a minute
    engine._end()
    assert engine._process.returncode == 0  # it was not killed


def test_more_slots_than_messages_can_wait_are_asked_for_in_turn() -> None:
    """Neither process may wait until the other has taken its messages: both would, for ever."""
    with _loader(ArrayStore([300]), Window(columns=["raw"]), batch_size=1, threads=1, shuffle=False) as loader:
        kept = list(loader)
        batches = iter(loader)
        del kept
        rows = [int(next(batches)["index"][0]) for _ in range(10)]
        own = loader._pass
        assert own is not None and 100 < len(own._own._requests) <= 128
        assert rows + [int(batch["index"][0]) for batch in batches] == list(range(300))


def test_closing_ends_threads_that_wait_for_a_batch() -> None:
    loader = _loader(DeadlyStore([400], {}), Window(columns=["raw"]))
    batches = iter(loader)
    ended: list[Any] = []

    def take() -> None:
        try:
            for _ in batches:
                pass
        except UsageError as error:
            ended.append(error)

    next(batches)
    threads = [threading.Thread(target=take, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    loader.close()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("is_closed", [True, False])
def test_nothing_is_left_behind(is_closed: bool) -> None:
    files, children = open_files(), set(descendants(os.getpid()))
    for _ in range(3):
        loader = _loader(ArrayStore([40]), view="ram")
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        del batches
        if is_closed:
            loader.close()
        del loader
        gc.collect()
    assert open_files() - files == set()
    assert set(descendants(os.getpid())) - children == set()


def test_its_work_is_in_the_profile() -> None:
    was_enabled = profile.is_enabled()
    profile.enable()
    profile.reset()
    try:
        with _loader(ArrayStore([40]), Window(columns=["cam", "state"]), view="off") as loader:
            for _ in range(2):
                for _ in loader:
                    pass
            pid = loader.stats()["engine"]["pid"]
        spans = [span for span in profile.snapshot().spans if span.name in ("03b_image_decode", "00_TOTAL_getitem")]
    finally:
        if not was_enabled:
            profile.disable()
    calls = {name: sum(span.count for span in spans if span.name == name) for name in {span.name for span in spans}}
    assert calls == {"03b_image_decode": 80, "00_TOTAL_getitem": 80}
    assert {span.process for span in spans} == {pid}


def test_what_it_is_asked_for_is_checked() -> None:
    with pytest.raises(UsageError, match="engine='fiber'"):
        _loader(ArrayStore([20]), engine="fiber")
    with pytest.raises(BudgetExceeded, match="of the engine process"):
        _loader(ArrayStore([20]), memory="70MiB")
    with penstock.Loader(ArrayStore([20]), batch_size=8, memory="70MiB", output="numpy") as loader:
        assert any(note.startswith("engine: thread, for numpy batches") for note in loader.notes)
    assert issubclass(EngineFailed, PenstockError)
